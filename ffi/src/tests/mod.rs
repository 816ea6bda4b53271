//! The exported functions as C calls them, rule by rule of NCCL's contract.
//!
//! Invariant: every test ends, by itself or by its deadline. The ranks are threads of this process; real processes are
//! in `tests/tests/c/contract.rs`.

mod aborts;
mod arguments;
mod buffers;
mod configs;
mod endings;
mod errors;
mod families;
mod groups;
mod init;
mod nonblocking;
mod offers;
mod operators;
mod registrations;
mod repeats;
mod streams;

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use consort::UniqueId;
use consort_nccl::Code;

use super::extensions::{consortCommSetTimeout, consortLaunch};
use super::*;

const OK: c_int = Code::Success as c_int;
const INVALID: c_int = Code::InvalidArgument as c_int;
const USAGE: c_int = Code::InvalidUsage as c_int;
const REMOTE: c_int = Code::Remote as c_int;
const PENDING: c_int = Code::InProgress as c_int;
const TIMEOUT: c_int = Code::Timeout as c_int;

const INT32: c_int = 2;
const INT64: c_int = 4;
const FLOAT32: c_int = 7;
const SUM: c_int = 0;
const AVG: c_int = 4;

const NO_STREAM: *mut c_void = null_mut();

type Comm = *mut c_void;

/// A call as C makes it. The tests keep NCCL's rules for callers: places and buffers are valid for as long as the
/// call takes; or they break a rule whose breach must be refused.
macro_rules! c {
    ($call:expr) => {{
        // SAFETY: as above.
        unsafe { $call }
    }};
}
use c;

/// A call that must succeed.
macro_rules! ok {
    ($call:expr) => {{
        let status = c!($call);
        assert_eq!(status, OK, "{}: {}", stringify!($call), last_error());
    }};
}
use ok;

/// An element type.
trait Element: Copy + Send + 'static {
    const CODE: c_int;
}
impl Element for i8 {
    const CODE: c_int = 0;
}
impl Element for u8 {
    const CODE: c_int = 1;
}
impl Element for i32 {
    const CODE: c_int = INT32;
}
impl Element for i64 {
    const CODE: c_int = INT64;
}
impl Element for f32 {
    const CODE: c_int = FLOAT32;
}
impl Element for f64 {
    const CODE: c_int = 8;
}

fn from<T>(buffer: &[T]) -> *const c_void {
    buffer.as_ptr().cast()
}

fn to<T>(buffer: &mut [T]) -> *mut c_void {
    buffer.as_mut_ptr().cast()
}

/// An all-reduce into another buffer.
fn reduce_into<T: Element>(
    input: &[T],
    output: &mut [T],
    op: c_int,
    comm: Comm,
    stream: *mut c_void,
) -> c_int {
    assert_eq!(input.len(), output.len());
    c!(ncclAllReduce(from(input), to(output), input.len(), T::CODE, op, comm, stream))
}

/// An all-reduce in place.
fn reduce<T: Element>(buffer: &mut [T], op: c_int, comm: Comm, stream: *mut c_void) -> c_int {
    c!(ncclAllReduce(from(buffer), to(buffer), buffer.len(), T::CODE, op, comm, stream))
}

/// The communicator works: its ranks all call this and get the sum of their ranks plus one each.
#[track_caller]
fn works(rank: c_int, size: c_int, comm: Comm) {
    let mut sum = [rank + 1];
    assert_eq!(reduce(&mut sum, SUM, comm, NO_STREAM), OK, "{}", last_error());
    assert_eq!(sum[0], size * (size + 1) / 2);
}

/// A handle that may go to another thread.
#[derive(Clone, Copy)]
struct Sent(Comm);

// SAFETY: a handle is a number, and communicators may be used by any thread.
unsafe impl Send for Sent {}
// SAFETY: as above.
unsafe impl Sync for Sent {}

impl Sent {
    fn get(self) -> Comm {
        self.0
    }
}

fn text(start: *const std::ffi::c_char) -> String {
    // SAFETY: the text is valid until this thread's next failing call, which comes after this.
    unsafe { CStr::from_ptr(start) }.to_str().expect("UTF-8").to_owned()
}

