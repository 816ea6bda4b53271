//! Peers that store what they like into the slots and counters of messages.
//!
//! Invariant of what is tested: whatever is in a slot, only the memory of the call is touched, and the operation ends, waits
//! or finds a mismatch, which names the peer.

use std::sync::Arc;

use consort_algorithms::catalogue::Algorithm;
use consort_kernels::{DataType, ReduceOp, Reducer};
use consort_memory::{Span, SpanMut};
use consort_transports::fuzzing::{Input, Seen, Target, fuzz};
use consort_transports::{Connection, CounterKind};

use super::letters::{self, Letters};
use super::pieces::Amiss;
use super::sides::Other;
use super::{Direct, Exchange, Round, sides};
use crate::eager::{MESSAGE_BYTES_MAX, ROWS};
use crate::engine::{Buffers, Progress};
use crate::planner::{Planner, Program};
use consort_types::call::{Call, Kind};

const MESSAGES: Target = Target {
    name: "engine-packets",
    command: "-p consort --lib packets::fuzz::messages",
    bytes_max: 2 << 20,
    inputs: 10_000,
};
const LETTERS: Target = Target {
    name: "engine-letters",
    command: "-p consort --lib packets::fuzz::letters",
    bytes_max: 2 << 20,
    inputs: 10_000,
};

/// Bytes of pieces.
const PIECES: [usize; 6] = [4096, 8192, 16 << 10, 32 << 10, 64 << 10, 1];

/// Operations of an input.
const OPERATIONS: usize = 3;
/// Bytes of a block: of each row, and none.
const BYTES: [usize; 8] = [0, 4, 56, 64, 1024, 4096, 64 << 10, 150_000];
const KINDS: [Kind; 9] = [
    Kind::AllReduce,
    Kind::Reduce,
    Kind::Broadcast,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::AllToAll,
    Kind::Gather,
    Kind::Scatter,
    Kind::Barrier,
];

fn call(kind: Kind, data_type: DataType, count: usize, root: u32) -> Call {
    let op = ReduceOp::Sum;
    match kind {
        Kind::Reduce => Call::reduce(data_type, op, count, root),
        Kind::Broadcast => Call::broadcast(data_type, count, root),
        Kind::AllGather => Call::all_gather(data_type, count),
        Kind::ReduceScatter => Call::reduce_scatter(data_type, op, count),
        Kind::AllToAll => Call::all_to_all(data_type, count),
        Kind::Gather => Call::gather(data_type, count, root),
        Kind::Scatter => Call::scatter(data_type, count, root),
        Kind::Barrier => Call::new(Kind::Barrier, DataType::Uint8, Some(ReduceOp::Max), 0, 1),
        _ => Call::all_reduce(data_type, op, count),
    }
}

/// Takes the first byte.
fn byte(rest: &mut &[u8]) -> u8 {
    let Some((first, behind)) = rest.split_first() else { return 0 };
    *rest = behind;
    *first
}

fn word(rest: &mut &[u8]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|_| byte(rest)))
}

/// What a peer does: sends what is marked rightly or not, stores anything into a mailbox, raises a counter, or reads.
fn act(other: &mut Box<dyn Connection>, side: &mut Other, operation: u64, mark: u64, mut rest: &[u8]) {
    let (what, row) = (byte(&mut rest), usize::from(byte(&mut rest)));
    match what % 6 {
        kind @ (0 | 1) => {
            let mark = if kind == 0 { mark } else { word(&mut rest) };
            let Some(out) = side.out.get_mut(row % (ROWS + 1)) else {
                // Of a right length, as most pieces are, or of a short one.
                let long = vec![9; PIECES[usize::from(byte(&mut rest)) % PIECES.len()].min(side.longest)];
                let piece = if kind == 0 { &long } else { &rest[..rest.len().min(side.longest)] };
                if side.is_spoiled {
                    return;
                }
                let _ = side.pieces.send(mark, Span::of(piece), None, None);
                return;
            };
            let room = out.payload();
            let bytes = rest.len().min(room.len());
            room.slice(0, bytes).copy_from(Span::of(&rest[..bytes]));
            out.send(operation, mark);
        }
        2 => {
            // Beyond the end, it is refused.
            let at = word(&mut rest) as usize % (1 << 20);
            let _ = other.put(at, Span::of(rest), &mut 0);
        }
        3 | 4 => {
            let kind = [CounterKind::Ready, CounterKind::Credit][row % 2];
            let counter = other.peer_counter(kind).expect("it is mapped");
            let counter = if what % 6 == 3 { counter } else { &side.lines[row % 2] };
            let (value, tag) = (word(&mut rest), word(&mut rest));
            // The counter itself is checked where it is raised.
            if value > counter.value() {
                counter.raise(value, tag);
                side.is_spoiled |= what % 6 == 4;
            }
        }
        _ if side.is_spoiled => {}
        _ => {
            if let Ok(Some(piece)) = side.pieces.look(mark, usize::MAX) {
                let bytes = piece.span.len();
                let _ = match piece.is_sum || row % 2 == 0 {
                    true => side.pieces.take(bytes),
                    false => side.pieces.reply(mark, bytes, |_, _| ()).map(|_| ()),
                };
            }
        }
    }
}

