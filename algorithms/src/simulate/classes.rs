//! What a schedule does alike in several places, so that it is run once.
//!
//! Lanes, messages and limits are divided into classes: lanes of a class do the same operations with connections of
//! the same classes; connections of a class join lanes of the same classes over limits of the same classes; as many
//! connections of each class use each limit of a class. Then all of a class are in the same state at every moment: the
//! lanes have the same operation next, and max-min shares, which are unique, are the same. So one of each class is
//! run, and a limit counts each connection that is run as often as there are such connections on it.
//!
//! The classes are the coarsest that are so, found by dividing classes until nothing divides them: R. Paige and R.
//! Tarjan, "Three partition refinement algorithms", SIAM J. Comput. 16 (1987), in its plain form of rounds. A claim of
//! symmetry is not needed: a link that is slower than its siblings, or a rank that does something else, has other
//! classes around it.
//!
//! Invariant: what is found is compared member by member, so that it does not rest on hashes. Where little is alike,
//! or it takes long to find, there are no classes. Absent: schedules that are too large to have all their transfers
//! ([`orbit`](super::orbit)).

use std::ops::Range;

use super::paths::{Path, Paths, Weighted};
use super::program::{Connection, Message, Op, Piece, Program};
use crate::numbers::Numbers;

/// Rounds of dividing, at most; each costs a pass over all operations.
const ROUNDS_MAX: usize = 64;
/// Operations that are looked at in all rounds together, at most, unless the rounds are few.
const LOOKED_AT_MAX: usize = 1 << 25;
const ROUNDS_ALWAYS: usize = 8;

/// A schedule with one member of each class.
pub(super) struct Quotient {
    pub(super) program: Program,
    pub(super) paths: Paths,
    /// For each link of the topology the one that is run for it.
    pub(super) alike: Vec<u32>,
}

/// The classes of a program, or `None` where at least half of its connections would be run anyway. Where `queues` says
/// so of a rank, its lanes wait for each other, and their order counts.
pub(super) fn quotient(
    program: &Program,
    paths: &mut Paths,
    ranks: u32,
    queues: &dyn Fn(usize) -> bool,
) -> Option<Quotient> {
    let mut classes = Classes::new(program, paths, ranks, queues);
    if !classes.divide() || !classes.hold() {
        return None;
    }
    let Classes { lane, connection, limit, .. } = classes;
    let alike = firsts(&limit);
    paths.leave_out_slack(&alike);
    let (paths, alike) = quotient_paths(paths, &connection, alike);
    Some(Quotient { program: quotient_program(program, &lane, &connection), paths, alike })
}

/// The lanes of one rank.
struct Seat {
    lanes: Range<u32>,
    queues: bool,
    is_switch: bool,
}

struct Classes<'a> {
    program: &'a Program,
    paths: &'a Paths,
    seats: Vec<Seat>,
    seat_of: Vec<u32>,
    /// For each connection its place among those that its sender fills, and that its receiver empties.
    places: Vec<[u32; 2]>,
    /// For each limit the connections on it.
    users: Vec<Vec<u32>>,
    /// The classes, by number in the order of their first members.
    seat: Vec<u32>,
    lane: Vec<u32>,
    connection: Vec<u32>,
    limit: Vec<u32>,
}

impl<'a> Classes<'a> {
    fn new(program: &'a Program, paths: &'a Paths, ranks: u32, queues: &dyn Fn(usize) -> bool) -> Self {
        let mut seats: Vec<Seat> = Vec::new();
        let mut seat_of = Vec::with_capacity(program.lanes.len());
        let mut start = 0;
        for alike in program.lanes.chunk_by(|one, other| one.rank == other.rank) {
            let end = start + alike.len() as u32;
            let is_switch = alike[0].rank.0 >= ranks;
            let queues = !is_switch && queues(alike.len());
            seat_of.extend(std::iter::repeat_n(seats.len() as u32, alike.len()));
            seats.push(Seat { lanes: start..end, queues, is_switch });
            start = end;
        }
        let mut users = vec![Vec::new(); paths.capacity.len()];
        for (&path, number) in paths.path_of.iter().zip(0..) {
            for limit in limits_of(&paths.paths[path as usize], paths.links) {
                users[limit as usize].push(number);
            }
        }
        Classes {
            program,
            paths,
            seat: vec![0; seats.len()],
            lane: vec![0; program.lanes.len()],
            connection: vec![0; program.connections.len()],
            limit: vec![0; users.len()],
            places: places(program),
            seats,
            seat_of,
            users,
        }
    }

