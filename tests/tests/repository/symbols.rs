//! `libnccl.so.2` as a loader and its clients see it: names, dependencies, and that panics end inside.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use consort_tests::compiler::{has, library, program, root, succeeds};
use consort_tests::elf::Dynamic;

/// The names in a list of `tests/c`.
fn names(list: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("tests/c").join(list)).expect("a list of names");
    text.lines().map(str::to_owned).collect()
}

fn joined<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(String::as_str).collect::<Vec<_>>().join(" ")
}

#[test]
fn it_exports_all_of_nccls_names_and_of_others_only_its_own() {
    let (wanted, exported) = (names("nccl-symbols.txt"), Dynamic::of(&library()).exported);
    assert_eq!(wanted.len(), 193);
    let missing: Vec<&String> = wanted.difference(&exported).collect();
    let foreign = exported.difference(&wanted).filter(|name| !name.starts_with("consort"));
    assert_eq!(joined(foreign), "", "exported, and neither NCCL's nor ours");
    assert!(missing.is_empty(), "{} are missing: {}", missing.len(), joined(missing.into_iter()));
}

#[test]
fn it_exports_what_pytorch_asks_for() {
    let (wanted, exported) = (names("torch-symbols.txt"), Dynamic::of(&library()).exported);
    assert_eq!(wanted.len(), 51);
    assert_eq!(joined(wanted.difference(&exported)), "", "an import of torch fails without them");
}

#[test]
fn the_lists_agree() {
    let nccl = names("nccl-symbols.txt");
    assert!(names("torch-symbols.txt").is_subset(&nccl));
    // Every name is there twice, but for one that NCCL has without a header.
    let (twins, names): (BTreeSet<_>, BTreeSet<_>) = nccl.iter().partition(|name| name.starts_with('p'));
    let twins: BTreeSet<&str> = twins.iter().map(|name| &name[1..]).collect();
    let alone: Vec<&&String> = names.iter().filter(|name| !twins.contains(name.as_str())).collect();
    assert_eq!((twins.len(), format!("{alone:?}")), (96, "[\"ncclResetDebugInitInternal\"]".to_owned()));
}

#[test]
fn a_loader_takes_it_for_nccl_and_needs_the_c_library_alone() {
    /// `DF_1_NODELETE`.
    const STAYS: u64 = 8;

    let library = Dynamic::of(&library());
    assert_eq!(library.soname.as_deref(), Some("libnccl.so.2"));
    let allowed = ["libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];
    assert!(library.needed.iter().all(|name| allowed.contains(&name.as_str())), "{:?}", library.needed);
    assert!(!library.defines_versions, "clients bind to bare names");
    assert_eq!(library.flags & STAYS, STAYS, "a dlclose would take the code of running threads away");
    println!("needs {:?} of the C library", library.versions);
}

#[test]
fn the_version_is_a_text_in_the_file() {
    let file = std::fs::read(library()).expect("the library");
    let text = b"NCCL version 2.32.3+consort";
    assert!(file.windows(text.len()).any(|window| window == text), "tools look for it in the file");
}

/// A library that is linked like this one, which panics where it is asked to.
const PANICS: &str = include_str!("../../c/panics.rs");

const ASKS: &str = r#"
#include <stdio.h>
int ends_well(int number);
int main(void) {
  printf("%d %d\n", ends_well(1), ends_well(7));
  return 0;
}
"#;

#[test]
fn a_panic_is_caught_without_the_unwinder_of_the_system() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    if !has("cc") || !has(&rustc) {
        return;
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("panics");
    std::fs::create_dir_all(&place).expect("a directory");
    std::fs::write(place.join("panics.rs"), PANICS).expect("a source");
    std::fs::write(place.join("asks.c"), ASKS).expect("a source");
    // The very line of the build script, so that both change together.
    let build = std::fs::read_to_string(root().join("ffi/build.rs")).expect("the build script");
    let (_, link) = build.split_once("cargo:rustc-link-lib=").expect("how it links the unwinder");
    let (link, _) = link.split_once('"').expect("the end of it");
    let mut compile = Command::new(&rustc);
    compile.current_dir(&place).args(["--edition=2024", "--crate-type=cdylib", "-l", link, "panics.rs"]);
    succeeds(&mut compile);
    let needed = Dynamic::of(&place.join("libpanics.so")).needed;
    assert!(!needed.iter().any(|name| name.contains("gcc")), "{needed:?}");
    let run_path = format!("-Wl,-rpath,{}", place.display());
    let mut link = Command::new("cc");
    succeeds(link.current_dir(&place).args(["asks.c", "-o", "asks", "-L.", "-lpanics", &run_path]));
    // Nothing to catch; then caught (10), and what was begun undone (1).
    assert_eq!(succeeds(&mut program(&place.join("asks"))), "0 11\n");
}
