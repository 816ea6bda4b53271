//! What comes by any of a connection's queue pairs.
//!
//! Invariant: fragments are counted, and a counter rises when all of a fill, and of those before it, is there; what a peer says is checked
//! before anything follows from it. Absent: queue pairs.

use consort_memory::{Counter, Span, SpanMut};

use super::super::ends::Memory;
use super::super::message::{Kind, LANE_BYTES, Message};
use crate::counters::raise;
use crate::fields::Fields;
use crate::streams::{FILLS_MAX, Fenced, Fragment, Landing, Path, Peering, Ready, STREAM, Word};

/// A queue pair that the peer has made for a path that is to be opened anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialled {
    pub(super) path: Path,
    /// The number of the queue pair.
    pub(super) number: u32,
    /// Whether it answers a call of this side.
    pub(super) is_answer: bool,
}

impl Dialled {
    pub(super) fn message(self) -> Message {
        let kind = if self.is_answer { Kind::Dialled } else { Kind::Dial };
        let value = u64::from(self.path.number) << 32 | u64::from(self.path.epoch);
        Message { kind, value, tag: self.number.into(), ..Message::default() }
    }

    fn read(message: &Message) -> Result<Self, &'static str> {
        let wrong = "it names a path that there is not";
        let number = u8::try_from(message.value >> 32).map_err(|_| wrong)?;
        let path = Path { number, epoch: message.value as u32 };
        let number = u32::try_from(message.tag).map_err(|_| wrong)?;
        Ok(Dialled { path, number, is_answer: message.kind == Kind::Dialled })
    }
}

/// What has come, and what it makes of the two sides.
pub(super) struct Inbox {
    memory: Memory,
    /// Trays that come before the mailbox here, in bytes.
    trays: usize,
    pub(super) peering: Peering,
    pub(super) ready: Counter,
    pub(super) credit: Counter,
    /// What the peer has said of paths that it has closed.
    pub(super) fences: Vec<Fenced>,
    pub(super) dialled: Vec<Dialled>,
    /// As many fills are to be acknowledged, when they are there.
    pub(super) wanted: u64,
    /// Fills of the peer in all, where it fills nothing more.
    end: Option<u64>,
}

/// A number whose lower half is known, near another one.
fn near(known: u64, low: u32) -> u64 {
    known.saturating_add_signed(i64::from(low.wrapping_sub(known as u32) as i32))
}

impl Inbox {
    pub(super) fn new(memory: Memory, trays: usize, mut peering: Peering) -> Self {
        // It begins before the first fill.
        peering.stream(STREAM);
        Inbox {
            memory,
            trays: trays * LANE_BYTES,
            peering,
            ready: Counter::standalone(),
            credit: Counter::standalone(),
            fences: Vec::new(),
            dialled: Vec::new(),
            wanted: 0,
            end: None,
        }
    }

    /// Bytes of the trays here.
    pub(super) fn trays(&self) -> usize {
        self.trays
    }

    /// Whether the peer fills nothing more, and all of it is here.
    pub(super) fn has_ended(&mut self) -> bool {
        self.end.is_some_and(|fills| self.peering.stream(STREAM).1.acknowledged() >= fills)
    }

