//! The images of the device kernels: for every type one of PTX and one of machine code for each architecture.
//!
//! Invariant: the images are the files that `kernels/cuda/generate` has made, as its manifest lists them. They are
//! embedded compressed, and [`Image::bytes`] alone decompresses them. Absent: loading.

use std::fmt;

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

use crate::DataType;

/// A compressed file that the driver loads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// A zlib stream (RFC 1950).
    compressed: &'static [u8],
    /// Whether it is text or machine code.
    pub form: Form,
    /// The name of the file before compression, for messages: for example `f32.sm_90.cubin`.
    pub name: &'static str,
}

/// The form of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// PTX, which the driver compiles.
    Text,
    /// Machine code of one architecture.
    Binary,
}

/// A file that does not decompress to an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the compressed image {0} is damaged")]
pub struct Damaged(pub &'static str);

/// The longest image; `generate` refuses a longer one.
const IMAGE_BYTES_MAX: usize = 1 << 20;

impl Image {
    /// The image itself, for the driver: a cubin, or text without a zero at its end.
    ///
    /// # Errors
    /// If the compressed bytes have changed since they were made, by their checksum.
    pub fn bytes(&self) -> Result<Vec<u8>, Damaged> {
        decompress_to_vec_zlib_with_limit(self.compressed, IMAGE_BYTES_MAX).map_err(|_| Damaged(self.name))
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.compressed.len();
        f.debug_struct("Image")
            .field("name", &self.name)
            .field("compressed_bytes", &bytes)
            .finish_non_exhaustive()
    }
}

/// The compute capabilities (major, minor) with machine code.
const ARCHITECTURES: [(u32, u32); 4] = [(8, 0), (9, 0), (10, 0), (12, 0)];

/// The images of one type.
struct Images {
    text: Image,
    /// In the order of [`ARCHITECTURES`].
    binaries: [Image; 4],
}

macro_rules! file {
    ($form:ident, $name:expr) => {
        Image {
            compressed: include_bytes!(concat!("../../cuda/images/", $name, ".z")),
            form: Form::$form,
            name: $name,
        }
    };
}

macro_rules! images {
    ($($name:literal)*) => {
        [$(Images {
            text: file!(Text, concat!($name, ".ptx")),
            binaries: [
                file!(Binary, concat!($name, ".sm_80.cubin")),
                file!(Binary, concat!($name, ".sm_90.cubin")),
                file!(Binary, concat!($name, ".sm_100.cubin")),
                file!(Binary, concat!($name, ".sm_120.cubin")),
            ],
        }),*]
    };
}

/// In the order of the types' numbers; the image of the kernels that only copy comes last.
static IMAGES: [Images; 13] =
    images!["i8" "u8" "i32" "u32" "i64" "u64" "f16" "f32" "f64" "bf16" "f8e4m3" "f8e5m2" "copy"];

fn images(data_type: Option<DataType>) -> &'static Images {
    &IMAGES[data_type.map_or(IMAGES.len() - 1, |data_type| data_type.code() as usize)]
}

/// The best image with the kernels of a type, or with those that only copy, for a device of this compute capability
/// (major, minor): machine code that runs on the device if there is any, else PTX. Below [`super::MIN_CAPABILITY`]
/// the driver refuses it.
pub fn image(data_type: Option<DataType>, capability: (u32, u32)) -> Image {
    // Machine code runs on devices of the same major capability and an equal or higher minor one.
    let runs = |made: &(u32, u32)| made.0 == capability.0 && made.1 <= capability.1;
    let images = images(data_type);
    ARCHITECTURES.iter().position(runs).map_or(images.text, |at| images.binaries[at])
}

/// The same kernels as PTX.
pub fn ptx(data_type: Option<DataType>) -> Image {
    images(data_type).text
}

#[cfg(test)]
mod tests {
    use super::super::{FOLD_COPY, Kernel, MAX_BLOCK_THREADS, RUN_COPY, function_name};
    use super::*;
    use crate::ReduceOp;
    use sha2::{Digest, Sha256};
    use std::collections::BTreeSet;
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

    fn all() -> impl Iterator<Item = Image> {
        IMAGES.iter().flat_map(|images| [images.text].into_iter().chain(images.binaries))
    }

