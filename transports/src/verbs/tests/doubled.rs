//! Devices that hand out completions twice: at once, or where the completion could pass for that of a later message.

use super::super::memory::Flush;
use super::super::standin::{cut, double, doubled, was_read};
use super::lanes::{SLOT_BYTES, SLOTS, Traffic, gid, is_whole, over};
use super::*;

/// Both sides' devices hand out completions twice.
fn doubling(sides: [&Verbs; 2]) {
    for side in sides {
        side.shared.domains.iter().for_each(|domain| double(domain.port.context));
    }
}

fn all_doubled(sides: [&Verbs; 2]) -> u64 {
    let of = |side: &Verbs| side.shared.domains.iter().map(|of| doubled(of.port.context)).sum::<u64>();
    sides.into_iter().map(of).sum()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Each seed has its ports, queue pairs and a peer that comes late or does not; rails fail where there are several.
#[test]
fn completions_that_come_twice_change_nothing() {
    const FILLS: u64 = 200;
    let (seeds, first) = (number("CONSORT_SEEDS", 36), number("CONSORT_SEED", 1));
    for seed in first..first + seeds {
        println!("CONSORT_SEED={seed}");
        let (rails, queue_pairs) = (1 + (seed % 3) as u8, 1 + (seed / 3 % 2) as u16);
        // Addresses of its own, as other tests cut theirs.
        let at = |host: u8| 230 + (seed % 10) as u8 * 2 + host;
        let sides = [over(at(0), rails, queue_pairs), over(at(1), rails, queue_pairs)];
        let sides = [&sides[0], &sides[1]];
        doubling(sides);
        let layout = |calls| Layout::new(SLOTS as usize * SLOT_BYTES).calling(calls);
        let endpoints = [0, 1].map(|end| sides[end].endpoint(layout(end == 0)).expect("an endpoint"));
        let late = Duration::from_millis(if seed % 5 == 0 { 60 } else { 0 });
        let mut traffic = Traffic::new(meet(endpoints, late), seed);
        let mut down = None;
        let ran = traffic.run(FILLS, |random, ends| match down {
            None if rails > 1 && random.below(200) == 0 && ends.iter().all(|end| is_whole(&**end)) => {
                let rail = gid(random.below(rails.into()) as u8, at(random.below(2) as u8));
                cut(rail, true);
                down = Some(rail);
            }
            Some(rail) if random.below(60) == 0 => {
                cut(rail, false);
                down = None;
            }
            _ => {}
        });
        if let Some(rail) = down {
            cut(rail, false);
        }
        ran.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        crate::conformance::eventually("the last credits come", || {
            traffic.ends.iter_mut().for_each(|end| drop(end.progress()));
            traffic.ends.iter_mut().for_each(|end| end.flush_credits());
            let has = |kind| traffic.ends.iter().all(|end| end.counter(kind).value() == FILLS);
            (has(CounterKind::Ready) && has(CounterKind::Credit)).then_some(())
        });
        assert!(all_doubled(sides) > 0, "seed {seed}: none came twice");
    }
}

/// What a device does that it must not is a warning, once for a queue pair.
#[test]
fn a_device_that_hands_out_completions_twice_is_warned_of() {
    let sides = [over(250, 1, 1), over(251, 1, 1)];
    doubling([&sides[0], &sides[1]]);
    let endpoints = [true, false].map(|calls| {
        let side = &sides[usize::from(!calls)];
        side.endpoint(Layout::new(64).calling(calls)).expect("an endpoint")
    });
    let places = [0, 1].map(|at| Place::decode(&endpoints[at].address().bytes).expect("a place"));
    let warned = events::said(tracing::Level::WARN, || {
        let [mut one, mut other] = meet(endpoints, Duration::ZERO);
        for value in 1..300 {
            arrives(&mut *one, &mut *other, value);
        }
    });
    let there = places[1].queues[0].number;
    let of_it = |text: &&String| text.contains(&format!("queue_pair={there}"));
    assert_eq!(warned.iter().filter(of_it).count(), 1, "{warned:?}");
    assert!(warned.iter().all(|text| text.contains("twice") && text.contains("standin0")), "{warned:?}");
}

/// Memory of a device is there when a read of it has come back, and not when one before it has for a second time.
#[test]
fn a_read_that_flushes_has_been_carried_out_when_it_is_over() {
    let verbs = over(252, 1, 1);
    doubling([&verbs, &verbs]);
    let domain = &verbs.shared.domains[0];
    let flush = Flush::new(domain).expect("a queue pair of its own");
    let mapping = consort_memory::Mapping::anonymous(4096).expect("memory");
    let region = Region::new(std::slice::from_ref(domain), mapping, Written::ReadBack).expect("registered");
    for at in 0..1000 {
        flush.behind(region.address(at), region.keys(0).1).expect("flushed");
        assert!(was_read(region.address(at)), "read {at}");
    }
    assert!(doubled(domain.port.context) > 0, "none came twice");
}
