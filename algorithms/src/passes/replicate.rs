//! Several schedules side by side on channels of their own, each with its own pieces of the buffers.
//!
//! Invariant: piece `p` of every block is cut into as many pieces as there are schedules, and schedule `k`
//! handles the `k`-th of each; because a buffer is cut block by block, chunk `c` becomes chunk
//! `c * schedules + k`, whatever the collective. Absent: any other assignment of pieces to channels.

use crate::{Channel, Chunk, Collective, Place, Rank, Round, Schedule, Transfer};

/// `copies` of a schedule on as many times its channels (0 is read as 1).
pub fn replicate(schedule: &Schedule, copies: u16) -> Schedule {
    interleave(&vec![schedule.clone(); copies.max(1).into()])
}

/// Schedules of the same collective, ranks and partition side by side: the `k`-th gets the `k`-th part of
/// every piece and channels of its own, and their rounds run at the same time.
///
/// # Panics
///
/// When the list is empty, the schedules disagree about collective, ranks or partition, or there would be more
/// than 65,535 channels.
pub fn interleave(schedules: &[Schedule]) -> Schedule {
    let first = schedules.first().expect("at least one schedule");
    let streams = schedules.len() as u32;
    let mut result = Schedule { rounds: Vec::new(), ..first.clone() };
    result.partition.parts *= streams;
    let mut channel_base = 0;
    for (stream, schedule) in schedules.iter().enumerate() {
        let same = (schedule.collective, schedule.ranks, schedule.partition)
            == (first.collective, first.ranks, first.partition);
        assert!(same, "only schedules of one shape run side by side");
        if result.rounds.len() < schedule.rounds.len() {
            result.rounds.resize(schedule.rounds.len(), Round::default());
        }
        for (round, into) in schedule.rounds.iter().zip(&mut result.rounds) {
            into.transfers.extend(round.transfers.iter().map(|transfer| {
                let moved = with_chunks(transfer, |_, chunk| Chunk(chunk.0 * streams + stream as u32));
                Transfer { channel: Channel(transfer.channel.0 + channel_base), ..moved }
            }));
        }
        channel_base = channel_base.checked_add(schedule.channels()).expect("at most 65,535 channels");
    }
    result
}

/// `copies` of a schedule on as many times its channels, out of step: each copy has `pieces` pieces of every chunk (at
/// least 2), and copy `k` takes the first `1 + k % (pieces - 1)` of them through all rounds before the others.
///
/// Copies whose messages are equally long wait for latency at the same times, and the links between them are idle then.
/// Messages of other lengths in each copy let one wait while another sends.
///
/// # Panics
///
/// When there would be more than 65,535 channels.
pub fn stagger(schedule: &Schedule, copies: u16, pieces: u32) -> Schedule {
    let (copies, pieces) = (copies.max(1), pieces.max(2));
    let (rounds, channels) = (schedule.rounds.len(), schedule.channels());
    assert!(channels.checked_mul(copies).is_some(), "at most 65,535 channels");
    let all = u32::from(copies) * pieces;
    let mut result = Schedule { rounds: vec![Round::default(); 2 * rounds], ..schedule.clone() };
    result.partition.parts *= all;
    for copy in 0..copies {
        let first = 1 + u32::from(copy) % (pieces - 1);
        for piece in 0..pieces {
            let own = u32::from(copy) * pieces + piece;
            let turn = if piece < first { 0 } else { rounds };
            for (round, into) in schedule.rounds.iter().zip(&mut result.rounds[turn..]) {
                into.transfers.extend(round.transfers.iter().map(|transfer| {
                    let moved = with_chunks(transfer, |_, chunk| Chunk(chunk.0 * all + own));
                    Transfer { channel: Channel(transfer.channel.0 + copy * channels), ..moved }
                }));
            }
        }
    }
    result
}

/// The mirror image: rank `r` becomes rank `n - r`; the root stays. Blocks that belong to ranks follow them.
pub fn reverse(schedule: &Schedule) -> Schedule {
    if schedule.collective == Collective::SendReceive {
        // Its two ranks have different roles.
        return schedule.clone();
    }
    let (ranks, parts) = (schedule.ranks, schedule.partition.parts);
    let mirror = |rank: u32| (ranks - rank) % ranks;
    let blocks = schedule.collective.input_blocks(ranks).max(schedule.collective.output_blocks(ranks));
    let chunk_of = |place: Place, chunk: Chunk| {
        let blocked = match place {
            Place::Input(_) => schedule.collective.input_blocks(ranks) > 1,
            Place::Output(_) => schedule.collective.output_blocks(ranks) > 1,
            Place::Scratch(_) => blocks > 1 && chunk.0 < ranks * parts,
        };
        if blocked { Chunk(mirror(chunk.0 / parts) * parts + chunk.0 % parts) } else { chunk }
    };
    let mut result = schedule.clone();
    for transfer in result.rounds.iter_mut().flat_map(|round| &mut round.transfers) {
        let moved = with_chunks(transfer, chunk_of);
        *transfer = Transfer { from: Rank(mirror(moved.from.0)), to: Rank(mirror(moved.to.0)), ..moved };
    }
    result
}

/// A transfer whose three places name other chunks.
pub(crate) fn with_chunks(transfer: &Transfer, rename: impl Fn(Place, Chunk) -> Chunk) -> Transfer {
    let place = |place: Place| match place {
        Place::Input(chunk) => Place::Input(rename(place, chunk)),
        Place::Output(chunk) => Place::Output(rename(place, chunk)),
        Place::Scratch(chunk) => Place::Scratch(rename(place, chunk)),
    };
    Transfer {
        source: place(transfer.source),
        target: place(transfer.target),
        fold: transfer.fold.map(place),
        ..*transfer
    }
}
