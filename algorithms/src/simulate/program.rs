//! A schedule as lanes of sends and receives.
//!
//! Invariant: the order is that of lowering; nothing here depends on the machine. Lanes are numbered by rank, then by
//! channel. A program may have the lanes of some ranks alone, which stand for all others ([`Home`]). Absent: places,
//! which are needed only to find the lanes.

use super::Options;
use crate::lower::length_of;
use crate::numbers::Numbers;
use crate::{Channel, Place, Rank, Schedule, Transfer};

/// The next operation of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// Posts a message. After the last of a round it waits until all have left.
    Send { message: u32, last: bool },
    /// Moves a piece on the rank itself.
    Local { piece: u32 },
    /// Takes a message out of its slot.
    Receive { message: u32 },
}

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) rank: Rank,
    channel: Channel,
    /// The number of lanes of its rank.
    pub(super) beside: u32,
    pub(super) ops: Vec<Op>,
    /// The round of the last operation.
    round: u32,
}

impl Lane {
    /// The same lane with other operations.
    pub(super) fn with_ops(&self, ops: Vec<Op>) -> Lane {
        Lane { ops, ..*self }
    }
}

/// A mailbox: the rank that fills it and the rank that empties it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) channel: Channel,
    pub(super) sender: u32,
    pub(super) receiver: u32,
}

/// One transfer of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) length: u64,
    pub(super) fold: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) connection: u32,
    /// Its pieces.
    pub(super) first: u32,
    pub(super) end: u32,
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) lanes: Vec<Lane>,
    pub(super) connections: Vec<Connection>,
    pub(super) messages: Vec<Message>,
    pub(super) pieces: Vec<Piece>,
    slot_bytes: u64,
    /// The longest piece.
    pub(super) longest: u64,
    /// Messages of a slice, those for which others stand among them.
    pub(super) messages_of_all: u64,
    /// Bytes out of the rank that sends most, and into the one that receives most.
    pub(super) ports: [u64; 2],
}

/// The ranks whose lanes a program has: the rank that stands for each, and how many each stands for.
pub(super) struct Home<'a> {
    pub(super) of: &'a dyn Fn(Rank) -> Rank,
    pub(super) stands_for: u32,
    /// What these ranks receive; the schedule has what they send.
    pub(super) received: &'a [Transfer],
    /// Whether every piece counts as long as the longest.
    pub(super) even: bool,
}

impl Program {
    /// The lanes of all ranks.
    pub(super) fn new(schedule: &Schedule, options: &Options) -> Program {
        let home = Home { of: &|rank| rank, stands_for: 1, received: &[], even: false };
        Program::at_home(schedule, options, &home)
    }

    /// The lanes of the ranks that are at home.
    pub(super) fn at_home(schedule: &Schedule, options: &Options, home: &Home<'_>) -> Program {
        let extents = schedule.partition.extents(options.block_bytes, 1);
        let mut build = Build {
            lane_of: lanes(schedule, home.received),
            lane_ids: Numbers::default(),
            connection_ids: Numbers::default(),
            home: home.of,
            program: Program {
                lanes: Vec::new(),
                connections: Vec::new(),
                messages: Vec::new(),
                pieces: Vec::new(),
                slot_bytes: options.slot_bytes as u64,
                longest: 0,
                messages_of_all: 0,
                ports: [0; 2],
            },
        };
        let mut by_message: Vec<(u32, usize, Piece)> = Vec::new();
        for (round, number) in schedule.rounds.iter().zip(0..) {
            by_message.clear();
            let piece = |transfer: &Transfer| Piece {
                length: match home.even {
                    true => extents.longest() as u64,
                    false => extents.length(length_of(schedule, transfer)) as u64,
                },
                fold: transfer.fold.is_some(),
            };
            for (index, transfer) in round.transfers.iter().enumerate().filter(|(_, t)| t.from != t.to) {
                by_message.push((build.connection(transfer), index, piece(transfer)));
            }
            // Messages in the order of their first transfers, each with its transfers side by side.
            let mut first: Numbers<u32, usize> = Numbers::default();
            for (connection, index, _) in &by_message {
                first.entry(*connection).or_insert(*index);
            }
            by_message.sort_by_key(|(connection, index, _)| (first[connection], *index));
            let messages = build.program.messages.len();
            for (connection, _, piece) in &by_message {
                build.add(*connection, *piece, messages);
            }
            build.operations(messages, number);
            for transfer in round.transfers.iter().filter(|t| t.from == t.to) {
                let lane = build.lane(transfer.from, transfer.channel);
                let op = Op::Local { piece: build.piece(piece(transfer)) };
                build.push(lane, number, op);
            }
            for message in messages..build.program.messages.len() {
                let receiver =
                    build.program.connections[build.program.messages[message].connection as usize].receiver;
                build.push(receiver, number, Op::Receive { message: message as u32 });
            }
        }
        let mut program = build.program;
        program.number_lanes_by_rank();
        program.messages_of_all = program.messages.len() as u64 * u64::from(home.stands_for);
        program.ports = program.busiest_ports(schedule.ranks, home.of);
        program
    }

