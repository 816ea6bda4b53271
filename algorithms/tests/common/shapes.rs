//! All-reduces for the simulator: hierarchical, double trees, and rings that leave boxes everywhere.

use consort_algorithms::builders::{RingOptions, ring};
use consort_algorithms::passes::interleave;
use consort_algorithms::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

fn hop(from: u32, to: u32, channel: u16, source: Place, target: Place, fold: Option<Place>) -> Transfer {
    let (from, to, channel) = (Rank(from), Rank(to), Channel(channel));
    Transfer { from, to, channel, source, target, fold, own_first: false }
}

fn all_reduce(name: String, ranks: u32, parts: u32, rounds: Vec<Round>) -> Schedule {
    Schedule {
        name,
        collective: Collective::AllReduce,
        ranks,
        switches: 0,
        partition: Partition { parts },
        rounds,
    }
}

/// Reduce-scatter over the ring of each box, all-reduce over the ring of each rail, all-gather in each box.
/// Block `l` of the buffer is rail `l`'s, in one piece a box.
pub(crate) fn hierarchical(boxes: u32, in_box: u32) -> Schedule {
    let ranks = boxes * in_box;
    let back = |base: u32, steps: u32, length: u32| (base + 2 * length - steps) % length;
    let inside = |step: u32, gathers: bool| {
        let transfers = (0..ranks * boxes).map(|index| {
            let (rank, piece) = (index / boxes, index % boxes);
            let (number, local) = (rank / in_box, rank % in_box);
            let block = back(local, if gathers { step } else { 1 + step }, in_box);
            let chunk = Chunk(block * boxes + piece);
            let to = number * in_box + (local + 1) % in_box;
            match (gathers, step) {
                (true, _) => hop(rank, to, 0, Place::Output(chunk), Place::Output(chunk), None),
                (false, 0) => {
                    hop(rank, to, 0, Place::Input(chunk), Place::Scratch(chunk), Some(Place::Input(chunk)))
                }
                _ => {
                    hop(rank, to, 0, Place::Scratch(chunk), Place::Scratch(chunk), Some(Place::Input(chunk)))
                }
            }
        });
        Round { transfers: transfers.collect() }
    };
    let across = |step: u32, gathers: bool| {
        let transfers = (0..ranks).map(|rank| {
            let piece = back(rank / in_box, if gathers { step } else { 1 + step }, boxes);
            let chunk = Chunk(rank % in_box * boxes + piece);
            let to = (rank + in_box) % ranks;
            let held = Place::Scratch(chunk);
            match (gathers, step + 2 == boxes) {
                (true, _) => hop(rank, to, 0, Place::Output(chunk), Place::Output(chunk), None),
                (false, false) => hop(rank, to, 0, held, held, Some(held)),
                (false, true) => hop(rank, to, 0, held, Place::Output(chunk), Some(held)),
            }
        });
        Round { transfers: transfers.collect() }
    };
    let rounds = (0..in_box - 1)
        .map(|step| inside(step, false))
        .chain((0..boxes - 1).map(|step| across(step, false)))
        .chain((0..boxes - 1).map(|step| across(step, true)))
        .chain((0..in_box - 1).map(|step| inside(step, true)));
    all_reduce(format!("hierarchical({boxes}x{in_box})"), ranks, ranks, rounds.collect())
}

