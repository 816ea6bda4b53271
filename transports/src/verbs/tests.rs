//! Connections by verbs: over the stand-in, and where the system has an active port over that.

use std::time::{Duration, Instant};

use consort_memory::{Span, SpanMut};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::message::later_packet;
use super::*;
use crate::conformance::{Fixture, Stranger};
use crate::{CounterKind, FailedCompletion};

mod devices;
mod doubled;
mod events;
mod faults;
mod lanes;
mod memory;
mod ports;
mod relaxed;
mod sources;
mod troubles;
mod user_buffers;

/// Both sides of a connection over one port.
struct OverPort(fn() -> Option<Verbs>);

fn over_standin() -> Option<Verbs> {
    Some(transport(&RdmaOptions::default(), &nothing()).expect("the stand-in's"))
}

/// A system whose files and interfaces are not known.
fn nothing() -> Sysfs {
    Sysfs::below("/nonexistent", None)
}

/// A transport over the stand-in's devices of this thread, for a rank anywhere.
fn transport(options: &RdmaOptions, sysfs: &Sysfs) -> Result<Verbs, TransportError> {
    let (functions, near) = (standin::functions(), &Near::default());
    let module = sysfs.peer_memory_module();
    Verbs::over(&Search { functions, sysfs, options, near }.ports()?, options.queue_pairs, near.ranks, module)
}

impl Fixture for OverPort {
    fn sides(&self) -> (Arc<dyn Transport>, Arc<dyn Transport>) {
        let side = || -> Arc<dyn Transport> { Arc::new((self.0)().expect("a port")) };
        (side(), side())
    }

    fn stranger(&self, _: &Address) -> Option<Box<dyn Stranger>> {
        None
    }

    fn hears_of_peers_that_gave_up(&self) -> bool {
        false
    }
}

crate::conformance_suite!(over_the_standin, OverPort(over_standin));
crate::conformance_suite!(over_several_queue_pairs, OverPort(lanes::over_two_adapters));

fn over_a_device() -> Option<Verbs> {
    Verbs::new().ok()
}

/// Over the first device alone.
fn over_one_device() -> Option<Verbs> {
    let all = Verbs::new().ok()?;
    let first = all.shared.domains[0].port.device.clone();
    let ports: PortFilter = Arc::new(move |device, _| device == first);
    Verbs::near(&RdmaOptions { ports, ..RdmaOptions::default() }, &Near::default()).ok()
}

/// The same suite over the devices of this system, such as those of `scripts/rxe`: over all of them, and over the first alone.
#[test]
fn over_the_devices_of_this_system() {
    suite_over(over_a_device);
}

#[test]
fn over_the_devices_one_alone() {
    suite_over(over_one_device);
}

fn suite_over(devices: fn() -> Option<Verbs>) {
    use crate::conformance::*;
    if let Err(error) = Verbs::new() {
        println!("SKIP: {error}");
        return;
    }
    type Check = fn(&dyn Fixture);
    let checks: [(&str, Check); 18] = [
        ("puts_land_where_they_should", puts_land_where_they_should),
        ("a_signal_publishes_the_puts_before_it", a_signal_publishes_the_puts_before_it),
        ("a_signal_may_come_while_a_put_is_under_way", a_signal_may_come_while_a_put_is_under_way),
        ("both_directions_flow_at_once", both_directions_flow_at_once),
        ("puts_out_of_bounds_are_refused", puts_out_of_bounds_are_refused),
        ("random_traffic_arrives", random_traffic_arrives),
        ("fills_from_kept_memory_arrive", fills_from_kept_memory_arrive),
        ("sources_are_free_after_a_fence", sources_are_free_after_a_fence),
        ("slots_change_hands", slots_change_hands),
        ("names_of_slots_are_checked", names_of_slots_are_checked),
        ("what_was_sent_before_the_end_stays", what_was_sent_before_the_end_stays),
        ("what_was_queued_at_the_end_arrives", what_was_queued_at_the_end_arrives),
        ("a_peer_that_gives_up_is_noticed", a_peer_that_gives_up_is_noticed),
        ("a_sleeper_is_woken", a_sleeper_is_woken),
        ("many_connections_at_once", many_connections_at_once),
        ("sides_may_differ_in_size", sides_may_differ_in_size),
        ("garbage_addresses_are_refused", garbage_addresses_are_refused),
        ("absurd_sizes_are_typed_errors", absurd_sizes_are_typed_errors),
    ];
    for (name, check) in checks {
        let begun = Instant::now();
        check(&OverPort(devices));
        println!("{name}: {:?}", begun.elapsed());
    }
    // Its thousand rounds are long where a device is a program.
    let begun = Instant::now();
    what_is_sent_by_one_who_goes_at_once_arrives(&OverPort(devices));
    println!("what_is_sent_by_one_who_goes_at_once_arrives: {:?}", begun.elapsed());
}

