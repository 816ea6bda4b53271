//! The cost of the C interface on top of the Rust one: 8-byte all-reduces through both, of the built shared library
//! and of the crate in it, in one process.
//!
//! ```text
//! cargo build --release -p consort-ffi --lib --example call_cost
//! target/release/examples/call_cost time 2 200            # batches of each, one after the other
//! for n in 2000 12000; do
//!   valgrind --tool=callgrind target/release/examples/call_cost c 1 $n      # or `rust`
//! done
//! ```
//!
//! With one rank no call waits, so the difference of two counts is exact. `NCCL_LIB` names another library.

use std::ffi::{CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::Instant;

use consort::{Communicator, ReduceOp};

type InitAll = unsafe extern "C" fn(*mut *mut c_void, c_int, *const c_int) -> c_int;
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;

/// `ncclFloat32` and `ncclMax`.
const FLOAT32: c_int = 7;
const MAX: c_int = 2;
/// Calls of a batch.
const BATCH: u32 = 2000;

/// The three functions, as a client finds them.
struct Library {
    all_reduce: AllReduce,
    destroy: Destroy,
    comms: Vec<usize>,
}

impl Library {
    fn open(ranks: u32) -> Result<Self, String> {
        let beside = || {
            let example = std::env::current_exe().map_err(|error| error.to_string())?;
            let built = example.parent().and_then(|place| place.parent()).ok_or("no directory")?;
            Ok::<_, String>(built.join("libnccl.so").display().to_string())
        };
        let name = std::env::var("NCCL_LIB").or_else(|_| beside())?;
        let path = CString::new(name.clone()).map_err(|error| error.to_string())?;
        // SAFETY: the path ends with a zero; the library's initialisers are the C library's.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err(format!("{name} cannot be opened"));
        }
        let find = |name: &std::ffi::CStr| {
            // SAFETY: the library is open and stays so; the name ends with a zero.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            if found.is_null() { Err(format!("there is no {name:?}")) } else { Ok(found) }
        };
        // SAFETY: these are the signatures of NCCL's functions of these names.
        let (init_all, all_reduce, destroy) = unsafe {
            (
                std::mem::transmute::<*mut c_void, InitAll>(find(c"ncclCommInitAll")?),
                std::mem::transmute::<*mut c_void, AllReduce>(find(c"ncclAllReduce")?),
                std::mem::transmute::<*mut c_void, Destroy>(find(c"ncclCommDestroy")?),
            )
        };
        let mut comms = vec![null_mut(); ranks as usize];
        // SAFETY: there is room for as many handles.
        match unsafe { init_all(comms.as_mut_ptr(), ranks as c_int, null()) } {
            0 => Ok(Library {
                all_reduce,
                destroy,
                comms: comms.into_iter().map(<*mut c_void>::expose_provenance).collect(),
            }),
            code => Err(format!("ncclCommInitAll: {code}")),
        }
    }

    fn batch(&self, rank: usize, calls: u32) {
        let mut buffer = [rank as f32, 1.0];
        let comm = std::ptr::with_exposed_provenance_mut(self.comms[rank]);
        for _ in 0..calls {
            let place = std::ptr::from_mut(&mut buffer).cast();
            // SAFETY: the buffer has two numbers, and no other thread uses it; in place.
            let code = unsafe { (self.all_reduce)(place, place, 2, FLOAT32, MAX, comm, null_mut()) };
            assert_eq!(code, 0);
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        for comm in &self.comms {
            // SAFETY: any handle.
            unsafe { (self.destroy)(std::ptr::with_exposed_provenance_mut(*comm)) };
        }
    }
}

fn batch(comm: &Communicator, calls: u32) {
    let mut buffer = [comm.rank() as f32, 1.0];
    for _ in 0..calls {
        comm.all_reduce(&mut buffer, ReduceOp::Max).expect("an all-reduce");
    }
}

/// Runs the same on every rank, one thread each; returns the result of rank 0.
fn on_ranks<R>(ranks: u32, run: impl Fn(usize) -> R + Sync) -> R {
    std::thread::scope(|threads| {
        for rank in 1..ranks as usize {
            let run = &run;
            threads.spawn(move || drop(run(rank)));
        }
        run(0)
    })
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, ranks, number] = &arguments[..] else {
        return Err("usage: call_cost c|rust|time RANKS CALLS|BATCHES".into());
    };
    let (ranks, number): (u32, u32) = (ranks.parse()?, number.parse()?);
    match what.as_str() {
        "c" => {
            let library = Library::open(ranks)?;
            on_ranks(ranks, |rank| library.batch(rank, number));
        }
        "rust" => {
            let comms = Communicator::local(ranks)?;
            on_ranks(ranks, |rank| batch(&comms[rank], number));
        }
        _ => {
            let (library, comms) = (Library::open(ranks)?, Communicator::local(ranks)?);
            let pairs = on_ranks(ranks, |rank| {
                let timed = |run: &dyn Fn()| {
                    let begun = Instant::now();
                    run();
                    begun.elapsed().as_secs_f64() / f64::from(BATCH) * 1e9
                };
                let pair = |_| (timed(&|| batch(&comms[rank], BATCH)), timed(&|| library.batch(rank, BATCH)));
                (0..number).map(pair).collect::<Vec<(f64, f64)>>()
            });
            let of = |pick: fn(&(f64, f64)) -> f64| median(pairs.iter().map(pick).collect());
            println!(
                "{ranks} ranks, {number} batches of {BATCH} calls each, ns a call, medians: Rust {:.1}, C {:.1}, of the \
                 differences {:.1}",
                of(|pair| pair.0),
                of(|pair| pair.1),
                of(|pair| pair.1 - pair.0)
            );
        }
    }
    Ok(())
}
