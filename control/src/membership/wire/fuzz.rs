//! Frames of a control link, mutated.

use consort_transports::fuzzing::{Seen, Target, fuzz};

use super::forms::RANKS_MAX;
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
        let mut bytes = input.concat();
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
                    // What one rank was told, it may have to tell others: they must be able to read it.
                    let mut again = Vec::new();
                    encode(communicator, &message, &mut again);
                    assert!(
                        again.len() <= 4 + FRAME_BYTES_MAX,
                        "a frame of {} bytes is passed on",
                        again.len()
                    );
                    let read = decode(&mut again).expect("what was written is read").expect("a whole frame");
                    assert!(again.is_empty() && read.0 == communicator);
                }
                Ok(None) => break,
                Err(what) => {
                    seen.note(what);
                    break;
                }
            }
        }
        seen.note(bytes.len().min(8));
    });
}

#[test]
fn an_error_that_names_very_many_ranks_is_not_passed_on_in_a_frame_that_nobody_reads() {
    // A text of bytes that become three each when they are read.
    let frame = |ranks: u32| {
        let mut frame = [&[0; 4][..], &7u64.to_le_bytes(), &[2], &1u32.to_le_bytes(), &[11]].concat();
        frame.extend_from_slice(&ranks.to_le_bytes());
        frame.resize(frame.len() + 4 * ranks as usize, 0);
        frame.extend_from_slice(
            &[&9u32.to_le_bytes()[..], &[0; 8], &500u32.to_le_bytes(), &[0xff; 500], &[0]].concat(),
        );
        let length = frame.len() as u32 - 4;
        assert!(length as usize <= FRAME_BYTES_MAX);
        frame[..4].copy_from_slice(&length.to_le_bytes());
        frame
    };
    let (communicator, message) = decode(&mut frame(RANKS_MAX as u32)).expect("read").expect("a whole frame");
    let mut again = Vec::new();
    encode(communicator, &message, &mut again);
    assert!(decode(&mut again).expect("read again").is_some());
    assert!(decode(&mut frame(262_000)).is_err());
}
