//! Connections by several queue pairs: rails that fail and come back, and what is lost of what they carried.

use super::super::standin::{Adapter, AdapterPort, cut, set};
use super::super::sys::Gid;
use super::*;
use consort_memory::Held;
use consort_testing::Random;

use super::sources::shared;

fn address(rail: u8, host: u8) -> [u8; 4] {
    [10, 0, rail, host]
}

pub(super) fn gid(rail: u8, host: u8) -> Gid {
    AdapterPort::ethernet(address(rail, host)).gids[0].0
}

/// A transport over as many adapters, with as many queue pairs by each, for a host.
pub(super) fn over(host: u8, rails: u8, queue_pairs: u16) -> Verbs {
    const NAMES: [&str; 4] = ["standin0", "standin1", "standin2", "standin3"];
    let adapter =
        |rail: u8| Adapter::new(NAMES[usize::from(rail)], vec![AdapterPort::ethernet(address(rail, host))]);
    set((0..rails).map(adapter).collect());
    let options = RdmaOptions { queue_pairs, ..RdmaOptions::default() };
    let (functions, near) = (standin::functions(), &Near { ranks: 1, ..Near::default() });
    let search = Search { functions, sysfs: &nothing(), options: &options, near };
    Verbs::over(&search.ports().expect("ports"), queue_pairs, 1, None).expect("a transport")
}

pub(super) fn over_two_adapters() -> Option<Verbs> {
    Some(over(1, 2, 2))
}

/// Memory of a program: places that are filled from, each with the number of its fill until that is free.
struct Program {
    memory: Held,
    places: [Option<u64>; PLACES],
    /// Fills that were read where they are.
    lent: u64,
}

const PLACES: usize = 6;

impl Program {
    fn new() -> Self {
        Program { memory: shared(PLACES * SLOT_BYTES), places: [None; PLACES], lent: 0 }
    }

    /// Fills from a place of it that is free; none where none is.
    fn fill(
        &mut self,
        connection: &mut dyn Connection,
        slot: usize,
        bytes: &[u8],
        says: (u64, u64),
    ) -> Option<Result<Poll<()>, TransportError>> {
        let place = self.places.iter().position(Option::is_none)?;
        let part = self.memory.part(place * SLOT_BYTES, bytes.len());
        part.span().copy_from(Span::of(bytes));
        let filled = connection.fill_from(slot, part.read(), says, &mut 0);
        Some(filled.map(|poll| {
            poll.map(|number| {
                self.places[place] = (number > 0).then_some(number);
                self.lent += u64::from(number > 0);
            })
        }))
    }

    /// Writes over what is free. Whether all is.
    fn scribble(&mut self, connection: &dyn Connection) -> bool {
        for (at, place) in self.places.iter_mut().enumerate() {
            if place.is_some_and(|number| connection.is_free(number)) {
                *place = None;
                self.memory
                    .part(at * SLOT_BYTES, SLOT_BYTES)
                    .span()
                    .copy_from(Span::of(&[0xeeu8; SLOT_BYTES]));
            }
        }
        self.places == [None; PLACES]
    }
}

/// Traffic in both directions with fills of any length into slots that change hands, while rails fail and come back; half of the fills are
/// from memory of a program, which is written over as soon as it is free.
pub(super) struct Traffic {
    pub(super) ends: [Box<dyn Connection>; 2],
    programs: [Program; 2],
    /// Fills by each end, and how many of the other's it has emptied.
    filled: [u64; 2],
    emptied: [u64; 2],
    random: Random,
}

pub(super) const SLOTS: u64 = 4;
pub(super) const SLOT_BYTES: usize = 96 << 10;

/// What a fill has: its length, and its bytes by their places.
fn length(end: usize, fill: u64) -> usize {
    match fill.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(end as u64) >> 61 {
        0 => 0,
        1 => 1 + fill as usize % 72,
        2 => 73 + fill as usize % 5000,
        3 => SLOT_BYTES,
        _ => 8 * (1 + fill as usize % 40),
    }
}

fn byte(end: usize, fill: u64, at: usize) -> u8 {
    (fill as usize * 31 + at * 7 + end * 101) as u8
}

impl Traffic {
    pub(super) fn new(ends: [Box<dyn Connection>; 2], seed: u64) -> Self {
        let programs = [(); 2].map(|()| Program::new());
        Traffic { ends, programs, filled: [0; 2], emptied: [0; 2], random: Random::new(seed) }
    }