/// Two trees over the boxes, each for half of the buffer, with a chain in every box. The second tree is the first
/// with the boxes renamed, so that a leaf of one is not a leaf of the other. Up on one channel, down on the next,
/// `copies` times side by side.
///
/// Source: P. Sanders, J. Speck and J. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
/// scan", Parallel Computing 35 (2009).
pub(crate) fn double_tree(boxes: u32, in_box: u32, copies: u16) -> Schedule {
    let ranks = boxes * in_box;
    let mut by_depth: Vec<(u32, Transfer, Transfer)> = Vec::new();
    for copy in 0..2 * copies {
        // Parent and depth of every rank; the head of a box is another one in each pair of trees.
        let parent = |rank: u32| {
            let (number, local) = (rank / in_box, rank % in_box);
            let head = u32::from(copy / 2) % in_box;
            if local != head {
                return Some(number * in_box + (local + in_box - 1) % in_box);
            }
            let shift = u32::from(copy % 2);
            let above = tree_parent((number + shift) % boxes, boxes)?;
            Some((above + boxes - shift) % boxes * in_box + head)
        };
        let depth = |rank: u32| std::iter::successors(Some(rank), |&rank| parent(rank)).count() as u32;
        let chunk = Chunk(u32::from(copy));
        let (input, scratch, output) = (Place::Input(chunk), Place::Scratch(chunk), Place::Output(chunk));
        let mut children = vec![0u32; ranks as usize];
        (0..ranks).filter_map(parent).for_each(|above| children[above as usize] += 1);
        let mut arrived = vec![0u32; ranks as usize];
        let mut order: Vec<u32> = (0..ranks).collect();
        order.sort_by_key(|&rank| (std::cmp::Reverse(depth(rank)), rank));
        for rank in order {
            let Some(above) = parent(rank) else { continue };
            let index = above as usize;
            arrived[index] += 1;
            let own = if arrived[index] == 1 { input } else { scratch };
            let complete = parent(above).is_none() && arrived[index] == children[index];
            let from = if children[rank as usize] == 0 { input } else { scratch };
            let target = if complete { output } else { scratch };
            let up = hop(rank, above, 2 * copy, from, target, Some(own));
            let down = hop(above, rank, 2 * copy + 1, output, output, None);
            by_depth.push((depth(rank), up, down));
        }
    }
    // Two children of one rank fold into the same place, so each in a round of its own.
    let deepest = by_depth.iter().map(|entry| entry.0).max().unwrap_or(0);
    let mut rounds = Vec::new();
    for depth in (2..=deepest).rev() {
        let mut waves: Vec<Vec<Transfer>> = Vec::new();
        let mut used = std::collections::HashMap::new();
        for (_, up, _) in by_depth.iter().filter(|entry| entry.0 == depth) {
            let wave = used.entry((up.to, up.channel)).and_modify(|wave| *wave += 1).or_insert(0usize);
            waves.resize(waves.len().max(*wave + 1), Vec::new());
            waves[*wave].push(*up);
        }
        rounds.extend(waves.into_iter().map(|transfers| Round { transfers }));
    }
    for depth in 2..=deepest {
        let transfers = by_depth.iter().filter(|entry| entry.0 == depth).map(|entry| entry.2).collect();
        rounds.push(Round { transfers });
    }
    all_reduce(format!("double_tree({boxes}x{in_box}, {copies})"), ranks, u32::from(2 * copies), rounds)
}

/// The parent of a number in a tree over `0..count`: the number that equals it but for low bits.
fn tree_parent(number: u32, count: u32) -> Option<u32> {
    if number == 0 {
        return None;
    }
    let bit = number & number.wrapping_neg();
    let above = (number ^ bit) | bit << 1;
    Some(if above < count { above } else { number ^ bit })
}

/// One ring a rank of a box, side by side; each leaves the boxes through another rank.
pub(crate) fn rotated_rings(boxes: u32, in_box: u32) -> Schedule {
    let rotated = |shift: u32| {
        let mut schedule = ring(Collective::AllReduce, boxes * in_box, RingOptions::default());
        let place = |rank: Rank| Rank(rank.0 / in_box * in_box + (rank.0 % in_box + shift) % in_box);
        for transfer in schedule.rounds.iter_mut().flat_map(|round| &mut round.transfers) {
            (transfer.from, transfer.to) = (place(transfer.from), place(transfer.to));
        }
        schedule
    };
    let schedules: Vec<Schedule> = (0..in_box).map(rotated).collect();
    Schedule { name: format!("rotated_rings({boxes}x{in_box})"), ..interleave(&schedules) }
}
