//! The two phases of an all-to-all over boxes: inside the box onto the rails, then along the rails.
//!
//! Source: C. Hwang et al., "Tutel: adaptive mixture-of-experts at scale", arXiv 2206.03382, 2022, section 3.3
//! (2DH all-to-all). Between boxes there are `b-1` messages of `g` blocks for each rank in place of `(b-1) g`
//! of one.
//!
//! Invariant: after the first phase rank (box `s`, local `j`) holds every block that goes from box `s` to a rank of
//! local number `j`: its own ones in its input, the others in scratch. Absent: transposes; a block has a place of its
//! own on every rank, so a rank moves nothing within itself but its own block.

use super::compose::{Embedding, beside, embed};
use super::hierarchical::{lcm, scratch_levels};
use crate::{Chunk, Place, Rank, Round, Schedule};

/// The pieces of a block and the rounds of the all-to-all over `between.ranks` boxes of `inside.ranks` ranks.
/// `inside` and `between` are the all-to-alls over the ranks of a box and of a rail.
pub(super) fn two_level_exchange(inside: &Schedule, between: &Schedule) -> (u32, Vec<Round>) {
    let (per_box, boxes) = (inside.ranks, between.ranks);
    let parts = lcm(inside.partition.parts, between.partition.parts);
    let count = per_box * boxes * parts;
    // The pieces of blocks `first, first + stride, …` for which one piece of an inner schedule's block stands.
    let pieces = |inner: &Schedule, chunk: Chunk, blocks: &dyn Fn(u32) -> Vec<u32>| -> Vec<u32> {
        let (block, part) = (chunk.0 / inner.partition.parts, chunk.0 % inner.partition.parts);
        let width = parts / inner.partition.parts;
        let of_block = |block: u32| (0..width).map(move |at| block * parts + part * width + at);
        blocks(block).into_iter().flat_map(of_block).collect()
    };
    // The place on rank `local` of a box, between the phases, of the data from rank `from` of its box to box `to`.
    let from_input = keeps_own_block(inside);
    let held = |local: u32, from: u32, to: u32, part: u32| {
        if from_input && from == local {
            Place::Input(Chunk((to * per_box + local) * parts + part))
        } else {
            Place::Scratch(Chunk((from * boxes + to) * parts + part))
        }
    };
    let numbers = |level: u32, pieces: Vec<u32>| -> Vec<Chunk> {
        pieces.into_iter().map(|piece| Chunk(level * count + piece)).collect()
    };

    let first = (0..boxes).map(|of| {
        let ranks: Vec<Rank> = (0..per_box).map(|local| Rank(of * per_box + local)).collect();
        let rail = |local: u32| (0..boxes).map(|to| to * per_box + local).collect::<Vec<u32>>();
        let hold = |rank: Rank, chunk: Chunk| {
            let from = chunk.0 / inside.partition.parts;
            let place = |piece: u32| held(rank.0, from, piece / parts / per_box, piece % parts);
            // Box after box, the order of the sender's input.
            pieces(inside, chunk, &rail).into_iter().map(place).collect()
        };
        let embedding = Embedding {
            ranks: &ranks,
            input: &|_, chunk| {
                pieces(inside, chunk, &rail).into_iter().map(|piece| Place::Input(Chunk(piece))).collect()
            },
            output: &hold,
            scratch: &|number| {
                let blocks = per_box * inside.partition.parts;
                let of_block = pieces(inside, Chunk(number.0 % blocks), &rail);
                numbers(1 + number.0 / blocks, of_block)
            },
            channel: 0,
        };
        embed(inside, &embedding)
    });
    let second = (0..per_box).map(|local| {
        let ranks: Vec<Rank> = (0..boxes).map(|of| Rank(of * per_box + local)).collect();
        let box_of = |of: u32| (0..per_box).map(|from| of * per_box + from).collect::<Vec<u32>>();
        let embedding = Embedding {
            ranks: &ranks,
            input: &|_, chunk| {
                let to = chunk.0 / between.partition.parts;
                let place = |piece: u32| held(local, piece / parts % per_box, to, piece % parts);
                pieces(between, chunk, &box_of).into_iter().map(place).collect()
            },
            output: &|_, chunk| {
                pieces(between, chunk, &box_of).into_iter().map(|piece| Place::Output(Chunk(piece))).collect()
            },
            scratch: &|number| {
                let blocks = boxes * between.partition.parts;
                let of_block = pieces(between, Chunk(number.0 % blocks), &box_of);
                numbers(1 + scratch_levels(inside) + number.0 / blocks, of_block)
            },
            channel: 0,
        };
        embed(between, &embedding)
    });
    let mut rounds = beside(first);
    rounds.extend(beside(second));
    (parts, rounds)
}

/// Whether a rank's own block goes straight from its input to its output, if it is moved at all.
fn keeps_own_block(exchange: &Schedule) -> bool {
    let parts = exchange.partition.parts;
    exchange.rounds.iter().flat_map(|round| &round.transfers).all(|transfer| match transfer.target {
        Place::Output(chunk) if chunk.0 / parts == transfer.to.0 => {
            transfer.from == transfer.to && transfer.source == Place::Input(chunk)
        }
        _ => true,
    })
}
