//! A peer that sends any bytes as the notes about its buffers.
//!
//! Invariant of what is tested: whatever notes come, only the memory of the call and of the areas that were mapped is
//! touched, and the operation ends, waits, goes the planned way, or fails with an error that says why.

use std::sync::{Mutex, OnceLock};

use consort_kernels::{DataType, ReduceOp, Reducer};
use consort_memory::areas::SharedMemory;
use consort_memory::{Outbox, Span};
use consort_transports::fuzzing::{Input, Seen, Target, fuzz};
use consort_transports::{Lent, MemoryLender, Shm};

use super::offer::{Announcement, Note, Offer, Place};
use super::peer_memory::{ANNOUNCED_MAX, MAPPED_MAX};
use super::tests::{BYTES, COUNT, Side, memory};
use super::{Run, Step};
use crate::eager::row_of;
use crate::engine::packets::sides::{self, Other};
use crate::engine::trouble::Fault;
use crate::engine::{Buffers, Progress, Request};
use consort_types::call::Call;

/// The tables of a rank, its plans, and what fetches the files; those are mapped and not counted.
const TARGET: Target = Target {
    name: "engine-notes",
    command: "-p consort --lib zero_copy::fuzz::notes",
    bytes_max: 1 << 20,
    inputs: 5_000,
};
/// Operations of an input.
const OPERATIONS: u64 = 3;

/// What is there in every input: the rank's own memory, and that of an honest peer.
struct Stage {
    own: SharedMemory,
    theirs: SharedMemory,
    desk: Shm,
    lent: Lent,
}

impl Stage {
    fn new() -> Self {
        let (own, theirs, desk) = (memory(), memory(), Shm::new().expect("a desk"));
        let lent = Lent::new(&desk, theirs.area().file()).expect("it is lent");
        Stage { own, theirs, desk, lent }
    }

    fn announcement(&self) -> Announcement {
        Announcement::of(self.theirs.area(), &self.lent)
    }
}

fn call(number: u8) -> Call {
    let (data_type, op) = (DataType::Int32, ReduceOp::Sum);
    match number % 8 {
        0 => Call::all_reduce(data_type, op, COUNT),
        1 => Call::reduce(data_type, op, COUNT, 0),
        2 => Call::reduce(data_type, op, COUNT, 1),
        3 => Call::broadcast(data_type, COUNT, 1),
        4 => Call::all_gather(data_type, COUNT / 2),
        5 => Call::reduce_scatter(data_type, op, COUNT / 2),
        6 => Call::gather(data_type, COUNT / 2, 0),
        _ => Call::scatter(data_type, COUNT / 2, 1),
    }
}

/// Runs as far as it goes without the peer's next message; what it fetches is waited for.
fn go(
    stage: &Stage,
    side: &mut Side,
    run: &mut Run,
    reducer: &Reducer,
    buffers: Buffers<'_>,
) -> std::result::Result<Step, Fault> {
    for _ in 0..200 {
        let step = side.advance(run, reducer, buffers)?;
        if step == Step::Declined || step == Step::Progress(Progress::Done) || !run.is_importing() {
            return Ok(step);
        }
        stage.desk.desk().serve();
        side.shm.desk().serve();
    }
    // A peer that does not answer is waited for until the deadline.
    Ok(Step::Progress(Progress::Blocked))
}