/// The first piece chooses the operations; each other is what one peer does.
fn messages(planner: &Planner, input: &Input, seen: &mut Seen, hops_done: &mut u32) {
    let first =
        |at: usize| input.first().and_then(|piece| piece.get(at)).map_or(0, |byte| usize::from(*byte));
    let size = 2 + first(0) as u32 % 3;
    let me = first(1) as u32 % size;
    let (mut board, mut others) = sides::board(me, size);
    let mut their_sides: Vec<_> =
        others.iter().map(|ends| ends.as_ref().map(|[other, _]| Other::of_board(&**other, size))).collect();
    let mut pieces = input.iter().skip(1);
    for operation in 1..=OPERATIONS {
        let kind = KINDS[first(1 + operation) % KINDS.len()];
        let data_type = [DataType::Int32, DataType::Uint8, DataType::Float16][first(5) % 3];
        // More ranks than two have no longer messages.
        let most = if size == 2 { usize::MAX } else { MESSAGE_BYTES_MAX };
        let count = BYTES[first(6 + operation) % BYTES.len()].min(most) / data_type.size();
        let call = call(kind, data_type, count, first(6) as u32 % size);
        let (read, mut written) =
            (vec![1u8; call.input_bytes(me, size)], vec![2u8; call.output_bytes(me, size)]);
        let buffers = Buffers { input: Span::of(&read), output: SpanMut::of(&mut written) };
        let reducer = Reducer::new(data_type, ReduceOp::Sum, size);
        let mark = call.descriptor().digest(operation as u64, 5);
        let is_round = first(10) >> operation & 1 == 1;
        let mut exchange = None;
        let mut round = None;
        if is_round {
            round = Some(Round::begin(&mut board, [1, 100][first(10) & 1], mark));
        } else {
            let algorithm = match kind {
                Kind::AllToAll => Algorithm::Spread,
                _ => Algorithm::Direct { first: call.first_folded(size) },
            };
            let moves = planner
                .direct(Program { collective: kind.collective(), ranks: size, algorithm })
                .expect("a direct exchange");
            let two_hops = kind == Kind::AllReduce && size == 2 && first(11) & 1 != 0;
            let direct = Arc::new(Direct::new(&call, &moves, &reducer, me, two_hops));
            exchange = Some(Exchange::begin(&mut board, direct, reducer, count * data_type.size(), mark));
        }
        let mut step = |board: &mut super::Board| match (&mut exchange, &mut round) {
            (Some(exchange), _) => {
                let progress = exchange.advance(board, buffers);
                (progress, exchange.wanted())
            }
            (None, Some(round)) => {
                let progress = round.advance(
                    board,
                    Some(&[1]),
                    |_| true,
                    |_, note| {
                        assert!(note.len() <= 64 << 10);
                    },
                );
                (progress.map_err(Amiss::Other), round.wanted(board))
            }
            (None, None) => unreachable!("one of the two"),
        };
        let mut outcome = step(&mut board);
        while matches!(outcome.0, Ok(Progress::Blocked | Progress::Moved)) {
            let Some(piece) = pieces.next() else { break };
            let mut rest = &piece[..];
            let peer = usize::from(byte(&mut rest)) % size as usize;
            if let (Some([other, _]), Some(side)) = (&mut others[peer], &mut their_sides[peer]) {
                act(other, side, operation as u64, mark, rest);
            }
            outcome = step(&mut board);
        }
        seen.note((kind, is_round, count.checked_ilog2(), format!("{outcome:?}")));
        let is_hops = exchange.as_ref().is_some_and(|exchange| exchange.direct.two_hops) && count > 1024;
        match outcome.0 {
            Ok(Progress::Done) => *hops_done += u32::from(is_hops),
            Ok(_) => return,
            Err(Amiss::Other(peer) | Amiss::Foreign(peer)) => {
                assert!(peer < size && peer != me, "rank {peer} of {size} is blamed by {me}");
                return;
            }
        }
        board.begin_access();
        board.forbid();
        seen.note((board.accessing().count(), "accessing"));
    }
}

