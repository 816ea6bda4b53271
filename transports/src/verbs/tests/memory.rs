//! Memory of programs that the device reads where it is.

use consort_memory::{Held, SharedBuffer, lend};
use consort_testing::Random;

use super::super::memory::LENT_BYTES_MIN;
use super::*;

pub(super) const BYTES: usize = 64 << 10;

/// Two transports and a connection between them; the numbers of the first side's queue pairs.
pub(super) struct Pair {
    pub(super) sides: [Box<dyn Connection>; 2],
    pub(super) near: Verbs,
    _far: Verbs,
    pub(super) queues: Vec<u32>,
}

pub(super) fn pair(transport: fn() -> Option<Verbs>) -> Pair {
    let [near, far] = [(); 2].map(|()| transport().expect("a port"));
    let endpoints = [&near, &far].map(|of| of.endpoint(Layout::new(BYTES)).expect("an endpoint"));
    let place = Place::decode(&endpoints[0].address().bytes).expect("a place");
    let queues = place.queues.iter().map(|queue| queue.number).collect();
    Pair { sides: meet(endpoints, Duration::ZERO), near, _far: far, queues }
}

/// Runs something with a buffer that is lent. A panic ends the pair, so that the buffer comes back.
pub(super) fn lent(pair: Pair, buffer: &mut [u8], run: impl FnOnce(&mut Pair, Held)) -> Pair {
    lend(move |lender| {
        let mut pair = pair;
        run(&mut pair, lender.share_mut(buffer));
        pair
    })
}

fn go_on(sides: &mut [Box<dyn Connection>; 2]) {
    sides.iter_mut().for_each(|side| assert_eq!(side.progress().expect("progress"), PeerState::Open));
}

pub(super) fn fill_from(sides: &mut [Box<dyn Connection>; 2], source: Span<'_>, value: u64) -> u64 {
    let mut done = 0;
    crate::conformance::eventually("there is room", || {
        go_on(sides);
        match sides[0].fill_from(0, source, (value, 0), &mut done).expect("a fill") {
            Poll::Ready(number) => Some(number),
            Poll::Pending => None,
        }
    })
}

pub(super) fn is_free_soon(sides: &mut [Box<dyn Connection>; 2], number: u64) {
    crate::conformance::eventually("the source is free", || {
        go_on(sides);
        sides[0].is_free(number).then_some(())
    });
}

pub(super) fn arrived(sides: &mut [Box<dyn Connection>; 2], value: u64, bytes: usize) -> Vec<u8> {
    crate::conformance::eventually("it arrives", || {
        go_on(sides);
        (sides[1].counter(CounterKind::Ready).value() == value).then_some(())
    });
    let mut read = vec![0u8; bytes];
    SpanMut::of(&mut read).copy_from(sides[1].mailbox().slice(0, bytes).read());
    read
}

impl Pair {
    /// Whether a queue pair was given each piece of these bytes to send.
    fn was_posted(&self, start: usize, bytes: usize, piece: usize) -> bool {
        let was_posted = |at: usize| {
            let length = piece.min(bytes - at);
            self.queues.iter().any(|queue| standin::was_posted(*queue, start + at, length))
        };
        (0..bytes).step_by(piece).all(was_posted)
    }

    /// What each port knows of programs' memory.
    pub(super) fn held(&self) -> Vec<(usize, usize)> {
        self.near.shared.registrations.iter().map(|of| of.held()).collect()
    }
}

#[test]
fn shared_memory_is_written_from_where_it_is_and_other_memory_is_copied() {
    what_is_shared_is_written_from_where_it_is(over_standin, BYTES);
}

/// Two queue pairs of each of two ports: each writes pieces of it.
#[test]
fn shared_memory_is_written_from_where_it_is_by_several_queue_pairs() {
    what_is_shared_is_written_from_where_it_is(lanes::over_two_adapters, 32 << 10);
}

fn what_is_shared_is_written_from_where_it_is(transport: fn() -> Option<Verbs>, piece: usize) {
    let mut shared = SharedBuffer::<u8>::new(BYTES).expect("memory");
    let pair = lent(pair(transport), &mut shared[..], |pair, shared| {
        let place = shared.read().as_ptr() as usize;
        for (value, (offset, bytes)) in (1..).zip([(0, BYTES), (4000, 5000), (1, LENT_BYTES_MIN)]) {
            let source = shared.part(offset, bytes);
            let number = fill_from(&mut pair.sides, source.read(), value);
            assert_eq!(number, value);
            assert!(pair.was_posted(place + offset, bytes, piece), "{bytes} at {offset} were copied");
            is_free_soon(&mut pair.sides, number);
        }
        assert!(pair.held().iter().all(|held| *held == (1, BYTES)), "{:?}", pair.held());
    });
    lent(pair, &mut [7u8; BYTES], |pair, private| {
        let place = private.read().as_ptr() as usize;
        assert_eq!(fill_from(&mut pair.sides, private.read(), 4), 0);
        assert!(!pair.was_posted(place, BYTES, piece));
        assert!(arrived(&mut pair.sides, 4, BYTES) == [7; BYTES]);
    });
}

