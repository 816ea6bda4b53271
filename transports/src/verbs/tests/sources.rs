//! Memory of programs that several queue pairs read where it is: how long it is held, and what wakes a rank that waits for it.

use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use consort_memory::{Held, SharedBuffer};
use consort_testing::Random;

use super::super::standin::{Adapter, AdapterPort, cut, refuse_memory, set};
use super::lanes::{SLOT_BYTES, gid, linked, over};
use super::*;
use crate::conformance::eventually;

type Ends = [Box<dyn Connection>; 2];

/// Memory that devices may read where it is.
pub(super) fn shared(bytes: usize) -> Held {
    let mut buffer = SharedBuffer::<u8>::new(bytes).expect("memory");
    let start = NonNull::new(buffer.as_mut_ptr()).expect("memory");
    // SAFETY: the buffer is used by nothing else, and kept.
    unsafe { Held::kept(start, bytes, Arc::new(buffer)) }
}

/// The same with these bytes, from a seed.
fn filled(bytes: usize, seed: u64) -> (Held, Vec<u8>) {
    let (held, data) = (shared(bytes), Random::new(seed).bytes(bytes));
    held.span().copy_from(Span::of(&data));
    (held, data)
}

/// Fills from a source when there is room: its number.
fn lend(ends: &mut Ends, source: &Held, value: u64) -> u64 {
    eventually("there is room", || {
        let filled = ends[0].fill_from(0, source.read(), (value, 0), &mut 0);
        match filled.expect("it goes on") {
            Poll::Ready(number) => Some(number),
            Poll::Pending => {
                look(ends);
                None
            }
        }
    })
}

/// Both ends look.
fn look(ends: &mut Ends) {
    for end in ends {
        let _ = end.progress().expect("it goes on");
    }
}

/// Waits until the peer has heard this fill.
fn heard(ends: &mut Ends, value: u64) {
    eventually("it arrives", || {
        look(ends);
        (ends[1].counter(CounterKind::Ready).value() == value).then_some(())
    });
}

fn scribble(source: &Held) {
    source.span().copy_from(Span::of(&vec![0xeeu8; source.len()]));
}

/// What has arrived as this fill.
fn arrived(ends: &mut Ends, value: u64, bytes: usize) -> Vec<u8> {
    heard(ends, value);
    let mut read = vec![0u8; bytes];
    SpanMut::of(&mut read).copy_from(ends[1].mailbox().slice(0, bytes).read());
    read
}

