//! The built library as a program finds it, and tests that are processes of their own: the library reads its variables
//! once.
//!
//! Invariant: functions are called by the names and types that NVIDIA gives them. Absent: what is tested.

use std::ffi::{CStr, CString, c_void};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Says in a child which test it is.
const CHILD: &str = "CONSORT_STANDIN_TEST_CHILD";

/// The address of a function of the library that cargo has built beside this test.
pub(crate) fn symbol(name: &str) -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        let path = std::env::current_exe().expect("this test").with_file_name("libcuda.so");
        let path = CString::new(path.to_str().expect("a path")).expect("a path");
        // SAFETY: a path that ends with a zero, to a library of ours.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?} does not open");
        library as usize
    });
    let name = CString::new(name).expect("a name");
    // SAFETY: an open library, a name that ends with a zero.
    let address = unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) };
    assert!(!address.is_null(), "no {name:?}");
    address
}

/// Calls a function with arguments of the given types; the result is a `CUresult`.
macro_rules! cu {
    ($name:ident($($argument:expr => $type:ty),* $(,)?)) => {{
        let address = $crate::support::symbol(stringify!($name));
        // SAFETY: the type is that of NVIDIA's header; the tests give it places that live while it runs.
        let function: extern "C" fn($($type),*) -> u32 = unsafe { std::mem::transmute(address) };
        function($($argument),*)
    }};
}

/// As [`cu!`], and it must succeed.
macro_rules! ok {
    ($name:ident($($argument:tt)*)) => {
        assert_eq!(cu!($name($($argument)*)), 0, stringify!($name))
    };
}

/// In a child, starts the driver and retains the primary context of device 0; gives its handle.
pub(crate) fn start() -> u64 {
    ok!(cuInit(0 => u32));
    let mut context = 0u64;
    ok!(cuDevicePrimaryCtxRetain(&mut context => *mut u64, 0 => i32));
    ok!(cuCtxSetCurrent(context => u64));
    context
}

pub(crate) fn allocate(bytes: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemAlloc_v2(&mut address => *mut u64, bytes => usize));
    address
}

pub(crate) fn stream(flags: u32) -> u64 {
    let mut stream = 0;
    ok!(cuStreamCreate(&mut stream => *mut u64, flags => u32));
    stream
}

/// Pinned words, zeroed.
pub(crate) fn pinned(bytes: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemHostAlloc(&mut address => *mut u64, bytes => usize, 3 => u32));
    address
}

/// What a pinned word holds.
pub(crate) fn word(address: u64) -> &'static std::sync::atomic::AtomicU64 {
    // SAFETY: pinned memory of this test, aligned, never given back, used as atomics alone.
    unsafe { &*(address as *const std::sync::atomic::AtomicU64) }
}

pub(crate) fn write(to: u64, bytes: &[u8]) {
    ok!(cuMemcpyHtoD_v2(to => u64, bytes.as_ptr() => *const u8, bytes.len() => usize));
}

pub(crate) fn read(from: u64, bytes: usize) -> Vec<u8> {
    let mut all = vec![0u8; bytes];
    ok!(cuMemcpyDtoH_v2(all.as_mut_ptr() => *mut u8, from => u64, bytes => usize));
    all
}

pub(crate) fn module(text: &str) -> u64 {
    let (text, mut module) = (CString::new(text).expect("a text"), 0);
    ok!(cuModuleLoadData(&mut module => *mut u64, text.as_ptr() => *const std::ffi::c_char));
    module
}

pub(crate) fn function(module: u64, name: &CStr) -> u64 {
    let mut function = 0;
    ok!(cuModuleGetFunction(&mut function => *mut u64, module => u64, name.as_ptr() => *const std::ffi::c_char));
    function
}

/// Launches `blocks` of `threads` with parameters of 8 bytes; the result.
pub(crate) fn launch(function: u64, blocks: u32, threads: u32, stream: u64, parameters: &[u64]) -> u32 {
    let each: Vec<*const u64> = parameters.iter().map(std::ptr::from_ref).collect();
    cu!(cuLaunchKernel(
        function => u64, blocks => u32, 1 => u32, 1 => u32, threads => u32, 1 => u32, 1 => u32, 0 => u32,
        stream => u64, each.as_ptr() => *const *const u64, std::ptr::null() => *const c_void
    ))
}

/// Waits until it is so, at most ten seconds.
pub(crate) fn becomes(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The name of the test that this stands in, as the harness has it.
macro_rules! this_test {
    () => {{
        fn here() {}
        $crate::support::name_of(here)
    }};
}

/// The name of the test in which this function is: its path without the program's name and its own.
pub(crate) fn name_of<F: Fn()>(_: F) -> &'static str {
    let path = std::any::type_name::<F>();
    let (_, path) = path.split_once("::").expect("the program's name");
    path.rsplit_once("::").expect("the function's name").0
}

/// The directory of one test's device turns, so that launches of other tests do not wait for its launches.
fn turns(test: &str) -> PathBuf {
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test.replace("::", "-"));
    std::fs::create_dir_all(&place).expect("a directory");
    place
}

/// A test as a process of its own, with these variables.
pub(crate) fn spawn(test: &str, part: &str, variables: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(CHILD, part).env("TMPDIR", turns(test));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(variables.iter().copied());
    // One that spins must not keep the device's turn from all others when its test has failed.
    // SAFETY: one call of the system between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command.spawn().expect("a child")
}

/// What a child printed; it must end well within half a minute.
pub(crate) fn finish(mut child: Child) -> (String, String) {
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > Duration::from_secs(30) {
            child.kill().expect("a child");
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("a child");
    let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}: {}\n{}", output.status, texts[0], texts[1]);
    assert!(texts[0].contains("1 passed"), "no such test: {}", texts[0]);
    let [out, err] = texts;
    (out, err)
}

/// Which part of a test this process is; empty for the test itself.
pub(crate) fn part() -> String {
    std::env::var(CHILD).unwrap_or_default()
}

/// Runs `body` in a process of its own with these variables; what it printed.
pub(crate) fn alone(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> (String, String) {
    if part().is_empty() {
        return finish(spawn(test, "alone", variables));
    }
    body();
    (String::new(), String::new())
}

/// Says a line to the process that waits for it.
pub(crate) fn say(line: &str) {
    println!("\n@{line}");
    std::io::stdout().flush().expect("standard output");
}

/// The next line that a child says.
pub(crate) fn heard(child: &mut Child) -> String {
    let out = child.stdout.as_mut().expect("a pipe");
    let (mut line, mut byte) = (String::new(), [0u8]);
    loop {
        assert_eq!(out.read(&mut byte).expect("a pipe"), 1, "a child ended early");
        match byte[0] {
            b'\n' if line.starts_with('@') => return line[1..].to_owned(),
            b'\n' => line.clear(),
            other => line.push(char::from(other)),
        }
    }
}

/// Writes a line to a child's standard input.
pub(crate) fn tell(child: &mut Child, line: &str) {
    let pipe = child.stdin.as_mut().expect("a pipe");
    writeln!(pipe, "{line}").expect("a pipe");
    pipe.flush().expect("a pipe");
}

/// The next line on this child's standard input.
pub(crate) fn next_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a pipe");
    line.trim().to_owned()
}
