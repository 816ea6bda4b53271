//! How the shared library is linked.
//!
//! Invariant: it is `libcuda.so.1` to the loader. Absent: a list of exported names; rustc exports what the sources mark
//! as such.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
        // Its threads outlive a dlclose.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