    /// The same call without lanes and messages.
    pub(super) fn without_lanes(&self) -> Program {
        let (lanes, connections, messages, pieces) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Program { lanes, connections, messages, pieces, ..*self }
    }

    /// Numbers the lanes by rank, then by channel: what a rank does first does not depend on the numbers of others.
    fn number_lanes_by_rank(&mut self) {
        let mut order: Vec<u32> = (0..self.lanes.len() as u32).collect();
        order.sort_unstable_by_key(|&lane| {
            (self.lanes[lane as usize].rank, self.lanes[lane as usize].channel)
        });
        let mut number = vec![0; order.len()];
        (0..).zip(&order).for_each(|(new, &old)| number[old as usize] = new);
        for connection in &mut self.connections {
            connection.sender = number[connection.sender as usize];
            connection.receiver = number[connection.receiver as usize];
        }
        self.lanes.sort_unstable_by_key(|lane| (lane.rank, lane.channel));
        for same in self.lanes.chunk_by_mut(|one, other| one.rank == other.rank) {
            let beside = same.len() as u32;
            same.iter_mut().for_each(|lane| lane.beside = beside);
        }
    }

    fn busiest_ports(&self, ranks: u32, home: &dyn Fn(Rank) -> Rank) -> [u64; 2] {
        let mut ports = [vec![0u64; ranks as usize], vec![0u64; ranks as usize]];
        for (message, number) in self.messages.iter().zip(0..) {
            let connection = &self.connections[message.connection as usize];
            for (port, rank) in ports.iter_mut().zip([connection.from, connection.to]) {
                if let Some(port) = port.get_mut(home(rank).index()) {
                    *port += self.total(number);
                }
            }
        }
        ports.map(|bytes| bytes.into_iter().max().unwrap_or(0))
    }

    /// Bytes of a piece in a slice.
    fn slice_of(&self, piece: Piece, slice: u64) -> u64 {
        piece.length.saturating_sub(slice * self.slot_bytes).min(self.slot_bytes)
    }

    pub(super) fn pieces_of(&self, message: u32) -> &[Piece] {
        let message = &self.messages[message as usize];
        &self.pieces[message.first as usize..message.end as usize]
    }

    /// Bytes of a message in a slice: (copied on arrival, folded on arrival).
    pub(super) fn bytes(&self, message: u32, slice: u64) -> (u64, u64) {
        self.pieces_of(message).iter().fold((0, 0), |(copied, folded), piece| {
            let bytes = self.slice_of(*piece, slice);
            if piece.fold { (copied, folded + bytes) } else { (copied + bytes, folded) }
        })
    }

    /// Bytes of a local transfer in a slice: (copied, folded).
    pub(super) fn local_bytes(&self, piece: u32, slice: u64) -> (u64, u64) {
        let piece = self.pieces[piece as usize];
        let bytes = self.slice_of(piece, slice);
        if piece.fold { (0, bytes) } else { (bytes, 0) }
    }

    /// Bytes of a message over all slices.
    pub(super) fn total(&self, message: u32) -> u64 {
        self.pieces_of(message).iter().map(|piece| piece.length).sum()
    }

    /// The number of slices into which the longest piece is cut.
    pub(super) fn slices(&self) -> u64 {
        self.longest.div_ceil(self.slot_bytes).max(1)
    }
}

struct Build<'a> {
    home: &'a dyn Fn(Rank) -> Rank,
    lane_of: Numbers<(Rank, Channel), Channel>,
    lane_ids: Numbers<(Rank, Channel), u32>,
    connection_ids: Numbers<(Rank, Rank, Channel), u32>,
    program: Program,
}

