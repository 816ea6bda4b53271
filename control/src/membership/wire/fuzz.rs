//! Frames of a control link, mutated.

use consort_transports::fuzzing::{Seen, Target, fuzz};

use consort_types::error::Error;

use super::tests::samples;
use super::*;

/// A value takes at least a byte of the frame, and the widest thing in a list (a rank's line of a report) takes less than
/// 64 times the bytes of its shortest form; lists and texts grow by doubling. A message is read, written and read again.
const BYTES_MAX: usize = 16 << 20;

const TARGET: Target = Target {
    name: "control-frames",
    command: "-p consort-control --lib membership::wire::fuzz",
    bytes_max: BYTES_MAX,
    inputs: 60_000,
};

fn feature(message: &Message) -> String {
    match message {
        Message::Poison { failure } => {
            let name: String = format!("{:?}", failure.error).chars().take(12).collect();
            let guilty = failure
                .report
                .as_ref()
                .map(|report| format!("{:?}", report.guilty).chars().take(5).collect::<String>());
            format!("poison {name} {guilty:?}")
        }
        Message::State { snapshot, positions, .. } => {
            let open = positions.iter().filter(|position| position.open.is_some()).count();
            format!("state {} {} {open}", snapshot.recent.len().min(4), positions.len().min(4))
        }
        Message::Gather { words, .. } => format!("gather {}", words.len().min(4)),
        other => format!("{other:?}").chars().take(8).collect(),
    }
}

#[test]
fn frames_are_read_and_said_again_or_refused() {
    let originals = samples().into_iter().map(|message| {
        let mut bytes = Vec::new();
        encode(7, &message, &mut bytes);
        vec![bytes]
    });
    fuzz(&TARGET, originals.collect(), |input, seen: &mut Seen| {
        let bytes = input.concat();
        let mut bytes = bytes.as_slice();
        loop {
            let before = bytes.len();
            match decode(&mut bytes) {
                Ok(Some((communicator, message))) => {
                    seen.note_text(&feature(&message));
                    if let Message::Poison { failure } = &message {
                        let _ = failure.error.to_string();
                        if let Some(report) = &failure.report {
                            let _ = (report.to_string(), report.to_json());
                        }
                    }
                    assert!(bytes.len() < before);
                    // What one rank heard, it may have to pass on: the others must be able to read it.
                    let mut again = Vec::new();
                    encode(communicator, &message, &mut again);
                    assert!(
                        again.len() <= 5 + FRAME_BYTES_MAX,
                        "a frame of {} bytes is passed on",
                        again.len()
                    );
                    let mut rest = again.as_slice();
                    let read = decode(&mut rest).expect("what was written is read").expect("a whole frame");
                    assert!(rest.is_empty() && read.0 == communicator);
                }
                Ok(None) => break,
                Err(what) => {
                    seen.note(what.0);
                    break;
                }
            }
        }
        seen.note(bytes.len().min(8));
    });
}

#[test]
fn an_error_that_names_very_many_ranks_fits_into_a_frame() {
    let missing = |ranks: u32| {
        let (size, waited, address) = (1 << 16, std::time::Duration::ZERO, "x".repeat(9000));
        let missing = (0..ranks).filter(|rank| rank % 2 == 1).collect();
        let error = Error::MissingRanks { missing, size, waited, address };
        Message::Poison { failure: Failure { origin: 1, error, report: None } }
    };
    let mut frame = Vec::new();
    encode(7, &missing(1 << 16), &mut frame);
    let (communicator, message) = decode(&mut frame.as_slice()).expect("read").expect("a whole frame");
    let mut again = Vec::new();
    encode(communicator, &message, &mut again);
    assert!(again.len() < 32 << 10 && decode(&mut again.as_slice()).expect("read again").is_some());
    // More than a job has.
    frame.clear();
    encode(7, &missing((1 << 16) + 2), &mut frame);
    assert!(decode(&mut frame.as_slice()).is_ok(), "the first of them are named");
    let none = |ranges: &[(u32, u32)]| {
        let head = bytes_of(&(7u64, 2u8, (1u32, 11u8)));
        let payload =
            [head, bytes_of(&(ranges.to_vec(), 9u32, 0u64)), bytes_of(&(String::new(), false))].concat();
        decode(&mut frame_of(&payload).as_slice())
    };
    assert!(none(&[(0, 3), (5, 5)]).expect("read").is_some());
    for wrong in [[(3, 2), (5, 5)], [(0, 3), (3, 5)], [(0, 3), (5, 1 << 16)]] {
        assert!(none(&wrong).is_err(), "{wrong:?}");
    }
}

fn frame_of(payload: &[u8]) -> Vec<u8> {
    frame(kind::MESSAGE, &[payload])
}
