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

use consort_memory::{HeldRead, Span};

use super::super::line::Line;
use super::super::line::lent::{Data, Direct, Kept};
use super::super::memory::{LENT_BYTES_MIN, Registrations};
use super::super::message::{Kind, LANES_MAX, Message, PORTS_MAX};
use super::super::port::Registration;
use super::lane::{Lane, Others};
use super::{Memory, Session, is_carried};
use crate::TransportError;
use crate::streams::{Fragment, Ready, STREAM};

/// A source, and who may read it.
struct Source {
    /// Its fill, and where that goes in the peer's mailbox.
    fill: u64,
    offset: usize,
    held: HeldRead,
    /// By port, as far as they were asked for.
    registrations: ByPort,
    /// The lanes that have read of it: the epoch of each, where there is one, and its own number for the last time.
    read_by: [(u32, u64); LANES_MAX],
}

type ByPort = [Option<Arc<Registration>>; PORTS_MAX];

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

    /// Sends a fragment by a lane from the fill's source, if it has one. Whether there was room.
    ///
    /// # Errors
    /// As of [`Line::send`].
    pub(super) fn send(
        &mut self,
        lane: &mut Lane,
        memory: (&Memory, usize),
        fragment: &Fragment,
        message: Message,
    ) -> Option<Result<bool, TransportError>> {
        let source = self.all.iter_mut().find(|source| source.fill == fragment.fill)?;
        let path = lane.path;
        let Some(line) = lane.open() else { return Some(Ok(false)) };
        let sent = source.send(&self.known, line, memory, fragment, Message { kind: Kind::Lent, ..message });
        // Also where its device has taken the write and not what follows it.
        source.read_by[usize::from(path.number)] = (path.epoch, line.lent());
        Some(sent)
    }
}

impl Source {
    fn part(&self, fragment: &Fragment) -> Span<'_> {
        self.held.read().slice(fragment.offset - self.offset, fragment.bytes)
    }

    /// How a port's device reads it; none where it does not.
    fn registration(&mut self, known: &[Registrations], port: usize) -> Option<Arc<Registration>> {
        let of = &mut self.registrations[port];
        if of.is_none() {
            *of = known[port].of(&self.held);
        }
        of.clone()
    }

    fn send(
        &mut self,
        known: &[Registrations],
        line: &mut Line,
        (memory, place): (&Memory, usize),
        fragment: &Fragment,
        message: Message,
    ) -> Result<bool, TransportError> {
        if fragment.bytes < LENT_BYTES_MIN {
            return copied(line, (memory, place), self.part(fragment), message);
        }
        let Some(registration) = self.registration(known, line.port()) else {
            return copied(line, (memory, place), self.part(fragment), message);
        };
        let from = (self.part(fragment).as_ptr() as u64, registration.keys().0);
        let direct = Direct { from, bytes: fragment.bytes, to: line.there(place) };
        let kept = Kept::Program(self.held.clone());
        line.send_direct(direct, kept, registration, Some(message)).map(|number| number.is_some())
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

/// Sends bytes from where this side keeps them.
pub(super) fn copied(
    line: &mut Line,
    (memory, place): (&Memory, usize),
    bytes: Span<'_>,
    message: Message,
) -> Result<bool, TransportError> {
    if is_carried(bytes.len()) {
        return line.send(None, Some(message), Some(bytes));
    }
    memory.theirs.span(place, bytes.len()).copy_from(bytes);
    line.send(Some(Data::Picture(place, bytes.len())), Some(message), None)
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
        held: &HeldRead,
        ready: Ready,
    ) -> Result<Option<u64>, TransportError> {
        let registrations = self.registered(held);
        let copied = if registrations.is_some() { None } else { Some(held.read()) };
        let Some(fill) = self.make((offset, held.len()), copied, Some(ready))? else { return Ok(None) };
        let mut number = 0;
        if let Some(registrations) = registrations {
            let held = held.clone();
            self.sources.lent += 1;
            number = self.sources.lent;
            let read_by = [(0, 0); LANES_MAX];
            self.sources.all.push_back(Source { fill, offset, held, registrations, read_by });
        }
        self.send_made();
        Ok(Some(number))
    }

    /// How the ports that are to carry a fill read its source; none where one of them does not, or it is to be copied.
    fn registered(&self, held: &HeldRead) -> Option<ByPort> {
        if held.len() < LENT_BYTES_MIN {
            return None;
        }
        let mut of = ByPort::default();
        for lane in self.lanes.iter().filter(|lane| lane.is_open() && !lane.is_reserve) {
            let port = lane.ends.port;
            if of[port].is_none() {
                of[port] = Some(self.sources.known[port].of(held)?);
            }
        }
        of.iter().any(Option::is_some).then_some(of)
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
