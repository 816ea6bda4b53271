//! Fills that the device reads where the program has them: their sources stay as they are until they are free.
//!
//! Invariant: a source is free when the device can no longer read it: it has said that the write is over, done or flushed; the peer has
//! heard a message behind it; or the write was never posted. Sources become free in the order of their fills. Absent: which memory
//! can be read so ([`super::super::memory`]).

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use consort_cuda::PinnedMemory;

use super::super::message::Message;
use super::super::port::Registration;
use super::super::queue::Write;
use super::super::status::FLUSHED;
use super::super::sys::Wc;
use super::Line;
use crate::TransportError;

/// Bytes that the device reads where they are, and where it writes them.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Direct {
    /// Where they are, and by which key.
    pub(in super::super) from: (u64, u32),
    pub(in super::super) bytes: usize,
    /// Where they go, and by which key.
    pub(in super::super) to: (u64, u32),
}

impl Direct {
    pub(super) fn write(&self, of: Write) -> Write {
        let ((from, lkey), (to, rkey)) = (self.from, self.to);
        Write { from, lkey, to, rkey, is_direct: true, ..of }
    }
}

/// Bytes that the device is to write.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Data {
    /// Of the picture of the peer's memory, from an offset on, which is that of the peer's.
    Picture(usize, usize),
    /// Where they are.
    Direct(Direct),
}

impl Data {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Data::Picture(_, bytes) => *bytes,
            Data::Direct(direct) => direct.bytes,
        }
    }

    /// Whether it has any of these bytes of the picture.
    pub(super) fn overlaps(&self, offset: usize, bytes: usize) -> bool {
        matches!(self, Data::Picture(from, of) if *from < offset + bytes && offset < *from + *of)
    }
}

/// What keeps a source while the device may read it.
pub(in super::super) enum Kept {
    /// Memory of the program, whose pages the registration keeps.
    Program,
    /// Memory of a device, which its owner keeps as long as work uses it.
    Device,
    /// Pinned memory of this library.
    Staging(#[expect(dead_code, reason = "only held")] PinnedMemory),
}

/// A source that the device may read.
struct Source {
    /// The work request that reads it.
    id: u64,
    _kept: Kept,
    _registration: Arc<Registration>,
}

/// The sources of a line.
#[derive(Default)]
pub(super) struct Lent {
    sources: VecDeque<Source>,
    /// Fills that were lent a source, and those of them whose source is free.
    lent: u64,
    free: u64,
    /// The last that was asked for.
    awaited: Cell<u64>,
    /// The last work request that was flushed.
    flushed: u64,
    /// Whether one was posted behind all others, after the queue pair had failed.
    is_draining: bool,
}

impl Lent {
    /// The device has given this work request back undone.
    pub(super) fn flush(&mut self, id: u64) {
        self.flushed = self.flushed.max(id);
    }

    /// How many are free.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Whether one was asked for that is not free.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited.get() > self.free
    }

    /// Lets go of what is over, by the last work request that is done and the last that was ever accepted.
    pub(super) fn retire(&mut self, done: u64, accepted: u64) {
        let over = done.max(self.flushed);
        while self.sources.front().is_some_and(|of| of.id <= over || of.id > accepted) {
            self.sources.pop_front();
            self.free += 1;
        }
    }
}

impl Line {
    /// Has the device write what is kept until that is over, and says something behind it. The number of the source, if there was room.
    ///
    /// # Errors
    /// As of [`Line::send`].
    pub(in super::super) fn send_direct(
        &mut self,
        direct: Direct,
        kept: Kept,
        registration: Arc<Registration>,
        message: Option<Message>,
    ) -> Result<Option<u64>, TransportError> {
        let before = self.posted;
        let sent = self.send(Some(Data::Direct(direct)), message, None);
        // What was posted is read also where what follows it could not be. Where the device was only asked, it is free at once.
        if self.posted > before {
            let id = before + 1;
            self.lent.sources.push_back(Source { id, _kept: kept, _registration: registration });
            self.lent.lent += 1;
        }
        sent.map(|has_room| has_room.then_some(self.lent.lent))
    }

    /// Forgets what is over, and sees to it that the device says so of the rest.
    pub(super) fn retire(&mut self) {
        while let Some(over) = self.under_way.front().filter(|of| of.id <= self.completed) {
            self.load -= over.data.bytes();
            self.under_way.pop_front();
        }
        self.lent.retire(self.completed, self.queue.accepted());
        if (self.broke.is_some() || self.is_stopped)
            && !self.lent.sources.is_empty()
            && !self.lent.is_draining
        {
            self.drain();
        }
    }

    /// Of a queue pair that has failed: work that was done without a completion has none now either, so one more is posted, which is
    /// flushed behind all of it.
    fn drain(&mut self) {
        if self.stop().is_ok() {
            let last = self.next_write(0, 0, None, true);
            self.lent.is_draining = self.queue.post(&[last]).is_ok();
        }
    }

    /// Whether the source of the fill of this number is free, and those of all before it. One that is asked for and is not wakes a
    /// sleeper when it is.
    pub(in super::super) fn is_source_free(&self, number: u64) -> bool {
        let is_free = !self.may_read(number);
        if !is_free {
            self.await_source(number);
        }
        is_free
    }

    /// A sleeper is woken when the device reads the source of this number no more.
    pub(in super::super) fn await_source(&self, number: u64) {
        self.lent.awaited.set(self.lent.awaited.get().max(number));
    }

    /// Whether the device may still read the source of this number.
    pub(in super::super) fn may_read(&self, number: u64) -> bool {
        number > self.lent.free
    }

    /// How many sources it was lent.
    pub(in super::super) fn lent(&self) -> u64 {
        self.lent.lent
    }

    /// Why nothing goes by a queue pair that was stopped here.
    pub(in super::super) fn stopped(&self) -> TransportError {
        super::super::status::failure(&self.queue, &self.ends.peer, &Wc { status: FLUSHED, ..Wc::default() })
    }

    /// Stops the queue pair, so that the device gives all sources back.
    ///
    /// # Errors
    /// The device's.
    pub(in super::super) fn fence(&mut self) -> Result<(), TransportError> {
        self.fail(&Wc { status: FLUSHED, ..Wc::default() });
        self.stop()?;
        self.hear_of_sent()
    }
}
