//! Network plugins: that of `tests/c/netplugin.c`, compiled, and our own.

use std::path::PathBuf;
use std::process::Command;

use crate::compiler::{has, root, succeeds};

/// Our own, as cargo has built it: beside the test that runs.
///
/// # Panics
/// If it is not there.
pub fn own_plugin() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let library = test.with_file_name("libnccl_net_consort.so");
    assert!(library.exists(), "no {}", library.display());
    library
}

/// The plugin with these definitions, as a shared object; `None` without a compiler.
///
/// # Panics
/// If it does not compile.
pub fn memory_plugin(definitions: &[&str]) -> Option<PathBuf> {
    if !has("cc") {
        return None;
    }
    let test = std::env::current_exe().expect("this test");
    let place = test.with_file_name("netplugins");
    std::fs::create_dir_all(&place).expect("a directory beside the test");
    let mut name = String::from("libnccl-net-memory");
    definitions
        .iter()
        .for_each(|definition| name += &format!("-{}", definition.to_lowercase().replace('=', "")));
    let plugin = place.join(format!("{name}.so"));
    // Other tests do this at the same time: it appears in one step.
    let new = place.join(format!(".{name}.{}", std::process::id()));
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]);
    command.args(definitions.iter().map(|definition| format!("-D{definition}")));
    command.arg(root().join("tests/c/netplugin.c")).arg("-o").arg(&new).arg("-lrt");
    succeeds(&mut command);
    std::fs::rename(&new, &plugin).expect("its name");
    Some(plugin)
}
