//! Collectives through the aggregating switch of every box, and trees between the boxes.
//!
//! Sources: B. Klenk, N. Jiang, G. Thorson and L. Dennison, "An in-network architecture for accelerating
//! shared-memory multiprocessor collectives", ISCA 2020; NVIDIA, NCCL at commit 5067397c, `src/device/all_reduce.h`
//! (NVLS and NVLSTree) and `src/graph/connect.cc` (`connectNvls`: a tree over the boxes for each head, the second of
//! two trees on odd channels).
//!
//! Every rank is the head of one piece a channel. It loads the piece from all ranks of its box, folded by the switch,
//! and stores it to all of them by multicast; between the two the heads of equal number exchange over a tree of boxes.
//!
//! Cost over `b` boxes of `g` ranks, with `M` the bytes of the largest buffer:
//!
//! | collective | longest chain of messages | bytes out of every rank's port in the box | into it |
//! |---|---|---|---|
//! | all-reduce | `4 + 2 height`, with `height <= ceil(log2 b)` | `(1 + 1/g) M` | `(1 + 1/g) M` |
//! | all-gather, one box | 2 | `M/g` | `M` |
//! | reduce-scatter, one box | 2 | `M` | `M/g` |
//!
//! Between boxes a head's tree carries `2 M/g` in and out of an adapter from 4 boxes on (in each of the two trees
//! half).
//!
//! Channels come in fours, since a lane takes its messages one after the other: loads, folded pieces upwards, results
//! downwards, stores. So the next slice is loaded while the one before is on its way between boxes.
//!
//! Fold order: a switch folds its ports from the left in their order, then come the sums of the boxes below, the lower
//! box's first. A real switch keeps no order, and its bits differ between calls.
//!
//! Invariant: a switch has scratch places only. Deliberately absent: what real switches refuse (groups, operators,
//! element types), and all-gather and reduce-scatter over several boxes.

use super::box_tree::parent;
use super::hierarchical::one_rank;
use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// Whether `collective` goes through the switches of that number of boxes.
pub const fn switched_is_defined(collective: Collective, boxes: u32) -> bool {
    match collective {
        Collective::AllReduce => true,
        Collective::AllGather | Collective::ReduceScatter => boxes == 1,
        _ => false,
    }
}

/// The schedule of `collective` over `boxes` boxes of `per_box` ranks, each around one switch, by `channels` fours of
/// channels; rank = box * `per_box` + local, and switch `n` is that of box `n`.
///
/// # Panics
///
/// When a number is 0, the collective is not defined ([`switched_is_defined`]), or there would be more than 65,535
/// channels.
pub fn switched(collective: Collective, boxes: u32, per_box: u32, channels: u16) -> Schedule {
    assert!(switched_is_defined(collective, boxes), "no {collective} through the switches of {boxes} boxes");
    assert!(boxes > 0 && per_box > 0 && channels > 0, "a box, a rank in it and a channel are needed");
    assert!(channels <= u16::MAX / 4, "at most 65,535 channels");
    let name = format!("switched({boxes}x{per_box}, {channels})");
    let ranks = boxes * per_box;
    if ranks == 1 {
        return Schedule { name, ..one_rank(collective) };
    }
    let parts = u32::from(channels) * if collective == Collective::AllReduce { per_box } else { 1 };
    let mut making = Making { collective, boxes, per_box, channels, parts, rounds: Vec::new() };
    match collective {
        Collective::AllReduce => making.all_reduce(),
        Collective::AllGather => making.all_gather(),
        _ => making.reduce_scatter(),
    }
    let partition = Partition { parts };
    Schedule { name, collective, ranks, switches: boxes, partition, rounds: making.rounds }
}

/// What a message is for, which gives its channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Load,
    Up,
    Down,
    Store,
}

struct Making {
    collective: Collective,
    boxes: u32,
    per_box: u32,
    channels: u16,
    parts: u32,
    rounds: Vec<Round>,
}

impl Making {
    fn add(&mut self, round: u32, transfer: Transfer) {
        let round = round as usize;
        if self.rounds.len() <= round {
            self.rounds.resize(round + 1, Round::default());
        }
        self.rounds[round].transfers.push(transfer);
    }

    /// Every piece with its channel and its head's number in a box.
    fn pieces(&self) -> Vec<(u16, u32)> {
        let heads = self.per_box;
        (0..self.channels).flat_map(|channel| (0..heads).map(move |head| (channel, head))).collect()
    }

    /// The piece as a chunk of the side that holds all of them.
    fn chunk(&self, channel: u16, head: u32) -> Chunk {
        match self.collective {
            Collective::AllReduce => Chunk(u32::from(channel) * self.per_box + head),
            _ => Chunk(head * self.parts + u32::from(channel)),
        }
    }

    fn rank(&self, of: u32, local: u32) -> Rank {
        Rank(of * self.per_box + local)
    }

    fn switch(&self, of: u32) -> Rank {
        Rank(self.boxes * self.per_box + of)
    }

    /// The place of a switch for a piece of a port; port 0's takes the sum, and the one after the last port what comes
    /// back from the head.
    fn at_port(&self, port: u32, channel: u16, head: u32) -> Place {
        let pieces = u32::from(self.channels) * self.per_box;
        Place::Scratch(Chunk(port * pieces + u32::from(channel) * self.per_box + head))
    }

    fn returned(&self, channel: u16, head: u32) -> Place {
        self.at_port(self.per_box, channel, head)
    }

