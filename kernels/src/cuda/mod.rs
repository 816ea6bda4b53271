//! The kernels of GPUs, as the host sees them: what they are given (`layout`), their images, their names, their launch.
//!
//! Invariant: a device fold writes the bytes that [`crate::Reducer::fold`] would, whatever the number of blocks and
//! threads. The images were made of the sources in `kernels/cuda` by `kernels/cuda/generate`; a test compares hashes.
//!
//! Absent: what is folded with what, and when.

use std::ffi::CStr;

use crate::{DataType, ReduceOp};

mod launch;
pub mod layout;

pub use launch::{End, FoldJob, Kernels, RunShape, Table, Types, one_shot_blocks, threads_for};

/// The oldest devices that an image runs on, as major and minor compute capability.
pub const MIN_CAPABILITY: (u32, u32) = (8, 0);
/// Threads of a block, at most; and a multiple of [`WARP_THREADS`].
pub const MAX_BLOCK_THREADS: u32 = 512;
/// What the threads of a block are a multiple of.
pub const WARP_THREADS: u32 = 32;

/// The most dynamic shared memory of a block of [`Kernel::Run`], in bytes: with what the kernel has besides, no more
/// than the 48 KiB that every device gives a block without being asked for more.
pub const RUN_SHARED_BYTES_MAX: u32 = (48 << 10) - (1 << 10);

/// Dynamic shared memory, in bytes, that a launch of [`Kernel::Run`] needs: the largest of its programs'.
pub const fn run_shared_bytes(record_bytes: u32, counter_count: u32) -> u32 {
    record_bytes + 8 * counter_count
}

/// What the driver loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// For `cuModuleLoadData`: a cubin, or text that ends in a zero byte.
    pub bytes: &'static [u8],
    /// How the bytes are meant.
    pub form: Form,
    /// The file it was, for messages.
    pub name: &'static str,
}

/// How an image is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// PTX, which the driver compiles.
    Text,
    /// Machine code of one architecture.
    Binary,
}

/// What a kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Jobs without waits; its parameter is a [`layout::Folds`].
    Fold,
    /// The interpreter of plans; its parameter is the address of a [`layout::Launch`].
    Run,
    /// All-reduce in packets; its parameter is a [`layout::OneShot`].
    OneShot,
    /// All-reduce over mapped memory; its parameter is a [`layout::TwoShot`].
    TwoShot,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Kernel; 4] = [Kernel::Fold, Kernel::Run, Kernel::OneShot, Kernel::TwoShot];
}

/// A file of `kernels/cuda/images`: whose kernels, for which architecture (PTX for none), and its bytes.
struct File {
    types: usize,
    capability: Option<(u32, u32)>,
    image: Image,
}

macro_rules! text {
    ($types:literal, $name:literal) => {
        File {
            types: $types,
            capability: None,
            image: Image {
                bytes: concat!(include_str!(concat!("../../cuda/images/", $name)), "\0").as_bytes(),
                form: Form::Text,
                name: $name,
            },
        }
    };
}

macro_rules! binary {
    ($types:literal, $major:literal, $name:literal) => {
        File {
            types: $types,
            capability: Some(($major, 0)),
            image: Image {
                bytes: include_bytes!(concat!("../../cuda/images/", $name)),
                form: Form::Binary,
                name: $name,
            },
        }
    };
}

/// Where the kernels that reduce nothing stand among the types.
const COPY: usize = 12;

