//! Checks of slots that two parties hand to each other in each other's memory. A transport whose connections map no memory has
//! no such slots, and says so.

use consort_memory::pool::driver::{Party, Turn};
use consort_memory::pool::{Ends, SLOTS_MAX};
use consort_memory::{Pool, Row};

use super::*;

/// Slots of each party, the bytes of each, and how many messages are under way at most.
type Shape = (usize, usize, u64);

const LINES_BYTES: usize = Row::bytes(2, Row::LINE_PAYLOAD_BYTES);

/// A pool lies behind other things in a mailbox.
const OFFSET: usize = 4 * Row::LINE_PAYLOAD_BYTES.next_power_of_two();

fn mailbox_bytes((slots, payload_bytes, _): Shape) -> usize {
    OFFSET + LINES_BYTES + Row::bytes(slots, payload_bytes)
}

/// The lines of this side and of the peer: ready, and credit.
fn lines(side: &Side) -> Option<[Vec<Counter>; 2]> {
    Some(side.rows(OFFSET, 2, Row::LINE_PAYLOAD_BYTES)?.map(|lines| lines.counters()))
}

/// One party's side; none where the peer's memory is not mapped.
fn pool(side: &Side, (slots, payload_bytes, window): Shape) -> Option<Pool> {
    let rows = lines(side).zip(side.rows(OFFSET + LINES_BYTES, slots, payload_bytes));
    assert_eq!(
        rows.is_some(),
        side.capabilities().load_store,
        "rows of a connection over {}",
        side.transport()
    );
    let ([own, theirs], halves) = rows?;
    let ends = |line: usize| Ends { there: theirs[line].clone(), here: own[line].clone() };
    Some(Pool::new(ends(0), ends(1), halves, window))
}

/// Each party sends, reads and answers at random in a thread of its own: every byte arrives, and no slot is lost.
pub fn slots_change_hands(fixture: &dyn Fixture) {
    const MESSAGES: u64 = 1500;
    let seed = Random::announced("slots_change_hands").seed();
    for shape in [(1, 64, 1), (4, 200, 4), (8, 1000, 7), (16, 5000, 7), (SLOTS_MAX, 64, 7)] {
        let (slots, _, window) = shape;
        let (left, right) = pair(fixture, mailbox_bytes(shape));
        let mut parties = Vec::new();
        for (number, side) in [(0, &left), (1, &right)] {
            let Some(pool) = pool(side, shape) else { return };
            parties.push(Party::new(pool, number, window, MESSAGES, seed));
        }
        std::thread::scope(|threads| {
            for party in &mut parties {
                threads.spawn(move || {
                    eventually("all messages are sent and read", || {
                        // Several turns without a look at the clock.
                        while party.turn().expect("nothing foreign is said") != Turn::Nothing {}
                        party.is_done().then_some(())
                    });
                });
            }
        });
        let usable: Vec<usize> =
            parties.iter_mut().map(|party| party.usable().expect("nothing foreign was said")).collect();
        assert_eq!(usable.iter().sum::<usize>(), 2 * slots, "of {slots} slots each, {usable:?} are left");
    }
}

/// A peer that names no slot, one that is not its own, or messages that cannot be is refused.
pub fn names_of_slots_are_checked(fixture: &dyn Fixture) {
    const SHAPE: Shape = (8, 64, 4);
    /// A slot in the half of the party that did not name it.
    const OF_THE_OTHER: u64 = SLOTS_MAX as u64;
    // The peer's message, or none, and whether it is right.
    let messages = [(1, 0, true), (1, 7, true), (1, 8, false), (1, 31, false), (1, OF_THE_OTHER + 9, false)];
    let beyond =
        [(1, OF_THE_OTHER, false), (1, OF_THE_OTHER + 7, false), (5, 0, false), (u64::MAX >> 1, 0, false)];
    for (value, name, is_right) in messages.into_iter().chain(beyond) {
        let (left, right) = pair(fixture, mailbox_bytes(SHAPE));
        let (Some(mut pool), Some([_, there])) = (pool(&left, SHAPE), lines(&right)) else { return };
        assert_eq!(pool.is_here(1), Ok(false));
        there[0].raise(value, name);
        assert_eq!(pool.is_here(1).is_ok(), is_right, "message {value} in slot {name}");
        if is_right {
            // The slot is the reader's now.
            there[0].raise(2, name);
            assert!(pool.is_here(2).is_err(), "slot {name} twice");
        }
    }
    for (sent, value, name, is_right) in [
        (1, 1, 0x80, true),
        (0, 1, 0x80, false),
        (1, 2, 0x80, false),
        (1, 1, 1, false),
        (1, 1, 40, false),
        (1, 1, 0, true),
    ] {
        let (left, right) = pair(fixture, mailbox_bytes(SHAPE));
        let (Some(mut pool), Some([_, there])) = (pool(&left, SHAPE), lines(&right)) else { return };
        if sent == 1 {
            pool.fill(1, 64).expect("a window with room has a slot");
            pool.post(1, 0).expect("nothing foreign was said");
        }
        there[1].raise(value, name);
        assert_eq!(
            pool.is_emptied(1).is_ok(),
            is_right,
            "{value} credits after {sent} messages, slot {name}"
        );
    }
}
