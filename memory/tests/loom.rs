//! The protocols of `consort-memory` under the model checker, in every order that the memory model allows:
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p consort-memory --release --test loom`
#![cfg(loom)]

use consort_memory::access_epoch::{self, AccessEpoch};
use consort_memory::pool::{Ends, POOL_BITS};
use consort_memory::sync::Exclusive;
use consort_memory::{Arrival, Bell, Counter, Inbox, Outbox, Pool, Row, SpanMut};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A mailbox with its two counters, as the two sides of a mapped connection use it.
struct Mailbox<const SLOTS: usize> {
    slots: [UnsafeCell<u64>; SLOTS],
    ready: Counter,
    credit: Counter,
}

impl<const SLOTS: usize> Mailbox<SLOTS> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            slots: std::array::from_fn(|_| UnsafeCell::new(0)),
            ready: Counter::standalone(),
            credit: Counter::standalone(),
        })
    }

    /// Sends as far as credit allows, in `attempts` attempts: a loop without end has orders without end.
    fn send(&self, attempts: u64) -> u64 {
        let mut sent = 0;
        for _ in 0..attempts {
            if self.credit.value() + SLOTS as u64 <= sent {
                thread::yield_now();
                continue;
            }
            // The checker fails here when a reader may still be in the slot.
            // SAFETY: the model checker's cell is valid, and it reports any access that is not alone.
            self.slots[sent as usize % SLOTS].with_mut(|slot| unsafe { *slot = sent * 10 });
            sent += 1;
            self.ready.raise(sent, sent * 100);
        }
        sent
    }

    /// Receives what is there, in `attempts` attempts after `received` messages.
    fn receive(&self, mut received: u64, attempts: u64) -> u64 {
        for _ in 0..attempts {
            if self.ready.value() <= received {
                thread::yield_now();
                continue;
            }
            assert_eq!(self.ready.tag(received + 1), (received + 1) * 100);
            // And here when the writer's bytes need not be visible.
            // SAFETY: as above.
            let got = self.slots[received as usize % SLOTS].with(|slot| unsafe { *slot });
            assert_eq!(got, received * 10);
            received += 1;
            self.credit.raise(received, received);
        }
        received
    }
}

fn exchange<const SLOTS: usize>(attempts: u64, preemptions_max: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions_max);
    model.check(move || {
        let mailbox = Mailbox::<SLOTS>::new();
        let writer = Arc::clone(&mailbox);
        let writer = thread::spawn(move || writer.send(attempts));
        let received = mailbox.receive(0, attempts);
        let sent = writer.join().unwrap();
        assert!(sent >= received && sent - received <= SLOTS as u64);
        assert_eq!(mailbox.receive(received, SLOTS as u64), sent, "nothing is lost");
    });
}

#[test]
fn one_slot_wraps() {
    exchange::<1>(3, 4);
}

#[test]
fn two_slots_wrap() {
    exchange::<2>(4, 2);
}

/// As many slots as tags: the eighth raise overwrites the first tag.
#[test]
fn seven_slots_wrap_with_their_tags() {
    exchange::<7>(8, 1);
}

#[test]
fn an_exclusive_has_one_owner_who_sees_the_last_ones_writes() {
    loom::model(|| {
        let shared = Arc::new(Exclusive::new(0u32));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let mut times = 0;
                    for _ in 0..2 {
                        if let Some(mut value) = shared.try_acquire() {
                            *value += 1;
                            times += 1;
                        }
                    }
                    times
                })
            })
            .collect();
        let times: u32 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert!(times >= 2, "each has it alone at least once");
        assert_eq!(*shared.try_acquire().expect("all are done"), times);
    });
}

/// A row of slots with the payloads beside it, so that the checker watches them; and the credit of one-way streams.
struct Letters<const SLOTS: usize> {
    payloads: [UnsafeCell<u64>; SLOTS],
    row: Row,
    credit: Counter,
}

impl<const SLOTS: usize> Letters<SLOTS> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            payloads: std::array::from_fn(|_| UnsafeCell::new(0)),
            row: Row::standalone(SLOTS),
            credit: Counter::standalone(),
        })
    }

    /// Sends message `number` if the reader is through with all up to `through`.
    fn send(&self, out: &mut Outbox, number: u64, through: u64) -> bool {
        if !out.has_room(through) {
            return false;
        }
        // SAFETY: the model checker's cell is valid, and it reports any access that is not alone.
        self.payloads[number as usize % SLOTS].with_mut(|payload| unsafe { *payload = number * 10 });
        out.send(number, number << 32);
        true
    }

    /// Takes message `number` if it is here.
    fn take(&self, inbox: &mut Inbox, number: u64) -> bool {
        match inbox.look(number << 32) {
            Arrival::None => return false,
            Arrival::Other => panic!("another message than {number}"),
            Arrival::Here => {}
        }
        // SAFETY: as above.
        let got = self.payloads[number as usize % SLOTS].with(|payload| unsafe { *payload });
        assert_eq!(got, number * 10);
        inbox.take();
        true
    }
}

/// Messages in one direction, with credits.
#[test]
fn letters_go_round_in_their_slots() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let letters = Letters::<2>::new();
        let writer = Arc::clone(&letters);
        let writer = thread::spawn(move || {
            let (mut out, mut sent) = (Outbox::new(writer.row.clone()), 0);
            for _ in 0..4 {
                if writer.send(&mut out, sent + 1, writer.credit.value()) {
                    sent += 1;
                } else {
                    thread::yield_now();
                }
            }
            sent
        });
        let (mut inbox, mut taken) = (Inbox::new(letters.row.clone()), 0);
        let mut read = |attempts: u64, taken: &mut u64| {
            for _ in 0..attempts {
                if letters.take(&mut inbox, *taken + 1) {
                    *taken += 1;
                    letters.credit.raise(*taken, 0);
                } else {
                    thread::yield_now();
                }
            }
        };
        read(4, &mut taken);
        let sent = writer.join().unwrap();
        read(2, &mut taken);
        assert_eq!(sent, taken, "nothing is lost");
    });
}

/// Two ranks that send to each other in every operation need no credits: a rank that has heard of the peer in an operation
/// knows that it is through with those before.
#[test]
fn who_answers_needs_no_credit() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let ways = [Letters::<2>::new(), Letters::<2>::new()];
        let side = |me: usize| {
            let (out, inbox) = (Arc::clone(&ways[1 - me]), Arc::clone(&ways[me]));
            move || {
                let mut outbox = Outbox::new(out.row.clone());
                let mut from = Inbox::new(inbox.row.clone());
                let mut through = 0;
                for operation in 1..=3u64 {
                    // There is always room: two slots, and the peer is at most one operation behind.
                    assert!(out.send(&mut outbox, operation, through));
                    while !inbox.take(&mut from, operation) {
                        thread::yield_now();
                    }
                    through = operation - 1;
                }
            }
        };
        let (here, there) = (side(0), side(1));
        let there = thread::spawn(there);
        here();
        there.join().unwrap();
    });
}

/// An epoch that begins while the owner forbids either sees it or is seen; memory is written by one of them at a time.
#[test]
fn an_owner_that_forbids_is_alone_once_no_epoch_is_open() {
    loom::model(|| {
        let counters = [Counter::standalone(), Counter::standalone()];
        let rows = [Row::standalone(1), Row::standalone(1)];
        let side = |me: usize| {
            AccessEpoch::new(
                counters[me].clone(),
                counters[1 - me].clone(),
                Outbox::new(rows[1 - me].clone()),
                Inbox::new(rows[me].clone()),
            )
        };
        let (mut owner, mut peer) = (side(0), side(1));
        let memory = Arc::new(UnsafeCell::new(0u32));
        let theirs = Arc::clone(&memory);
        let guest = thread::spawn(move || {
            peer.begin();
            access_epoch::fence();
            if !peer.is_forbidden() {
                // SAFETY: the model checker's cell is valid, and it reports any access that is not alone.
                theirs.with_mut(|memory| unsafe { *memory += 1 });
            }
            peer.end();
        });
        owner.forbid();
        access_epoch::fence();
        while owner.is_open() {
            thread::yield_now();
        }
        // SAFETY: as above.
        memory.with_mut(|memory| unsafe { *memory += 10 });
        guest.join().unwrap();
        // SAFETY: as above.
        assert!(memory.with(|memory| unsafe { *memory }) >= 10);
    });
}

#[test]
fn a_sleeper_is_woken_by_who_has_sent_and_rung() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(|| {
        let bells = [Row::standalone(1), Row::standalone(1)];
        let [sleeper, other] = [[0, 1], [1, 0]].map(|sides| Bell::new(sides.map(|side| bells[side].clone())));
        let row = Row::standalone(1);
        let (mut out, inbox) = (Outbox::new(row.clone()), Inbox::new(row));
        let sender = thread::spawn(move || {
            out.send(1, 0);
            access_epoch::fence();
            other.ring();
        });
        sleeper.arm();
        if inbox.look(0) == Arrival::None {
            // Asleep for as long as no ring comes: for ever, if the ring was missed.
            while sleeper.is_armed() {
                thread::yield_now();
            }
        }
        sender.join().unwrap();
    });
}

/// The slots of a pool, each beside a cell that the checker watches.
struct Watched<const SLOTS: usize> {
    cells: [UnsafeCell<u64>; SLOTS],
    /// The addresses of the slots, as they are found; no part of what is modelled.
    addresses: std::sync::Mutex<Vec<usize>>,
}

impl<const SLOTS: usize> Watched<SLOTS> {
    fn cell(&self, slot: SpanMut<'_>) -> &UnsafeCell<u64> {
        let address = slot.as_mut_ptr() as usize;
        let mut known = self.addresses.lock().unwrap();
        let at = known.iter().position(|other| *other == address).unwrap_or_else(|| {
            known.push(address);
            known.len() - 1
        });
        &self.cells[at]
    }
}

/// A side of a pool: what it has sent, and the next value that it awaits.
struct Side<const SLOTS: usize> {
    pool: Pool,
    slots: Arc<Watched<SLOTS>>,
}

impl<const SLOTS: usize> Side<SLOTS> {
    fn send(&mut self, value: u64) -> bool {
        if !self.pool.has_room().unwrap() {
            return false;
        }
        let number = self.pool.counts().0 + 1;
        let cell = self.slots.cell(self.pool.fill(number, 8).expect("a window with room has a slot"));
        // The checker fails here when the other side may still be in the slot.
        // SAFETY: the model checker's cell is valid, and it reports any access that is not alone.
        cell.with_mut(|slot| unsafe { *slot = value });
        self.pool.post(number, value << POOL_BITS).unwrap();
        true
    }

    /// Reads the next message; answers it in its slot with what `answer` makes of it.
    fn receive(&mut self, batch: u64, answer: Option<fn(u64) -> u64>) -> Option<u64> {
        let number = self.pool.counts().1 + 1;
        if !self.pool.is_here(number).unwrap() {
            return None;
        }
        let cell = self.slots.cell(self.pool.read(number).expect("it came with a slot"));
        // SAFETY: as above.
        let got = cell.with(|slot| unsafe { *slot });
        assert_eq!(got << POOL_BITS, self.pool.word(number));
        if let Some(answer) = answer {
            let next = self.pool.counts().0 + 1;
            assert!(self.pool.has_room().unwrap() && self.pool.forward(number, next));
            // SAFETY: as above.
            cell.with_mut(|slot| unsafe { *slot = answer(got) });
            self.pool.post(next, answer(got) << POOL_BITS).unwrap();
        }
        self.pool.empty(number, 0, batch).unwrap();
        Some(got)
    }
}

/// Both sides of a pool of `SLOTS` slots.
fn sides<const SLOTS: usize>(window: u64) -> [Side<SLOTS>; 2] {
    let rows = [(); 2].map(|()| Row::standalone(SLOTS / 2));
    let lines = [(); 4].map(|()| Counter::standalone());
    let slots = Arc::new(Watched {
        cells: std::array::from_fn(|_| UnsafeCell::new(0)),
        addresses: std::sync::Mutex::new(Vec::new()),
    });
    [0, 1].map(|me| {
        let ends =
            |first: usize| Ends { there: lines[first + me].clone(), here: lines[first + 1 - me].clone() };
        let halves = [rows[me].clone(), rows[1 - me].clone()];
        Side { pool: Pool::new(ends(0), ends(2), halves, window), slots: Arc::clone(&slots) }
    })
}

/// Two sides that send and read as they can, so often; each has read what the other has sent.
fn pass_slots<const SLOTS: usize>(window: u64, batch: u64, attempts: u64, preemptions_max: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions_max);
    model.check(move || {
        let run = move |side: &mut Side<SLOTS>, attempts: u64, sends: bool| {
            let (mut sent, mut read) = (0, 0);
            for _ in 0..attempts {
                let has_sent = sends && side.send(sent + 1);
                sent += u64::from(has_sent);
                let got = side.receive(batch, None);
                if let Some(value) = got {
                    read += 1;
                    assert_eq!(value, side.pool.counts().1);
                }
                if !has_sent && got.is_none() {
                    thread::yield_now();
                }
            }
            (sent, read)
        };
        let [mut here, mut there] = sides::<SLOTS>(window);
        let other = thread::spawn(move || {
            let counts = run(&mut there, attempts, true);
            (there, counts)
        });
        let (sent, mut read) = run(&mut here, attempts, true);
        let (mut there, (their_sent, mut their_read)) = other.join().unwrap();
        read += run(&mut here, window, false).1;
        their_read += run(&mut there, window, false).1;
        assert_eq!((sent, their_sent), (their_read, read), "nothing is lost");
    });
}

#[test]
fn two_slots_are_passed_between_two_sides() {
    pass_slots::<2>(1, 1, 3, 3);
}

#[test]
fn slots_stay_with_who_has_read_them() {
    pass_slots::<4>(1, 1, 3, 2);
}

#[test]
fn credits_are_gathered() {
    pass_slots::<4>(2, 2, 4, 1);
}

/// The sum of a summand goes back in its slot.
#[test]
fn a_sum_goes_back_in_its_summands_slot() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let [mut here, mut there] = sides::<4>(2);
        let other = thread::spawn(move || {
            let mut answered = 0;
            while answered < 2 {
                match there.receive(1, Some(|value| value + 100)) {
                    Some(_) => answered += 1,
                    None => thread::yield_now(),
                }
            }
        });
        let (mut sent, mut read) = (0, 0);
        while read < 2 {
            let has_sent = sent < 2 && here.send(sent + 1);
            sent += u64::from(has_sent);
            match here.receive(1, None) {
                Some(sum) => {
                    read += 1;
                    assert_eq!(sum, read + 100);
                }
                None if !has_sent => thread::yield_now(),
                None => {}
            }
        }
        other.join().unwrap();
    });
}