/// In the order of types, the text of each first. Types without a cubin are compiled by the driver.
static FILES: [File; 29] = [
    text!(0, "i8.ptx"),
    text!(1, "u8.ptx"),
    text!(2, "i32.ptx"),
    text!(3, "u32.ptx"),
    text!(4, "i64.ptx"),
    text!(5, "u64.ptx"),
    text!(6, "f16.ptx"),
    text!(7, "f32.ptx"),
    text!(8, "f64.ptx"),
    text!(9, "bf16.ptx"),
    text!(10, "f8e4m3.ptx"),
    text!(11, "f8e5m2.ptx"),
    text!(12, "copy.ptx"),
    binary!(6, 8, "f16.sm_80.cubin"),
    binary!(6, 9, "f16.sm_90.cubin"),
    binary!(6, 10, "f16.sm_100.cubin"),
    binary!(6, 12, "f16.sm_120.cubin"),
    binary!(7, 8, "f32.sm_80.cubin"),
    binary!(7, 9, "f32.sm_90.cubin"),
    binary!(7, 10, "f32.sm_100.cubin"),
    binary!(7, 12, "f32.sm_120.cubin"),
    binary!(9, 8, "bf16.sm_80.cubin"),
    binary!(9, 9, "bf16.sm_90.cubin"),
    binary!(9, 10, "bf16.sm_100.cubin"),
    binary!(9, 12, "bf16.sm_120.cubin"),
    binary!(12, 8, "copy.sm_80.cubin"),
    binary!(12, 9, "copy.sm_90.cubin"),
    binary!(12, 10, "copy.sm_100.cubin"),
    binary!(12, 12, "copy.sm_120.cubin"),
];

fn index(data_type: Option<DataType>) -> usize {
    data_type.map_or(COPY, |data_type| data_type.code() as usize)
}

/// The best image with the kernels of a type, or with those that reduce nothing, for a device of this compute
/// capability (major, minor): a cubin if one runs there, else PTX. Below [`MIN_CAPABILITY`] the driver refuses it.
pub fn image(data_type: Option<DataType>, capability: (u32, u32)) -> Image {
    let types = index(data_type);
    // Machine code runs on devices of the same major capability and no smaller a minor one.
    let runs = |made: (u32, u32)| made.0 == capability.0 && made.1 <= capability.1;
    let binary = FILES.iter().find(|file| file.types == types && file.capability.is_some_and(runs));
    binary.map_or_else(|| ptx(data_type), |file| file.image)
}

/// The same kernels as text.
pub fn ptx(data_type: Option<DataType>) -> Image {
    FILES[index(data_type)].image
}

macro_rules! names {
    ($($data_type:literal),*) => {
        [$(names!(@kinds $data_type)),*]
    };
    (@kinds $data_type:literal) => {
        [
            names!(@ops "fold", $data_type),
            names!(@ops "run", $data_type),
            names!(@ops "oneshot", $data_type),
            names!(@ops "twoshot", $data_type),
        ]
    };
    (@ops $kind:literal, $data_type:literal) => {
        [
            name(concat!("consort_", $kind, "_", $data_type, "_sum\0")),
            name(concat!("consort_", $kind, "_", $data_type, "_prod\0")),
            name(concat!("consort_", $kind, "_", $data_type, "_max\0")),
            name(concat!("consort_", $kind, "_", $data_type, "_min\0")),
        ]
    };
}

const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends in one zero byte"),
    }
}

/// By type, kernel and operator.
static NAMES: [[[&CStr; 4]; 4]; 12] =
    names!("i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2");

/// The name of a kernel in [`image`]. The mean is a sum: contributions that are raw, or a fold that finishes.
pub fn function_name(kernel: Kernel, data_type: DataType, op: ReduceOp) -> &'static CStr {
    let op = if op == ReduceOp::Avg { ReduceOp::Sum } else { op };
    NAMES[data_type.code() as usize][kernel as usize][op.code() as usize]
}

