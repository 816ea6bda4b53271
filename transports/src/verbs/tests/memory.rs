//! Memory of programs that the device reads where it is.

use consort_memory::{Held, HeldRead, Lender, SharedBuffer, lend};
use consort_testing::Random;

use super::*;

const BYTES: usize = 64 << 10;

/// A connection between two transports over the stand-in, and the number of the first side's queue pair.
fn connected(near: &Verbs, far: &Verbs, mailbox_bytes: usize) -> ([Box<dyn Connection>; 2], u32) {
    let endpoints = [near, far].map(|of| of.endpoint(Layout::new(mailbox_bytes)).expect("an endpoint"));
    let number = Place::decode(&endpoints[0].address().bytes).expect("a place").peer.number;
    (meet(endpoints, Duration::ZERO), number)
}

fn go_on(sides: &mut [Box<dyn Connection>; 2]) {
    sides.iter_mut().for_each(|side| assert_eq!(side.progress().expect("progress"), PeerState::Open));
}

fn fill_from(sides: &mut [Box<dyn Connection>; 2], source: &HeldRead, value: u64) -> u64 {
    let mut done = 0;
    crate::conformance::eventually("there is room", || {
        go_on(sides);
        match sides[0].fill_from(0, source, (value, 0), &mut done).expect("a fill") {
            Poll::Ready(number) => Some(number),
            Poll::Pending => None,
        }
    })
}

fn is_free_soon(sides: &mut [Box<dyn Connection>; 2], number: u64) {
    crate::conformance::eventually("the source is free", || {
        go_on(sides);
        sides[0].is_free(number).then_some(())
    });
}

fn of<'env>(lender: &Lender<'_, 'env>, buffer: &'env mut [u8]) -> Held {
    lender.share_mut(buffer)
}

#[test]
fn shared_memory_is_written_from_where_it_is_and_other_memory_is_copied() {
    let (near, far) = (over_standin().expect("a port"), over_standin().expect("a port"));
    let (mut sides, queue) = connected(&near, &far, BYTES);
    let mut shared = SharedBuffer::<u8>::new(BYTES).expect("memory");
    let mut private = vec![7u8; BYTES];
    lend(|lender| {
        let shared = of(lender, &mut shared[..]);
        let place = shared.read().as_ptr() as usize;
        shared.span().copy_from(Span::of(&[9u8; BYTES]));
        for (value, (offset, bytes)) in (1..).zip([(0, BYTES), (4000, 5000), (1, LENT_BYTES_MIN)]) {
            let source = HeldRead::from(shared.part(offset, bytes));
            let number = fill_from(&mut sides, &source, value);
            assert_eq!(number, value);
            assert!(standin::was_posted(queue, place + offset, bytes), "{bytes} at {offset} were copied");
            is_free_soon(&mut sides, number);
        }
        assert_eq!(near.shared.registrations.held(), (1, BYTES));
        let private = of(lender, &mut private);
        let place = private.read().as_ptr() as usize;
        assert_eq!(fill_from(&mut sides, &HeldRead::from(private), 4), 0);
        assert!(!standin::was_posted(queue, place, BYTES));
        crate::conformance::eventually("it arrives", || {
            go_on(&mut sides);
            (sides[1].counter(CounterKind::Ready).value() == 4).then_some(())
        });
        let mut read = vec![0u8; BYTES];
        SpanMut::of(&mut read).copy_from(sides[1].mailbox().read());
        assert!(read.iter().all(|byte| *byte == 7));
    });
}

#[test]
fn a_device_that_registers_nothing_more_has_it_copied() {
    let (near, far) = (over_standin().expect("a port"), over_standin().expect("a port"));
    let (mut sides, _) = connected(&near, &far, BYTES);
    standin::refuse_memory(near.shared.port.context, libc::ENOMEM);
    let mut shared = SharedBuffer::<u8>::new(BYTES).expect("memory");
    lend(|lender| {
        let shared = of(lender, &mut shared[..]);
        assert_eq!(fill_from(&mut sides, &HeldRead::from(shared), 1), 0);
    });
}

/// Buffers come and go, each at addresses that others had: what arrives is what the buffer of that time held, and no more is registered
/// than there are buffers.
fn churn(transport: fn() -> Option<Verbs>, rounds: u64) {
    let mut random = Random::announced("registration churn");
    let (near, far) = (transport().expect("a port"), transport().expect("a port"));
    let (mut sides, _) = connected(&near, &far, BYTES);
    for value in 1..=rounds {
        let bytes = LENT_BYTES_MIN + random.below(BYTES - LENT_BYTES_MIN);
        let expected = random.bytes(bytes);
        let mut buffer = SharedBuffer::<u8>::new(bytes).expect("memory");
        buffer.copy_from_slice(&expected);
        lend(|lender| {
            let source = HeldRead::from(of(lender, &mut buffer[..]));
            let number = fill_from(&mut sides, &source, value);
            assert_eq!(number, value, "it was copied");
            is_free_soon(&mut sides, number);
        });
        crate::conformance::eventually("it arrives", || {
            go_on(&mut sides);
            (sides[1].counter(CounterKind::Ready).value() == value).then_some(())
        });
        let mut read = vec![0u8; bytes];
        SpanMut::of(&mut read).copy_from(sides[1].mailbox().slice(0, bytes).read());
        assert!(read == expected, "round {value}");
        let (entries, locked) = near.shared.registrations.held();
        assert!(entries == 1 && locked == bytes.next_multiple_of(4096), "{entries} of {locked} bytes");
    }
    let before = near.shared.registrations.held();
    near.shared.registrations.tidy();
    assert_eq!((before.0, near.shared.registrations.held()), (1, (0, 0)), "the last buffer is gone");
}

#[test]
fn buffers_that_come_and_go_are_registered_and_given_back() {
    churn(over_standin, 500);
}

/// A read by the adapter's own queue pair brings a byte back, and one of memory that is not registered for that fails.
fn flush(transport: fn() -> Option<Verbs>) {
    let verbs = transport().expect("a port");
    let domain = &verbs.shared.domain;
    let flush = super::super::memory::Flush::new(domain).expect("a queue pair of its own");
    let region = |by| {
        let mapping = consort_memory::Mapping::anonymous(4096).expect("memory");
        domain.register(mapping, by).expect("registered")
    };
    let (read_back, written) = (region(port::Written::ReadBack), region(port::Written::ByPeer));
    for _ in 0..100 {
        flush.behind(read_back.address(77), read_back.keys().1).expect("flushed");
    }
    let error = flush.behind(written.address(0), written.keys().1).expect_err("it may not be read");
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