/// The first piece chooses the operations; each other is a message: for which round, what it is marked with, its bytes.
fn notes(stage: &Stage, input: &Input, seen: &mut Seen) {
    let first = |at: usize| input.first().and_then(|piece| piece.get(at)).copied().unwrap_or(0);
    let (board, [other, _own]) = sides::against();
    let (mut side, mut out) = (Side::new(board), Other::of_board(&*other, 2).out);
    let mut pieces = input.iter().skip(1);
    for operation in 1..=OPERATIONS {
        let call = call(first(operation as usize));
        let whole = stage.own.span();
        let (read, written) = (call.input_bytes(0, 2), call.output_bytes(0, 2));
        let input = whole.slice(0, read.min(BYTES)).read();
        let buffers = Buffers { input, output: whole.slice(0, written.min(BYTES)) };
        let reducer = Reducer::new(DataType::Int32, ReduceOp::Sum, 2);
        let request = Request { call, sequence: operation, history: 9, record: 0 };
        let mut run = side.begin(0, &request, buffers);
        let mut outcome = go(stage, &mut side, &mut run, &reducer, buffers);
        while let Ok(Step::Progress(Progress::Blocked | Progress::Moved)) = outcome {
            let Some(piece) = pieces.next() else { break };
            send(&mut out, &run, piece);
            outcome = go(stage, &mut side, &mut run, &reducer, buffers);
        }
        match outcome {
            Ok(step) => {
                seen.note((call.kind, format!("{step:?}"), run.standing()));
                if matches!(step, Step::Progress(Progress::Blocked | Progress::Moved)) {
                    return;
                }
                run.end(&mut side.memory);
            }
            Err(Fault::Mismatch { peer }) => {
                assert_eq!(peer, 1);
                return seen.note((call.kind, "mismatch"));
            }
            Err(Fault::Broken(broken)) => {
                assert_eq!(broken.peer, 1);
                return seen.note_text(&broken.error.to_string());
            }
            Err(Fault::Failed(error)) => return seen.note_text(&error.to_string()),
        }
        let known = &side.memory.known[1];
        assert!(known.announced.len() <= ANNOUNCED_MAX && known.mapped.len() <= MAPPED_MAX);
    }
}

/// A message in one of the rows that rounds use.
fn send(out: &mut [Outbox], run: &Run, piece: &[u8]) {
    let [how, note @ ..] = piece else { return };
    let out = &mut out[row_of([40, 120, 1][usize::from(how & 3) % 3])];
    // One of this operation's rounds, or of no operation's.
    let mark = if how >> 7 == 1 { 5 } else { run.marked(u64::from(how >> 2 & 3)) };
    let room = out.payload();
    let bytes = note.len().min(room.len());
    room.slice(0, bytes).copy_from(Span::of(&note[..bytes]));
    out.send(1, mark);
}

/// The process's areas and desks are the same in every input.
fn stage() -> &'static Mutex<Stage> {
    static STAGE: OnceLock<Mutex<Stage>> = OnceLock::new();
    STAGE.get_or_init(|| Mutex::new(Stage::new()))
}

#[test]
fn notes_of_any_bytes_are_followed_waited_for_or_refused() {
    let stage = stage().lock().expect("one test");
    let key = stage.theirs.area().key();
    let place = |offset: u64| Place { key, offset };
    let said = |how: u8, note: &[u8]| [&[how][..], note].concat();
    // Offer, announcement, verdict and exit of each round, rightly marked.
    let entry = |offset: u64, announces: bool| {
        said(0, &Note { offer: Offer { places: [place(offset); 2], announces }, sample: 1 }.encode())
    };
    let announced = |announcement: Announcement| {
        said(1 | 1 << 2, &Announcement::encode_list(&[announcement, announcement]))
    };
    let (verdict, exit) = (said(2 | 2 << 2, &[1]), said(2 | 3 << 2, &[]));
    let mut originals = Vec::new();
    for number in 0..8u8 {
        let chosen = vec![0, number, number, number + 1];
        let honest = [entry(0, true), announced(stage.announcement()), verdict.clone(), exit.clone()];
        let again = [entry(0, false), exit.clone()];
        originals.push([&[chosen.clone()][..], &honest, &again, &again].concat());
        for offset in [1, BYTES as u64, u64::MAX, u64::MAX - BYTES as u64] {
            let wild = [entry(offset, true), announced(stage.announcement()), verdict.clone(), exit.clone()];
            originals.push([&[chosen.clone()][..], &wild].concat());
        }
        let announcement = stage.announcement();
        for wrong in [
            Announcement { bytes: u64::MAX, ..announcement },
            Announcement { bytes: 0, ..announcement },
            Announcement { bytes: 1, ..announcement },
            Announcement { file_offset: 1, ..announcement },
            Announcement { file_offset: u64::MAX - 4095, ..announcement },
            Announcement { lent: [0; Lent::NOTICE_BYTES], ..announcement },
            Announcement { key: 0, ..announcement },
        ] {
            let wild = [entry(0, true), announced(wrong), verdict.clone(), exit.clone()];
            originals.push([&[chosen.clone()][..], &wild].concat());
        }
        let refusing = [entry(0, true), announced(announcement), said(2 | 2 << 2, &[0])];
        originals.push([&[chosen.clone()][..], &refusing, &again].concat());
    }
    fuzz(&TARGET, originals, |input, seen| notes(&stage, input, seen));
}