#[test]
fn messages_of_any_bytes_are_taken_waited_for_or_refused() {
    let mut originals = Vec::new();
    for kind in 0..KINDS.len() as u8 {
        for bytes in 0..BYTES.len() as u8 {
            let row = crate::eager::row_of(BYTES[usize::from(bytes)]) as u8;
            let chosen =
                vec![1, 1, kind, kind, kind, 0, 1, bytes, bytes, bytes, if bytes == 1 { 14 } else { 0 }];
            let mut input = vec![chosen];
            for _ in 0..OPERATIONS {
                for piece in 0..8 {
                    input.extend([0, 2].map(|peer| vec![peer, 0, row, piece, 7, 7, 7]));
                    input.extend([0, 2].map(|peer| vec![peer, 5, piece]));
                }
            }
            originals.push(input);
        }
    }
    // All-reduces of two ranks in two hops: the other rank sends pieces of the right length, sums what comes, and reads sums.
    let mut input = vec![vec![0, 1, 0, 0, 0, 0, 0, 6, 6, 6, 0, 1]];
    for _ in 0..4 * OPERATIONS {
        input.extend([vec![0, 0, 2, 2], vec![0, 5, 1], vec![0, 5, 1]]);
    }
    originals.push(input);
    let (planner, mut hops_done) = (Planner::default(), 0);
    fuzz(&MESSAGES, originals, |input, seen| messages(&planner, input, seen, &mut hops_done));
    assert!(hops_done > 0, "no all-reduce in two hops ended");
}

/// Sends and receives one after the other, of one of `LENGTHS` bytes each; the peer stores any bytes in between.
fn letters(input: &Input, seen: &mut Seen) {
    const LENGTHS: [usize; 8] = [1, 56, 57, 1024, 5000, 20_000, 70_000, 300_000];
    let first =
        |at: usize| input.first().and_then(|piece| piece.get(at)).map_or(0, |byte| usize::from(*byte));
    let [own, mut other] = sides::connected(letters::mailbox_bytes());
    let mut mine = Letters::over(1, &*own).expect("as long as agreed");
    let mut side = Other::of_letters(&*other);
    let mut pieces = input.iter().skip(1);
    for operation in 0..2 * OPERATIONS {
        let length = LENGTHS[first(1 + operation) % LENGTHS.len()];
        let (mark, mut done) = (0x1234_5678_9abc_def0 ^ (operation as u64) << 40, 0);
        let is_send = first(0) >> operation & 1 == 1;
        let mut memory = vec![3u8; length];
        let mut step = || {
            let before = done;
            let progress = if is_send {
                mine.send(mark, Span::of(&memory), &mut done)
            } else {
                mine.receive(mark, SpanMut::of(&mut memory), &mut done)
            };
            assert!(before <= done && done <= length);
            progress
        };
        let mut progress = step();
        while matches!(progress, Ok(Progress::Blocked | Progress::Moved)) {
            let Some(piece) = pieces.next() else { break };
            act(&mut other, &mut side, operation as u64 + 1, mark, piece);
            progress = step();
        }
        match progress {
            Ok(Progress::Done) => seen.note((is_send, length, "done")),
            Ok(_) => return seen.note((is_send, length, done.checked_ilog2())),
            Err(amiss) => return seen.note((is_send, length, format!("{amiss:?}"))),
        }
    }
}

#[test]
fn letters_of_any_bytes_are_taken_waited_for_or_refused() {
    let mut originals = Vec::new();
    for length in 0..8u8 {
        for sends in [0, 255, 0b0101_0101] {
            let mut input = vec![[&[sends][..], &[length; 6]].concat()];
            let credit =
                |value: u64, cost: u64| [&[3, 1][..], &value.to_le_bytes(), &cost.to_le_bytes()].concat();
            for nth in 1..12 {
                input.push(credit(8 * nth, 1000));
                input.push(vec![0, length.min(2), nth as u8, 9, 9]);
                input.push(vec![5, 0]);
            }
            input.push(credit(u64::MAX, u64::MAX));
            originals.push(input);
        }
    }
    fuzz(&LETTERS, originals, letters);
}
