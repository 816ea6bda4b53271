//! Shared helpers of the tests: ranks as threads and as processes, each with a watchdog, and the program of a rank
//! that is a process (`rank`).

#[path = "support/bits.rs"]
pub mod bits;
#[path = "support/bytes.rs"]
pub mod bytes;
#[path = "support/c_calls.rs"]
pub mod c_calls;
#[path = "support/collectives.rs"]
pub mod collectives;
#[path = "support/compiler.rs"]
pub mod compiler;
#[path = "support/counting.rs"]
pub mod counting;
#[path = "support/devices.rs"]
pub mod devices;
#[path = "support/difference.rs"]
pub mod difference;
#[path = "support/elf.rs"]
pub mod elf;
#[path = "support/folds.rs"]
pub mod folds;
#[path = "support/groups.rs"]
pub mod groups;
#[path = "support/heard.rs"]
pub mod heard;
#[path = "support/job.rs"]
pub mod job;
#[path = "support/matrix.rs"]
pub mod matrix;
#[path = "support/own_process.rs"]
pub mod own_process;
#[path = "support/pattern.rs"]
pub mod pattern;
#[path = "support/plugins.rs"]
pub mod plugins;
pub mod rank;
#[path = "support/standin.rs"]
pub mod standin;
#[path = "support/system.rs"]
pub mod system;
#[path = "support/torture.rs"]
pub mod torture;
#[path = "support/vectors.rs"]
pub mod vectors;

use std::sync::mpsc;
use std::time::Duration;

use consort::{Communicator, Options, UniqueId};

/// How the ranks of a test are linked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    /// [`Communicator::local`].
    Local,
    /// Each joins with a common [`UniqueId`].
    Joined,
}

/// The longest that ranks of a test may take; a hang becomes a failure.
pub const WATCHDOG: Duration = Duration::from_secs(120);

/// Waits until each of these ranks is in its call with this number (see [`consort::CallReport`]), by their own
/// reports.
///
/// # Panics
/// If a rank does not enter it within [`WATCHDOG`], or the communicator cannot be asked.
pub fn await_call(comm: &Communicator, ranks: &[u32], name: &str, sequence: u64) {
    let is_in = |report: &consort::Report, rank: &u32| {
        let call = report.ranks[*rank as usize].waiting.as_ref().map(|waiting| &waiting.call);
        call.is_some_and(|call| (call.name.as_str(), call.sequence) == (name, sequence))
    };
    let all_are = || {
        let report = comm.report().expect("it can be asked");
        ranks.iter().all(|rank| is_in(&report, rank))
    };
    assert!(system::eventually(WATCHDOG, all_are), "ranks {ranks:?} do not come to {name} #{sequence}");
}

/// Runs `body` on every rank of a communicator, one thread each.
///
/// # Panics
/// If a rank panics, returns an error, or does not come back within [`WATCHDOG`].
pub fn on_ranks<F>(size: u32, links: Links, options: &Options, body: F)
where
    F: Fn(&Communicator) -> consort::Result<()> + Send + Sync,
{
    let results = results_of_ranks(size, links, options, body);
    for (rank, result) in results.into_iter().enumerate() {
        result.unwrap_or_else(|error| panic!("rank {rank} of {size} ({links:?}): {error}"));
    }
}

/// As [`on_ranks`]; returns the result of each rank.
///
/// # Panics
/// If a rank panics or does not come back within [`WATCHDOG`].
pub fn results_of_ranks<R, F>(size: u32, links: Links, options: &Options, body: F) -> Vec<R>
where
    R: Send,
    F: Fn(&Communicator) -> R + Send + Sync,
{
    let mut locals: Vec<Option<Communicator>> = match links {
        Links::Local => {
            let ranks = Communicator::local_with(size, options).expect("a local communicator");
            ranks.into_iter().map(Some).collect()
        }
        Links::Joined => (0..size).map(|_| None).collect(),
    };
    let id = UniqueId::create().expect("an id");
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|threads| {
        for (rank, local) in locals.drain(..).enumerate() {
            let (sender, body, id) = (sender.clone(), &body, &id);
            threads.spawn(move || {
                let comm = local.unwrap_or_else(|| {
                    Communicator::join_with(rank as u32, size, id, options)
                        .unwrap_or_else(|error| panic!("rank {rank} joins: {error}"))
                });
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&comm)));
                drop(comm);
                let _ = sender.send((rank, result));
            });
        }
        drop(sender);
        let mut results: Vec<Option<R>> = (0..size).map(|_| None).collect();
        for _ in 0..size {
            match receiver.recv_timeout(WATCHDOG) {
                Ok((rank, Ok(result))) => results[rank] = Some(result),
                Ok((_, Err(panic))) => std::panic::resume_unwind(panic),
                Err(error) => {
                    eprintln!("a test's rank hangs: {error}");
                    std::process::abort();
                }
            }
        }
        results.into_iter().map(|result| result.expect("every rank reports once")).collect()
    })
}
