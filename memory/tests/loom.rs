//! The protocols of `consort-memory` under the model checker, in every order that the memory model allows:
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p consort-memory --release --test loom`
#![cfg(loom)]

use consort_memory::Counter;
use consort_memory::sync::Exclusive;
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
        assert_eq!(*shared.try_acquire().expect("everybody is done"), times);
    });
}
