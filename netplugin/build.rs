//! How the shared library is linked.
//!
//! Invariant: it is `libnccl-net-consort.so` to the loader, and needs nothing but the C library. Absent: a list of exported
//! names; rustc exports what the sources mark as such, and nothing else.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let of_target = |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    if of_target("OS") != "linux" {
        return;
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-consort.so");
    // NCCL closes plugins; destructors of thread-local values may run later.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if of_target("ENV") == "gnu" {
        // As for `libnccl.so.2`: the unwinder without libgcc_s.so.1.
        println!("cargo:rustc-link-lib=static:-bundle,+whole-archive=gcc_eh");
    }
}
