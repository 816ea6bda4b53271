//! The flight record: the last operations of one rank, readable at any time by the control thread.
//!
//! Invariant: one writer (whoever owns the engine), any number of readers, no lock. A reader that meets a
//! record being rewritten drops it. This is the place where a rank publishes what it is doing that does not
//! depend on any plan, so that ranks which took different paths still find the difference.

use consort_kernels::{DataType, ReduceOp};
use consort_memory::sync::{AtomicU64, Ordering, fence};

use crate::Rank;
use crate::call::Kind;

/// How many operations are kept. A power of two.
const RECORDS: usize = 128;

/// What must be equal on all ranks that take part in an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Descriptor {
    pub(crate) kind: Kind,
    pub(crate) data_type: DataType,
    pub(crate) op: Option<ReduceOp>,
    /// The root, or for point-to-point the peer; 0 where there is none.
    pub(crate) root: Rank,
    pub(crate) count: u64,
}

impl Descriptor {
    /// The fields that fit into one word.
    pub(crate) fn packed(&self) -> u64 {
        let op = self.op.map_or(0xff, |op| op.code() as u64);
        (self.kind as u64) | (self.data_type.code() as u64) << 8 | op << 16 | (self.root as u64) << 32
    }

    /// The inverse of [`Descriptor::packed`]; `None` when a peer sent nonsense.
    pub(crate) fn unpack(packed: u64, count: u64) -> Option<Self> {
        Some(Descriptor {
            kind: Kind::from_code(packed as u8)?,
            data_type: DataType::from_code((packed >> 8) as u8 as u32)?,
            op: match (packed >> 16) as u8 {
                0xff => None,
                code => Some(ReduceOp::from_code(code as u32)?),
            },
            root: (packed >> 32) as u32,
            count,
        })
    }

    /// A word that differs when the descriptors do (up to collisions of a 64-bit mix), salted with the
    /// operation's number and whatever else must agree.
    pub(crate) fn digest(&self, sequence: u64, salt: u64) -> u64 {
        let mut word = self.packed() ^ salt;
        for part in [self.count, sequence] {
            word = (word ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word ^= word >> 29;
        }
        word.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ word >> 32
    }
}

impl std::fmt::Display for Descriptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.kind == Kind::Barrier {
            return f.write_str("barrier");
        }
        write!(f, "{} of {} {}", self.kind.name(), self.count, self.data_type.name())?;
        if let Some(op) = self.op {
            write!(f, " ({})", op.name())?;
        }
        match self.kind {
            Kind::Reduce | Kind::Broadcast => write!(f, " root {}", self.root),
            Kind::Send => write!(f, " to {}", self.root),
            Kind::Receive => write!(f, " from {}", self.root),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Default)]
struct Record {
    /// 0 while empty or being written.
    sequence: AtomicU64,
    packed: AtomicU64,
    count: AtomicU64,
}

/// The ring of records with the two numbers that say where the rank is.
#[derive(Debug)]
pub(crate) struct Recorder {
    records: [Record; RECORDS],
    entered: AtomicU64,
    finished: AtomicU64,
    /// The last send and the last receive, kept apart from the collectives' numbers.
    pairs: [Record; 2],
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder {
            records: std::array::from_fn(|_| Record::default()),
            entered: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            pairs: Default::default(),
        }
    }
}

/// What a rank was doing, as one reads it from outside.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Snapshot {
    /// The last collective entered; 0 before the first.
    pub(crate) entered: u64,
    /// The last collective finished.
    pub(crate) finished: u64,
    /// The last collectives, oldest first, with their numbers.
    pub(crate) recent: Vec<(u64, Descriptor)>,
    /// The last send and the last receive, with their numbers on their pairs.
    pub(crate) pairs: Vec<(u64, Descriptor)>,
}

impl Snapshot {
    /// What the rank said operation `sequence` is, if it still knows.
    pub(crate) fn find(&self, sequence: u64) -> Option<Descriptor> {
        self.recent.iter().find(|(number, _)| *number == sequence).map(|(_, descriptor)| *descriptor)
    }
}

impl Recorder {
    /// The rank enters collective `sequence`.
    #[inline]
    pub(crate) fn enter(&self, sequence: u64, descriptor: &Descriptor) {
        self.records[sequence as usize % RECORDS].write(sequence, descriptor);
        // Release: pairs with the Acquire of `entered` in `snapshot`; the record is there before the number.
        self.entered.store(sequence, Ordering::Release);
    }

