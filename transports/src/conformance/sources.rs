//! Checks of fills whose source may be read where it is, after the call.

use consort_memory::{Held, SharedBuffer, lend};

use super::*;

const SLOT: usize = 96 << 10;
const SLOTS: usize = 8;

/// Fills from a source, which is called until there is room; the number, for when it is free.
fn fill_from(from: &mut Side, to: &mut Side, slot: usize, source: Span<'_>, signal: (u64, u64)) -> u64 {
    let mut done = 0;
    let number = eventually("a fill is taken over", || {
        match from.fill_from(slot * SLOT, source, signal, &mut done).expect("fill") {
            Poll::Ready(number) => return Some(number),
            Poll::Pending => {}
        }
        from.progress().expect("progress");
        to.progress().expect("progress");
        None
    });
    assert_eq!(done, source.len());
    number
}

/// From memory that a device may read where it is, and from other memory, each written again as soon as it is free: what arrives is what
/// was there.
pub fn fills_from_kept_memory_arrive(fixture: &dyn Fixture) {
    const ROUNDS: u64 = 50;
    let mut random = Random::announced("fills_from_kept_memory_arrive");
    let (mut left, mut right) = pair(fixture, SLOT * SLOTS);
    let mut shared = SharedBuffer::<u8>::new(SLOT * SLOTS).expect("memory");
    let mut private = vec![0u8; SLOT * SLOTS];
    lend(|lender| {
        let buffers = [lender.share_mut(&mut shared[..]), lender.share_mut(&mut private)];
        let mut value = 0;
        for round in 0..ROUNDS {
            let mut busy: Vec<(u64, Held)> = Vec::new();
            let mut expected: Vec<Vec<u8>> = Vec::new();
            for slot in 0..SLOTS {
                let bytes = [random.below(200), random.below(SLOT)][random.below(2)];
                let data = random.bytes(bytes);
                let source = buffers[random.below(2)].part(slot * SLOT, bytes);
                source.span().copy_from(Span::of(&data));
                value += 1;
                busy.push((fill_from(&mut left, &mut right, slot, source.read(), (value, value)), source));
                expected.push(data);
            }
            // Nothing is waited for but that: what arrives later must not be what is written there now.
            eventually("all sources are free", || {
                left.progress().expect("progress");
                busy.retain(|(number, source)| {
                    let is_free = left.is_free(*number);
                    if is_free {
                        source.span().copy_from(Span::of(&vec![0xeeu8; source.len()]));
                    }
                    !is_free
                });
                right.progress().expect("progress");
                busy.is_empty().then_some(())
            });
            eventually("all fills arrive", || {
                left.progress().expect("progress");
                right.progress().expect("progress");
                (right.counter(CounterKind::Ready).value() == value).then_some(())
            });
            for (slot, data) in expected.iter().enumerate() {
                assert!(read(&right, slot * SLOT, data.len()) == *data, "round {round}, slot {slot}");
            }
        }
        let outside = buffers[0].part(0, 2);
        let outcome = left.fill_from(SLOT * SLOTS - 1, outside.read(), (value + 1, 0), &mut 0);
        assert!(matches!(outcome, Err(TransportError::OutOfBounds { .. })), "{outcome:?}");
        // What is lent comes back with what holds it.
        drop((left, right));
    });
}

/// A caller that must return ends the connection, and has its memory back; also when the peer takes nothing.
pub fn sources_are_free_after_a_fence(fixture: &dyn Fixture) {
    for has_failed in [false, true] {
        let (mut left, mut right) = pair(fixture, SLOT * SLOTS);
        let mut shared = SharedBuffer::<u8>::new(SLOT * SLOTS).expect("memory");
        lend(|lender| {
            let buffer = lender.share_mut(&mut shared[..]);
            let mut last = 0;
            for slot in 0..SLOTS {
                let source = buffer.part(slot * SLOT, SLOT);
                let mut done = 0;
                if let Poll::Ready(number) =
                    left.fill_from(slot * SLOT, source.read(), (slot as u64 + 1, 0), &mut done).expect("fill")
                {
                    last = number;
                }
            }
            let right = if has_failed {
                drop(right);
                None
            } else {
                right.progress().expect("progress");
                Some(right)
            };
            left.fence().expect("a fence");
            eventually("the sources are free", || {
                let _ = left.progress();
                left.is_free(last).then_some(())
            });
            buffer.span().copy_from(Span::of(&vec![1u8; SLOT * SLOTS]));
            drop(left);
            drop(right);
        });
    }
}
