//! cudarc's `nccl` module, unchanged, on host memory: its result layer called from one thread per rank.
//!
//! Invariant: only public items of cudarc are used, and every result is compared. Absent: cudarc's safe layer, which
//! needs a CUDA context.

use std::ffi::{CStr, c_int, c_void};
use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use cudarc::nccl::result::{self, NcclError, NcclStatus};
use cudarc::nccl::sys;

const FLOAT: sys::ncclDataType_t = sys::ncclDataType_t::ncclFloat32;
const SUM: sys::ncclRedOp_t = sys::ncclRedOp_t::ncclSum;

/// One rank and how much it has checked.
struct Rank {
    number: usize,
    size: usize,
    checked: usize,
}

impl Rank {
    /// Fails the program unless both are equal.
    fn equal<T: PartialEq + Debug>(&mut self, what: &str, got: T, want: T) {
        assert_eq!(got, want, "rank {} of {}: {what}", self.number, self.size);
        self.checked += 1;
    }

    /// A call whose result is a plain number must not fail.
    fn zero(&mut self, what: &str, code: c_int) {
        // SAFETY: a C string that stays until this thread's next failing call.
        let last = || unsafe { CStr::from_ptr(sys::ncclGetLastError(null_mut())) };
        assert_eq!(code, 0, "rank {} of {}: {what}: {:?}", self.number, self.size, last());
        self.checked += 1;
    }

    /// The value of a call that must not fail.
    fn ok<T>(&self, what: &str, result: Result<T, NcclError>) -> T {
        // SAFETY: the texts are C strings that stay until this thread's next failing call.
        let text = |code| unsafe {
            let result = CStr::from_ptr(sys::ncclGetErrorString(code)).to_string_lossy().into_owned();
            let last = CStr::from_ptr(sys::ncclGetLastError(null_mut())).to_string_lossy().into_owned();
            format!("{result}; {last}")
        };
        result.unwrap_or_else(|error| {
            panic!("rank {} of {}: {what}: {}", self.number, self.size, text(error.0))
        })
    }
}

fn source(buffer: &[f32]) -> *const c_void {
    buffer.as_ptr().cast()
}

fn target(buffer: &mut [f32]) -> *mut c_void {
    buffer.as_mut_ptr().cast()
}

/// What a rank has, and the sum of all of it.
fn values(number: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| (number * 10 + index) as f32).collect()
}

fn sums(size: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| (0..size).map(|number| (number * 10 + index) as f32).sum()).collect()
}

/// Joins with cudarc's call; the handle is not copied before it was written.
fn join(rank: &Rank, id: sys::ncclUniqueId) -> sys::ncclComm_t {
    let mut comm = MaybeUninit::uninit();
    // SAFETY: there is room for a handle, which a successful call has written.
    unsafe {
        let joined = result::comm_init_rank(comm.as_mut_ptr(), rank.size as c_int, id, rank.number as c_int);
        rank.ok("comm_init_rank", joined);
        comm.assume_init()
    }
}

/// A sum of one element on a communicator.
///
/// # Safety
/// `comm` must be one.
unsafe fn works(rank: &mut Rank, what: &str, comm: sys::ncclComm_t, size: usize) {
    let mut buffer = [1.0f32];
    let place = target(&mut buffer);
    // SAFETY: the buffer holds one element; otherwise this function's own contract.
    let summed = unsafe { result::all_reduce(place, place, 1, FLOAT, SUM, comm, null_mut()) };
    rank.ok(what, summed);
    rank.equal(what, buffer[0], size as f32);
}

/// Every collective, each root.
///
/// # Safety
/// `comm` must be a communicator.
unsafe fn collectives(rank: &mut Rank, comm: sys::ncclComm_t) {
    let (me, size, stream) = (rank.number, rank.size, null_mut());
    let count = 1000 * size;
    let mine = values(me, count);
    // SAFETY: all buffers are as long as the calls need them; otherwise this function's own contract.
    unsafe {
        let mut output = vec![-1.0; count];
        let done = result::all_reduce(source(&mine), target(&mut output), count, FLOAT, SUM, comm, stream);
        rank.ok("all_reduce", done);
        rank.equal("all_reduce", output, sums(size, count));

        for root in 0..size {
            let mut output = vec![-1.0; count];
            let (from, to) = (source(&mine), target(&mut output));
            let done = result::reduce(from, to, count, FLOAT, SUM, root as c_int, comm, stream);
            rank.ok("reduce", done);
            rank.equal("reduce", output, if me == root { sums(size, count) } else { vec![-1.0; count] });

            let mut output = vec![-1.0; count];
            let done = result::broadcast(
                source(&mine),
                target(&mut output),
                count,
                FLOAT,
                root as c_int,
                comm,
                stream,
            );
            rank.ok("broadcast", done);
            rank.equal("broadcast", output, values(root, count));
        }

        let mut output = vec![-1.0; count * size];
        let done = result::all_gather(source(&mine), target(&mut output), count, FLOAT, comm, stream);
        rank.ok("all_gather", done);
        rank.equal("all_gather", output, (0..size).flat_map(|number| values(number, count)).collect());

        let mut output = vec![-1.0; 1000];
        let done = result::reduce_scatter(source(&mine), target(&mut output), 1000, FLOAT, SUM, comm, stream);
        rank.ok("reduce_scatter", done);
        rank.equal("reduce_scatter", output, sums(size, count)[me * 1000..][..1000].to_vec());
    }
}

