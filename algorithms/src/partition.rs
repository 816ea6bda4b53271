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

    /// The chunks' byte ranges for blocks of `count` elements of `element_bytes` each.
    pub fn extents(self, count: usize, element_bytes: usize) -> Extents<'static> {
        let block_bytes = count * element_bytes;
        let piece_bytes = piece_bytes(block_bytes, self.parts);
        Extents { parts: self.parts, block_bytes, piece_bytes, placing: Placing::InOrder }
    }
}

/// One rank's block of a buffer whose blocks differ, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Block {
    /// From the start of the buffer.
    pub offset: usize,
    /// Its length.
    pub bytes: usize,
}

/// A [`Partition`] in bytes. Blocks are equally long and in rank order, unless [`Extents::from_root`] or
/// [`Extents::of_blocks`] changes that; then the side that holds one block is cut differently from the side that
/// holds all ([`Extents::offset_of`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extents<'a> {
    parts: u32,
    /// The length of a block, or of the longest.
    block_bytes: usize,
    piece_bytes: usize,
    placing: Placing<'a>,
}

/// The places of the blocks on the side that holds all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Placing<'a> {
    InOrder,
    /// The plan's block 0 is block `root` of `ranks`.
    FromRoot {
        root: u32,
        ranks: u32,
    },
    /// Each block is where the table has it; the side that holds one block holds this rank's.
    Table {
        blocks: &'a [Block],
        own: u32,
    },
}

/// Pieces of a block are whole lines, except the last ones. Elements are powers of two of at most 8 bytes, so
/// whole lines are whole elements.
fn piece_bytes(block_bytes: usize, parts: u32) -> usize {
    let even = if parts == 1 { block_bytes } else { block_bytes.div_ceil(parts as usize) };
    (even + CHUNK_ALIGN_BYTES - 1) & !(CHUNK_ALIGN_BYTES - 1)
}

impl<'a> Extents<'a> {
    /// The same extents for a plan whose rank 0 is rank `root` of `ranks`: its block `b` is block `(b + root) %
    /// ranks` of the buffer.
    pub fn from_root(self, root: u32, ranks: u32) -> Self {
        if root == 0 { self } else { Extents { placing: Placing::FromRoot { root, ranks }, ..self } }
    }

    /// The same extents for blocks that differ, one for each rank; none is longer than the block that these extents
    /// were made for. `own` is this rank.
    pub fn of_blocks<'b>(self, blocks: &'b [Block], own: u32) -> Extents<'b> {
        let Extents { parts, block_bytes, piece_bytes, .. } = self;
        debug_assert!(blocks.iter().all(|block| block.bytes <= block_bytes));
        Extents { parts, block_bytes, piece_bytes, placing: Placing::Table { blocks, own } }
    }

    /// Offset of `chunk` from the start of its buffer, in bytes; `whole` returns whether the buffer holds the blocks
    /// of all ranks, and is only called where that matters.
    #[inline]
    pub fn offset_of(&self, chunk: Chunk, whole: impl FnOnce() -> bool) -> usize {
        match self.placing {
            Placing::InOrder => self.offset(chunk),
            _ if !whole() => self.offset_of_own(chunk),
            Placing::FromRoot { root, ranks } => {
                let block = (chunk.0 / self.parts + root) % ranks;
                block as usize * self.block_bytes + self.offset_in_block(chunk)
            }
            Placing::Table { blocks, .. } => {
                let Block { offset, bytes } = blocks[(chunk.0 / self.parts) as usize];
                offset + ((chunk.0 % self.parts) as usize * piece_bytes(bytes, self.parts)).min(bytes)
            }
        }
    }

    /// Offset of `chunk` in a buffer of equal blocks in rank order, or of one block, in bytes.
    #[inline]
    pub fn offset(&self, chunk: Chunk) -> usize {
        if chunk.0 < self.parts {
            return (chunk.index() * self.piece_bytes).min(self.block_bytes);
        }
        (chunk.0 / self.parts) as usize * self.block_bytes + self.offset_in_block(chunk)
    }

    fn offset_in_block(&self, chunk: Chunk) -> usize {
        ((chunk.0 % self.parts) as usize * self.piece_bytes).min(self.block_bytes)
    }

    fn offset_of_own(&self, chunk: Chunk) -> usize {
        match self.placing {
            Placing::Table { blocks, own } => {
                let bytes = blocks[own as usize].bytes;
                (chunk.index() * piece_bytes(bytes, self.parts)).min(bytes)
            }
            _ => self.offset(chunk),
        }
    }

    /// Length of `chunk` in bytes; the last pieces of a block may be short or empty. Where blocks differ, the chunk
    /// is named as a piece of the side that holds all blocks.
    #[inline]
    pub fn length(&self, chunk: Chunk) -> usize {
        let piece = if chunk.0 < self.parts { chunk.0 } else { chunk.0 % self.parts };
        if let Placing::Table { blocks, .. } = self.placing {
            let bytes = blocks[(chunk.0 / self.parts) as usize].bytes;
            let piece_bytes = piece_bytes(bytes, self.parts);
            return bytes.saturating_sub(piece as usize * piece_bytes).min(piece_bytes);
        }
        self.block_bytes.saturating_sub(piece as usize * self.piece_bytes).min(self.piece_bytes)
    }

    /// The longest chunk, in bytes: the first of the longest block.
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

    #[test]
    fn blocks_from_a_root_are_the_blocks_in_another_order() {
        for (parts, ranks, count) in [(1u32, 3u32, 5usize), (3, 4, 100), (2, 5, 0), (7, 2, 1000)] {
            let plain = Partition { parts }.extents(count, 4);
            for root in 0..ranks {
                let extents = plain.from_root(root, ranks);
                for chunk in (0..ranks * parts).map(Chunk) {
                    let absolute = Chunk((chunk.0 + root * parts) % (ranks * parts));
                    assert_eq!(extents.offset_of(chunk, || true), plain.offset(absolute));
                    assert_eq!(extents.length(chunk), plain.length(absolute));
                }
                for piece in (0..parts).map(Chunk) {
                    assert_eq!(extents.offset_of(piece, || false), plain.offset(piece));
                }
            }
        }
    }

    #[test]
    fn blocks_that_differ_are_each_cut_as_if_alone() {
        for parts in [1u32, 2, 3, 7] {
            let counts = [5usize, 0, 4097, 64, 1, 1000];
            let mut at = 24;
            let mut blocks = Vec::new();
            for count in counts {
                blocks.push(Block { offset: at, bytes: count * 8 });
                at += count * 8 + 16;
            }
            let longest = Partition { parts }.extents(4097, 8);
            for own in 0..counts.len() as u32 {
                let extents = longest.of_blocks(&blocks, own);
                assert_eq!(extents.longest(), longest.longest());
                for (block, count) in (0u32..).zip(counts) {
                    let alone = Partition { parts }.extents(count, 8);
                    for piece in 0..parts {
                        let chunk = Chunk(block * parts + piece);
                        let offset = blocks[block as usize].offset + alone.offset(Chunk(piece));
                        assert_eq!(extents.offset_of(chunk, || true), offset);
                        assert_eq!(extents.length(chunk), alone.length(Chunk(piece)));
                        if block == own {
                            assert_eq!(extents.offset_of(Chunk(piece), || false), alone.offset(Chunk(piece)));
                        }
                    }
                }
            }
        }
    }
}