    /// Divides until nothing is divided any more; whether that came soon and is worth it.
    fn divide(&mut self) -> bool {
        let ops: usize = self.program.lanes.iter().map(|lane| lane.ops.len()).sum();
        let rounds = (LOOKED_AT_MAX / ops.max(1)).clamp(ROUNDS_ALWAYS, ROUNDS_MAX);
        let mut before = 0;
        for _ in 0..rounds {
            let limits = renumber(&self.limit, |index| {
                let users =
                    self.users[index].iter().map(|&user| mixed(1, self.connection[user as usize].into()));
                mixed(users.fold(0, u64::wrapping_add), self.paths.capacity[index].to_bits())
            });
            self.limit = limits.0;
            let connections =
                renumber(&self.connection, |index| hash(|emit| self.connection_words(index, emit)));
            self.connection = connections.0;
            let lanes = renumber(&self.lane, |index| hash(|emit| self.lane_words(index, emit)));
            self.lane = lanes.0;
            let seats = renumber(&self.seat, |index| hash(|emit| self.seat_words(index, emit)));
            self.seat = seats.0;
            if connections.1 * 2 > self.connection.len() {
                return false;
            }
            let after = limits.1 + connections.1 + lanes.1 + seats.1;
            if after == before {
                return true;
            }
            before = after;
        }
        false
    }

    /// Whether all members of each class are like its first one.
    fn hold(&self) -> bool {
        holds(&self.limit, |index, words| {
            words.extend(self.users[index].iter().map(|&user| u64::from(self.connection[user as usize])));
            words.sort_unstable();
            words.push(self.paths.capacity[index].to_bits());
        }) && holds(&self.connection, |index, words| {
            self.connection_words(index, &mut |word| words.push(word))
        }) && holds(&self.lane, |index, words| self.lane_words(index, &mut |word| words.push(word)))
            && holds(&self.seat, |index, words| self.seat_words(index, &mut |word| words.push(word)))
    }

    fn connection_words(&self, index: usize, emit: &mut dyn FnMut(u64)) {
        let connection = &self.program.connections[index];
        let path = &self.paths.paths[self.paths.path_of[index] as usize];
        let ends = [connection.sender, connection.receiver].map(|lane| self.lane[lane as usize]);
        ends.into_iter().chain(self.places[index]).for_each(|word| emit(word.into()));
        emit(path.latency_ps);
        path.links.iter().chain(&path.limits).for_each(|limit| emit(self.limit[limit.index()].into()));
    }

    fn lane_words(&self, index: usize, emit: &mut dyn FnMut(u64)) {
        let seat_number = self.seat_of[index] as usize;
        let seat = &self.seats[seat_number];
        emit(u64::from(seat.is_switch) | u64::from(seat.queues) << 1);
        emit(self.program.lanes[index].beside.into());
        if seat.queues {
            emit(self.seat[seat_number].into());
            emit((index as u32 - seat.lanes.start).into());
        }
        let pieces = |pieces: &[Piece], emit: &mut dyn FnMut(u64)| {
            pieces.iter().for_each(|piece| emit(piece.length << 1 | u64::from(piece.fold)));
        };
        for op in &self.program.lanes[index].ops {
            match *op {
                Op::Send { message, last } => {
                    emit(self.of_message(message) << 3 | u64::from(last));
                    pieces(self.program.pieces_of(message), emit);
                }
                Op::Receive { message } => emit(self.of_message(message) << 3 | 2),
                Op::Local { piece } => {
                    emit(4);
                    pieces(&self.program.pieces[piece as usize..=piece as usize], emit);
                }
            }
        }
    }

    fn of_message(&self, message: u32) -> u64 {
        self.connection[self.program.messages[message as usize].connection as usize].into()
    }

    fn seat_words(&self, index: usize, emit: &mut dyn FnMut(u64)) {
        let seat = &self.seats[index];
        emit(u64::from(seat.queues));
        if seat.queues {
            seat.lanes.clone().for_each(|lane| emit(self.lane[lane as usize].into()));
        }
    }
}

