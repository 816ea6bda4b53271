//! The flight record: the last operations of one rank, readable at any time by the control thread.
//!
//! Invariant: one writer (the owner of the engine), any number of readers, no lock. A reader that meets a
//! record being rewritten drops it. This is the place where a rank publishes what it is doing that does not
//! depend on any plan, so that ranks which took different paths still find the difference.

use std::cell::Cell;
use std::time::Duration;

use consort_memory::sync::{AtomicU64, Ordering, fence};

use crate::clock::Clock;
use consort_types::Rank;
use consort_types::call::{Descriptor, Kind};

pub use consort_settings::options::RECORDS;

/// How an operation ended, if it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Open,
    Finished,
    Failed,
}

/// One operation as it was recorded. Times are the recorder's clock's ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its place among all operations of this rank on this communicator, from 1.
    pub index: u64,
    pub sequence: u64,
    pub descriptor: Descriptor,
    pub entered: u64,
    /// When it ended; 0 while it is open.
    pub ended: u64,
    pub outcome: Outcome,
}

#[derive(Debug, Default)]
struct Record {
    /// The operation's place among all, from 1; 0 while empty or being written.
    index: AtomicU64,
    sequence: AtomicU64,
    packed: AtomicU64,
    count: AtomicU64,
    entered: AtomicU64,
    /// Ticks, shifted by one; the lowest bit says that it failed. 0 while it is open.
    ended: AtomicU64,
}

/// The ring of records with the numbers that say where the rank is.
#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    records: Box<[Record]>,
    /// Operations entered so far, of all kinds.
    opened: AtomicU64,
    /// The last collective entered, and the last one finished.
    entered: AtomicU64,
    finished: AtomicU64,
    /// The thread that made the last call.
    caller: AtomicU64,
}

/// A number of this thread that no other thread of the process has or had.
#[inline]
pub fn this_thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static HERE: Cell<u64> = const { Cell::new(0) };
    }
    if HERE.get() == 0 {
        HERE.set(THREADS.fetch_add(1, Ordering::Relaxed));
    }
    HERE.get()
}

/// An entry as other ranks see it: its times are ages at that moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgedEntry {
    pub sequence: u64,
    pub descriptor: Descriptor,
    pub entered: Duration,
    /// None while it is open.
    pub ended: Option<Duration>,
    pub failed: bool,
}

/// What a rank was doing, as one reads it from outside.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// The last collective entered; 0 before the first.
    pub entered: u64,
    /// The last collective finished.
    pub finished: u64,
    /// The last operations, oldest first.
    pub recent: Vec<AgedEntry>,
}

impl Snapshot {
    /// What the rank said collective `sequence` is, if it still knows.
    pub fn find(&self, sequence: u64) -> Option<Descriptor> {
        self.collectives().find(|entry| entry.sequence == sequence).map(|entry| entry.descriptor)
    }

    /// The numbers of the last messages finished with `peer`: sent to it and received from it; 0 where none is recorded.
    pub fn passed(&self, peer: Rank) -> (u64, u64) {
        let finished = self.recent.iter().filter(|entry| entry.ended.is_some() && !entry.failed);
        let last = |kind: Kind| {
            let is = |entry: &&AgedEntry| (entry.descriptor.kind, entry.descriptor.root) == (kind, peer);
            finished.clone().filter(is).map(|entry| entry.sequence).max().unwrap_or(0)
        };
        (last(Kind::Send), last(Kind::Receive))
    }

    /// The collectives among the last operations.
    pub fn collectives(&self) -> impl Iterator<Item = &AgedEntry> {
        self.recent.iter().filter(|entry| !entry.descriptor.kind.is_message())
    }
}

impl Recorder {
    /// Keeps the last `records` operations, rounded up to a power of two.
    pub fn new(clock: Clock, records: usize) -> Self {
        Recorder {
            clock,
            records: (0..records.next_power_of_two()).map(|_| Record::default()).collect(),
            opened: AtomicU64::new(0),
            entered: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            caller: AtomicU64::new(0),
        }
    }

    /// The last collective entered; 0 before the first.
    pub fn entered(&self) -> u64 {
        // Acquire: pairs with the Release in `enter`.
        self.entered.load(Ordering::Acquire)
    }

    /// The last collective finished; 0 before the first.
    pub fn finished(&self) -> u64 {
        // Acquire: pairs with the Release in `finish`.
        self.finished.load(Ordering::Acquire)
    }

