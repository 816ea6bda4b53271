//! How the caller's buffers are cut into chunks. The cut is part of a schedule; sizes are not: a schedule
//! serves every element count, and [`Extents`] is made from the count when a plan is bound.

use crate::{Chunk, Collective};

/// Bytes to which the inner edges of chunks are rounded up, so that chunks start on cache lines when the
/// buffer does and small buffers are not scattered over many chunks.
pub const CHUNK_ALIGN_BYTES: usize = 64;

/// The cut of a block of `count` elements into `parts` pieces. A buffer that holds several blocks (the output
/// of all-gather, the input of reduce-scatter) is cut block by block: its chunk `c` is piece `c % parts` of
/// block `c / parts`. Buffers of one block have chunks `0..parts`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Partition {
    /// Pieces of one block; at least 1.
    pub parts: u32,
}

impl Partition {
    /// Chunks of the input of `collective` over `ranks` ranks.
    pub const fn input_chunks(self, collective: Collective, ranks: u32) -> u32 {
        collective.input_blocks(ranks) * self.parts
    }

    /// Chunks of the output of `collective` over `ranks` ranks.
    pub const fn output_chunks(self, collective: Collective, ranks: u32) -> u32 {
        collective.output_blocks(ranks) * self.parts
    }

    /// The byte ranges for blocks of `count` elements of `element_bytes` each.
    pub fn extents(self, count: usize, element_bytes: usize) -> Extents {
        let block_bytes = count * element_bytes;
        let even = if self.parts == 1 { block_bytes } else { block_bytes.div_ceil(self.parts as usize) };
        // Elements are powers of two of at most 8 bytes, so whole lines are whole elements.
        let piece_bytes = (even + CHUNK_ALIGN_BYTES - 1) & !(CHUNK_ALIGN_BYTES - 1);
        Extents { parts: self.parts, block_bytes, piece_bytes }
    }
}

/// A [`Partition`] in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extents {
    parts: u32,
    block_bytes: usize,
    piece_bytes: usize,
}

impl Extents {
    /// Offset of `chunk` from the start of its buffer, in bytes.
    #[inline]
    pub fn offset(&self, chunk: Chunk) -> usize {
        if chunk.0 < self.parts {
            return (chunk.index() * self.piece_bytes).min(self.block_bytes);
        }
        let (block, piece) = (chunk.0 / self.parts, chunk.0 % self.parts);
        block as usize * self.block_bytes + (piece as usize * self.piece_bytes).min(self.block_bytes)
    }

    /// Length of `chunk` in bytes; the last pieces of a block may be short or empty.
    #[inline]
    pub fn length(&self, chunk: Chunk) -> usize {
        let piece = if chunk.0 < self.parts { chunk.0 } else { chunk.0 % self.parts };
        self.block_bytes.saturating_sub(piece as usize * self.piece_bytes).min(self.piece_bytes)
    }

    /// The longest chunk, in bytes.
    pub fn longest(&self) -> usize {
        self.piece_bytes.min(self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_each_block_once() {
        for parts in [1u32, 2, 3, 7, 16] {
            for element in [1usize, 2, 4, 8] {
                for count in [0usize, 1, 2, 15, 16, 17, 63, 64, 65, 1000, 4097] {
                    let extents = Partition { parts }.extents(count, element);
                    for block in 0..3 {
                        let mut at = block * count * element;
                        for piece in 0..parts {
                            let chunk = Chunk(block as u32 * parts + piece);
                            assert_eq!(extents.offset(chunk), at, "{parts} {element} {count} {chunk}");
                            assert_eq!(extents.length(chunk) % element, 0);
                            assert!(extents.length(chunk) <= extents.longest());
                            at += extents.length(chunk);
                        }
                        assert_eq!(at, (block + 1) * count * element);
                    }
                }
            }
        }
    }
}
