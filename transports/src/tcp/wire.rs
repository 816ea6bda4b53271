//! What travels on a socket once both ends have proved who they are: frames, each with a header of one length.
//!
//! ```text
//!   Fragment   header, then its bytes      a part of a fill, and the stream's word about the other direction
//!   Word       header                      that word alone
//!   Fence      header, then its bitmaps    the sender's end of a path is closed, and what it has
//!   End        header                      the sender fills nothing more
//! ```
//!
//! Invariant: reading never panics, and takes exactly what writing makes: a field that a frame does not use is zero. Absent:
//! sockets, and whether what a frame says can be so.

use crate::fields::Fields;
use crate::streams::{FILLS_MAX, Fenced, Fragment, Path, Ready, Word};

/// A line of the caches. Frames of whole lines keep payload where the system copies it fastest: with 80 bytes its copies took three
/// times as long.
pub(super) const HEADER_BYTES: usize = 64;
/// Where bytes of a fill lie at most.
pub(super) const PLACE_MAX: usize = u32::MAX as usize;
/// A fence's bitmaps.
pub(super) const BITMAPS_BYTES_MAX: usize = FILLS_MAX * size_of::<u64>();
const MAGIC: u32 = 0x3563_7363;
const FRAGMENT: u8 = 1;
const WORD: u8 = 2;
const FENCE: u8 = 3;
const END: u8 = 4;

/// A frame's header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Header {
    /// Its bytes follow.
    Fragment(Fragment, Word),
    Word(Word),
    /// A path and the epoch up to which it is closed, the fills that are whole, and how many bitmaps follow.
    Fence(Path, u64, usize),
    /// Fills that were made in all.
    End(u64, Word),
}

/// A counter starts at 0, so nothing raises it to that.
fn ready(value: u64, tag: u64) -> Option<Option<Ready>> {
    match (value, tag) {
        (0, 0) => Some(None),
        (0, _) => None,
        (value, tag) => Some(Some(Ready { value, tag })),
    }
}

impl Header {
    /// None where a frame does not begin so.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (magic, [kind, index, count, zero]) = (fields.u32()?, fields.take()?);
        let (fill, offset, bytes) = (fields.u64()?, fields.u32()?, fields.u32()?);
        let ready = ready(fields.u64()?, fields.u64()?)?;
        let (acknowledged, credit) = (fields.u64()?, self::ready(fields.u64()?, fields.u64()?)?);
        fields.end()?;
        let word = Word { acknowledged, credit };
        let places = (index, count, offset, bytes) == (0, 0, 0, 0) && ready.is_none();
        match kind {
            _ if magic != MAGIC || zero != 0 => None,
            FRAGMENT => {
                let (index, count) = (index.into(), count.into());
                let (offset, bytes) = (offset as usize, bytes as usize);
                Some(Self::Fragment(Fragment { fill, index, count, offset, bytes, ready }, word))
            }
            WORD => (fill == 0 && places).then_some(Self::Word(word)),
            FENCE => {
                let is_whole = bytes == 0 && ready.is_none() && word == Word::default();
                let path = Path { number: index, epoch: offset };
                (is_whole && usize::from(count) <= FILLS_MAX).then_some(Self::Fence(path, fill, count.into()))
            }
            END => places.then_some(Self::End(fill, word)),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn write(&self) -> [u8; HEADER_BYTES] {
        const NONE: Fragment = Fragment { fill: 0, index: 0, count: 0, offset: 0, bytes: 0, ready: None };
        let (kind, fragment, word) = match *self {
            Self::Fragment(fragment, word) => (FRAGMENT, fragment, word),
            Self::Word(word) => (WORD, NONE, word),
            Self::Fence(Path { number, epoch }, fill, bitmaps) => {
                let (index, offset) = (number.into(), epoch as usize);
                (FENCE, Fragment { fill, index, count: bitmaps as u32, offset, ..NONE }, Word::default())
            }
            Self::End(fill, word) => (END, Fragment { fill, ..NONE }, word),
        };
        let mut header = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            header[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        let [ready, credit] = [fragment.ready, word.credit]
            .map(|says| says.map_or([0, 0], |Ready { value, tag }| [value, tag]));
        put(&MAGIC.to_le_bytes());
        put(&[kind, fragment.index as u8, fragment.count as u8, 0]);
        put(&fragment.fill.to_le_bytes());
        [fragment.offset, fragment.bytes].iter().for_each(|field| put(&(*field as u32).to_le_bytes()));
        let long = [ready[0], ready[1], word.acknowledged];
        long.iter().chain(&credit).for_each(|field| put(&field.to_le_bytes()));
        header
    }
}

/// A fence as it travels.
pub(super) fn fence(fenced: &Fenced) -> Vec<u8> {
    let (fills, bitmaps) = fenced.of_stream();
    let bitmaps: Vec<u8> = bitmaps.collect();
    let header = Header::Fence(fenced.path, fills, bitmaps.len() / size_of::<u64>()).write();
    header.into_iter().chain(bitmaps).collect()
}

#[cfg(test)]
mod tests {
    use consort_testing::Random;

    use super::*;
    use crate::streams::{Arrived, STREAM};

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let says = Some(Ready { value: 7, tag: u64::MAX });
        let fragment =
            Fragment { fill: u64::MAX, index: 3, count: 9, offset: 1 << 30, bytes: PLACE_MAX, ready: says };
        let word = Word { acknowledged: 5, credit: says };
        let path = Path { number: 255, epoch: u32::MAX };
        for header in [
            Header::Fragment(fragment, word),
            Header::Fragment(Fragment { ready: None, ..fragment }, Word::default()),
            Header::Word(word),
            Header::Fence(path, 9, FILLS_MAX),
            Header::End(11, word),
        ] {
            let bytes = header.write();
            assert_eq!(Header::read(&bytes), Some(header.clone()));
            assert_eq!(Header::read(&bytes[1..]), None);
            for at in [0, 1, 2, 3, 4, 7] {
                let mut wrong = bytes;
                wrong[at] ^= 0x80;
                assert_eq!(Header::read(&wrong), None, "{header:?}, byte {at}");
            }
        }
        assert_eq!(Header::read(&Header::Fence(path, 9, FILLS_MAX + 1).write()), None);
        // A credit without a value, and fields that a word does not use.
        for at in [5, 6, 8, 16, 20, 24, 56] {
            let mut wrong = Header::Word(Word::default()).write();
            wrong[at] = 1;
            assert_eq!(Header::read(&wrong), None, "byte {at}");
        }
    }

    #[test]
    fn fences_have_their_bitmaps() {
        let mut random = Random::new(3);
        for bitmaps in [0, 1, FILLS_MAX] {
            let fragments = (0..bitmaps).map(|_| random.below(1 << 30) as u64).collect();
            let arrived = Arrived { fills: 4, fragments };
            let said = Fenced { path: Path { number: 1, epoch: 2 }, arrived: vec![(STREAM, arrived)] };
            let bytes = fence(&said);
            let (header, rest) = bytes.split_at(HEADER_BYTES);
            let Some(Header::Fence(path, fills, count)) = Header::read(header) else { panic!("a fence") };
            assert_eq!((count, rest.len()), (bitmaps, 8 * bitmaps));
            assert_eq!(Fenced::read(path, fills, rest), said);
        }
        let nothing = Fenced { path: Path { number: 0, epoch: 1 }, arrived: Vec::new() };
        assert_eq!(Fenced::read(nothing.path, 0, &fence(&nothing)[HEADER_BYTES..]), nothing);
    }
}
