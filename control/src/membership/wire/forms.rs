//! The wire forms of records and reports.

use crate::codec::{wire_enum, wire_struct};
use crate::membership::group::Failure;
use crate::recorder::{AgedEntry, Snapshot};
use crate::report::evidence::{Open, Position, SlowWire, Stuck, Traffic, Want};
use crate::report::{
    CallReport, CycleStep, GraphReport, Guilty, RankReport, Report, WaitReport, WayReport, WireReport,
};

wire_struct!(AgedEntry { sequence, descriptor, entered, ended, failed });
wire_struct!(Snapshot { entered, finished, recent });
wire_struct!(Failure { origin, error, report });
wire_struct!(SlowWire { peer, from, to, usual, now, age });
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
    slow,
});
wire_struct!(Report { communicator, size, by, operation, waited, guilty, verdict, graph, slow, ranks });
wire_struct!(GraphReport { machine, hash, way });
wire_struct!(WayReport { waits, awaited, kind, bytes_s });
wire_struct!(WireReport { from, to, source, destination, usual_bytes_s, bytes_s, since });
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
wire_enum!(Want { 0 => Link, 1 => Connection, 2 => Data, 3 => Room });
