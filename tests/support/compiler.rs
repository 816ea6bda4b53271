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

/// Whether a compiler is there; says so if not.
pub fn has(compiler: &str) -> bool {
    let is_there =
        Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        skip(&format!("there is no {compiler}"));
    }
    is_there
}

/// What a command prints.
///
/// # Panics
/// If it fails, with all it said.
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
    let make = || {
        let library = library();
        let place = library.with_file_name("nccl");
        std::fs::create_dir_all(&place).expect("a directory beside the library");
        for name in ["libnccl.so", "libnccl.so.2"] {
            // Other tests do this at the same time: a link appears in one step.
            let link = place.join(format!(".{name}.{}", std::process::id()));
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&library, &link).expect("a link");
            std::fs::rename(&link, place.join(name)).expect("its name");
        }
        place
    };
    PLACE.get_or_init(make).clone()
}

/// The arguments that link a program with the library, and let it be found.
pub fn linked() -> [String; 4] {
    let place = library_directory().display().to_string();
    ["-L".to_owned(), place.clone(), format!("-Wl,-rpath,{place}"), "-lnccl".to_owned()]
}

/// A program that finds the library by its own search path alone.
pub fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    // Cargo's would lead to what was built by itself, perhaps long ago.
    command.env_remove("LD_LIBRARY_PATH");
    command
}
