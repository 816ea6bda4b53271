//! C and C++ compilers, the programs of `tests/c`, and the shared library that they are linked with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::system::skip;

/// The warnings under which this repository's headers and programs compile; each is an error.
pub const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// The workspace.
///
/// # Panics
/// Never, where the tests are in it.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Whether a compiler is installed; prints that where it is not.
pub fn has(compiler: &str) -> bool {
    let is_there =
        Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        skip(&format!("there is no {compiler}"));
    }
    is_there
}

/// The output of a command.
///
/// # Panics
/// If it fails, with all its output.
#[track_caller]
pub fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}\n{errors}", output.status);
    text
}

/// `libnccl.so` as cargo has built it: beside the test that runs.
///
/// # Panics
/// If it is not there.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let library = test.with_file_name("libnccl.so");
    assert!(library.exists(), "no {}", library.display());
    library
}

/// A directory with the library under both its names, for `-L` and the loader.
///
/// # Panics
/// If it cannot be made.
pub fn library_directory() -> PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| linked_as(&library(), "nccl", ["libnccl.so", "libnccl.so.2"])).clone()
}

/// A directory beside a library, in which it has these names.
///
/// # Panics
/// If it cannot be made.
pub(crate) fn linked_as(library: &Path, directory: &str, names: [&str; 2]) -> PathBuf {
    let place = library.with_file_name(directory);
    std::fs::create_dir_all(&place).expect("a directory beside the library");
    for name in names {
        // Other tests do this at the same time: a link appears in one step.
        let link = place.join(format!(".{name}.{}", std::process::id()));
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(library, &link).expect("a link");
        std::fs::rename(&link, place.join(name)).expect("its name");
    }
    place
}

/// The arguments that link a program with the library, and let it be found.
pub fn linked() -> [String; 4] {
    let place = library_directory().display().to_string();
    ["-L".to_owned(), place.clone(), format!("-Wl,-rpath,{place}"), "-lnccl".to_owned()]
}

/// A program that finds the library by its own search path alone.
pub fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    // Cargo's value would lead to an older build.
    command.env_remove("LD_LIBRARY_PATH");
    command
}

/// A program of `tests/c`, compiled in this language and linked with the library; `None` without its compiler.
///
/// # Panics
/// If it does not compile.
pub fn built(source: &str, compiler: &str, standard: &str) -> Option<PathBuf> {
    if !has(compiler) {
        return None;
    }
    let program = library_directory().join(format!("{source}{standard}"));
    let mut command = Command::new(compiler);
    command.arg(standard).args(STRICT).arg("-I").arg(root().join("include"));
    let language = if standard.contains("++") { "c++" } else { "c" };
    command.args(["-x", language]).arg(root().join("tests/c").join(source)).args(["-x", "none"]);
    succeeds(command.arg("-o").arg(&program).args(linked()).arg("-lpthread"));
    Some(program)
}

/// The output of a part of such a program, with these variables and without other variables of this library.
///
/// # Panics
/// If it fails, or does not reach its end.
#[track_caller]
pub fn prints(path: &Path, part: &str, variables: &[(&str, &str)]) -> String {
    let mut command = program(path);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CONSORT_")) {
        command.env_remove(name);
    }
    let text = succeeds(command.arg(part).envs(variables.iter().copied()));
    println!("{text}");
    assert!(text.ends_with("end\n"));
    text
}

/// The rest of the line that begins with `begin`.
///
/// # Panics
/// If there is none.
#[track_caller]
pub fn line<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_else(|| panic!("no {start:?} in {text}"))
}

/// The text between two lines.
///
/// # Panics
/// If they are not there.
#[track_caller]
pub fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no {start:?} in {text}"));
    rest.split_once(end).unwrap_or_else(|| panic!("no {end:?} in {text}")).0
}