    /// Bytes of the ring.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.records)
    }

    /// The rank enters an operation, called by thread `caller`; the place of its record.
    #[inline]
    pub fn enter(&self, sequence: u64, descriptor: &Descriptor, caller: u64) -> u64 {
        let what = (descriptor.packed(), descriptor.count);
        self.enter_at(sequence, what, descriptor.kind.is_message(), caller, self.clock.ticks())
    }

    /// As [`Recorder::enter`] an operation whose descriptor is packed, at a reading of [`Recorder::ticks`].
    #[inline]
    pub fn enter_at(&self, sequence: u64, what: (u64, u64), message: bool, caller: u64, ticks: u64) -> u64 {
        // One writer: a plain load and store.
        let index = self.opened.load(Ordering::Relaxed) + 1;
        self.caller.store(caller, Ordering::Relaxed);
        self.record(index).write(index, sequence, what, ticks, 0);
        if !message {
            // Release: pairs with the Acquire of `entered` in `snapshot`; an order of the two numbers.
            self.entered.store(sequence, Ordering::Release);
        }
        // Release: pairs with the Acquire of `opened` in `snapshot`; the record is there before the number.
        self.opened.store(index, Ordering::Release);
        index
    }

    /// An operation that was over when it was entered, as good as: both in one, at a reading of [`Recorder::ticks`].
    #[inline(always)]
    pub fn pass(&self, sequence: u64, what: (u64, u64), message: bool, caller: u64, ticks: u64) {
        // One writer: a plain load and store.
        let index = self.opened.load(Ordering::Relaxed) + 1;
        self.caller.store(caller, Ordering::Relaxed);
        self.record(index).write(index, sequence, what, ticks, ticks << 1);
        if !message {
            // Release, twice: as in `enter_at` and `finish_at`.
            self.entered.store(sequence, Ordering::Release);
            self.finished.store(sequence, Ordering::Release);
        }
        // Release: as in `enter_at`.
        self.opened.store(index, Ordering::Release);
    }

    /// The rank leaves the operation of record `index`.
    #[inline]
    pub fn finish(&self, index: u64, sequence: u64, message: bool) {
        self.finish_at(index, sequence, message, self.clock.ticks());
    }

    /// As [`Recorder::finish`], at a reading of [`Recorder::ticks`].
    #[inline]
    pub fn finish_at(&self, index: u64, sequence: u64, message: bool, ticks: u64) {
        self.end(index, false, ticks);
        if !message {
            // Release: pairs with the Acquire of `finished` in `snapshot`; a plain order of the two numbers.
            self.finished.store(sequence, Ordering::Release);
        }
    }

    /// The operation of record `index` ends with an error.
    pub fn fail(&self, index: u64) {
        self.end(index, true, self.clock.ticks());
    }

    /// The present, as operations are stamped with it.
    #[inline(always)]
    pub fn ticks(&self) -> u64 {
        self.clock.ticks()
    }

    #[inline]
    fn end(&self, index: u64, failed: bool, ticks: u64) {
        let record = self.record(index);
        // Many operations may have been started since; then the record is another's.
        if record.index.load(Ordering::Relaxed) == index {
            record.ended.store(ticks << 1 | failed as u64, Ordering::Relaxed);
        }
    }

    #[inline]
    fn record(&self, index: u64) -> &Record {
        &self.records[index as usize & (self.records.len() - 1)]
    }

    /// The thread that made the last call; 0 before the first.
    pub fn caller(&self) -> u64 {
        self.caller.load(Ordering::Relaxed)
    }

    /// What the rank is doing now, with the last operations, [`RECORDS`] at most. Callable from any thread.
    pub fn snapshot(&self) -> Snapshot {
        // What has finished was entered: in this order.
        let (finished, entered) = (self.finished(), self.entered());
        Snapshot { entered, finished, recent: self.aged(self.last(RECORDS)).collect() }
    }

    /// Operations with their ages now.
    pub fn aged(&self, entries: Vec<Entry>) -> impl Iterator<Item = AgedEntry> + '_ {
        let now = self.clock.ticks();
        let age = move |ticks: u64| self.clock.duration(now.saturating_sub(ticks));
        entries.into_iter().map(move |entry| AgedEntry {
            sequence: entry.sequence,
            descriptor: entry.descriptor,
            entered: age(entry.entered),
            ended: (entry.outcome != Outcome::Open).then(|| age(entry.ended).min(age(entry.entered))),
            failed: entry.outcome == Outcome::Failed,
        })
    }

    /// The last `most` operations, oldest first. Callable from any thread.
    pub fn last(&self, most: usize) -> Vec<Entry> {
        // Acquire: pairs with the Release in `enter`.
        let opened = self.opened.load(Ordering::Acquire);
        let most = most.min(self.records.len()) as u64;
        let first = opened.saturating_sub(most.saturating_sub(1)).max(1);
        (first..=opened).filter_map(|index| self.record(index).read(index)).collect()
    }
}

