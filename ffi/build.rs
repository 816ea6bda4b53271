//! How the shared library is linked.
//!
//! Invariant: it is `libnccl.so.2` to the loader, and needs nothing but the C library. Absent: a list of exported
//! names; rustc exports what the sources mark as such, and nothing else.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let of_target = |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    if of_target("OS") != "linux" {
        return;
    }
    // The name for which programs that were linked with NCCL ask the loader.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Threads of the library, and destructors of thread-local values, may outlive a dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if of_target("ENV") == "gnu" {
        // The unwinder, so that panics are caught without libgcc_s.so.1. The whole archive: the linker sees it before
        // the standard library, whose code refers to it. With it in place, `-lgcc_s` adds nothing.
        println!("cargo:rustc-link-lib=static:-bundle,+whole-archive=gcc_eh");
    }
}