/// The churn of registrations over the first device of this system.
#[test]
fn over_the_devices_buffers_come_and_go() {
    match Verbs::new() {
        Ok(_) => memory::churn_over_a_device(over_one_device),
        Err(error) => println!("SKIP: {error}"),
    }
}

/// A fork while the first device of this system knows memory of the program.
#[test]
fn over_the_devices_a_fork_leaves_each_its_bytes() {
    match Verbs::new() {
        Ok(_) => user_buffers::fork_over_a_device(over_one_device),
        Err(error) => println!("SKIP: {error}"),
    }
}

/// The read that flushes, by the first device of this system.
#[test]
fn over_the_devices_a_read_flushes() {
    match Verbs::new() {
        Ok(_) => memory::flush_by_a_device(over_one_device),
        Err(error) => println!("SKIP: {error}"),
    }
}

/// Both ends of two endpoints; the second one comes later.
pub(super) fn meet([first, second]: [Box<dyn Endpoint>; 2], late: Duration) -> [Box<dyn Connection>; 2] {
    let addresses = [first.address().clone(), second.address().clone()];
    let mut first = first.connect(&addresses[1]).expect("connecting");
    let begun = Instant::now();
    while begun.elapsed() < late {
        assert!(first.poll().expect("it waits").is_pending(), "there is no peer");
    }
    let mut second = second.connect(&addresses[0]).expect("connecting");
    let (mut one, mut other) = (None, None);
    while one.is_none() || other.is_none() {
        assert!(begun.elapsed() < Duration::from_secs(30), "they do not meet");
        for (connecting, end) in [(&mut first, &mut one), (&mut second, &mut other)] {
            if end.is_none()
                && let Poll::Ready(met) = connecting.poll().expect("it goes on")
            {
                *end = Some(met);
            }
        }
    }
    [one.expect("met"), other.expect("met")]
}

fn arrives(from: &mut dyn Connection, to: &mut dyn Connection, value: u64) {
    let mut done = 0;
    while from.fill(8, Span::of(&[value; 4]), (value, !value), &mut done).expect("room").is_pending() {
        let _ = (from.progress().expect("progress"), to.progress().expect("progress"));
    }
    let begun = Instant::now();
    while to.counter(CounterKind::Ready).value() < value {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not arrive");
        let _ = (from.progress().expect("progress"), to.progress().expect("progress"));
    }
    let mut read = [0u64; 4];
    SpanMut::of(&mut read).copy_from(to.mailbox().slice(8, 32).read());
    assert_eq!((read, to.counter(CounterKind::Ready).tag(value)), ([value; 4], !value));
}

#[test]
fn a_peer_that_comes_late_is_greeted_again_and_nothing_is_lost_or_doubled() {
    let sides = OverPort(over_standin).sides();
    for round in 0..40 {
        let late = Duration::from_millis(if round == 39 { 2000 } else { [0, 1, 55, 170][round % 4] });
        let layout = |calls| Layout::new(4096).calling(calls);
        let first = sides.0.endpoint(layout(round % 8 < 4)).expect("an endpoint");
        let second = sides.1.endpoint(layout(round % 8 >= 4)).expect("an endpoint");
        let [mut one, mut other] = meet([first, second], late);
        for value in 1..200 {
            arrives(&mut *one, &mut *other, value);
            arrives(&mut *other, &mut *one, value);
        }
    }
}

