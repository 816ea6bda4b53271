//! Fills memory with test data and finds the elements that differ from it, at the speed of memory.
//!
//! Invariant: the element at an index is a function of the pattern's table, the stream and the index alone.
//! The index's block of 1024 elements chooses (by hash, per stream) one of 4096 places in the table, so data
//! that arrives at a wrong place, from a wrong rank or from an earlier round does not match. Both directions
//! work on whole blocks: one copy, or one comparison that looks at elements only where bytes differ.

use consort::DataType;

use crate::values::{mix, order_key};

/// Elements that lie in the table as they lie in memory.
const BLOCK: usize = 1024;
/// Places where a block can begin.
const PLACES: usize = 4096;

/// A table of elements, from which all data is cut.
pub(crate) struct Pattern {
    element_bytes: usize,
    table: Vec<u8>,
}

/// What a comparison found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Differences {
    pub(crate) count: u64,
    /// Index, bits found, bits expected.
    pub(crate) first: Option<(usize, u64, u64)>,
}

impl Differences {
    pub(crate) fn add(&mut self, other: Differences, index_offset: usize) {
        self.count += other.count;
        self.first = self.first.or(other.first.map(|(index, got, want)| (index + index_offset, got, want)));
    }
}

impl Pattern {
    /// `element(place)` gives the bits of each table entry.
    pub(crate) fn new(element_bytes: usize, element: impl Fn(usize) -> u64) -> Self {
        let table = (0..BLOCK + PLACES)
            .flat_map(|place| element(place).to_le_bytes().into_iter().take(element_bytes))
            .collect();
        Self { element_bytes, table }
    }

    /// The table's bytes for the block that holds `index`, from `index` to the block's end.
    fn cut(&self, stream: u64, index: usize) -> &[u8] {
        let place = (mix(stream, (index / BLOCK) as u64) >> 52) as usize;
        &self.table[(place + index % BLOCK) * self.element_bytes..(place + BLOCK) * self.element_bytes]
    }

    /// Writes the elements `first..` of the stream.
    pub(crate) fn fill(&self, stream: u64, first: usize, mut memory: &mut [u8]) {
        let mut index = first;
        while !memory.is_empty() {
            let cut = self.cut(stream, index);
            let (now, later) = memory.split_at_mut(cut.len().min(memory.len()));
            now.copy_from_slice(&cut[..now.len()]);
            index += now.len() / self.element_bytes;
            memory = later;
        }
    }

    /// Compares with the elements `first..` of the stream. With a tolerance, elements of `data_type` may be
    /// that many representable values away. Indices in the result count from `memory`'s begin.
    pub(crate) fn compare(
        &self,
        stream: u64,
        first: usize,
        memory: &[u8],
        data_type: DataType,
        tolerance: u32,
    ) -> Differences {
        let mut found = Differences::default();
        let mut done = 0;
        while done < memory.len() {
            let cut = self.cut(stream, first + done / self.element_bytes);
            let bytes = cut.len().min(memory.len() - done);
            let (got, want) = (&memory[done..done + bytes], &cut[..bytes]);
            if got != want {
                found.add(self.elements(got, want, data_type, tolerance), done / self.element_bytes);
            }
            done += bytes;
        }
        found
    }

    fn elements(&self, got: &[u8], want: &[u8], data_type: DataType, tolerance: u32) -> Differences {
        // With a tolerance many elements differ a little; count those that differ much first, quickly.
        if tolerance > 0 && far(got, want, self.element_bytes, tolerance) == 0 {
            return Differences::default();
        }
        let mut found = Differences::default();
        let both = got.chunks_exact(self.element_bytes).zip(want.chunks_exact(self.element_bytes));
        for (index, (got, want)) in both.enumerate() {
            if got == want {
                continue;
            }
            let (got, want) = (bits(got), bits(want));
            let distance = order_key(data_type, got).abs_diff(order_key(data_type, want));
            if tolerance == 0 || distance > u128::from(tolerance) {
                found.count += 1;
                found.first = found.first.or(Some((index, got, want)));
            }
        }
        found
    }
}

