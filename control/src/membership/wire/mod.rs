//! The messages between the control threads of two ranks, and their bytes.
//!
//! Invariant: everything is little-endian, every length is checked against its bound before anything is
//! allocated, and decoding never panics: a peer may send anything.

mod forms;
#[cfg(test)]
mod fuzz;

use consort_transports::Address;

use super::group::Failure;
use crate::codec::{Malformed, Wire, bytes_of, wire_enum};
use crate::frames::{Incoming, Progress, frame, kind};
use crate::recorder::Snapshot;
use crate::report::evidence::Position;
use consort_types::Rank;

/// The longest frame accepted, in bytes: a report on some thousands of ranks.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// One message about one communicator.
#[derive(Clone, Debug)]
pub enum Message {
    /// Where the sender's half of the data connection on `channel` is.
    Address { channel: u16, address: Address },
    /// The communicator failed. Every rank says so once, whether it found out or heard of it; where ranks hear each other through
    /// others, whenever that changes what it knows.
    Poison { failure: Failure },
    /// What are you doing?
    Query { token: u64 },
    /// The answer: on the communicator asked about, and in the whole process. `clock` is the sender's.
    State { token: u64, clock: u64, snapshot: Snapshot, positions: Vec<Position> },
    /// The sender closed its communicator in good order; the last of what it did that concerns the receiver.
    Leave { snapshot: Snapshot },
    /// A word to all, outside of the data connections; `round` counts them.
    Gather { round: u64, words: Vec<u64> },
    /// The word of rank `of`, passed on; `number` counts what that rank has said.
    Passed { of: Rank, number: u64, round: u64, words: Vec<u64> },
    /// To rank 0: to which ranks the sender has how many ways left, of how many.
    Paths { sights: Vec<(Rank, u32, u32)> },
    /// Of rank 0: ranks are to plan for another machine.
    Propose { change: u64 },
    /// To rank 0: the sender enters no collective past `last` before it knows that change.
    Promise { change: u64, last: u64 },
    /// Of rank 0: from that collective on these hosts have lost paths; each with the ways that are left, and those that there were.
    Change { change: u64, from: u64, lost: Vec<(u32, u32, u32)> },
    /// Of no communicator: a rank of the job is gone. The sender noticed it, or heard of it; it had `left` these communicators.
    Gone { rank: Rank, cause: String, left: Vec<u64> },
    /// The sender left this communicator; the receiver is not one of its ranks, or was not linked then.
    Parted,
    /// Of no communicator: the sender has closed all of them, and its process may end.
    Bye,
    /// Of no communicator: the sender, which called, has the answer, and the link counts.
    Here,
}

wire_enum!(Message {
    1 => Address { channel, address },
    2 => Poison { failure },
    3 => Query { token },
    4 => State { token, clock, snapshot, positions },
    5 => Leave { snapshot },
    6 => Gather { round, words },
    7 => Passed { of, number, round, words },
    8 => Gone { rank, cause, left },
    9 => Parted,
    10 => Bye,
    11 => Here,
    12 => Paths { sights },
    13 => Propose { change },
    14 => Promise { change, last },
    15 => Change { change, from, lost },
});

/// Appends the frame of `message` to `out`: communicator and message. What does not fit goes without what explains it.
pub fn encode(communicator: u64, message: &Message, out: &mut Vec<u8>) {
    let mut payload = bytes_of(&communicator);
    message.put(&mut payload);
    if payload.len() > FRAME_BYTES_MAX {
        payload.truncate(size_of_val(&communicator));
        match message {
            // The report of a very large job: the verdict is in the error.
            Message::Poison { failure } => {
                Message::Poison { failure: Failure { report: None, ..failure.clone() } }.put(&mut payload);
            }
            // Very much is said of other communicators.
            Message::State { token, clock, snapshot, .. } => {
                let (token, clock, snapshot) = (*token, *clock, snapshot.clone());
                Message::State { token, clock, snapshot, positions: Vec::new() }.put(&mut payload);
            }
            message => message.put(&mut payload),
        }
    }
    out.extend(frame(kind::MESSAGE, &[&payload]));
}

/// The longest payload of a control link's frames of that kind.
pub(super) fn bound(kind: u8) -> Option<usize> {
    (kind == kind::MESSAGE).then_some(FRAME_BYTES_MAX)
}