    /// Loads all pieces into the switches and folds them; gives the round after.
    fn load(&mut self) -> u32 {
        for of in 0..self.boxes {
            for local in 0..self.per_box {
                for (channel, head) in self.pieces() {
                    let source = Place::Input(self.chunk(channel, head));
                    let target = self.at_port(local, channel, head);
                    let hop =
                        hop(channel, Way::Load, (self.rank(of, local), source), (self.switch(of), target));
                    self.add(0, hop);
                }
            }
            for port in 1..self.per_box {
                for (channel, head) in self.pieces() {
                    let (sum, added) = (self.at_port(0, channel, head), self.at_port(port, channel, head));
                    let local = hop(channel, Way::Load, (self.switch(of), added), (self.switch(of), sum));
                    self.add(port, Transfer { fold: Some(sum), own_first: true, ..local });
                }
            }
        }
        self.per_box
    }

    /// Stores what the switches have got from the heads to all ranks of the boxes.
    fn store(&mut self, rounds: &dyn Fn(u16, u32) -> u32) {
        for of in 0..self.boxes {
            for (channel, head) in self.pieces() {
                let (source, target) =
                    (self.returned(channel, head), Place::Output(self.chunk(channel, head)));
                for local in 0..self.per_box {
                    let hop =
                        hop(channel, Way::Store, (self.switch(of), source), (self.rank(of, local), target));
                    self.add(rounds(channel, of), hop);
                }
            }
        }
    }

    fn all_gather(&mut self) {
        for (channel, head) in self.pieces() {
            let (source, target) = (Place::Input(Chunk(channel.into())), self.returned(channel, head));
            let hop = hop(channel, Way::Down, (self.rank(0, head), source), (self.switch(0), target));
            self.add(0, hop);
        }
        self.store(&|_, _| 1);
    }

    fn reduce_scatter(&mut self) {
        let round = self.load();
        for (channel, head) in self.pieces() {
            let (source, target) = (self.at_port(0, channel, head), Place::Output(Chunk(channel.into())));
            let hop = hop(channel, Way::Up, (self.switch(0), source), (self.rank(0, head), target));
            self.add(round, hop);
        }
    }

    fn all_reduce(&mut self) {
        let loaded = self.load();
        let trees = [BoxTree::new(0, self.boxes), BoxTree::new(1, self.boxes)];
        for (channel, head) in self.pieces() {
            let tree = &trees[usize::from(channel % 2)];
            let piece = self.chunk(channel, head);
            let (sum, result) = (Place::Scratch(piece), Place::Scratch(Chunk(self.parts + piece.0)));
            // The result of a single box is the sum that its head has loaded.
            let result = if self.boxes == 1 { sum } else { result };
            for of in 0..self.boxes {
                let (from, to) = (self.at_port(0, channel, head), self.rank(of, head));
                self.add(loaded, hop(channel, Way::Up, (self.switch(of), from), (to, sum)));
                let back = (self.switch(of), self.returned(channel, head));
                let round = loaded + 1 + tree.down_at[of as usize];
                self.add(round, hop(channel, Way::Down, (self.rank(of, head), result), back));
            }
            for (at, &(round, child, above)) in tree.up.iter().enumerate() {
                let target = if at + 1 == tree.up.len() { result } else { sum };
                let up =
                    hop(channel, Way::Up, (self.rank(child, head), sum), (self.rank(above, head), target));
                self.add(loaded + 1 + round, Transfer { fold: Some(sum), own_first: true, ..up });
            }
            for &(round, above, child) in &tree.down {
                let (from, to) = (self.rank(above, head), self.rank(child, head));
                self.add(loaded + 1 + round, hop(channel, Way::Down, (from, result), (to, result)));
            }
        }
        self.store(&|channel, of| loaded + 2 + trees[usize::from(channel % 2)].down_at[of as usize]);
    }
}

fn hop(channel: u16, way: Way, (from, source): (Rank, Place), (to, target): (Rank, Place)) -> Transfer {
    let channel = Channel(4 * channel + way as u16);
    Transfer { from, to, channel, source, target, fold: None, own_first: false }
}

/// One of the two trees over boxes, with rounds counted from the one in which all heads have their sums.
struct BoxTree {
    /// (round, child, parent); the last is into the root.
    up: Vec<(u32, u32, u32)>,
    /// (round, parent, child).
    down: Vec<(u32, u32, u32)>,
    /// For each box the round from which it has the result.
    down_at: Vec<u32>,
}

impl BoxTree {
    fn new(tree: u32, boxes: u32) -> BoxTree {
        let mut children = vec![Vec::new(); boxes as usize];
        let mut root = 0;
        for of in 0..boxes {
            match parent(tree, of, boxes) {
                Some(above) => children[above as usize].push(of),
                None => root = of,
            }
        }
        let mut made = BoxTree { up: Vec::new(), down: Vec::new(), down_at: vec![0; boxes as usize] };
        let done = made.fold(&children, root);
        made.spread(&children, root, done);
        made
    }

    fn fold(&mut self, children: &[Vec<u32>], of: u32) -> u32 {
        let mut ready = 0;
        for &child in &children[of as usize] {
            let round = self.fold(children, child).max(ready);
            self.up.push((round, child, of));
            ready = round + 1;
        }
        ready
    }

    fn spread(&mut self, children: &[Vec<u32>], of: u32, round: u32) {
        self.down_at[of as usize] = round;
        for &child in &children[of as usize] {
            self.down.push((round, of, child));
            self.spread(children, child, round + 1);
        }
    }
}