    /// Takes a message in.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn take(&mut self, message: &Message, carried: Span<'_>) -> Result<(), &'static str> {
        match message.kind {
            Kind::Ready | Kind::Put | Kind::Lent => {
                self.hear_word(message)?;
                self.take_fragment(message, carried)
            }
            Kind::Heard => self.hear_word(message),
            Kind::Ask => {
                self.wanted = self.wanted.max(message.value);
                Ok(())
            }
            Kind::End => {
                self.end = Some(message.value);
                Ok(())
            }
            Kind::Fence => {
                let mut letter = vec![0; carried.len()];
                SpanMut::of(&mut letter).copy_from(carried);
                self.fences.push(read_fence(&letter).ok_or("it sent what is not a fence")?);
                Ok(())
            }
            Kind::Dial | Kind::Dialled => {
                let new = Dialled::read(message)?;
                // What was asked before was given up.
                self.dialled.retain(|of| of.path.number != new.path.number);
                self.dialled.push(new);
                Ok(())
            }
            Kind::Hello => Ok(()),
        }
    }

    /// What the peer says of this side's fills, and of slots that are free again.
    fn hear_word(&mut self, message: &Message) -> Result<(), &'static str> {
        let acknowledged = near(self.peering.stream(STREAM).0.acknowledged(), message.acknowledged);
        let (value, tag) = message.credit;
        let credit = (value > 0).then_some(Ready { value, tag });
        match self.peering.heard(STREAM, Word { acknowledged, credit })? {
            Some(Ready { value, tag }) => raise(&self.credit, value, tag),
            None => Ok(()),
        }
    }

    fn take_fragment(&mut self, message: &Message, carried: Span<'_>) -> Result<(), &'static str> {
        let inbound = self.peering.stream(STREAM).1;
        let (index, count) = message.fragment;
        let offset = message.offset as usize;
        let fragment = Fragment {
            fill: near(inbound.acknowledged(), message.fill),
            index: index.into(),
            count: count.into(),
            offset,
            bytes: carried.len(),
            ready: (message.kind != Kind::Put).then_some(Ready { value: message.value, tag: message.tag }),
        };
        if inbound.accept(&fragment)? == Landing::Land {
            if offset + carried.len() > self.memory.own.bytes() - self.trays {
                return Err("it sent more than the mailbox has room for");
            }
            self.memory.own.span(self.trays + offset, carried.len()).copy_from(carried);
            inbound.landed(&fragment);
        }
        if message.kind == Kind::Lent {
            self.peering.acknowledge_soon(STREAM, fragment.fill + 1);
        }
        let inbound = self.peering.stream(STREAM).1;
        while let Some(said) = inbound.release() {
            if let Some(Ready { value, tag }) = said {
                raise(&self.ready, value, tag)?;
            }
        }
        Ok(())
    }
}

/// A fence as a letter.
pub(super) fn write_fence(fenced: &Fenced) -> Vec<u8> {
    let (fills, bitmaps) = fenced.of_stream();
    let mut out = vec![fenced.path.number];
    out.extend(fenced.path.epoch.to_le_bytes());
    out.extend(fills.to_le_bytes());
    out.extend(bitmaps);
    out
}

fn read_fence(letter: &[u8]) -> Option<Fenced> {
    let mut fields = Fields(letter);
    let [number] = fields.take()?;
    let path = Path { number, epoch: fields.u32()? };
    let fills = fields.u64()?;
    let bitmaps = fields.0;
    let is_sound =
        bitmaps.len().is_multiple_of(size_of::<u64>()) && bitmaps.len() <= FILLS_MAX * size_of::<u64>();
    is_sound.then(|| Fenced::read(path, fills, bitmaps))
}

#[cfg(test)]
mod tests {
    use super::super::super::message::LETTER_BYTES;
    use super::*;
    use crate::streams::Arrived;

    #[test]
    fn numbers_are_known_by_their_lower_halves() {
        for known in [0, 1, u64::from(u32::MAX), 1 << 32, (1 << 40) + 17] {
            for by in [-64, -1, 0, 1, 64] {
                let Some(number) = known.checked_add_signed(by) else { continue };
                assert_eq!(near(known, number as u32), number, "{known} and {by}");
            }
        }
        assert_eq!(near(0, u32::MAX), 0, "before the first");
    }

    #[test]
    fn fences_are_letters_and_nothing_else_is() {
        let path = Path { number: 3, epoch: 1 << 20 };
        for fragments in [vec![], vec![1], vec![u64::MAX; FILLS_MAX]] {
            let arrived = vec![(STREAM, Arrived { fills: 7, fragments })];
            let fenced = Fenced { path, arrived };
            let letter = write_fence(&fenced);
            assert!(letter.len() <= LETTER_BYTES);
            assert_eq!(read_fence(&letter), Some(fenced));
            assert_eq!(read_fence(&letter[1..]), None);
        }
        assert_eq!(read_fence(&[0; 13 + 8 * FILLS_MAX + 8]), None);
    }
}