    /// One step of one end: it fills a slot if there is one, empties one if one has come.
    fn step(&mut self, end: usize, most: u64) -> Result<(), TransportError> {
        let connection = &mut self.ends[end];
        connection.progress()?;
        let program = &mut self.programs[end];
        program.scribble(&**connection);
        let free = connection.counter(CounterKind::Credit).value() + SLOTS;
        if self.filled[end] < most.min(free) && self.random.below(3) > 0 {
            let fill = self.filled[end];
            let bytes: Vec<u8> = (0..length(end, fill)).map(|at| byte(end, fill, at)).collect();
            let slot = (fill % SLOTS) as usize * SLOT_BYTES;
            let says = (fill + 1, !fill);
            let lent = self.random.below(2) == 0;
            let filled = lent.then(|| program.fill(&mut **connection, slot, &bytes, says)).flatten();
            let filled = filled.unwrap_or_else(|| connection.fill(slot, Span::of(&bytes), says, &mut 0))?;
            self.filled[end] += u64::from(filled.is_ready());
        }
        let there = connection.counter(CounterKind::Ready).value();
        if self.emptied[end] < there && self.random.below(3) > 0 {
            let (fill, other) = (self.emptied[end], 1 - end);
            let length = length(other, fill);
            let mut read = vec![0u8; length];
            let slot = (fill % SLOTS) as usize * SLOT_BYTES;
            SpanMut::of(&mut read).copy_from(connection.mailbox().slice(slot, length).read());
            let is_right = read.iter().enumerate().all(|(at, found)| *found == byte(other, fill, at));
            assert!(is_right, "fill {fill} of end {other} has the right bytes");
            assert_eq!(connection.counter(CounterKind::Ready).tag(fill + 1), !fill);
            if connection.signal(CounterKind::Credit, fill + 1, fill)?.is_ready() {
                self.emptied[end] += 1;
            }
        }
        Ok(())
    }

    /// Steps until each end has emptied as many fills; `between` is called between them.
    pub(super) fn run(
        &mut self,
        most: u64,
        mut between: impl FnMut(&mut Random, &[Box<dyn Connection>; 2]),
    ) -> Result<(), TransportError> {
        let begun = Instant::now();
        while self.emptied != [most; 2] {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?} of {most}", self.emptied);
            let end = self.random.below(2);
            self.step(end, most)?;
            between(&mut self.random, &self.ends);
        }
        crate::conformance::eventually("all sources are free", || {
            self.ends.iter_mut().for_each(|end| drop(end.progress()));
            let are_free = |at: usize| self.programs[at].scribble(&*self.ends[at]);
            [0, 1].map(are_free).into_iter().all(|is_free| is_free).then_some(())
        });
        Ok(())
    }
}

pub(super) fn linked(sides: [&Verbs; 2]) -> [Box<dyn Connection>; 2] {
    let endpoints = [0, 1].map(|at| {
        let layout = Layout::new(SLOTS as usize * SLOT_BYTES).calling(at == 0);
        sides[at].endpoint(layout).expect("an endpoint")
    });
    meet(endpoints, Duration::ZERO)
}

fn lost(connection: &dyn Connection, after: Duration) -> Vec<bool> {
    let mut lost = Vec::new();
    connection.ways(after, &mut |way| lost.push(way.is_lost));
    lost
}

pub(super) fn is_whole(connection: &dyn Connection) -> bool {
    !lost(connection, Duration::ZERO).contains(&true)
}