/// A caller that has greeted sleeps until its peer's answer wakes it, and where the peer was there first it greets once.
#[test]
fn a_caller_whose_peer_was_there_first_greets_once_and_is_woken_by_the_answer() {
    let sides = OverPort(over_standin).sides();
    let ends = [(&sides.0, true), (&sides.1, false)].map(|(side, calls)| {
        side.endpoint(Layout::new(64).calling(calls).in_turn(true)).expect("an endpoint")
    });
    let places = ends.each_ref().map(|of| Place::decode(&of.address().bytes).expect("a place"));
    let addresses = ends.each_ref().map(|of| of.address().clone());
    let [caller, callee] = ends;
    let mut callee = callee.connect(&addresses[0]).expect("connecting");
    let mut caller = caller.connect(&addresses[1]).expect("connecting");
    assert!(caller.poll().expect("it waits").is_pending() && caller.ring_at(0), "nothing wakes it");
    let (wake, _) = caller.wake().expect("a descriptor");
    let mut fds = [PollFd::new(wake, PollFlags::POLLIN)];
    let is_woken = |fds: &mut [PollFd<'_>]| poll(fds, PollTimeout::ZERO).expect("a descriptor") > 0;
    assert!(!is_woken(&mut fds), "before its peer has answered");
    crate::conformance::eventually("the answer wakes it", || {
        assert!(callee.poll().expect("it goes on").is_pending(), "the caller has not heard it");
        is_woken(&mut fds).then_some(())
    });
    let (mut one, mut other) = (None, None);
    crate::conformance::eventually("they meet", || {
        for (connecting, end) in [(&mut caller, &mut one), (&mut callee, &mut other)] {
            if end.is_none()
                && let Poll::Ready(met) = connecting.poll().expect("it goes on")
            {
                *end = Some(met);
            }
        }
        (one.is_some() && other.is_some()).then_some(())
    });
    // It greeted and answered, each once.
    let number = places[0].queues[0].number;
    assert_eq!(standin::sends(number), later_packet(places[0].first_packet(0), 2));
}

#[test]
fn a_hello_for_another_endpoint_ends_the_attempt() {
    let (near, far) = OverPort(over_standin).sides();
    let caller = near.endpoint(Layout::new(64).calling(true)).expect("an endpoint");
    let callee = far.endpoint(Layout::new(64).calling(false)).expect("an endpoint");
    let mut place = Place::decode(&callee.address().bytes).expect("a place");
    place.nonce[3] ^= 1;
    let wrong = Address { transport: NAME.into(), bytes: place.encode() };
    let own = caller.address().clone();
    let mut caller = caller.connect(&wrong).expect("connecting");
    let mut callee = callee.connect(&own).expect("connecting");
    let error = crate::conformance::eventually("the hello comes", || {
        assert!(caller.poll().map_or(true, |poll| poll.is_pending()), "it has met no peer");
        callee.poll().err()
    });
    assert!(error.to_string().contains("its hello is for another endpoint"), "{error}");
    assert!(callee.poll().is_err(), "and it stays so");
}

#[test]
fn a_peer_that_is_gone_is_an_error_that_names_device_queue_pair_and_cause() {
    let sides = OverPort(over_standin).sides();
    let endpoints = [true, false].map(|calls| {
        let side = if calls { &sides.0 } else { &sides.1 };
        side.endpoint(Layout::new(64).calling(calls)).expect("an endpoint")
    });
    let number = Place::decode(&endpoints[1].address().bytes).expect("a place").queues[0].number;
    let [mut one, other] = meet(endpoints, Duration::ZERO);
    // As the system ends a process: nothing is said.
    standin::vanish(number);
    std::mem::forget(other);
    let _ = one.signal(CounterKind::Ready, 1, 0).expect("room");
    let error = crate::conformance::eventually("it fails", || one.progress().err());
    let TransportError::Completion { failed, .. } = &error else { panic!("{error}") };
    let FailedCompletion { device, port, peer, causes, .. } = &**failed;
    assert_eq!((device.as_str(), *port), ("standin0", 1));
    assert!(peer.starts_with("10.0.0.1, queue pair ") && causes.contains("has not answered"), "{error}");
}

#[test]
fn what_is_closed_is_looked_after_by_its_service_until_it_has_arrived() {
    let near = Arc::new(over_standin().expect("a port"));
    let far = over_standin().expect("a port");
    let closed = near.service().expect("a service");
    let mut had_chores = 0;
    for round in 1..=50 {
        let endpoints = [near.endpoint(Layout::new(4096)), far.endpoint(Layout::new(4096))];
        let [mut one, mut other] = meet(endpoints.map(|of| of.expect("an endpoint")), Duration::ZERO);
        let mut done = 0;
        assert!(one.fill(0, Span::of(&[round; 64]), (1, 0), &mut done).expect("room").is_ready());
        drop(one);
        had_chores += u32::from(closed.has_chores());
        crate::conformance::eventually("the end comes behind the fill", || {
            closed.serve();
            match other.progress().expect("it goes on") {
                PeerState::Closed => Some(()),
                PeerState::Open => None,
            }
        });
        assert_eq!(other.counter(CounterKind::Ready).value(), 1);
        drop(other);
        crate::conformance::eventually("it is over", || {
            closed.serve();
            (!closed.has_chores()).then_some(())
        });
    }
    assert!(had_chores > 0, "each had arrived when it was closed");
}