/// A ring and several sums as groups.
///
/// # Safety
/// `comm` must be a communicator.
unsafe fn groups(rank: &mut Rank, comm: sys::ncclComm_t) {
    let (me, size, stream) = (rank.number, rank.size, null_mut());
    let before = (me + size - 1) % size;
    let (mine, mut output) = (values(me, 1000), vec![-1.0; 1000]);
    // SAFETY: the buffers outlive the groups; otherwise this function's own contract.
    unsafe {
        rank.ok("group_start", result::group_start());
        let sent = result::send(source(&mine), 1000, FLOAT, ((me + 1) % size) as c_int, comm, stream);
        rank.ok("send", sent);
        let received = result::recv(target(&mut output), 1000, FLOAT, before as c_int, comm, stream);
        rank.ok("recv", received);
        rank.ok("group_end", result::group_end());
        rank.equal("a ring in a group", output, values(before, 1000));

        let mut several: Vec<Vec<f32>> = (1..5).map(|count| values(me, count)).collect();
        rank.ok("group_start", result::group_start());
        for buffer in &mut several {
            let place = target(buffer);
            rank.ok("all_reduce", result::all_reduce(place, place, buffer.len(), FLOAT, SUM, comm, stream));
        }
        rank.ok("group_end", result::group_end());
        rank.equal("sums in a group", several, (1..5).map(|count| sums(size, count)).collect());
    }
}

/// An operator of one's own. cudarc has an enumeration where the library gives out numbers beyond it, so the calls
/// that take such a number are fetched from its handle of the library as what they are.
///
/// # Safety
/// `comm` must be a communicator.
unsafe fn operators(rank: &mut Rank, comm: sys::ncclComm_t) {
    type Create = unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, c_int, sys::ncclComm_t) -> c_int;
    type AllReduce = unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        sys::ncclComm_t,
        sys::cudaStream_t,
    ) -> c_int;
    type Destroy = unsafe extern "C" fn(c_int, sys::ncclComm_t) -> c_int;
    let (mine, mut output) = (values(rank.number, 1000), vec![-1.0; 1000]);
    let (mut op, mut scalar) = (-1, 0.5f32);
    let (float, immediate) = (FLOAT as c_int, sys::ncclScalarResidence_t::ncclScalarHostImmediate as c_int);
    // SAFETY: the names have these types in nccl.h, where an enumeration is a C int; buffers and scalar are as the
    // calls need them; otherwise this function's own contract.
    unsafe {
        let library = sys::culib();
        let create = library.get::<Create>(b"ncclRedOpCreatePreMulSum").expect("an exported name");
        let all_reduce = library.get::<AllReduce>(b"ncclAllReduce").expect("an exported name");
        let destroy = library.get::<Destroy>(b"ncclRedOpDestroy").expect("an exported name");
        let scalar = (&raw mut scalar).cast();
        rank.zero("ncclRedOpCreatePreMulSum", create(&mut op, scalar, float, immediate, comm));
        rank.equal("an operator beyond the built-in ones", op >= 5, true);
        let (from, to) = (source(&mine), target(&mut output));
        rank.zero("ncclAllReduce", all_reduce(from, to, 1000, float, op, comm, null_mut()));
        rank.zero("ncclRedOpDestroy", destroy(op, comm));
    }
    rank.equal("halves, summed", output, sums(rank.size, 1000).into_iter().map(|sum| sum / 2.0).collect());
}

/// Parts of the communicator, and no part.
///
/// # Safety
/// `comm` must be a communicator.
unsafe fn parts(rank: &mut Rank, comm: sys::ncclComm_t) {
    let (me, size) = (rank.number as c_int, rank.size);
    // SAFETY: there is room for a handle; no configuration is allowed; otherwise this function's own contract.
    unsafe {
        let mut reverse = null_mut();
        rank.ok("comm_split", result::comm_split(comm, 0, -me, &mut reverse, null_mut()));
        let turned = rank.ok("comm_user_rank", result::comm_user_rank(reverse));
        rank.equal("the rank in a split", turned, size as c_int - 1 - me);
        let count = rank.ok("comm_count", result::comm_count(reverse));
        rank.equal("the size of a split", count, size as c_int);
        works(rank, "a sum in a split", reverse, size);
        rank.ok("comm_destroy", result::comm_destroy(reverse));

        let mut rest = null_mut();
        let colour = if me == 0 { -1 } else { 7 };
        rank.ok("comm_split", result::comm_split(comm, colour, me, &mut rest, null_mut()));
        rank.equal("who is left out has none", rest.is_null(), me == 0);
        if !rest.is_null() {
            works(rank, "a sum without rank 0", rest, size - 1);
            rank.ok("comm_destroy", result::comm_destroy(rest));
        }
    }
}