impl Build<'_> {
    fn lane(&mut self, rank: Rank, channel: Channel) -> u32 {
        let rank = (self.home)(rank);
        let channel = self.lane_of.get(&(rank, channel)).copied().unwrap_or(channel);
        let lanes = &mut self.program.lanes;
        *self.lane_ids.entry((rank, channel)).or_insert_with(|| {
            lanes.push(Lane { rank, channel, beside: 1, ops: Vec::new(), round: 0 });
            lanes.len() as u32 - 1
        })
    }

    fn connection(&mut self, transfer: &Transfer) -> u32 {
        let (from, to, channel) = (transfer.from, transfer.to, transfer.channel);
        if let Some(id) = self.connection_ids.get(&(from, to, channel)) {
            return *id;
        }
        let (sender, receiver) = (self.lane(from, channel), self.lane(to, channel));
        let id = self.program.connections.len() as u32;
        self.program.connections.push(Connection { from, to, channel, sender, receiver });
        self.connection_ids.insert((from, to, channel), id);
        id
    }

    fn piece(&mut self, piece: Piece) -> u32 {
        let program = &mut self.program;
        program.longest = program.longest.max(piece.length);
        program.pieces.push(piece);
        program.pieces.len() as u32 - 1
    }

    /// Adds a piece to the last message when that is of this round (from `first` on) and connection, else to a new
    /// one.
    fn add(&mut self, connection: u32, piece: Piece, first: usize) {
        let at = self.piece(piece);
        let messages = &mut self.program.messages;
        match messages[first..].last_mut() {
            Some(message) if message.connection == connection => message.end = at + 1,
            _ => messages.push(Message { connection, first: at, end: at + 1 }),
        }
    }

    /// The sends of a round, whose messages start at `first`.
    fn operations(&mut self, first: usize, round: u32) {
        for message in first..self.program.messages.len() {
            let sender = self.program.connections[self.program.messages[message].connection as usize].sender;
            // The send before is not the last any more.
            let lane = &mut self.program.lanes[sender as usize];
            if let Some(Op::Send { last, .. }) = lane.ops.last_mut().filter(|_| lane.round == round) {
                *last = false;
            }
            self.push(sender, round, Op::Send { message: message as u32, last: true });
        }
    }

    fn push(&mut self, lane: u32, round: u32, op: Op) {
        let lane = &mut self.program.lanes[lane as usize];
        lane.round = round;
        lane.ops.push(op);
    }
}

/// For channels of a rank that run in the lane of a lower channel: that channel. Channels share a lane when one
/// writes a place of the output or of scratch that the other touches.
fn lanes(schedule: &Schedule, received: &[Transfer]) -> Numbers<(Rank, Channel), Channel> {
    let mut joined: Numbers<(Rank, Channel), Channel> = Numbers::default();
    if schedule.channels() == 1 {
        return joined;
    }
    let transfers = || schedule.rounds.iter().flat_map(|round| &round.transfers).chain(received);
    let mut writers: Numbers<(Rank, Place), Channel> = Numbers::default();
    for transfer in transfers() {
        let writer = *writers.entry((transfer.to, transfer.target)).or_insert(transfer.channel);
        join(&mut joined, transfer.to, writer, transfer.channel);
    }
    for transfer in transfers() {
        let reads = [Some((transfer.from, transfer.source)), transfer.fold.map(|fold| (transfer.to, fold))];
        for (rank, place) in reads.into_iter().flatten() {
            if let Some(&writer) = writers.get(&(rank, place)) {
                join(&mut joined, rank, writer, transfer.channel);
            }
        }
    }
    let entries: Vec<(Rank, Channel)> = joined.keys().copied().collect();
    entries.into_iter().map(|key| (key, lowest(&joined, key.0, key.1))).collect()
}

fn lowest(joined: &Numbers<(Rank, Channel), Channel>, rank: Rank, channel: Channel) -> Channel {
    let mut channel = channel;
    while let Some(&lower) = joined.get(&(rank, channel)) {
        channel = lower;
    }
    channel
}

fn join(joined: &mut Numbers<(Rank, Channel), Channel>, rank: Rank, one: Channel, other: Channel) {
    let (one, other) = (lowest(joined, rank, one), lowest(joined, rank, other));
    if one != other {
        joined.insert((rank, one.max(other)), one.min(other));
    }
}
