//! `nccl.h` and `nccl_device.h` as C and C++ compilers read them, beside NVIDIA's where those are at hand.
//!
//! NVIDIA's headers are those in `CONSORT_NCCL_INCLUDE`; or with `CONSORT_CLIENTS=1`, those that
//! `clients/fetch-nccl-header` downloads (305 MB, once).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use consort_tests::compiler::{STRICT, has, linked, program, root, succeeds};
use consort_tests::system::skip;

/// A compiler, its standard, and the ending of the sources it reads.
const LANGUAGES: [(&str, &str, &str); 8] = [
    ("cc", "-std=c99", "c"),
    ("cc", "-std=c11", "c"),
    ("cc", "-std=c17", "c"),
    ("c++", "-std=c++11", "cc"),
    ("c++", "-std=c++17", "cc"),
    ("c++", "-std=c++20", "cc"),
    ("clang", "-std=c99", "c"),
    ("clang++", "-std=c++17", "cc"),
];

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn ours() -> Vec<String> {
    vec![format!("-I{}", root().join("include").display())]
}

/// Headers that stand in for CUDA's.
fn cuda() -> String {
    format!("-I{}", root().join("tests/c/cuda").display())
}

/// The place of NVIDIA's headers, and the arguments to use them: they do not compile without CUDA's, nor without
/// warnings.
fn theirs() -> Option<Vec<String>> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        if let Some(place) = std::env::var_os("CONSORT_NCCL_INCLUDE") {
            let place = PathBuf::from(place);
            assert!(place.join("nccl.h").exists(), "no nccl.h in CONSORT_NCCL_INCLUDE={}", place.display());
            return Some(place);
        }
        if std::env::var("CONSORT_CLIENTS").as_deref() != Ok("1") {
            skip(
                "NVIDIA's headers: neither CONSORT_NCCL_INCLUDE=DIR nor CONSORT_CLIENTS=1 (a download) is set",
            );
            return None;
        }
        let place = scratch("nvidia-nccl");
        succeeds(Command::new(root().join("clients/fetch-nccl-header")).arg(&place));
        Some(place)
    };
    let place = PLACE.get_or_init(find).as_ref()?;
    Some(vec!["-isystem".to_owned(), place.display().to_string(), cuda()])
}

/// The compilers that are installed; those that are not are named once.
fn languages() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    static PRESENT: OnceLock<Vec<(&str, &str, &str)>> = OnceLock::new();
    let find = || LANGUAGES.into_iter().filter(|(compiler, ..)| has(compiler)).collect();
    PRESENT.get_or_init(find).iter().copied()
}

/// Whether this text compiles, without being linked.
fn reads(text: &str, name: &str, arguments: &[String]) {
    for (compiler, standard, ending) in languages() {
        let source = scratch(&format!("{name}.{ending}"));
        // C forbids a source that declares nothing.
        std::fs::write(&source, format!("{text}typedef int declared;\n")).expect("a source");
        let mut command = Command::new(compiler);
        command.args(["-fsyntax-only", standard]).args(STRICT).args(ours()).args(arguments);
        succeeds(command.arg(&source));
    }
}

/// The program's output for each compiler, compiled with these arguments.
fn prints(source: &str, name: &str, arguments: &[String], link: bool) -> BTreeSet<String> {
    let compile = |(compiler, standard, ending): (&str, &str, &str)| {
        let source = root().join("tests/c").join(format!("{source}.{ending}"));
        // NVIDIA's device headers begin with C++14.
        let too_old = standard == "-std=c++11" && arguments.iter().any(|argument| argument == "-isystem");
        if !source.exists() || too_old {
            return None;
        }
        let file = scratch(&format!("{name}-{compiler}{standard}"));
        let mut command = Command::new(compiler);
        command.arg(standard).args(STRICT).args(arguments).arg(source).arg("-o").arg(&file);
        if link {
            command.args(linked());
        }
        succeeds(&mut command);
        Some(succeeds(&mut program(&file)))
    };
    languages().filter_map(compile).collect()
}

fn with(arguments: &[&str]) -> Vec<String> {
    ours().into_iter().chain(arguments.iter().map(|argument| (*argument).to_owned())).collect()
}

#[test]
fn the_layout_is_nccls_for_every_compiler_with_and_without_cuda() {
    let cuda = cuda();
    let variants: [(&str, &[&str]); 5] = [
        ("plain", &[]),
        ("optimised", &["-O2"]),
        ("cuda", &[&cuda, "-DCONSORT_NCCL_CUDA=1"]),
        ("cuda-found", &[&cuda]),
        ("cuda-refused", &[&cuda, "-DCONSORT_NCCL_CUDA=0"]),
    ];
    let printed: BTreeSet<String> = variants
        .iter()
        .flat_map(|(name, arguments)| prints("layout", &format!("layout-{name}"), &with(arguments), false))
        .collect();
    if has("cc") || has("c++") {
        assert_eq!(printed.len(), 1, "the initializers differ: {printed:?}");
    }
}

#[test]
fn the_layout_is_that_of_nvidias_header() {
    let Some(mut arguments) = theirs() else { return };
    // Its initializer of the properties leaves most members to the compiler.
    arguments.push("-Wno-missing-field-initializers".to_owned());
    let theirs = prints("layout", "layout-theirs", &arguments, false);
    assert_eq!(theirs, prints("layout", "layout-ours", &ours(), false));
    assert!(!has("cc") || theirs.len() == 1);
}