/// How many floats of `element_bytes` bytes are more than `tolerance` representable values apart. Loops that
/// the compiler turns into vector instructions, since this looks at every element of a mean.
fn far(got: &[u8], want: &[u8], element_bytes: usize, tolerance: u32) -> u64 {
    macro_rules! count {
        ($unsigned:ty, $signed:ty) => {{
            let key = |bits: $unsigned| {
                let magnitude = (bits & (<$unsigned>::MAX >> 1)) as $signed;
                if bits >> (<$unsigned>::BITS - 1) == 0 { magnitude } else { -magnitude }
            };
            let (got, _) = got.as_chunks::<{ size_of::<$unsigned>() }>();
            let (want, _) = want.as_chunks::<{ size_of::<$unsigned>() }>();
            got.iter()
                .zip(want)
                .filter(|(got, want)| {
                    let (got, want) = (<$unsigned>::from_le_bytes(**got), <$unsigned>::from_le_bytes(**want));
                    key(got).abs_diff(key(want)) > tolerance as $unsigned
                })
                .count() as u64
        }};
    }
    match element_bytes {
        1 => count!(u8, i8),
        2 => count!(u16, i16),
        4 => count!(u32, i32),
        _ => count!(u64, i64),
    }
}

fn bits(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::moved;

    fn pattern(bytes: usize) -> Pattern {
        Pattern::new(bytes, |place| moved(1, place))
    }

    #[test]
    fn what_was_filled_compares_equal_from_any_index() {
        for (data_type, length) in [
            (DataType::Float32, 5000),
            (DataType::Uint8, 1),
            (DataType::Float64, 1024),
            (DataType::Float16, 0),
        ] {
            let size = data_type.size();
            let pattern = pattern(size);
            let mut memory = vec![0; length * size];
            pattern.fill(9, 0, &mut memory);
            assert_eq!(pattern.compare(9, 0, &memory, data_type, 0), Differences::default());
            for first in [1, 3, 1000, 1024, 1025].into_iter().filter(|first| first * size <= memory.len()) {
                let rest = &memory[first * size..];
                assert_eq!(pattern.compare(9, first, rest, data_type, 0).count, 0, "{data_type} {first}");
            }
        }
    }

    #[test]
    fn wrong_elements_are_counted_and_the_first_is_named() {
        let pattern = pattern(4);
        let mut memory = vec![0; 4 * 4000];
        pattern.fill(9, 0, &mut memory);
        memory[4 * 3000] ^= 0xff;
        memory[4 * 2000 + 3] ^= 0x80;
        let found = pattern.compare(9, 0, &memory, DataType::Uint32, 0);
        assert_eq!(found.count, 2);
        let (index, got, want) = found.first.unwrap();
        assert_eq!((index, got ^ want), (2000, 0x8000_0000));
    }

    #[test]
    fn wrong_place_stream_or_nothing_at_all_differ() {
        let pattern = pattern(4);
        let mut memory = vec![0; 4 * 4096];
        pattern.fill(9, 0, &mut memory);
        assert!(pattern.compare(10, 0, &memory, DataType::Uint32, 0).count > 4000);
        assert!(pattern.compare(9, 1024, &memory, DataType::Uint32, 0).count > 3000);
        assert!(pattern.compare(9, 1, &memory, DataType::Uint32, 0).count > 4000);
        assert_eq!(pattern.compare(9, 0, &[0; 64], DataType::Uint32, 0).count, 16);
    }

    #[test]
    fn tolerance_counts_representable_values() {
        let pattern = Pattern::new(4, |_| u64::from(1.5f32.to_bits()));
        let near = |ulps: u32| f32::from_bits(1.5f32.to_bits() + ulps).to_le_bytes();
        let count =
            |memory: &[u8], tolerance| pattern.compare(0, 0, memory, DataType::Float32, tolerance).count;
        assert_eq!(count(&near(2), 2), 0);
        assert_eq!(count(&near(3), 2), 1);
        assert_eq!(count(&near(1), 0), 1);
        assert_eq!(count(&f32::NAN.to_le_bytes(), 2), 1);
        assert_eq!(count(&(-1.5f32).to_le_bytes(), 2), 1);
        for element_bytes in [1, 2, 4, 8] {
            let negative = |ulps: u8| {
                let mut element = vec![ulps; element_bytes];
                element[..element_bytes - 1].fill(0);
                if element_bytes > 1 {
                    (element[0], element[element_bytes - 1]) = (ulps, 0x80);
                } else {
                    element[0] = 0x80 | ulps;
                }
                element
            };
            // -1 and +1 units around zero are two apart; both zeros are the same.
            let mut positive = vec![0; element_bytes];
            assert_eq!(far(&negative(0), &positive, element_bytes, 1), 0);
            positive[0] = 1;
            assert_eq!(far(&negative(1), &positive, element_bytes, 2), 0);
            assert_eq!(far(&negative(2), &positive, element_bytes, 2), 1);
        }
    }
}