fn is_readable(connection: &dyn Connection) -> bool {
    let fd = connection.wake().expect("a descriptor").as_raw_fd();
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure that lives during the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

#[test]
fn a_source_is_held_until_the_peer_says_that_it_has_the_fill_also_where_it_has_nothing_else_to_say() {
    let sides = [over(228, 2, 1), over(229, 2, 1)];
    let mut ends = linked([&sides[0], &sides[1]]);
    for value in 1..=20 {
        let (source, data) = filled(200_000 + value as usize, value);
        let number = lend(&mut ends, &source, value);
        assert_eq!(number, value);
        // Long enough for the devices.
        for _ in 0..200 {
            assert_eq!(ends[0].progress().expect("it goes on"), PeerState::Open);
            assert!(!ends[0].is_free(number), "the peer has heard nothing");
        }
        assert!(arrived(&mut ends, value, data.len()) == data);
        eventually("the source is free", || {
            look(&mut ends);
            ends[0].is_free(number).then_some(())
        });
    }
}

/// The rank that has heard a fill leaves its call: its control thread says so.
#[test]
fn a_source_is_free_although_the_rank_that_has_the_fill_computes() {
    let sides = [over(230, 2, 1), over(231, 2, 1)];
    let mut ends = linked([&sides[0], &sides[1]]);
    let service = sides[1].service().expect("a service");
    for value in 1..=40 {
        let (source, _) = filled(100_000, value);
        let number = lend(&mut ends, &source, value);
        let sleeps = value % 2 == 0;
        if !sleeps {
            heard(&mut ends, value);
        }
        eventually("the source is free", || {
            // Before a sleep it is said too, at once.
            if sleeps {
                let _ = ends[1].arm();
            } else {
                service.serve();
            }
            let _ = ends[0].progress().expect("it goes on");
            ends[0].is_free(number).then_some(())
        });
        heard(&mut ends, value);
    }
}

/// Each fill is sent while a rail carries nothing, and by its control thread alone as often as not.
#[test]
fn what_a_rail_has_lost_is_read_again_where_it_is() {
    let mut random = Random::announced("what_a_rail_has_lost_is_read_again_where_it_is");
    let sides = [over(232, 2, 1), over(233, 2, 1)];
    let service = sides[0].service().expect("a service");
    for round in 0..12 {
        let mut ends = linked([&sides[0], &sides[1]]);
        let rail = gid(random.below(2) as u8, 232 + random.below(2) as u8);
        let (source, data) = filled(1024 + random.below(3 * SLOT_BYTES), round);
        cut(rail, true);
        let number = lend(&mut ends, &source, 1);
        let is_served = random.below(2) == 0;
        eventually("the source is free", || {
            if is_served {
                service.serve();
            }
            let _ = (ends[0].progress(), ends[1].progress());
            ends[0].is_free(number).then_some(())
        });
        scribble(&source);
        assert!(arrived(&mut ends, 1, data.len()) == data, "round {round}");
        cut(rail, false);
    }
}

/// A lane's device that has taken a write and not the message behind it: the others carry it, and it is free when both are done.
#[test]
fn a_lane_that_takes_half_of_a_fragment_frees_its_source_too() {
    for round in 1..=20 {
        let sides = [over(234, 2, 1), over(235, 2, 1)];
        let mut ends = linked([&sides[0], &sides[1]]);
        standin::leading_to(gid(0, 235)).into_iter().for_each(standin::fill_up);
        let (source, data) = filled(150_000, round);
        let number = lend(&mut ends, &source, 1);
        eventually("the source is free", || {
            look(&mut ends);
            ends[0].is_free(number).then_some(())
        });
        scribble(&source);
        assert!(arrived(&mut ends, 1, data.len()) == data, "round {round}");
    }
}

#[test]
fn sources_are_free_when_the_last_rail_has_failed_or_the_peer_has_closed() {
    let sides = [over(236, 2, 1), over(237, 2, 1)];
    for closes in [false, true] {
        let mut ends = linked([&sides[0], &sides[1]]);
        let source = shared(SLOT_BYTES);
        [0, 1].into_iter().for_each(|rail| cut(gid(rail, 236), !closes));
        let number = lend(&mut ends, &source, 1);
        let [mut one, other] = ends;
        let other = Some(other).filter(|_| !closes);
        eventually("the source is free", || {
            sides.iter().for_each(|side| side.service().expect("a service").serve());
            // A link that is said to be closed is looked at no more.
            let is_closed = matches!(one.progress(), Ok(PeerState::Closed));
            assert!(!is_closed || one.is_free(number), "closed, and still read");
            one.is_free(number).then_some(())
        });
        [0, 1].into_iter().for_each(|rail| cut(gid(rail, 236), false));
        drop(other);
    }
}

/// A reserve may have to send each fragment again: where its device knows no more of the program's memory, all ports send copies.
#[test]
fn fills_are_copied_where_a_reserve_could_not_send_them_again() {
    let address = |rail| AdapterPort::ethernet([10, 0, rail, 238]);
    let mut ports = vec![address(0), address(1)];
    ports[1].attr.active_width = 1;
    let adapters: Vec<Adapter> =
        ["fast", "slow"].into_iter().zip(ports).map(|(name, port)| Adapter::new(name, vec![port])).collect();
    set(adapters);
    let verbs = transport(&RdmaOptions::default(), &nothing()).expect("a transport");
    let mut ends = linked([&verbs, &verbs]);
    assert!(ends[0].signal(CounterKind::Credit, 1, 0).expect("the peer is there").is_ready());
    let service = verbs.service().expect("a service");
    eventually("both lead to the peer, and all is said", || {
        ends[1].flush_credits();
        look(&mut ends);
        service.serve();
        (!service.has_chores()).then_some(())
    });
    refuse_memory(verbs.shared.domains[1].port.context, libc::ENOMEM);
    cut(gid(0, 238), true);
    for value in 1..=5 {
        let (source, data) = filled(100_000, value);
        assert_eq!(lend(&mut ends, &source, value), 0, "it is read where it is");
        scribble(&source);
        assert!(arrived(&mut ends, value, data.len()) == data, "fill {value}");
    }
    cut(gid(0, 238), false);
    assert_eq!(verbs.shared.registrations[1].held().1, 0, "the reserve's device knows none of it");
}

/// Waits as a rank does that sleeps: nothing but the descriptor has it look. The peer looks, where it is to. How often it slept.
fn sleeps_until(
    ends: &mut Ends,
    peer_looks: bool,
    mut is_over: impl FnMut(&mut dyn Connection) -> bool,
) -> usize {
    for sleeps in 0.. {
        assert!(sleeps < 1000, "woken for nothing");
        let is_asleep = eventually("it is over or sleeps", || {
            let _ = ends[0].progress().expect("it goes on");
            if is_over(&mut *ends[0]) { Some(false) } else { ends[0].arm().then_some(true) }
        });
        if !is_asleep {
            // What has woken it is taken, and wakes it no more.
            eventually("it sleeps again", || (ends[0].arm() && !is_readable(&*ends[0])).then_some(()));
            return sleeps;
        }
        eventually("what it waits for wakes it", || {
            if peer_looks {
                let _ = ends[1].progress().expect("it goes on");
            }
            is_readable(&*ends[0]).then_some(())
        });
    }
    unreachable!("it is over or asleep")
}

/// The device alone says what is over: the peer computes.
#[test]
fn a_sleeper_that_waits_for_room_or_for_a_source_is_woken_by_its_device() {
    let sides = [over_standin().expect("a port"), over_standin().expect("a port")];
    let layout = Layout::new(SLOT_BYTES);
    let mut ends =
        meet([&sides[0], &sides[1]].map(|side| side.endpoint(layout).expect("an endpoint")), Duration::ZERO);
    let mut sleeps = [0; 2];
    for value in 1..=20u64 {
        let fill = |end: &mut dyn Connection, value| {
            end.fill(0, Span::of(&[1u8; 5000]), (value, 0), &mut 0).expect("it goes on").is_ready()
        };
        eventually("there is room", || {
            look(&mut ends);
            fill(&mut *ends[0], 2 * value - 1).then_some(())
        });
        // The place is still being written.
        sleeps[0] += sleeps_until(&mut ends, false, |end| fill(end, 2 * value));
        heard(&mut ends, 2 * value);
    }
    for value in 41..=60 {
        let source = shared(SLOT_BYTES);
        let number = lend(&mut ends, &source, value);
        sleeps[1] += sleeps_until(&mut ends, false, |end| end.is_free(number));
        heard(&mut ends, value);
    }
    println!("sleeps: {sleeps:?}");
    assert!(sleeps.iter().all(|sleeps| *sleeps > 0), "{sleeps:?}");
}

/// The peer's word and the devices' are both waited for, in any order.
#[test]
fn a_sleeper_that_waits_for_a_source_of_several_queue_pairs_is_woken() {
    let sides = [over(239, 2, 2), over(240, 2, 2)];
    let mut ends = linked([&sides[0], &sides[1]]);
    eventually("all lead to the peer", || {
        look(&mut ends);
        let mut lost = 0;
        ends[0].ways(Duration::ZERO, &mut |way| lost += u32::from(way.is_lost));
        (lost == 0).then_some(())
    });
    let source = shared(SLOT_BYTES);
    for value in 1..=30 {
        let mut number = 0;
        sleeps_until(&mut ends, true, |end| {
            let filled = end.fill_from(0, source.read(), (value, 0), &mut 0);
            matches!(filled.expect("it goes on"), Poll::Ready(of) if { number = of; true })
        });
        sleeps_until(&mut ends, true, |end| end.is_free(number));
    }
}
