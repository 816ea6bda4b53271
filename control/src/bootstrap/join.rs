//! One rank's way to the table, over TCP.
//!
//! Invariants: blocks no longer than its deadline and a little (`joiner::VERDICT_GRACE`), and only ever in `poll`.
//! Absent: what is said, and when it is tried again (see `joiner`); threads, connections to other ranks.

use std::net::{SocketAddr, TcpStream};
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_memory::sync::{AtomicBool, Ordering};

use super::UniqueId;
use super::joiner::{Joined, Joiner};
use super::stream::{Dial, connect, connected, is_ready, patience};
use super::wire::Hello;
#[cfg(any(test, feature = "testing"))]
use super::wire::Table;
use consort_types::Rank;
use consort_types::error::{Error, Result};

/// What a join that was called off ends with.
pub fn cancelled_join(rank: Rank) -> Error {
    Error::Join {
        rank,
        cause: "its communicator was aborted while it was being made".into(),
        hint: "all ranks that wait for it must give up too".into(),
    }
}

/// How long a join goes on after it was cancelled.
const CANCEL_LATENCY: Duration = Duration::from_millis(20);

/// As [`join_unless`] of a job whose root gives the table to each, whatever happens.
#[cfg(any(test, feature = "testing"))]
pub fn join(id: &UniqueId, hello: Hello, timeout: Duration) -> Result<Table> {
    join_unless(id, hello, timeout, None)?.whole()
}

/// Joins the job of `id` and returns when all ranks have, with the table of ranks or with those that hand it on, or with the error that
/// all of them get.
///
/// # Errors
/// [`Error::InvalidArgument`] if the hello cannot be right; [`Error::Settings`], [`Error::MissingRanks`],
/// [`Error::PeerLost`] and [`Error::Join`] as the root decides; [`Error::Join`] if there is no root; [`Error::System`] if
/// this thread cannot wait; [`Error::Join`] soon after `cancelled` was set.
pub fn join_unless(
    id: &UniqueId,
    hello: Hello,
    timeout: Duration,
    cancelled: Option<&AtomicBool>,
) -> Result<Joined> {
    let (alone, rank) = (hello.size == 1, hello.rank);
    let mut joiner = Joiner::new(id, hello, timeout, Instant::now())?;
    if alone {
        // No other rank will come.
        id.retire();
    }
    loop {
        if let Poll::Ready(answer) = joiner.poll(&mut Tcp, Instant::now()) {
            return answer;
        }
        // Relaxed: says nothing but itself.
        if cancelled.is_some_and(|cancelled| cancelled.load(Ordering::Relaxed)) {
            return Err(cancelled_join(rank));
        }
        sleep(&joiner, cancelled.is_some())?;
    }
}

/// Sleeps until there is something to do for it, or, if that may come, until one should ask again whether to give up.
fn sleep(joiner: &Joiner<TcpStream>, may_be_cancelled: bool) -> Result<()> {
    let now = Instant::now();
    let look = may_be_cancelled.then(|| now + CANCEL_LATENCY);
    let until = match (joiner.until(), look) {
        (Some(until), Some(look)) => Some(until.min(look)),
        (until, look) => until.or(look),
    };
    let Some((stream, sending)) = joiner.stream() else {
        std::thread::sleep(until.map_or(CANCEL_LATENCY, |until| until.saturating_duration_since(now)));
        return Ok(());
    };
    let ready = is_ready(stream, sending, patience(until, now));
    ready.map(drop).map_err(|error| Error::system("poll, to wait for the root", error))
}

struct Tcp;

impl Dial for Tcp {
    type Stream = TcpStream;

    fn dial(&mut self, address: SocketAddr) -> std::io::Result<TcpStream> {
        connect(address)
    }

    fn connected(&mut self, stream: &mut TcpStream) -> Poll<std::io::Result<()>> {
        connected(stream)
    }

    fn round_trip(&self, stream: &TcpStream) -> Option<Duration> {
        consort_transports::round_trip(stream)
    }
}