#[test]
fn a_device_that_registers_nothing_more_has_it_copied() {
    let mut shared = SharedBuffer::<u8>::new(BYTES).expect("memory");
    for transport in [over_standin, lanes::over_two_adapters] {
        lent(pair(transport), &mut shared[..], |pair, shared| {
            // Of several, one is enough.
            let last = pair.near.shared.domains.last().expect("a port");
            standin::refuse_memory(last.port.context, libc::ENOMEM);
            assert_eq!(fill_from(&mut pair.sides, shared.read(), 1), 0);
        });
    }
}

#[test]
fn a_source_is_free_when_the_device_has_taken_the_write_and_not_what_follows_it() {
    let mut shared = SharedBuffer::<u8>::new(BYTES).expect("memory");
    lent(pair(over_standin), &mut shared[..], |pair, shared| {
        standin::fill_up(pair.queues[0]);
        let refused = pair.sides[0].fill_from(0, shared.read(), (1, 0), &mut 0);
        assert!(matches!(refused, Err(TransportError::System { call: "ibv_post_send", .. })), "{refused:?}");
        assert!(!pair.sides[0].is_free(1), "the device has the write");
        crate::conformance::eventually("the source is free", || {
            let _ = (pair.sides[0].progress(), pair.sides[1].progress());
            pair.sides[0].is_free(1).then_some(())
        });
    });
}

/// Buffers come and go, each at addresses that others had: what arrives is what the buffer of that time held, and no more is registered
/// than there are buffers.
fn churn(transport: fn() -> Option<Verbs>, rounds: u64) {
    let mut random = Random::announced("registration churn");
    let mut pair = pair(transport);
    for value in 1..=rounds {
        let bytes = LENT_BYTES_MIN + random.below(BYTES - LENT_BYTES_MIN);
        let expected = random.bytes(bytes);
        let mut buffer = SharedBuffer::<u8>::new(bytes).expect("memory");
        buffer.copy_from_slice(&expected);
        pair = lent(pair, &mut buffer[..], |pair, source| {
            let number = fill_from(&mut pair.sides, source.read(), value);
            assert_eq!(number, value, "it was copied");
            is_free_soon(&mut pair.sides, number);
        });
        assert!(arrived(&mut pair.sides, value, bytes) == expected, "round {value}");
        let is_one = |held: &(usize, usize)| *held == (1, bytes.next_multiple_of(4096));
        assert!(pair.held().iter().all(is_one), "{:?}", pair.held());
    }
    pair.near.shared.registrations.iter().for_each(|of| of.tidy());
    assert!(pair.held().iter().all(|held| *held == (0, 0)), "the last buffer is gone");
}

#[test]
fn buffers_that_come_and_go_are_registered_and_given_back() {
    churn(over_standin, 500);
    churn(lanes::over_two_adapters, 200);
}

/// A read by the adapter's own queue pair brings a byte back, and one of memory that is not registered for that fails.
fn flush(transport: fn() -> Option<Verbs>) {
    let verbs = transport().expect("a port");
    let domain = &verbs.shared.domains[0];
    let flush = super::super::memory::Flush::new(domain).expect("a queue pair of its own");
    let region = |by| {
        let mapping = consort_memory::Mapping::anonymous(4096).expect("memory");
        port::Region::new(std::slice::from_ref(domain), mapping, by).expect("registered")
    };
    let (read_back, written) = (region(port::Written::ReadBack), region(port::Written::ByPeer));
    for _ in 0..100 {
        flush.behind(read_back.address(77), read_back.keys(0).1).expect("flushed");
    }
    let error = flush.behind(written.address(0), written.keys(0).1).expect_err("it may not be read");
    assert!(error.to_string().contains("a read that flushes"), "{error}");
}

#[test]
fn what_is_written_is_flushed_by_a_read() {
    flush(over_standin);
}

/// The same by a device.
pub(super) fn flush_by_a_device(transport: fn() -> Option<Verbs>) {
    flush(transport);
}

/// The same with real registrations, where there is a device.
pub(super) fn churn_over_a_device(transport: fn() -> Option<Verbs>) {
    churn(transport, 100);
}