#[test]
fn a_program_calls_the_library_whichever_header_it_was_compiled_with() {
    let ours = prints("version", "version-ours", &ours(), true);
    for text in &ours {
        println!("{text}");
        assert!(text.contains("compiled for 23203\n"), "{text}");
        assert!(
            text.contains("get version of nothing 4\n") && text.contains("get id 0, empty 0\n"),
            "{text}"
        );
        assert!(text.ends_with("sizes 128 8 120 72 24 16\n"), "{text}");
    }
    assert!(ours.len() <= 1, "{ours:?}");
    let Some(theirs) = theirs() else { return };
    assert_eq!(ours, prints("version", "version-theirs", &theirs, true));
}

#[test]
fn cuda_is_included_where_it_is_found_and_not_refused() {
    let found = "#include <nccl.h>\n#ifndef CUDA_STANDS_IN_HALF\n#error not included\n#endif\n";
    let absent = "#include <nccl.h>\n#ifdef CUDA_STANDS_IN_HALF\n#error included\n#endif\n";
    reads(found, "found", &[cuda()]);
    reads(absent, "absent", &[]);
    reads(absent, "refused", &[cuda(), "-DCONSORT_NCCL_CUDA=0".to_owned()]);
}

#[test]
fn streams_that_another_header_declares_are_no_conflict() {
    const STREAMS: &str =
        "typedef struct CUstream_st* cudaStream_t;\ntypedef struct CUevent_st* cudaEvent_t;\n";
    const USE: &str = "ncclResult_t made(ncclComm_t comm, cudaStream_t stream);\n";
    // C99 alone does not take a typedef twice.
    let twice = "#if defined(__cplusplus) || __STDC_VERSION__ >= 201112L\n";
    reads(&format!("{STREAMS}{twice}#include <nccl.h>\n{USE}#endif\n"), "before", &[]);
    reads(&format!("#include <nccl.h>\n{twice}{STREAMS}#endif\n{USE}"), "later", &[]);
    reads(&format!("{STREAMS}#define CONSORT_NCCL_STREAM_TYPES\n#include <nccl.h>\n{USE}"), "said", &[]);
    // CUDA's own, from a place that is not searched, and its mark that they are there.
    reads(&format!("#define __DRIVER_TYPES_H__\n{STREAMS}#include <nccl.h>\n{USE}"), "marked", &[]);
    let place = root().join("tests/c/cuda/cuda_runtime.h");
    let cuda = format!("#include \"{}\"\n", place.display());
    reads(&format!("{twice}{cuda}#include <nccl.h>\n{USE}#endif\n"), "path", &[]);
}

#[test]
fn the_headers_go_together_in_any_order() {
    let headers = ["nccl.h", "nccl_device.h", "nccl_device/host.h", "consort.h"];
    for first in headers {
        for second in headers {
            let name = format!("{first}-{second}").replace(['/', '.'], "_");
            reads(&format!("#include <{first}>\n#include <{second}>\n"), &name, &[]);
        }
    }
    let Some(theirs) = theirs() else { return };
    // NVIDIA's headers, and the one of this library that goes with them.
    let consort = scratch("consort-alone");
    std::fs::create_dir_all(&consort).expect("a directory");
    std::fs::copy(root().join("include/consort.h"), consort.join("consort.h")).expect("a copy");
    for (compiler, standard, ending) in languages() {
        let source = scratch(&format!("theirs.{ending}"));
        std::fs::write(&source, "#include <consort.h>\nconsortResult_t of(ncclConfig_t*);\n")
            .expect("a source");
        let mut command = Command::new(compiler);
        command.args(["-fsyntax-only", standard]).args(STRICT).args(&theirs).arg("-I").arg(&consort);
        succeeds(command.arg(&source));
    }
}

/// The functions that a header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("include").join(header)).expect("a header");
    let declaration = |line: &str| {
        let line = line.strip_prefix("NCCL_EXTERN_C ").unwrap_or(line);
        let line = ["ncclResult_t ", "ncclTeam_t ", "const char* ", "int ", "void "]
            .iter()
            .find_map(|start| line.strip_prefix(start))?;
        let (name, _) = line.split_once('(')?;
        (name.starts_with("nccl") || name.starts_with("pnccl")).then(|| name.to_owned())
    };
    text.lines().filter_map(declaration).collect()
}

#[test]
fn the_headers_declare_what_the_library_is_to_export() {
    let list = std::fs::read_to_string(root().join("tests/c/nccl-symbols.txt")).expect("the list");
    let mut listed: BTreeSet<String> = list.lines().map(str::to_owned).collect();
    let (host, device) = (declared("nccl.h"), declared("nccl_device/host.h"));
    // Functions that no header has, NVIDIA's neither: the twins of the device interface, and one more.
    listed.remove("ncclResetDebugInitInternal");
    listed.retain(|name| !name.strip_prefix('p').is_some_and(|name| device.contains(name)));
    assert_eq!((host.len(), device.len()), (2 * 73, 23));
    assert_eq!(listed, host.union(&device).cloned().collect());
}