    fn types() -> impl Iterator<Item = Option<DataType>> {
        DataType::ALL.into_iter().map(Some).chain([None])
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
        let listed = lines("image ");
        let names: BTreeSet<&str> = all().map(|image| image.name).collect();
        assert_eq!(names, listed.iter().map(|line| line[0]).collect(), "{REMEDY}");
        for image in all() {
            let line = listed.iter().find(|line| line[0] == image.name).unwrap();
            let (bytes, file) = (image.bytes().unwrap(), image.compressed);
            let found = [hash(&[&bytes]), bytes.len().to_string(), hash(&[file]), file.len().to_string()];
            assert_eq!(found, [line[1], line[2], line[4], line[5]], "{} changed: {REMEDY}", image.name);
        }
    }

    #[test]
    fn every_type_has_machine_code() {
        let machines = [
            ((8, 0), 80),
            ((8, 6), 80),
            ((8, 9), 80),
            ((9, 0), 90),
            ((10, 0), 100),
            ((10, 3), 100),
            ((12, 0), 120),
        ];
        for (capability, made) in machines {
            for data_type in types() {
                let (best, text) = (image(data_type, capability), ptx(data_type));
                let stem = text.name.strip_suffix(".ptx").unwrap();
                let wanted = format!("{stem}.sm_{made}.cubin");
                assert_eq!((best.name, best.form), (&*wanted, Form::Binary), "{capability:?}");
                // EM_CUDA, in an ELF file.
                let bytes = best.bytes().unwrap();
                assert_eq!((&bytes[..4], &bytes[18..20]), (&b"\x7fELF"[..], &[190, 0][..]), "{wanted}");
            }
        }
    }

    #[test]
    fn devices_without_machine_code_get_text() {
        for capability in [(7, 5), (11, 0), (13, 0)] {
            types().for_each(|data_type| assert_eq!(image(data_type, capability), ptx(data_type)));
        }
    }

    #[test]
    fn a_damaged_image_is_an_error() {
        for image in [ptx(None), image(None, (8, 0))] {
            let damaged = |bytes: Vec<u8>| Image { compressed: bytes.leak(), ..image }.bytes();
            let whole = image.compressed;
            for at in (0..whole.len()).step_by(97).chain([0, 1, whole.len() - 1]) {
                let mut bytes = whole.to_vec();
                bytes[at] ^= 0x10;
                assert_eq!(damaged(bytes), Err(Damaged(image.name)), "byte {at} of {}", image.name);
                assert_eq!(
                    damaged(whole[..at].to_vec()),
                    Err(Damaged(image.name)),
                    "{at} bytes of {}",
                    image.name
                );
            }
        }
        // A stream that decompresses to more than the longest image.
        let endless = miniz_oxide::deflate::compress_to_vec_zlib(&vec![0; IMAGE_BYTES_MAX + 1], 6);
        let image = Image { compressed: endless.leak(), ..ptx(None) };
        assert_eq!(image.bytes(), Err(Damaged("copy.ptx")));
    }

    #[test]
    fn nothing_spills() {
        let kernels = lines("kernel ");
        assert!(kernels.len() > 100);
        for line in kernels {
            let value = |what: &str| line[line.iter().position(|word| *word == what).unwrap() + 1];
            assert_eq!((value("spilled"), value("stack")), ("0", "0"), "{line:?}");
            assert!(value("registers").parse::<u32>().unwrap() <= 65536 / MAX_BLOCK_THREADS, "{line:?}");
            assert!(
                value("shared").parse::<u32>().unwrap() <= super::super::STATIC_SHARED_BYTES_MAX,
                "{line:?}"
            );
        }
    }

    #[test]
    fn every_name_is_in_its_image() {
        let text = |data_type| String::from_utf8(ptx(data_type).bytes().unwrap()).unwrap();
        for data_type in DataType::ALL {
            let text = text(Some(data_type));
            for kernel in Kernel::ALL {
                for op in ReduceOp::ALL {
                    let name = function_name(kernel, data_type, op).to_str().unwrap();
                    let entry = format!(".visible .entry {name}(");
                    assert!(text.contains(&entry), "{data_type}: no {entry}");
                }
            }
        }
        for name in [RUN_COPY, FOLD_COPY] {
            assert!(text(None).contains(&format!(".visible .entry {}(", name.to_str().unwrap())));
        }
    }
}
