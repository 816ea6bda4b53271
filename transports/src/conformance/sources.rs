//! Checks of fills whose source may be read where it is, after the call.

use consort_memory::{Held, HeldRead, SharedBuffer, lend};

use super::*;

const SLOT: usize = 96 << 10;
const SLOTS: usize = 4;

/// Fills from a source; the number, for when it is free.
fn fill_from(from: &mut Side, to: &mut Side, slot: usize, source: &HeldRead, signal: (u64, u64)) -> u64 {
    let mut done = 0;
    let number = eventually("a fill is taken over", || {
        let poll = from.fill_from(slot * SLOT, source, signal, &mut done).expect("fill");
        from.progress().expect("progress");
        to.progress().expect("progress");
        match poll {
            Poll::Ready(number) => Some(number),
            Poll::Pending => None,
        }
    });
    assert_eq!(done, source.len());
    number
}

/// From memory that a device may read where it is, and from other memory, each written again as soon as it is free: what arrives is what
/// was there.
pub fn fills_from_kept_memory_arrive(fixture: &dyn Fixture) {
    const ROUNDS: u64 = 200;
    let mut random = Random::announced("fills_from_kept_memory_arrive");
    let (mut left, mut right) = pair(fixture, SLOT * SLOTS);
    let mut shared = SharedBuffer::<u8>::new(SLOT * SLOTS).expect("memory");
    let mut private = vec![0u8; SLOT * SLOTS];
    lend(|lender| {
        let buffers = [lender.share_mut(&mut shared[..]), lender.share_mut(&mut private)];
        let mut busy: [Option<(u64, Held)>; SLOTS] = [const { None }; SLOTS];
        let mut expected: [Vec<u8>; SLOTS] = [const { Vec::new() }; SLOTS];
        for value in 1..=ROUNDS {
            let slot = (value - 1) as usize % SLOTS;
            // Its bytes are read here, and its source is free, before it is filled again.
            if let Some((number, source)) = busy[slot].take() {
                await_value(&mut right, CounterKind::Ready, value - SLOTS as u64);
                assert!(read(&right, slot * SLOT, source.len()) == expected[slot], "fill {value}");
                eventually("the source is free", || {
                    left.progress().expect("progress");
                    right.progress().expect("progress");
                    left.is_free(number).then_some(())
                });
                source.span().copy_from(Span::of(&vec![0xeeu8; source.len()]));
            }
            let bytes = [random.below(200), random.below(SLOT)][random.below(2)];
            expected[slot] = random.bytes(bytes);
            let source = buffers[random.below(2)].part(slot * SLOT, bytes);
            source.span().copy_from(Span::of(&expected[slot]));
            let held = HeldRead::from(source.clone());
            busy[slot] = Some((fill_from(&mut left, &mut right, slot, &held, (value, value)), source));
        }
        await_value(&mut right, CounterKind::Ready, ROUNDS);
        let outside = HeldRead::from(buffers[0].part(0, 2));
        let outcome = left.fill_from(SLOT * SLOTS - 1, &outside, (ROUNDS + 1, 0), &mut 0);
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
                let source = HeldRead::from(buffer.part(slot * SLOT, SLOT));
                let mut done = 0;
                if let Poll::Ready(number) =
                    left.fill_from(slot * SLOT, &source, (slot as u64 + 1, 0), &mut done).expect("fill")
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
