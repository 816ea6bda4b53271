//! One suite that every transport runs.
//!
//! Invariant: each check takes a [`Fixture`], makes what it needs, fails by panicking, and ends by itself: nothing
//! waits longer than [`PATIENCE`]. A transport in another crate implements [`Fixture`] and names it in
//! [`crate::conformance_suite!`]. Absent: speed, and what needs several processes.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_memory::{Counter, Span, SpanMut};
pub use consort_testing::Random;
use nix::poll::{PollFd, PollFlags, poll};

mod ends;
mod pools;
mod sources;
mod traffic;

pub use ends::*;
pub use pools::*;
pub use sources::*;
pub use traffic::*;

use crate::{Address, Connecting, Connection, CounterKind, Layout, PeerState, Transport, TransportError};

/// How long a check waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Both sides of a connection, as the implementation under test makes them.
pub trait Fixture: Sync {
    /// A transport object for each side; may be the same one.
    fn sides(&self) -> (Arc<dyn Transport>, Arc<dyn Transport>);

    /// A caller of the listener behind an address that knows nothing; None when there is no listener.
    fn stranger(&self, address: &Address) -> Option<Box<dyn Stranger>>;

    /// Whether an endpoint hears soon of a peer that was dropped before it connected: a device may say nothing of a queue pair that
    /// is not there.
    fn hears_of_peers_that_gave_up(&self) -> bool {
        true
    }

    /// Whether a connection that must be asked has a descriptor that wakes a sleeper.
    fn wakes_sleepers(&self) -> bool {
        true
    }
}

/// A caller that does not belong here.
pub trait Stranger: std::io::Write + std::io::Read + Send {}
impl<T: std::io::Write + std::io::Read + Send> Stranger for T {}

/// One established side.
pub type Side = Box<dyn Connection>;

/// A `#[test]` for every check, in a module of the given name; where a condition is given, none does anything unless that holds.
#[macro_export]
macro_rules! conformance_suite {
    ($module:ident, $fixture:expr) => {
        $crate::conformance_suite!($module, $fixture, where true);
    };
    ($module:ident, $fixture:expr, where $can_run:expr) => {
        $crate::conformance_suite!(@checks $module, $fixture, $can_run,
            puts_land_where_they_should,
            a_signal_publishes_the_puts_before_it,
            a_signal_may_come_while_a_put_is_under_way,
            both_directions_flow_at_once,
            puts_out_of_bounds_are_refused,
            random_traffic_arrives,
            fills_from_kept_memory_arrive,
            sources_are_free_after_a_fence,
            slots_change_hands,
            names_of_slots_are_checked,
            what_was_sent_before_the_end_stays,
            what_was_queued_at_the_end_arrives,
            what_is_sent_by_one_who_goes_at_once_arrives,
            a_peer_that_gives_up_is_noticed,
            a_sleeper_is_woken,
            many_connections_at_once,
            sides_may_differ_in_size,
            garbage_addresses_are_refused,
            strangers_do_not_keep_the_peer_out,
            absurd_sizes_are_typed_errors,
        );
    };
    (@checks $module:ident, $fixture:expr, $can_run:expr, $($check:ident,)*) => {
        mod $module {
            use super::*;
            $(#[test] fn $check() { if $can_run { $crate::conformance::$check(&$fixture); } })*
        }
    };
}

/// Repeats `step` until it gives something.
///
/// # Panics
/// After [`PATIENCE`].
pub fn eventually<R>(what: &str, mut step: impl FnMut() -> Option<R>) -> R {
    let since = Instant::now();
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(since.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::yield_now();
    }
}

/// A connected pair with these mailboxes.
///
/// # Panics
/// When it cannot be connected.
pub fn connect(sides: &(Arc<dyn Transport>, Arc<dyn Transport>), mailboxes: [usize; 2]) -> (Side, Side) {
    let here = sides.0.endpoint(Layout::new(mailboxes[0])).expect("endpoint");
    let there = sides.1.endpoint(Layout::new(mailboxes[1])).expect("endpoint");
    let (address_here, address_there) = (here.address().clone(), there.address().clone());
    assert!(address_here.bytes.len() <= Address::BYTES_MAX);
    finish(here.connect(&address_there).expect("connect"), there.connect(&address_here).expect("connect"))
}

fn finish(mut here: Box<dyn Connecting>, mut there: Box<dyn Connecting>) -> (Side, Side) {
    let (mut left, mut right) = (None, None);
    eventually("both sides are connected", || {
        poll_into(&mut here, &mut left);
        poll_into(&mut there, &mut right);
        if left.is_some() && right.is_some() { left.take().zip(right.take()) } else { None }
    })
}

fn poll_into(connecting: &mut Box<dyn Connecting>, slot: &mut Option<Side>) {
    if slot.is_none()
        && let Poll::Ready(side) = connecting.poll().expect("connecting goes on")
    {
        *slot = Some(side);
    }
}

fn pair(fixture: &dyn Fixture, mailbox_bytes: usize) -> (Side, Side) {
    connect(&fixture.sides(), [mailbox_bytes; 2])
}

/// What the control thread of a process does.
pub fn serve(side: &dyn Transport) {
    if let Some(service) = side.service() {
        service.serve();
    }
}

/// Puts all of it, letting both sides go on as needed.
fn put_all(from: &mut Side, to: &mut Side, offset: usize, bytes: &[u8]) {
    let mut done = 0;
    eventually("a put is taken over", || {
        let poll = from.put(offset, Span::of(bytes), &mut done).expect("put");
        from.progress().expect("progress");
        to.progress().expect("progress");
        poll.is_ready().then_some(())
    });
    assert_eq!(done, bytes.len());
}

fn signal(from: &mut Side, kind: CounterKind, value: u64, tag: u64) {
    eventually("a signal is taken over", || {
        let poll = from.signal(kind, value, tag).expect("signal");
        from.progress().expect("progress");
        poll.is_ready().then_some(())
    });
}

/// Signals that bytes are ready, and lets both sides go on until that has arrived.
fn deliver(from: &mut Side, to: &mut Side, value: u64, tag: u64) {
    signal(from, CounterKind::Ready, value, tag);
    eventually("a signal arrives", || {
        from.progress().expect("progress");
        to.progress().expect("progress");
        (to.counter(CounterKind::Ready).value() >= value).then_some(())
    });
}

fn await_value(side: &mut Side, kind: CounterKind, value: u64) {
    eventually("a counter goes up", || {
        side.progress().expect("progress");
        (side.counter(kind).value() >= value).then_some(())
    });
}

fn read(side: &Side, offset: usize, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    SpanMut::of(&mut copy).copy_from(side.mailbox().slice(offset, bytes).read());
    copy
}