    /// The rank leaves collective `sequence`.
    #[inline]
    pub(crate) fn finish(&self, sequence: u64) {
        // Release: pairs with the Acquire of `finished` in `snapshot`; a plain order of the two numbers.
        self.finished.store(sequence, Ordering::Release);
    }

    /// The rank enters a point-to-point operation, the `sequence`-th with its peer in that direction.
    #[inline]
    pub(crate) fn enter_pair(&self, sequence: u64, descriptor: &Descriptor) {
        self.pairs[(descriptor.kind == Kind::Receive) as usize].write(sequence, descriptor);
    }

    /// What the rank is doing now. Callable from any thread.
    pub(crate) fn snapshot(&self) -> Snapshot {
        // Acquire: pair with the Releases in `finish` and `enter`.
        let finished = self.finished.load(Ordering::Acquire);
        let entered = self.entered.load(Ordering::Acquire);
        let mut recent = Vec::with_capacity(RECORDS);
        for sequence in entered.saturating_sub(RECORDS as u64 - 1).max(1)..=entered {
            let record = &self.records[sequence as usize % RECORDS];
            recent.extend(record.read().filter(|(number, _)| *number == sequence));
        }
        let pairs = self.pairs.iter().filter_map(Record::read).collect();
        Snapshot { entered, finished, recent, pairs }
    }
}

impl Record {
    #[inline]
    fn write(&self, sequence: u64, descriptor: &Descriptor) {
        self.sequence.store(0, Ordering::Relaxed);
        // Release: pairs with the Acquire fence in `read`; whoever reads a new field below and looks at
        // `sequence` again sees at least this 0.
        fence(Ordering::Release);
        self.packed.store(descriptor.packed(), Ordering::Relaxed);
        self.count.store(descriptor.count, Ordering::Relaxed);
        // Release: pairs with the Acquire in `read`; publishes the two fields.
        self.sequence.store(sequence, Ordering::Release);
    }

    /// The number and what it was; `None` when it is empty or being rewritten.
    fn read(&self) -> Option<(u64, Descriptor)> {
        // Acquire: pairs with the Release in `write`.
        let before = self.sequence.load(Ordering::Acquire);
        let (packed, count) = (self.packed.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed));
        // Acquire: pairs with the Release fence in `write`; a rewritten field implies a changed number below.
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        if before == 0 || before != after {
            return None;
        }
        Some((before, Descriptor::unpack(packed, count)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(count: u64) -> Descriptor {
        Descriptor {
            kind: Kind::AllReduce,
            data_type: DataType::Float32,
            op: Some(ReduceOp::Sum),
            root: 0,
            count,
        }
    }

    #[test]
    fn the_last_operations_are_kept() {
        let recorder = Recorder::default();
        for sequence in 1..=200 {
            recorder.enter(sequence, &descriptor(sequence * 10));
            if sequence < 200 {
                recorder.finish(sequence);
            }
        }
        let snapshot = recorder.snapshot();
        assert_eq!((snapshot.entered, snapshot.finished), (200, 199));
        assert_eq!(snapshot.recent.len(), RECORDS);
        assert_eq!(snapshot.find(100), Some(descriptor(1000)));
        assert_eq!(snapshot.find(20), None);
        assert_eq!(snapshot.pairs, []);
        let send = Descriptor { kind: Kind::Send, op: None, ..descriptor(5) };
        let receive = Descriptor { kind: Kind::Receive, op: None, root: 1, ..descriptor(6) };
        recorder.enter_pair(3, &receive);
        recorder.enter_pair(7, &send);
        assert_eq!(recorder.snapshot().pairs, [(7, send), (3, receive)]);
    }

    #[test]
    fn descriptors_survive_packing_and_differ_in_their_digest() {
        let base = descriptor(7);
        assert_eq!(Descriptor::unpack(base.packed(), 7), Some(base));
        let others = [
            Descriptor { kind: Kind::Reduce, ..base },
            Descriptor { data_type: DataType::Float64, ..base },
            Descriptor { op: Some(ReduceOp::Max), ..base },
            Descriptor { root: 1, ..base },
            Descriptor { count: 8, ..base },
        ];
        for other in others {
            assert_eq!(Descriptor::unpack(other.packed(), other.count), Some(other));
            assert_ne!(other.digest(3, 0), base.digest(3, 0));
        }
        assert_ne!(base.digest(3, 0), base.digest(4, 0));
        assert_eq!(base.to_string(), "all_reduce of 7 float (sum)");
    }
}
