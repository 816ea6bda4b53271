//! Fills whose bytes the lanes' devices read where the program has them.
//!
//! ```text
//! fill from memory that each port knows ──► fragments, each read there by the lane that takes it
//! a lane fails ──► what the peer says it lacks is read there once more, by another lane
//! the peer acknowledges the fill, and no lane reads it any more ──► the source is free
//! ```
//!
//! Invariant: a source stays as it is until the peer has said that it has the whole fill, or the connection is over; and until each device that
//! has read it has said that it is done, or its queue pair is there no longer. Sources become free in the order of their fills. Absent:
//! which memory is known, and what a lane keeps of what it reads (`line::lent`).

use std::collections::VecDeque;
use std::sync::Arc;

use consort_memory::Span;

use super::super::line::Line;
use super::super::line::lent::{Direct, Kept};
use super::super::memory::{LENT_BYTES_MIN, Registrations};
use super::super::message::{Kind, LANES_MAX, Message};
use super::super::port::Registration;
use super::Session;
use super::lane::{Lane, Others};
use crate::TransportError;
use crate::streams::{Fragment, Ready, STREAM};

/// A source, and who may read it.
struct Source {
    /// Its fill, and where that goes in the peer's mailbox.
    fill: u64,
    offset: usize,
    /// Its first address.
    start: usize,
    /// How each port's device reads it, which keeps its pages.
    registrations: Box<[Arc<Registration>]>,
    /// The lanes that have read of it: the epoch of each, where there is one, and its own number for the last time.
    read_by: [(u32, u64); LANES_MAX],
}

/// The sources of a session.
pub(super) struct Sources {
    known: Arc<[Registrations]>,
    all: VecDeque<Source>,
    /// Fills that had a source, and those of them whose source is free.
    lent: u64,
    free: u64,
}

impl Sources {
    pub(super) fn new(known: Arc<[Registrations]>) -> Self {
        Sources { known, all: VecDeque::new(), lent: 0, free: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many were lent and are free.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Whether a fill has a source.
    pub(super) fn has(&self, fill: u64) -> bool {
        self.all.iter().any(|source| source.fill == fill)
    }

    /// Sends a fragment by a lane from the fill's source, if it has one. Whether there was room.
    ///
    /// # Errors
    /// As of [`Line::send`].
    pub(super) fn send(
        &mut self,
        lane: &mut Lane,
        place: usize,
        fragment: &Fragment,
        message: Message,
    ) -> Option<Result<bool, TransportError>> {
        let source = self.all.iter_mut().find(|source| source.fill == fragment.fill)?;
        let path = lane.path;
        let Some(line) = lane.open() else { return Some(Ok(false)) };
        let sent = source.send(line, place, fragment, Message { kind: Kind::Lent, ..message });
        // Also where its device has taken the write and not what follows it.
        source.read_by[usize::from(path.number)] = (path.epoch, line.lent());
        Some(sent)
    }
}

impl Source {
    fn send(
        &self,
        line: &mut Line,
        place: usize,
        fragment: &Fragment,
        message: Message,
    ) -> Result<bool, TransportError> {
        let registration = &self.registrations[line.port()];
        let from = ((self.start + fragment.offset - self.offset) as u64, registration.keys().0);
        let direct = Direct { from, bytes: fragment.bytes, to: line.there(place) };
        let sent = line.send_direct(direct, Kept::Program, Arc::clone(registration), Some(message));
        sent.map(|number| number.is_some())
    }

    /// The queue pairs that are there and have read of it, each with its own number.
    fn readers<'a>(&'a self, lanes: &'a [Lane]) -> impl Iterator<Item = (&'a Line, u64)> {
        let reads = |(lane, (epoch, number)): (&'a Lane, &(u32, u64))| {
            let line = lane.line().filter(|_| lane.path.epoch == *epoch);
            line.map(|line| (line, *number))
        };
        lanes.iter().zip(&self.read_by).filter_map(reads)
    }

    /// Whether a device may still read it.
    fn is_read(&self, lanes: &[Lane]) -> bool {
        self.readers(lanes).any(|(line, number)| line.may_read(number))
    }
}

impl Session {
    /// Has the lanes read a source where it is, where their devices do. The number of the source, or 0 where it was copied, if there was
    /// room.
    ///
    /// # Errors
    /// As of [`Session::put`].
    pub(super) fn put_from(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        ready: Ready,
    ) -> Result<Option<u64>, TransportError> {
        let registrations = self.registered(bytes);
        let copied = if registrations.is_some() { None } else { Some(bytes) };
        let Some(fill) = self.make((offset, bytes.len()), copied, Some(ready))? else { return Ok(None) };
        let mut number = 0;
        if let Some(registrations) = registrations {
            let start = bytes.as_ptr() as usize;
            self.sources.lent += 1;
            number = self.sources.lent;
            let read_by = [(0, 0); LANES_MAX];
            self.sources.all.push_back(Source { fill, offset, start, registrations, read_by });
        }
        self.send_made();
        Ok(Some(number))
    }

    /// How each port's device reads the source of a fill; none where one of them does not, as each may have to send it again, or where it is
    /// to be copied.
    fn registered(&self, bytes: Span<'_>) -> Option<Box<[Arc<Registration>]>> {
        if bytes.len() < LENT_BYTES_MIN {
            return None;
        }
        self.sources.known.iter().map(|known| known.of(bytes)).collect()
    }

    /// Whether the source of this number is free, and those of all before it. One that is asked for and is not wakes a sleeper when it is.
    pub(super) fn is_source_free(&self, number: u64) -> bool {
        let asked = number.saturating_sub(self.sources.free) as usize;
        for source in self.sources.all.iter().take(asked) {
            source.readers(&self.lanes).for_each(|(line, number)| line.await_source(number));
        }
        asked == 0
    }

    /// Lets go of the sources that nothing needs any more.
    pub(super) fn retire_sources(&mut self) {
        if self.sources.is_empty() {
            return;
        }
        // Nothing is sent again any more.
        let is_over = self.is_over() || self.inbox.has_ended() || self.lanes.iter().all(Lane::is_closed);
        let acknowledged = self.inbox.peering.stream(STREAM).0.acknowledged();
        let Self { sources, lanes, .. } = self;
        let is_needed = |of: &Source| (of.fill >= acknowledged && !is_over) || of.is_read(lanes);
        while sources.all.front().is_some_and(|of| !is_needed(of)) {
            sources.all.pop_front();
            sources.free += 1;
        }
    }

    /// Stops all queue pairs, so that their devices give all sources back.
    pub(super) fn fence(&mut self) {
        let why = self.lanes.iter().filter_map(Lane::line).next().map(Line::stopped);
        self.fenced.get_or_insert(why.unwrap_or_else(|| self.failure()));
        self.wind_up();
    }

    /// Whether it was ended here: nothing more is sent, nor mended.
    pub(super) fn is_over(&self) -> bool {
        self.wrong.is_some() || self.fenced.is_some()
    }

    /// Stops what is open, and waits for what was stopped.
    pub(super) fn wind_up(&mut self) {
        let others = Others { have_led: true, are_open: false };
        for lane in &mut self.lanes {
            lane.stop();
            // What comes is heard no more.
            let _ = lane.look(others, &mut |_, _| Ok(()));
        }
        self.is_whole = false;
    }
}