/// The text of this thread's last error.
fn last_error() -> String {
    text(c!(ncclGetLastError(null_mut())))
}

/// Asserts that a call was refused with a text that contains the reason.
#[track_caller]
fn refused(status: c_int, why: &str) {
    failed(status, INVALID, why);
}

/// Asserts that a call failed with this code and a text that contains the reason.
#[track_caller]
fn failed(status: c_int, code: c_int, why: &str) {
    assert_eq!(status, code, "{}", last_error());
    assert!(last_error().contains(why), "{:?} does not say {why:?}", last_error());
}

fn unique_id() -> NcclUniqueId {
    let mut id = NcclUniqueId { internal: [0; UniqueId::BYTES] };
    ok!(ncclGetUniqueId(&mut id));
    id
}

fn join(id: NcclUniqueId, rank: c_int, size: c_int) -> Comm {
    let mut comm = null_mut();
    ok!(ncclCommInitRank(&mut comm, size, id, rank));
    assert!(!comm.is_null());
    comm
}

fn destroy(comm: Comm) -> c_int {
    c!(ncclCommDestroy(comm))
}

/// The communicators of all ranks, on this thread.
fn all(size: c_int) -> Vec<Comm> {
    let mut comms = vec![null_mut(); size as usize];
    ok!(ncclCommInitAll(comms.as_mut_ptr(), size, std::ptr::null()));
    for comm in &comms {
        assert_eq!(consortCommSetTimeout(*comm, DEADLINE.as_secs_f64() / 2.0), OK);
    }
    comms
}

fn destroy_all(comms: &[Comm]) {
    for comm in comms {
        assert_eq!(destroy(*comm), OK, "{}", last_error());
    }
}

/// The state that `ncclCommGetAsyncError` returns.
#[track_caller]
fn state(comm: Comm) -> c_int {
    let mut state = -1;
    assert_eq!(c!(ncclCommGetAsyncError(comm, &mut state)), OK, "{}", last_error());
    state
}

/// Polls a communicator until nothing is in progress.
#[track_caller]
fn settled(comm: Comm) -> c_int {
    let begun = Instant::now();
    loop {
        match state(comm) {
            PENDING if begun.elapsed() < DEADLINE => std::thread::sleep(Duration::from_millis(1)),
            state => return state,
        }
    }
}

/// Waits until a call of another thread uses the communicator, or has ended its operations.
#[track_caller]
fn await_call(comm: Comm) {
    let (begun, mut bytes) = (Instant::now(), 0);
    while c!(ncclCommMemStats(comm, 0, &mut bytes)) == OK {
        assert!(begun.elapsed() < DEADLINE, "the other thread does not call");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The time within which an abort or a revocation ends calls. The contract is a second. The test allows another, as
/// the host below may take a core, and three under `.ci/disturb`, which takes cores away from the thread that ends
/// calls and from those that wait.
fn soon() -> Duration {
    Duration::from_secs(if std::env::var_os("CONSORT_TEST_DISTURBED").is_some() { 4 } else { 2 })
}

/// The time that a test may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs a body that must end, on a thread of its own.
fn within<T: Send + 'static>(limit: Duration, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (over, wait) = channel::<()>();
    let thread = std::thread::spawn(move || {
        let _over = over;
        body()
    });
    match wait.recv_timeout(limit) {
        Err(RecvTimeoutError::Disconnected) => {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        }
        _ => panic!("not over within {limit:?}"),
    }
}

/// Runs `rank_does` on a thread for each rank of a communicator, which is destroyed at the end unless it was before.
fn ranks(size: c_int, rank_does: impl Fn(c_int, Comm) + Send + Sync + 'static) {
    within(DEADLINE, move || {
        let id = unique_id();
        let rank_does = &rank_does;
        std::thread::scope(|threads| {
            for rank in 0..size {
                threads.spawn(move || {
                    let comm = join(id, rank, size);
                    assert_eq!(consortCommSetTimeout(comm, DEADLINE.as_secs_f64() / 2.0), OK);
                    rank_does(rank, comm);
                    if handles::find(comm).is_some() {
                        assert_eq!(destroy(comm), OK, "{}", last_error());
                    }
                });
            }
        });
    });
}