/// The links of a path, and the limits that are no links.
fn limits_of(path: &Path, links: usize) -> impl Iterator<Item = u32> {
    let ends = path.limits.iter().filter(move |limit| limit.index() >= links);
    path.links.iter().chain(ends).map(|limit| limit.of)
}

/// For each connection its place in the order in which its sender first sends, and its receiver first receives.
fn places(program: &Program) -> Vec<[u32; 2]> {
    let mut places = vec![[u32::MAX; 2]; program.connections.len()];
    for lane in &program.lanes {
        let mut next = [0; 2];
        for op in &lane.ops {
            let (message, end) = match *op {
                Op::Send { message, .. } => (message, 0),
                Op::Receive { message } => (message, 1),
                Op::Local { .. } => continue,
            };
            let place = &mut places[program.messages[message as usize].connection as usize][end];
            if *place == u32::MAX {
                *place = next[end];
                next[end] += 1;
            }
        }
    }
    places
}

/// From a hash above 0, so that zeros count.
fn mixed(hash: u64, word: u64) -> u64 {
    let mixed = (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

fn hash(words: impl FnOnce(&mut dyn FnMut(u64))) -> u64 {
    let mut hash = 1;
    words(&mut |word| hash = mixed(hash, word));
    hash
}

/// The classes divided by a hash of each member, and their number.
fn renumber(classes: &[u32], hash: impl Fn(usize) -> u64) -> (Vec<u32>, usize) {
    let mut numbers: Numbers<(u32, u64), u32> = Numbers::default();
    let divided = classes.iter().enumerate().map(|(index, &class)| {
        let next = numbers.len() as u32;
        *numbers.entry((class, hash(index))).or_insert(next)
    });
    let divided = divided.collect();
    (divided, numbers.len())
}

/// For each member the first of its class.
fn firsts(classes: &[u32]) -> Vec<u32> {
    let mut first: Vec<u32> = Vec::new();
    let of = |(&class, index): (&u32, u32)| {
        if class as usize == first.len() {
            first.push(index);
        }
        first[class as usize]
    };
    classes.iter().zip(0..).map(of).collect()
}

fn holds(classes: &[u32], words: impl Fn(usize, &mut Vec<u64>)) -> bool {
    let (mut mine, mut kept): (Vec<u64>, Vec<Vec<u64>>) = (Vec::new(), Vec::new());
    for (index, &class) in classes.iter().enumerate() {
        mine.clear();
        words(index, &mut mine);
        match kept.get(class as usize) {
            Some(first) if *first != mine => return false,
            Some(_) => {}
            None => kept.push(mine.clone()),
        }
    }
    true
}

/// The paths of the first connections of each class, with the first limits of each class; `alike` has the first of
/// each limit.
fn quotient_paths(paths: &Paths, connection: &[u32], mut alike: Vec<u32>) -> (Paths, Vec<u32>) {
    // How many connections of each class are on each first limit.
    let mut on: Numbers<(u32, u32), u32> = Numbers::default();
    for (&path, &class) in paths.path_of.iter().zip(connection) {
        let path = &paths.paths[path as usize];
        for limit in limits_of(path, paths.links).filter(|&limit| alike[limit as usize] == limit) {
            *on.entry((class, limit)).or_insert(0) += 1;
        }
    }
    let classes = connection.iter().max().map_or(0, |last| last + 1);
    let mut quotient: Vec<Path> = Vec::with_capacity(classes as usize);
    for (&path, &class) in paths.path_of.iter().zip(connection) {
        if class as usize != quotient.len() {
            continue;
        }
        let path = &paths.paths[path as usize];
        let once = |limits: &[Weighted]| {
            let mut firsts: Vec<u32> = Vec::with_capacity(limits.len());
            for limit in limits {
                let first = alike[limit.index()];
                if !firsts.contains(&first) {
                    firsts.push(first);
                }
            }
            let weighted = |of| Weighted { of, weight: on[&(class, of)] };
            firsts.into_iter().map(weighted).collect()
        };
        quotient.push(Path {
            latency_ps: path.latency_ps,
            links: once(&path.links),
            limits: once(&path.limits),
        });
    }
    alike.truncate(paths.links);
    let capacity = paths.capacity.clone();
    (Paths { paths: quotient, path_of: (0..classes).collect(), capacity, links: paths.links }, alike)
}

/// The lanes, connections and messages of the first members of each class.
fn quotient_program(program: &Program, lane: &[u32], connection: &[u32]) -> Program {
    let first_connection = firsts(connection);
    let mut made = program.without_lanes();
    let mut nth = vec![0u32; program.connections.len()];
    // For each message its number within its connection, and for each class the numbers of the messages that are kept.
    let mut numbers: Vec<u32> = Vec::with_capacity(program.messages.len());
    let mut kept: Vec<Vec<u32>> = Vec::new();
    for (message, number) in program.messages.iter().zip(0..) {
        let of = message.connection as usize;
        numbers.push(nth[of]);
        nth[of] += 1;
        if first_connection[of] as usize == of {
            let class = connection[of] as usize;
            if kept.len() <= class {
                kept.resize(class + 1, Vec::new());
            }
            kept[class].push(made.messages.len() as u32);
            let first = made.pieces.len() as u32;
            made.pieces.extend(program.pieces_of(number));
            let end = made.pieces.len() as u32;
            made.messages.push(Message { connection: class as u32, first, end });
        }
    }
    let kept = |message: u32| {
        let class = connection[program.messages[message as usize].connection as usize];
        kept[class as usize][numbers[message as usize] as usize]
    };
    for (of, number) in program.connections.iter().zip(0u32..) {
        if first_connection[number as usize] == number {
            let (sender, receiver) = (lane[of.sender as usize], lane[of.receiver as usize]);
            made.connections.push(Connection { sender, receiver, ..*of });
        }
    }
    for (of, &class) in program.lanes.iter().zip(lane) {
        if class as usize != made.lanes.len() {
            continue;
        }
        let ops = of.ops.iter().map(|op| match *op {
            Op::Send { message, last } => Op::Send { message: kept(message), last },
            Op::Receive { message } => Op::Receive { message: kept(message) },
            Op::Local { piece } => {
                made.pieces.push(program.pieces[piece as usize]);
                Op::Local { piece: made.pieces.len() as u32 - 1 }
            }
        });
        let ops = ops.collect();
        made.lanes.push(of.with_ops(ops));
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::{RingOptions, blueconnect, box_tree, pairwise, ring};
    use crate::simulate::Options;
    use crate::topology::{Link, Topology, dgx_h100};
    use crate::{Collective, Schedule};

    /// Connections of the schedule, and those that are run.
    fn connections(schedule: &Schedule, topology: &Topology) -> (usize, usize) {
        let program = Program::new(schedule, &Options::new(1 << 20));
        let mut paths = Paths::new(&program.connections, topology, schedule.ranks).expect("it has routes");
        let all = program.connections.len();
        let found = quotient(&program, &mut paths, schedule.ranks, &|lanes| lanes > 56);
        (all, found.map_or(all, |found| found.program.connections.len()))
    }

    #[test]
    fn what_is_alike_is_few() {
        let machine = dgx_h100(8);
        // A connection along each dimension.
        assert_eq!(connections(&blueconnect(Collective::AllReduce, &[8, 8]), &machine), (128, 2));
        // Ranks 0 to 7 of a box.
        let rings = ring(Collective::AllReduce, 64, RingOptions { channels: 4, bidirectional: false });
        assert_eq!(connections(&rings, &machine), (256, 8));
        // The partners at each distance, in a box and beyond, for each place in a box.
        let (all, run) = connections(&pairwise(64), &machine);
        assert!(all == 63 * 64 && run < all / 4, "{run} of {all}");
        // A rank of a tree sends to its children one after the other, so that no two ranks are alike.
        assert_eq!(connections(&box_tree(8, 8), &machine), (252, 252));
    }

    #[test]
    fn a_slow_link_has_a_class_of_its_own() {
        let number = std::cell::Cell::new(0);
        let machine = dgx_h100(8).map_links(|_, link| {
            let slower = u64::from(number.replace(number.get() + 1) == 7);
            Link { bandwidth_bytes_s: link.bandwidth_bytes_s - slower, ..link }
        });
        let (all, run) = connections(&blueconnect(Collective::AllReduce, &[8, 8]), &machine);
        assert!(2 < run && run <= all, "{run} of {all}");
    }
}