/// Takes one frame off the front of `bytes`, if a whole one is there.
///
/// # Errors
/// The peer sent something that is no frame of this protocol.
pub fn decode(bytes: &mut &[u8]) -> Result<Option<(u64, Message)>, Malformed> {
    match Incoming::default().read(bytes, bound) {
        Progress::Frame(_, payload) => Wire::whole(&payload).map(Some),
        Progress::Malformed(what) => Err(what),
        _ => Ok(None),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    use consort_algorithms::catalogue::Algorithm;
    use consort_kernels::{DataType, ReduceOp};

    use super::*;
    use crate::recorder::AgedEntry;
    use crate::report::evidence::{Evidence, Open, Reach, SlowWire, Stuck, Traffic, Want, Witness};
    use consort_types::call::{Descriptor, Named};
    use consort_types::call::{Kind, Operator};
    use consort_types::error::{Error, Operation};

    fn position() -> Position {
        let stuck = Stuck {
            want: Want::Room,
            peer: 2,
            peer_process: [9; 16],
            step: 3,
            steps: 14,
            slice: 0,
            slices: 1,
            algorithm: "ring".into(),
            age: Duration::from_micros(17),
        };
        let open =
            Open { sequence: 4, descriptor: descriptor(), age: Duration::from_secs(12), stuck: Some(stuck) };
        Position {
            communicator: 77,
            size: 4,
            rank: 0,
            job: [5; 16],
            job_rank: 1,
            caller: 8,
            entered: 4,
            finished: 3,
            last: Some((3, descriptor(), Duration::from_millis(2))),
            open: Some(open),
            messages: vec![(4, descriptor())],
            passed: vec![(2, 7, 8)],
            traffic: vec![Traffic { peer: 2, channel: 1, filled: 1, arrived: 2, returned: 3, credited: 4 }],
            slow: vec![SlowWire {
                peer: 2,
                from: "10.0.0.1".into(),
                to: "10.0.0.2".into(),
                usual: 118_000_000,
                now: 59_000_000,
                age: Duration::from_secs(6),
            }],
        }
    }

    fn descriptor() -> Descriptor {
        Descriptor {
            kind: Kind::Reduce,
            data_type: DataType::Int8,
            op: Some(Operator::Plain(ReduceOp::Min)),
            root: 3,
            count: 9,
            named: Named::new(Algorithm::Swing),
        }
    }

    fn report() -> crate::report::Report {
        let witness = |(rank, reach): (u32, Reach)| Witness {
            host: "host".into(),
            pid: 40 + rank,
            process: [rank as u8; 16],
            job: [5; 16],
            job_rank: rank,
            position: (rank == 0).then(position),
            reach,
        };
        let reaches = [Reach::Answered, Reach::Silent, Reach::Lost("it died".into()), Reach::Left];
        crate::report::analyse(&Evidence {
            communicator: 77,
            by: 0,
            operation: Some((4, descriptor())),
            waited: Duration::from_secs(12),
            ranks: (0..).zip(reaches).map(witness).collect(),
            processes: [([0; 16], vec![position()])].into(),
            places: Default::default(),
        })
    }

    pub(crate) fn samples() -> Vec<Message> {
        let operation = Operation { name: "reduce".into(), sequence: 12 };
        let waited = Duration::from_millis(250);
        let entry = AgedEntry {
            sequence: 4,
            descriptor: descriptor(),
            entered: Duration::from_secs(1),
            ended: Some(Duration::from_nanos(1)),
            failed: true,
        };
        let poison = |error, report| Message::Poison { failure: Failure { origin: 2, error, report } };
        vec![
            Message::Address {
                channel: 3,
                address: Address { transport: "shm".into(), bytes: vec![1, 2, 3] },
            },
            Message::Query { token: 5 },
            Message::State { token: 5, clock: 1, snapshot: Snapshot::default(), positions: Vec::new() },
            Message::State {
                token: 6,
                clock: u64::MAX,
                snapshot: Snapshot { entered: 4, finished: 3, recent: vec![entry.clone()] },
                positions: vec![position()],
            },
            Message::Leave { snapshot: Snapshot { entered: 5, finished: 4, recent: vec![entry] } },
            Message::Gather { round: 1, words: vec![1, u64::MAX] },
            Message::Passed { of: 1, number: 2, round: 3, words: vec![1, u64::MAX] },
            Message::Gone { rank: 1, cause: "it ended".into(), left: vec![77] },
            Message::Parted,
            Message::Bye,
            Message::Here,
            Message::Paths { sights: vec![(1, 1, 2), (2, 2, 2)] },
            Message::Propose { change: 3 },
            Message::Promise { change: 3, last: 1024 },
            Message::Change { change: 3, from: 1025, lost: vec![(0, 1, 2)] },
            poison(Error::Mismatch { sequence: 1, difference: "x".into() }, None),
            poison(
                Error::PeerLost {
                    rank: 1,
                    place: "host".into(),
                    operation: Some(operation.clone()),
                    cause: "it died".into(),
                },
                None,
            ),
            poison(Error::PeerLeft { rank: 1, place: "host".into(), operation: operation.clone() }, None),
            poison(Error::Timeout { operation, waited, verdict: "late".into() }, Some(Arc::new(report()))),
            poison(Error::Aborted { rank: 2, reason: "enough".into() }, None),
            poison(Error::Revoked { rank: 2, reason: "enough".into() }, None),
            poison(
                Error::OutOfMemory { rank: 3, needed_bytes: 7, what: "a".into(), cause: "b".into() },
                None,
            ),
            poison(Error::Link { from: 1, to: 2, transport: "tcp".into(), cause: "reset".into() }, None),
            poison(Error::system("open", io::Error::from_raw_os_error(2)), None),
            poison(Error::internal("oops"), None),
            poison(
                Error::MissingRanks { missing: vec![1, 3], size: 4, waited, address: "here".into() },
                None,
            ),
        ]
    }

    #[test]
    fn the_report_of_a_very_large_job_is_left_out_rather_than_refused() {
        let mut report = report();
        report.ranks = vec![report.ranks[0].clone(); 20_000];
        let error = Error::Timeout {
            operation: Operation { name: "reduce".into(), sequence: 1 },
            waited: Duration::ZERO,
            verdict: "late".into(),
        };
        let failure = Failure { origin: 0, error, report: Some(Arc::new(report)) };
        let mut bytes = Vec::new();
        encode(1, &Message::Poison { failure }, &mut bytes);
        let read = decode(&mut bytes.as_slice()).expect("a frame of this protocol");
        assert!(matches!(read, Some((1, Message::Poison { failure: Failure { report: None, .. } }))));
    }

    #[test]
    fn messages_survive_the_wire_in_pieces() {
        let mut bytes = Vec::new();
        for message in samples() {
            encode(77, &message, &mut bytes);
        }
        let (mut incoming, mut seen) = (Incoming::default(), Vec::new());
        for byte in bytes {
            if let Progress::Frame(_, payload) = incoming.read(&mut &[byte][..], bound) {
                let (communicator, message) = <(u64, Message)>::whole(&payload).expect("a message");
                assert_eq!(communicator, 77);
                seen.push(message);
            }
        }
        let texts = |messages: &[Message]| messages.iter().map(|m| format!("{m:?}")).collect::<Vec<_>>();
        assert_eq!(texts(&seen), texts(&samples()));
    }

    #[test]
    fn damaged_frames_are_refused_or_read_and_can_be_passed_on() {
        let (mut read, mut refused) = (0, BTreeSet::new());
        let mut random = consort_testing::Random(0x1234_5678_9abc_def1);
        for round in 0..20_000 {
            let mut bytes = Vec::new();
            encode(1, &samples()[round % samples().len()], &mut bytes);
            for _ in 0..3 {
                let at = random.below(bytes.len());
                bytes[at] = random.draw() as u8;
            }
            match decode(&mut bytes.as_slice()) {
                Ok(Some((communicator, message))) => {
                    read += 1;
                    let mut again = Vec::new();
                    encode(communicator, &message, &mut again);
                    let passed_on = decode(&mut again.as_slice())
                        .expect("what was written is read")
                        .expect("a whole frame");
                    assert_eq!(format!("{passed_on:?}"), format!("{:?}", (communicator, message)));
                }
                // A length that is not the frame's looks like one that has not come whole.
                Ok(None) => {}
                Err(what) => _ = refused.insert(what.0),
            }
        }
        assert!(read > 1000 && refused.len() > 5, "{read} read, refused: {refused:?}");
    }
}