impl Record {
    #[inline]
    fn write(&self, index: u64, sequence: u64, (packed, count): (u64, u64), entered: u64, ended: u64) {
        self.index.store(0, Ordering::Relaxed);
        // Release: pairs with the Acquire fence in `read`; a reader that sees a new field below and looks at
        // `index` again sees at least this 0.
        fence(Ordering::Release);
        self.sequence.store(sequence, Ordering::Relaxed);
        self.packed.store(packed, Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
        self.entered.store(entered, Ordering::Relaxed);
        self.ended.store(ended, Ordering::Relaxed);
        // Release: pairs with the Acquire in `read`; publishes the fields.
        self.index.store(index, Ordering::Release);
    }

    /// What was recorded at `index`; `None` when it is empty, another's or being rewritten.
    fn read(&self, index: u64) -> Option<Entry> {
        // Acquire: pairs with the Release in `write`.
        let before = self.index.load(Ordering::Acquire);
        let [sequence, packed, count, entered, ended] =
            [&self.sequence, &self.packed, &self.count, &self.entered, &self.ended]
                .map(|field| field.load(Ordering::Relaxed));
        // Acquire: pairs with the Release fence in `write`; a rewritten field implies a changed index below.
        fence(Ordering::Acquire);
        let after = self.index.load(Ordering::Relaxed);
        if before != index || before != after {
            return None;
        }
        let outcome = match (ended, ended & 1) {
            (0, _) => Outcome::Open,
            (_, 0) => Outcome::Finished,
            _ => Outcome::Failed,
        };
        let descriptor = Descriptor::unpack(packed, count)?;
        Some(Entry { index, sequence, descriptor, entered, ended: ended >> 1, outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consort_kernels::{DataType, ReduceOp};
    use consort_types::call::Call;

    /// Of a sum of `count` floats.
    fn sum_of_floats(count: u64) -> Descriptor {
        Call::all_reduce(DataType::Float32, ReduceOp::Sum, count as usize).descriptor()
    }

    #[test]
    fn the_last_operations_are_kept() {
        let recorder = Recorder::new(Clock::default(), RECORDS);
        for sequence in 1..=200 {
            let index = recorder.enter(sequence, &sum_of_floats(sequence * 10), this_thread());
            if sequence < 200 {
                recorder.finish(index, sequence, false);
            }
        }
        let snapshot = recorder.snapshot();
        assert_eq!((snapshot.entered, snapshot.finished), (200, 199));
        assert_eq!(snapshot.recent.len(), RECORDS);
        assert_eq!(snapshot.find(100), Some(sum_of_floats(1000)));
        assert_eq!(snapshot.find(20), None);
        let open: Vec<_> = snapshot.recent.iter().filter(|entry| entry.ended.is_none()).collect();
        assert_eq!(open.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [200]);
        assert_eq!(recorder.caller(), this_thread());
        let ends: Vec<u64> = recorder.last(RECORDS).iter().map(|entry| entry.ended).collect();
        assert!(ends[..RECORDS - 1].is_sorted() && ends[0] != 0);
    }

    #[test]
    fn messages_have_numbers_of_their_own_and_failures_show() {
        let recorder = Recorder::new(Clock::default(), RECORDS);
        let all = recorder.enter(1, &sum_of_floats(4), 7);
        recorder.finish(all, 1, false);
        let receive = Descriptor { kind: Kind::Receive, op: None, root: 1, ..sum_of_floats(6) };
        let index = recorder.enter(9, &receive, 7);
        recorder.fail(index);
        let snapshot = recorder.snapshot();
        assert_eq!((snapshot.entered, snapshot.finished), (1, 1));
        let seen: Vec<_> = snapshot.recent.iter().map(|entry| (entry.sequence, entry.failed)).collect();
        assert_eq!(seen, [(1, false), (9, true)]);
        assert_eq!(snapshot.collectives().count(), 1);
        // What was started long ago no longer has a record to write to.
        for sequence in 2..=RECORDS as u64 + 2 {
            recorder.enter(sequence, &sum_of_floats(1), 7);
        }
        recorder.fail(index);
        assert!(recorder.snapshot().recent.iter().all(|entry| entry.ended.is_none()));
    }
}
