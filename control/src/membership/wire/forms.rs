//! The wire forms of errors, records and reports.

use std::io;

use consort_transports::Address;

use crate::codec::{Malformed, Reader, Taken, Wire, put_counted, wire_enum, wire_struct};
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

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        Want::ALL.get(usize::from(u8::take(reader)?)).copied().ok_or(Malformed("a rank wants nothing known"))
    }
}

impl Wire for Descriptor {
    fn put(&self, out: &mut Vec<u8>) {
        self.packed().put(out);
        self.count.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let (packed, count) = reader.take()?;
        Descriptor::unpack(packed, count).ok_or(Malformed("it is no call"))
    }
}

impl Wire for Address {
    fn put(&self, out: &mut Vec<u8>) {
        self.transport.put(out);
        put_counted(out, &self.bytes[..self.bytes.len().min(Address::BYTES_MAX)]);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let transport: String = reader.take()?;
        let bytes = reader.counted(Address::BYTES_MAX)?.to_vec();
        if transport.len() > TRANSPORT_BYTES_MAX {
            return Err(Malformed("a transport's name is too long"));
        }
        Ok(Address { transport, bytes })
    }
}

wire_enum!(Error {
    1 => Mismatch { sequence, difference },
    2 => PeerLost { rank, place, operation, cause },
    3 => PeerLeft { rank, place, operation },
    4 => Timeout { operation, waited, verdict },
    5 => Aborted { rank, reason },
    6 => OutOfMemory { rank, needed_bytes, what, cause },
    7 => Link { from, to, transport, cause },
    9 => Internal { what },
    10 => Revoked { rank, reason },
    12 => Device { rank, what, cause },
} else other, out => {
    match other {
        Error::System { call, source } => {
            out.push(8);
            call.put(out);
            (source.raw_os_error().unwrap_or(0) as u32).put(out);
            source.to_string().put(out);
        }
        Error::MissingRanks { missing, size, waited, address } => {
            out.push(11);
            // As many as fit beside everything else, so that whoever was told can tell others.
            missing[..missing.len().min(RANKS_MAX)].to_vec().put(out);
            size.put(out);
            waited.put(out);
            address.put(out);
        }
        // No other error ends a communicator.
        other => Error::internal(other.to_string()).put(out),
    }
}; code, reader => {
    match code {
        8 => {
            let (call, code, text): (String, u32, String) = reader.take()?;
            let source = match i32::try_from(code) {
                Ok(code) if code != 0 => io::Error::from_raw_os_error(code),
                _ => io::Error::other(text),
            };
            Ok(Error::system(call, source))
        }
        11 => {
            let missing: Vec<u32> = reader.take()?;
            if missing.len() > RANKS_MAX {
                return Err(Malformed("more ranks are missing than a job has"));
            }
            Ok(Error::MissingRanks {
                missing,
                size: reader.take()?,
                waited: reader.take()?,
                address: reader.take()?,
            })
        }
        _ => Err(Malformed("it is an error of no known kind")),
    }
});