/// The name of the interpreter in the image of those that reduce nothing.
pub const RUN_COPY: &CStr = c"consort_run_copy";
/// The name of the fold kernel in the image of those that reduce nothing: every target gets the first source.
pub const FOLD_COPY: &CStr = c"consort_fold_copy";

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::path::Path;

    const MANIFEST: &str = include_str!("../../cuda/images/manifest.txt");
    const REMEDY: &str = "run kernels/cuda/generate with the directory of the wheels that it names";

    fn hash(parts: &[&[u8]]) -> String {
        let mut digest = Sha256::new();
        parts.iter().for_each(|part| digest.update(part));
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn lines(start: &str) -> Vec<Vec<&'static str>> {
        let lines = MANIFEST.lines().filter(|line| line.starts_with(start));
        lines.map(|line| line.split(' ').skip(1).collect()).collect()
    }

    #[test]
    fn images_were_made_of_these_sources() {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
        let files = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path());
        let is_source = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let ends = [".cu", ".cuh", ".h"].iter().any(|end| name.ends_with(end));
            name == "generate" || (ends && name != "host.cuh")
        };
        let mut files: Vec<_> = files.filter(is_source).collect();
        files.sort_by_key(|path| path.file_name().unwrap().to_owned());
        let texts: Vec<Vec<u8>> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
        let mut parts: Vec<&[u8]> = Vec::new();
        for (path, text) in files.iter().zip(&texts) {
            parts.extend([path.file_name().unwrap().as_encoded_bytes(), b"\0", &text[..], b"\0"]);
        }
        assert_eq!(lines("sources ")[0][0], hash(&parts), "the sources changed: {REMEDY}");
    }

    #[test]
    fn images_are_those_of_the_manifest() {
        let images = lines("image ");
        let mut names: Vec<&str> = FILES.iter().map(|file| file.image.name).collect();
        names.sort_unstable();
        assert_eq!(names, images.iter().map(|line| line[0]).collect::<Vec<_>>(), "{REMEDY}");
        for file in &FILES {
            let line = images.iter().find(|line| line[0] == file.image.name).unwrap();
            let bytes = match file.image.form {
                Form::Text => file.image.bytes.strip_suffix(b"\0").unwrap(),
                Form::Binary => file.image.bytes,
            };
            assert_eq!(hash(&[bytes]), line[1], "{} changed: {REMEDY}", file.image.name);
        }
    }

    #[test]
    fn nothing_spills() {
        let kernels = lines("kernel ");
        assert!(kernels.len() > 100);
        for line in kernels {
            let value = |what: &str| line[line.iter().position(|word| *word == what).unwrap() + 1];
            assert_eq!((value("spilled"), value("stack")), ("0", "0"), "{line:?}");
            assert!(value("registers").parse::<u32>().unwrap() <= 65536 / MAX_BLOCK_THREADS, "{line:?}");
            // Of the 48 KiB that a launch may have without being asked for more.
            assert!(value("shared").parse::<u32>().unwrap() + RUN_SHARED_BYTES_MAX <= 48 << 10, "{line:?}");
        }
    }

    #[test]
    fn every_name_is_in_its_image() {
        for data_type in DataType::ALL {
            let text = std::str::from_utf8(ptx(Some(data_type)).bytes).unwrap();
            for kernel in Kernel::ALL {
                for op in ReduceOp::ALL {
                    let entry = format!(
                        ".visible .entry {}(",
                        function_name(kernel, data_type, op).to_str().unwrap()
                    );
                    assert!(text.contains(&entry), "{data_type}: no {entry}");
                }
            }
        }
        let text = std::str::from_utf8(ptx(None).bytes).unwrap();
        for name in [RUN_COPY, FOLD_COPY] {
            assert!(text.contains(&format!(".visible .entry {}(", name.to_str().unwrap())));
        }
    }

    #[test]
    fn the_best_image_is_chosen() {
        let name = |data_type, capability| image(data_type, capability).name;
        assert_eq!(name(Some(DataType::Float32), (8, 0)), "f32.sm_80.cubin");
        assert_eq!(name(Some(DataType::Float32), (8, 9)), "f32.sm_80.cubin");
        assert_eq!(name(Some(DataType::Bfloat16), (9, 0)), "bf16.sm_90.cubin");
        assert_eq!(name(None, (10, 3)), "copy.sm_100.cubin");
        assert_eq!(name(Some(DataType::Float16), (12, 0)), "f16.sm_120.cubin");
        assert_eq!(name(Some(DataType::Float32), (11, 0)), "f32.ptx");
        assert_eq!(name(Some(DataType::Int8), (9, 0)), "i8.ptx");
        assert_eq!(image(None, (7, 5)), ptx(None));
    }
}
