//! The messages between the control threads of two ranks, and their bytes.
//!
//! Invariant: everything is little-endian, every length is checked against its bound before anything is
//! allocated, and decoding never panics: a peer may send anything.

use std::io;
use std::time::Duration;

use consort_transports::Address;

use crate::error::{Error, Operation};
use crate::recorder::{Descriptor, Snapshot};

/// The longest frame accepted, in bytes.
pub(crate) const FRAME_BYTES_MAX: usize = 64 << 10;

/// One message about one communicator.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// Where the sender's half of the data connection on `channel` is.
    Address { channel: u16, address: Address },
    /// The communicator failed.
    Poison(Error),
    /// What are you doing?
    Query { token: u64 },
    /// The answer.
    State { token: u64, snapshot: Snapshot },
    /// The sender closed its communicator in good order.
    Leave,
}

/// Appends the frame of `message` to `out`: length, communicator, message.
pub(crate) fn encode(communicator: u64, message: &Message, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let mut writer = Writer { out };
    writer.u64(communicator);
    match message {
        Message::Address { channel, address } => {
            writer.u8(1);
            writer.u64(*channel as u64);
            writer.text(&address.transport);
            writer.bytes(&address.bytes);
        }
        Message::Poison(error) => {
            writer.u8(2);
            writer.error(error);
        }
        Message::Query { token } => {
            writer.u8(3);
            writer.u64(*token);
        }
        Message::State { token, snapshot } => {
            writer.u8(4);
            writer.u64(*token);
            writer.u64(snapshot.entered);
            writer.u64(snapshot.finished);
            writer.u64(snapshot.recent.len() as u64);
            for (sequence, descriptor) in snapshot.recent.iter().chain(&snapshot.pairs) {
                writer.u64(*sequence);
                writer.u64(descriptor.packed());
                writer.u64(descriptor.count);
            }
        }
        Message::Leave => writer.u8(5),
    }
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Takes one frame off the front of `buffer`, if a whole one is there.
///
/// # Errors
/// The peer sent something that is no frame of this protocol.
pub(crate) fn decode(buffer: &mut Vec<u8>) -> Result<Option<(u64, Message)>, &'static str> {
    let Some(head) = buffer.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*head) as usize;
    if length > FRAME_BYTES_MAX {
        return Err("a frame longer than any of this protocol");
    }
    if buffer.len() < 4 + length {
        return Ok(None);
    }
    let mut reader = Reader { rest: &buffer[4..4 + length] };
    let message = reader.message().ok_or("a frame that cannot be read")?;
    buffer.drain(..4 + length);
    Ok(Some(message))
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl Writer<'_> {
    fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    fn u64(&mut self, value: u64) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(FRAME_BYTES_MAX / 8)];
        self.u64(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn operation(&mut self, operation: &Operation) {
        self.text(&operation.name);
        self.u64(operation.sequence);
    }

    fn error(&mut self, error: &Error) {
        match error {
            Error::Mismatch { sequence, difference } => {
                self.u8(1);
                self.u64(*sequence);
                self.text(difference);
            }
            Error::PeerLost { rank, place, operation, cause } => {
                self.u8(2);
                self.u64(*rank as u64);
                self.text(place);
                self.text(cause);
                self.u8(operation.is_some() as u8);
                if let Some(operation) = operation {
                    self.operation(operation);
                }
            }
            Error::PeerLeft { rank, operation } => {
                self.u8(3);
                self.u64(*rank as u64);
                self.operation(operation);
            }
            Error::Timeout { operation, waited, verdict } => {
                self.u8(4);
                self.operation(operation);
                self.u64(waited.as_millis() as u64);
                self.text(verdict);
            }
            Error::Aborted { rank, reason } => {
                self.u8(5);
                self.u64(*rank as u64);
                self.text(reason);
            }
            Error::OutOfMemory { needed_bytes, what, cause } => {
                self.u8(6);
                self.u64(*needed_bytes);
                self.text(what);
                self.text(cause);
            }
            Error::Link { rank, transport, cause } => {
                self.u8(7);
                self.u64(*rank as u64);
                self.text(transport);
                self.text(cause);
            }
            Error::System { call, source } => {
                self.u8(8);
                self.text(call);
                self.u64(source.raw_os_error().unwrap_or(0) as u64);
                self.text(&source.to_string());
            }
            Error::Internal { what } => {
                self.u8(9);
                self.text(what);
            }
            // No other error ends a communicator.
            other => {
                self.u8(9);
                self.text(&other.to_string());
            }
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.rest.split_first_chunk::<8>()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*first))
    }

    fn u32(&mut self) -> Option<u32> {
        self.u64()?.try_into().ok()
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.u64()?).ok()?;
        let (first, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(first.to_vec())
    }

    fn text(&mut self) -> Option<String> {
        // A long text was cut, perhaps within a character.
        Some(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    fn operation(&mut self) -> Option<Operation> {
        Some(Operation { name: self.text()?, sequence: self.u64()? })
    }

    fn record(&mut self) -> Option<(u64, Descriptor)> {
        let sequence = self.u64()?;
        let packed = self.u64()?;
        Some((sequence, Descriptor::unpack(packed, self.u64()?)?))
    }

    fn message(&mut self) -> Option<(u64, Message)> {
        let communicator = self.u64()?;
        let message = match self.u8()? {
            1 => {
                let channel = self.u64()?.try_into().ok()?;
                let address = Address { transport: self.text()?, bytes: self.bytes()? };
                if address.bytes.len() > Address::BYTES_MAX {
                    return None;
                }
                Message::Address { channel, address }
            }
            2 => Message::Poison(self.error()?),
            3 => Message::Query { token: self.u64()? },
            4 => {
                let (token, entered, finished, records) =
                    (self.u64()?, self.u64()?, self.u64()?, self.u64()?);
                let mut recent = Vec::new();
                for _ in 0..records {
                    recent.push(self.record()?);
                }
                let mut pairs = Vec::new();
                while !self.rest.is_empty() {
                    pairs.push(self.record()?);
                }
                Message::State { token, snapshot: Snapshot { entered, finished, recent, pairs } }
            }
            5 => Message::Leave,
            _ => return None,
        };
        self.rest.is_empty().then_some((communicator, message))
    }

    fn error(&mut self) -> Option<Error> {
        Some(match self.u8()? {
            1 => Error::Mismatch { sequence: self.u64()?, difference: self.text()? },
            2 => {
                let (rank, place, cause) = (self.u32()?, self.text()?, self.text()?);
                let operation = if self.u8()? == 0 { None } else { Some(self.operation()?) };
                Error::PeerLost { rank, place, operation, cause }
            }
            3 => Error::PeerLeft { rank: self.u32()?, operation: self.operation()? },
            4 => {
                let operation = self.operation()?;
                let waited = Duration::from_millis(self.u64()?);
                Error::Timeout { operation, waited, verdict: self.text()? }
            }
            5 => Error::Aborted { rank: self.u32()?, reason: self.text()? },
            6 => Error::OutOfMemory { needed_bytes: self.u64()?, what: self.text()?, cause: self.text()? },
            7 => Error::Link { rank: self.u32()?, transport: self.text()?, cause: self.text()? },
            8 => {
                let call = self.text()?;
                let (code, text) = (self.u64()?, self.text()?);
                let source = match i32::try_from(code) {
                    Ok(code) if code != 0 => io::Error::from_raw_os_error(code),
                    _ => io::Error::other(text),
                };
                Error::system(call, source)
            }
            9 => Error::Internal { what: self.text()? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Kind;
    use consort_kernels::{DataType, ReduceOp};

    fn samples() -> Vec<Message> {
        let descriptor = Descriptor {
            kind: Kind::Reduce,
            data_type: DataType::Int8,
            op: Some(ReduceOp::Min),
            root: 3,
            count: 9,
        };
        let operation = Operation { name: "reduce".into(), sequence: 12 };
        let waited = Duration::from_millis(250);
        vec![
            Message::Address {
                channel: 3,
                address: Address { transport: "shm".into(), bytes: vec![1, 2, 3] },
            },
            Message::Query { token: 5 },
            Message::State { token: 5, snapshot: Snapshot::default() },
            Message::State {
                token: 6,
                snapshot: Snapshot {
                    entered: 4,
                    finished: 3,
                    recent: vec![(4, descriptor)],
                    pairs: vec![(1, descriptor)],
                },
            },
            Message::Leave,
            Message::Poison(Error::Mismatch { sequence: 1, difference: "x".into() }),
            Message::Poison(Error::PeerLost {
                rank: 1,
                place: "host".into(),
                operation: Some(operation.clone()),
                cause: "it died".into(),
            }),
            Message::Poison(Error::PeerLeft { rank: 1, operation: operation.clone() }),
            Message::Poison(Error::Timeout { operation, waited, verdict: "late".into() }),
            Message::Poison(Error::Aborted { rank: 2, reason: "enough".into() }),
            Message::Poison(Error::OutOfMemory { needed_bytes: 7, what: "a".into(), cause: "b".into() }),
            Message::Poison(Error::Link { rank: 2, transport: "tcp".into(), cause: "reset".into() }),
            Message::Poison(Error::system("open", io::Error::from_raw_os_error(2))),
            Message::Poison(Error::internal("oops")),
        ]
    }

    #[test]
    fn messages_survive_the_wire_in_pieces() {
        let mut bytes = Vec::new();
        for message in samples() {
            encode(77, &message, &mut bytes);
        }
        let (mut buffer, mut seen) = (Vec::new(), Vec::new());
        for byte in bytes {
            buffer.push(byte);
            while let Some((communicator, message)) = decode(&mut buffer).expect("a valid frame") {
                assert_eq!(communicator, 77);
                seen.push(message);
            }
        }
        assert!(buffer.is_empty());
        let texts = |messages: &[Message]| messages.iter().map(|m| format!("{m:?}")).collect::<Vec<_>>();
        assert_eq!(texts(&seen), texts(&samples()));
    }

    #[test]
    fn damaged_frames_are_refused_or_read_but_never_panic() {
        let mut state = 0x1234_5678_9abc_def1u64;
        for round in 0..20_000 {
            let mut bytes = Vec::new();
            encode(1, &samples()[round % samples().len()], &mut bytes);
            for _ in 0..3 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let at = state as usize % bytes.len();
                bytes[at] = (state >> 32) as u8;
            }
            while let Ok(Some(_)) = decode(&mut bytes) {}
        }
    }
}
