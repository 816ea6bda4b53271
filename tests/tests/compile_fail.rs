//! Misuse that must not compile. The snapshots are of the compiler that `.ci/run` uses; another one may word its
//! messages differently, so they are only compared with that minor version.

#[test]
fn misuse_does_not_compile() {
    const SNAPSHOTS_OF: &str = "rustc 1.95.";
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(rustc).arg("--version").output();
    let version =
        version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    if !version.starts_with(SNAPSHOTS_OF) {
        consort_tests::system::skip(&format!("the snapshots are of {SNAPSHOTS_OF}x, and this is {version}"));
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
