//! The wire forms of errors, records and reports.

use std::io;
use std::time::Duration;

use consort_transports::Address;

use super::codec::{Reader, Wire, wire_enum, wire_struct};
use crate::membership::group::Failure;
use crate::recorder::{Snapshot, Told};
use crate::report::evidence::{Open, Position, Stuck, Traffic, Want};
use crate::report::{CallReport, CycleStep, Guilty, RankReport, Report, WaitReport};
use consort_types::call::Descriptor;
use consort_types::error::{Error, Operation};

wire_struct!(Operation { name, sequence });
wire_struct!(Told { sequence, descriptor, entered, ended, failed });
wire_struct!(Snapshot { entered, finished, recent });
wire_struct!(Failure { origin, error, report });
wire_struct!(Traffic { peer, channel, filled, arrived, returned, credited });
wire_struct!(Stuck { want, peer, peer_process, step, steps, slice, slices, algorithm, age });
wire_struct!(Open { sequence, descriptor, age, stuck });
wire_struct!(Position {
    communicator,
    size,
    rank,
    job,
    job_rank,
    caller,
    entered,
    finished,
    last,
    open,
    messages,
    passed,
    traffic,
});
wire_struct!(Report { communicator, size, by, operation, waited, guilty, verdict, ranks });
wire_struct!(CallReport { sequence, name, count, data_type, op, root });
wire_struct!(RankReport { rank, host, process, unreachable, left, finished, waiting, elsewhere });
wire_struct!(WaitReport { call, entered, algorithm, step, wants, peer, stuck });
wire_struct!(CycleStep { communicator, rank, operation, waits_for });
wire_enum!(Guilty {
    0 => Nobody,
    1 => Ranks(ranks),
    2 => Unreachable(ranks),
    3 => Link { from, to },
    4 => Cycle(steps),
    5 => Elsewhere { place, communicator, rank },
});

/// The most ranks that an error names: those of a job.
pub(super) const RANKS_MAX: usize = 1 << 16;

/// The longest name of a transport, in bytes.
const TRANSPORT_BYTES_MAX: usize = 32;

impl Wire for Want {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }

    fn take(reader: &mut Reader<'_>) -> Option<Self> {
        Want::ALL.get(usize::from(u8::take(reader)?)).copied()
    }
}

impl Wire for Descriptor {
    fn put(&self, out: &mut Vec<u8>) {
        self.packed().put(out);
        self.count.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Option<Self> {
        let packed = u64::take(reader)?;
        Descriptor::unpack(packed, u64::take(reader)?)
    }
}

impl Wire for Address {
    fn put(&self, out: &mut Vec<u8>) {
        self.transport.put(out);
        let bytes = &self.bytes[..self.bytes.len().min(Address::BYTES_MAX)];
        (bytes.len() as u16).put(out);
        out.extend_from_slice(bytes);
    }

    fn take(reader: &mut Reader<'_>) -> Option<Self> {
        let transport = String::take(reader)?;
        let length = usize::from(u16::take(reader)?);
        let (bytes, rest) = reader.rest.split_at_checked(length)?;
        reader.rest = rest;
        (length <= Address::BYTES_MAX && transport.len() <= TRANSPORT_BYTES_MAX)
            .then(|| Address { transport, bytes: bytes.to_vec() })
    }
}

impl Wire for Error {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Error::Mismatch { sequence, difference } => {
                out.push(1);
                sequence.put(out);
                difference.put(out);
            }
            Error::PeerLost { rank, place, operation, cause } => {
                out.push(2);
                rank.put(out);
                place.put(out);
                operation.put(out);
                cause.put(out);
            }
            Error::PeerLeft { rank, place, operation } => {
                out.push(3);
                rank.put(out);
                place.put(out);
                operation.put(out);
            }
            Error::Timeout { operation, waited, verdict } => {
                out.push(4);
                operation.put(out);
                waited.put(out);
                verdict.put(out);
            }
            Error::Aborted { rank, reason } => {
                out.push(5);
                rank.put(out);
                reason.put(out);
            }
            Error::OutOfMemory { rank, needed_bytes, what, cause } => {
                out.push(6);
                rank.put(out);
                needed_bytes.put(out);
                what.put(out);
                cause.put(out);
            }
            Error::Link { from, to, transport, cause } => {
                out.push(7);
                from.put(out);
                to.put(out);
                transport.put(out);
                cause.put(out);
            }
            Error::System { call, source } => {
                out.push(8);
                call.put(out);
                (source.raw_os_error().unwrap_or(0) as u32).put(out);
                source.to_string().put(out);
            }
            Error::Internal { what } => {
                out.push(9);
                what.put(out);
            }
            Error::Revoked { rank, reason } => {
                out.push(10);
                rank.put(out);
                reason.put(out);
            }
            Error::MissingRanks { missing, size, waited, address } => {
                out.push(11);
                // As many as fit beside everything else, so that whoever was told can tell others.
                missing[..missing.len().min(RANKS_MAX)].to_vec().put(out);
                size.put(out);
                waited.put(out);
                address.put(out);
            }
            Error::Device { rank, what, cause } => {
                out.push(12);
                rank.put(out);
                what.put(out);
                cause.put(out);
            }
            // No other error ends a communicator.
            other => {
                out.push(9);
                other.to_string().put(out);
            }
        }
    }

    fn take(reader: &mut Reader<'_>) -> Option<Self> {
        fn field<T: Wire>(reader: &mut Reader<'_>) -> Option<T> {
            T::take(reader)
        }
        Some(match u8::take(reader)? {
            1 => Error::Mismatch { sequence: field(reader)?, difference: field(reader)? },
            2 => Error::PeerLost {
                rank: field(reader)?,
                place: field(reader)?,
                operation: field(reader)?,
                cause: field(reader)?,
            },
            3 => Error::PeerLeft { rank: field(reader)?, place: field(reader)?, operation: field(reader)? },
            4 => Error::Timeout {
                operation: field(reader)?,
                waited: field::<Duration>(reader)?,
                verdict: field(reader)?,
            },
            5 => Error::Aborted { rank: field(reader)?, reason: field(reader)? },
            6 => Error::OutOfMemory {
                rank: field(reader)?,
                needed_bytes: field(reader)?,
                what: field(reader)?,
                cause: field(reader)?,
            },
            7 => Error::Link {
                from: field(reader)?,
                to: field(reader)?,
                transport: field(reader)?,
                cause: field(reader)?,
            },
            8 => {
                let (call, code, text): (String, u32, String) =
                    (field(reader)?, field(reader)?, field(reader)?);
                let source = match i32::try_from(code) {
                    Ok(code) if code != 0 => io::Error::from_raw_os_error(code),
                    _ => io::Error::other(text),
                };
                Error::system(call, source)
            }
            9 => Error::Internal { what: field(reader)? },
            10 => Error::Revoked { rank: field(reader)?, reason: field(reader)? },
            11 => Error::MissingRanks {
                missing: field::<Vec<u32>>(reader).filter(|missing| missing.len() <= RANKS_MAX)?,
                size: field(reader)?,
                waited: field::<Duration>(reader)?,
                address: field(reader)?,
            },
            12 => Error::Device { rank: field(reader)?, what: field(reader)?, cause: field(reader)? },
            _ => return None,
        })
    }
}