/// What a rank does from the beginning to the end.
fn lead(number: usize, size: usize, ids: [sys::ncclUniqueId; 2]) -> usize {
    let mut rank = Rank { number, size, checked: 0 };
    let comm = join(&rank, ids[0]);
    // SAFETY: the communicator is used until it is destroyed, and not after that.
    unsafe {
        let count = rank.ok("comm_count", result::comm_count(comm));
        rank.equal("comm_count", count, size as c_int);
        let user = rank.ok("comm_user_rank", result::comm_user_rank(comm));
        rank.equal("comm_user_rank", user, number as c_int);
        let device = rank.ok("comm_cu_device", result::comm_cu_device(comm));
        rank.equal("a device", device >= 0, true);
        collectives(&mut rank, comm);
        groups(&mut rank, comm);
        operators(&mut rank, comm);
        parts(&mut rank, comm);

        let mut buffer = [1.0f32];
        let place = target(&mut buffer);
        let wrong = result::broadcast(place, place, 1, FLOAT, size as c_int, comm, null_mut());
        let code = wrong.err().map(|error| error.0);
        rank.equal("a root that is none", code, Some(sys::ncclResult_t::ncclInvalidArgument));
        let mut state = sys::ncclResult_t::ncclNumResults;
        let asked = sys::ncclCommGetAsyncError(comm, &mut state).result();
        rank.ok("ncclCommGetAsyncError", asked);
        rank.equal("the state after a wrong call", state, sys::ncclResult_t::ncclSuccess);
        works(&mut rank, "a sum after a wrong call", comm, size);

        let finalized = rank.ok("comm_finalize", result::comm_finalize(comm));
        rank.equal("comm_finalize", finalized == NcclStatus::Success, true);
        rank.ok("comm_destroy", result::comm_destroy(comm));
    }
    // cudarc's own `Comm` is aborted, not destroyed, when it goes out of scope.
    let comm = join(&rank, ids[1]);
    // SAFETY: as above.
    unsafe {
        works(&mut rank, "a sum before an abort", comm, size);
        rank.ok("comm_abort", result::comm_abort(comm));
    }
    rank.checked
}

/// All ranks in one thread: the way of cudarc's `Comm::from_devices`.
fn together(size: usize) -> usize {
    let mut rank = Rank { number: 0, size, checked: 0 };
    let mut comms = vec![null_mut(); size];
    let devices: Vec<c_int> = (0..size as c_int).collect();
    let mut buffers: Vec<Vec<f32>> = (0..size).map(|number| values(number, 1000)).collect();
    // SAFETY: there is room for the handles; the buffers outlive the group.
    unsafe {
        let made = result::comm_init_all(comms.as_mut_ptr(), size as c_int, devices.as_ptr());
        rank.ok("comm_init_all", made);
        rank.ok("group_start", result::group_start());
        for (comm, buffer) in comms.iter().zip(&mut buffers) {
            let place = target(buffer);
            rank.ok("all_reduce", result::all_reduce(place, place, 1000, FLOAT, SUM, *comm, null_mut()));
        }
        rank.ok("group_end", result::group_end());
        for (number, comm) in comms.into_iter().enumerate() {
            let device = rank.ok("comm_cu_device", result::comm_cu_device(comm));
            rank.equal("the device of comm_init_all", device, number as c_int);
            rank.ok("comm_destroy", result::comm_destroy(comm));
        }
    }
    rank.equal("sums over one thread", buffers, vec![sums(size, 1000); size]);
    rank.checked
}

/// The files with such a name that this process has loaded.
fn loaded() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let mut paths: Vec<String> =
        maps.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| format!("/{path}")).collect();
    paths.retain(|path| path.rsplit('/').next().is_some_and(|name| name.contains("libnccl")));
    paths.dedup();
    paths
}

fn main() {
    // A rank that fails would leave the others waiting: the program ends with it.
    let show = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        show(what);
        std::process::exit(1);
    }));
    let version = result::get_nccl_version().expect("a version");
    assert!((20_000..100_000).contains(&version), "version {version}");
    let ours =
        std::env::var("LIBNCCL").expect("LIBNCCL names the library that must be the one that is loaded");
    let ours = std::fs::canonicalize(ours).expect("LIBNCCL").to_string_lossy().into_owned();
    assert_eq!(loaded(), [ours], "what is loaded");
    for size in [2, 3] {
        let ids = [(); 2].map(|()| result::get_uniqueid().expect("an id"));
        assert_eq!(ids[0].internal[..4], b"cnst".map(|byte| byte as i8), "whose id");
        let threads: Vec<_> =
            (0..size).map(|number| std::thread::spawn(move || lead(number, size, ids))).collect();
        let checked: usize = threads.into_iter().map(|thread| thread.join().expect("a rank")).sum();
        println!("cudarc, {size} ranks: {checked} checks");
    }
    println!("cudarc, one thread: {} checks", together(2) + together(3));
}