/// Each seed has its rails, queue pairs and failures; the last seed's number is that of a failure.
#[test]
fn rails_that_fail_and_come_back_lose_nothing_and_double_nothing() {
    let seeds = std::env::var("CONSORT_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(24u64);
    let first = std::env::var("CONSORT_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1u64);
    let (mut failures, mut lent) = (0, 0);
    for seed in first..first + seeds {
        println!("CONSORT_SEED={seed}");
        let rails = 2 + (seed % 2) as u8;
        // Addresses of its own: what other tests do to theirs is nothing to it.
        let host = 10 + (seed % 100) as u8 * 2;
        let sides = [over(host, rails, 1 + (seed % 3) as u16), over(host + 1, rails, 1 + (seed % 3) as u16)];
        let mut traffic = Traffic::new(linked([&sides[0], &sides[1]]), seed);
        let mut down = None;
        traffic
            .run(150, |random, ends| match down {
                // One at a time, and the next when all carry on again.
                None if random.below(100) == 0 && ends.iter().all(|end| is_whole(&**end)) => {
                    let rail = gid(random.below(rails.into()) as u8, host + random.below(2) as u8);
                    cut(rail, true);
                    (down, failures) = (Some(rail), failures + 1);
                }
                Some(rail) if random.below(60) == 0 => {
                    cut(rail, false);
                    down = None;
                }
                _ => {}
            })
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        lent += traffic.programs.iter().map(|program| program.lent).sum::<u64>();
        if let Some(rail) = down {
            cut(rail, false);
        }
    }
    assert!(failures >= seeds / 2, "rails failed: {failures}");
    assert!(lent >= 10 * seeds, "read where they are: {lent}");
}

#[test]
fn a_rail_that_is_down_for_long_is_lost_until_it_has_been_back_for_long() {
    let sides = [over(211, 2, 1), over(212, 2, 1)];
    let mut traffic = Traffic::new(linked([&sides[0], &sides[1]]), 7);
    let after = Duration::from_millis(300);
    traffic.run(20, |_, _| {}).expect("all is well");
    crate::conformance::eventually("both lead to the peer", || {
        traffic.ends.iter_mut().for_each(|end| drop(end.progress()));
        (lost(&*traffic.ends[0], after) == [false; 2]).then_some(())
    });
    cut(gid(1, 211), true);
    let mut most = 20;
    crate::conformance::eventually("it is lost", || {
        most += 10;
        traffic.run(most, |_, _| {}).expect("the other carries on");
        (lost(&*traffic.ends[0], after) == [false, true]).then_some(())
    });
    cut(gid(1, 211), false);
    crate::conformance::eventually("it is back", || {
        most += 10;
        traffic.run(most, |_, _| {}).expect("it goes on");
        (lost(&*traffic.ends[0], after) == [false; 2]).then_some(())
    });
}

#[test]
fn the_last_rail_that_fails_is_the_verdict() {
    let sides = [over(213, 2, 1), over(214, 2, 1)];
    let mut traffic = Traffic::new(linked([&sides[0], &sides[1]]), 8);
    traffic.run(20, |_, _| {}).expect("all is well");
    [0, 1].into_iter().for_each(|rail| cut(gid(rail, 213), true));
    let error = traffic.run(1000, |_, _| {}).expect_err("nothing leads to the peer");
    [0, 1].into_iter().for_each(|rail| cut(gid(rail, 213), false));
    let TransportError::Completion { failed, .. } = &error else { panic!("{error}") };
    assert!(failed.device.starts_with("standin") && failed.causes.contains("has not answered"), "{error}");
}

/// A rank that has left its call does not look: the control thread sends again what a rail has lost.
#[test]
fn what_was_lost_is_sent_again_while_its_rank_is_in_no_call() {
    for round in 0..4 {
        let sides = [over(215, 2, 1), over(216, 2, 1)];
        let [mut one, mut other] = linked([&sides[0], &sides[1]]);
        let sessions = sides[0].service().expect("a service");
        cut(gid(0, 216), true);
        let bytes = [round as u8 + 1; 200_000];
        assert!(one.fill(0, Span::of(&bytes), (1, 5), &mut 0).expect("room").is_ready());
        assert!(sessions.has_chores());
        crate::conformance::eventually("it arrives", || {
            sessions.serve();
            other.progress().expect("another rail leads to the peer");
            (other.counter(CounterKind::Ready).value() == 1).then_some(())
        });
        let mut read = vec![0u8; bytes.len()];
        SpanMut::of(&mut read).copy_from(other.mailbox().slice(0, bytes.len()).read());
        assert!(read == bytes);
        cut(gid(0, 216), false);
        crate::conformance::eventually("all is whole again", || {
            sessions.serve();
            other.progress().expect("it goes on");
            (!sessions.has_chores()).then_some(())
        });
    }
}

#[test]
fn a_reserve_carries_nothing_while_another_port_does() {
    let mut ports = vec![AdapterPort::ethernet(address(0, 217)), AdapterPort::ethernet(address(1, 217))];
    ports[1].attr.active_width = 1;
    let adapters: Vec<Adapter> =
        ["fast", "slow"].into_iter().zip(ports).map(|(name, port)| Adapter::new(name, vec![port])).collect();
    set(adapters);
    let verbs = transport(&RdmaOptions::default(), &nothing()).expect("a transport");
    assert_eq!(verbs.shared.lanes, [(0, false), (1, true)]);
    let mut traffic = Traffic::new(linked([&verbs, &verbs]), 9);
    let numbers = standin::leading_to(gid(1, 217));
    traffic.run(50, |_, _| {}).expect("all is well");
    let before: Vec<u32> = numbers.iter().map(|number| standin::sends(*number)).collect();
    traffic.run(100, |_, _| {}).expect("all is well");
    let after: Vec<u32> = numbers.iter().map(|number| standin::sends(*number)).collect();
    assert_eq!((numbers.len(), &before), (2, &after), "the reserve carries nothing");
    // Others carry on, so it is found sooner that one does not work.
    assert!(numbers.iter().all(|number| standin::connected(*number).timeout == 17));
    cut(gid(0, 217), true);
    traffic.run(150, |_, _| {}).expect("the reserve carries on");
    cut(gid(0, 217), false);
}

/// What a device has taken is not sent again by a side that has gone: the other side hears all of it before it closes a queue pair.
#[test]
fn what_is_sent_by_one_who_goes_at_once_arrives_although_a_rail_fails() {
    let mut random = Random::new(11);
    standin::delay(50);
    for round in 0..16 {
        let sides = [over(219, 2, 2), over(220, 2, 2)];
        let [mut one, mut other] = linked([&sides[0], &sides[1]]);
        let service = sides[0].service().expect("a service");
        let fills: Vec<u64> = (0..3).map(|_| random.below(1 << 20) as u64).collect();
        for (slot, fill) in (0..).zip(&fills) {
            let bytes: Vec<u8> = (0..length(0, *fill)).map(|at| byte(0, *fill, at)).collect();
            let filled = one.fill(slot * SLOT_BYTES, Span::of(&bytes), (slot as u64 + 1, *fill), &mut 0);
            assert!(filled.expect("the peer is there").is_ready());
        }
        let rail = gid(random.below(2) as u8, 219 + random.below(2) as u8);
        drop(one);
        if round % 2 == 0 {
            // Nothing is left of it, and the other end has not looked yet when its own words fail.
            crate::conformance::eventually("all is taken", || {
                service.serve();
                (!service.has_chores()).then_some(())
            });
        }
        cut(rail, true);
        for value in 1..3 {
            let _ = other.signal(CounterKind::Credit, value, 0).expect("nothing was heard of it");
        }
        crate::conformance::eventually("the end comes behind the fills", || {
            service.serve();
            (other.progress().expect("it goes on") == PeerState::Closed).then_some(())
        });
        cut(rail, false);
        assert_eq!(other.counter(CounterKind::Ready).value(), 3, "round {round}");
        for (slot, fill) in (0..).zip(&fills) {
            let length = length(0, *fill);
            let mut read = vec![0u8; length];
            SpanMut::of(&mut read).copy_from(other.mailbox().slice(slot * SLOT_BYTES, length).read());
            assert!(read.iter().enumerate().all(|(at, found)| *found == byte(0, *fill, at)), "round {round}");
        }
    }
    standin::delay(3);
}

/// The control thread takes in nothing that a sleeping rank waits for: the rank would sleep on.
#[test]
fn what_comes_to_a_sleeper_wakes_it_although_its_session_is_looked_after() {
    let is_readable = |connection: &dyn Connection| {
        use std::os::fd::AsRawFd;
        let fd = connection.wake().expect("a descriptor").as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure that lives during the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    };
    let sides = [over(221, 2, 1), over(222, 2, 1)];
    let [mut one, mut other] = linked([&sides[0], &sides[1]]);
    let service = sides[1].service().expect("a service");
    for round in 1..30 {
        let place = round as usize * 64;
        // What it has sent is why it is looked after.
        assert!(other.fill(place, Span::of(&[round; 8]), (round, 0), &mut 0).expect("room").is_ready());
        crate::conformance::eventually("it may sleep", || other.arm().then_some(()));
        assert!(one.fill(place, Span::of(&[round; 8]), (round, 0), &mut 0).expect("room").is_ready());
        crate::conformance::eventually("it comes", || {
            service.serve();
            let _ = one.progress().expect("it goes on");
            let has_come = other.counter(CounterKind::Ready).value() == round;
            (has_come || is_readable(&*other)).then_some(())
        });
        assert!(is_readable(&*other), "round {round}: the sleeper is woken");
        crate::conformance::eventually("it takes that in", || {
            let _ = (one.progress().expect("it goes on"), other.progress().expect("it goes on"));
            let values = [&one, &other].map(|end| end.counter(CounterKind::Ready).value());
            (values == [round; 2]).then_some(())
        });
    }
}

#[test]
fn each_port_has_as_many_queue_pairs_where_all_together_would_be_too_many() {
    let lanes = |rails, queue_pairs| over(223, rails, queue_pairs).shared.lanes.clone();
    let ports = |rails: usize, each: usize| -> Vec<(usize, bool)> {
        (0..rails).flat_map(|rail| std::iter::repeat_n((rail, false), each)).collect()
    };
    assert_eq!(lanes(2, 3), ports(2, 3));
    assert_eq!(lanes(2, 16), ports(2, 8));
    assert_eq!(lanes(4, 128), ports(4, 4));
    assert_eq!(lanes(3, 16), ports(3, 5));
    assert_eq!(lanes(1, 16), ports(1, 16));
    let mut slow = AdapterPort::ethernet(address(1, 223));
    slow.attr.active_width = 1;
    let fast = AdapterPort::ethernet(address(0, 223));
    set(vec![Adapter::new("fast", vec![fast]), Adapter::new("slow", vec![slow])]);
    let options = RdmaOptions { queue_pairs: 16, ..RdmaOptions::default() };
    let verbs = transport(&options, &nothing()).expect("a transport");
    let reserves = verbs.shared.lanes.iter().filter(|(_, is_reserve)| *is_reserve).count();
    assert_eq!((verbs.shared.lanes.len(), reserves), (16, 1));
}

/// What a device says of its port is enough: no packet has to be lost.
#[test]
fn a_port_that_its_device_reports_down_is_left_at_once_and_taken_again_when_it_is_back() {
    use super::super::standin::raise;
    use super::super::sys::{EVENT_PORT_ACTIVE, EVENT_PORT_ERR};
    let sides = [over(224, 2, 1), over(225, 2, 1)];
    let mut traffic = Traffic::new(linked([&sides[0], &sides[1]]), 12);
    traffic.run(20, |_, _| {}).expect("all is well");
    crate::conformance::eventually("both lead to the peer", || {
        traffic.ends.iter_mut().for_each(|end| drop(end.progress()));
        traffic.ends.iter().all(|end| is_whole(&**end)).then_some(())
    });
    let context = sides[0].shared.domains[1].port.context;
    let service = sides[0].service().expect("a service");
    raise(context, EVENT_PORT_ERR, 1);
    service.serve();
    let mut most = 20;
    for _ in 0..5 {
        most += 20;
        traffic.run(most, |_, _| {}).expect("the other carries on");
        assert_eq!(lost(&*traffic.ends[0], Duration::ZERO), [false, true]);
    }
    raise(context, EVENT_PORT_ACTIVE, 1);
    service.serve();
    crate::conformance::eventually("it is taken again", || {
        most += 10;
        traffic.run(most, |_, _| {}).expect("it goes on");
        traffic.ends.iter().all(|end| is_whole(&**end)).then_some(())
    });
}

/// What a lane that fails has not carried is asked for again: a place is written twice without a credit between. Few fills, so that the peer owes
/// no word of its own.
#[test]
fn places_that_are_written_again_without_credits_are_written_although_rails_fail() {
    let mut random = Random::new(13);
    let sides = [over(226, 2, 1), over(227, 2, 1)];
    for _ in 0..40 {
        let [mut one, mut other] = linked([&sides[0], &sides[1]]);
        let (fails_at, rail) = (random.below(12) as u64, gid(0, 226 + random.below(2) as u8));
        for value in 1..=12u64 {
            crate::conformance::eventually("it has room", || {
                let _ = (one.progress().expect("it goes on"), other.progress().expect("it goes on"));
                let filled = one.fill(0, Span::of(&[value as u8; 3000]), (value, 0), &mut 0);
                filled.expect("it goes on").is_ready().then_some(())
            });
            if value == fails_at {
                cut(rail, true);
            }
        }
        crate::conformance::eventually("the last arrives", || {
            let _ = (one.progress().expect("it goes on"), other.progress().expect("it goes on"));
            (other.counter(CounterKind::Ready).value() == 12).then_some(())
        });
        cut(rail, false);
    }
}
