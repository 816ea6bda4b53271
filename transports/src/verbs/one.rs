//! A connection by one queue pair: counters, and credits; one credit waits for the next message, which says it too.
//!
//! ```text
//! fill ──► the bytes are copied to where this side keeps them ──► one write and a message
//! short fill ──► a message with the bytes ──► the peer copies them to its mailbox
//! ```
//!
//! Invariant: a credit is said once; what waits is said before a sleep, and when looks bring nothing for long. A queue pair that fails is
//! the connection's end. Absent: several queue pairs (`session`).

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Poll;

use consort_memory::{Counter, Span, SpanMut};

use super::ends::Memory;
use super::line::lent::{Data, Direct, Kept};
use super::line::{Line, Take};
use super::memory::{LENT_BYTES_MIN, Staging};
use super::message::{CARRIED_BYTES, Kind, LANE_BYTES, Message};
use super::port::Registration;
use super::{NAME, Shared, events};
use crate::closed::Closing;
use crate::counters::raise;
use crate::device::DeviceLink;
use crate::mapped::check_bounds;
use crate::streams::{Deferred, Ready};
use crate::{Capabilities, Connection, CounterKind, PeerState, RemoteRegion, TransportError};

/// Looks that bring nothing before a credit waits no longer for another message.
const IDLE_LOOKS: u32 = 32;

/// One end of a connection by one queue pair.
pub(super) struct One {
    pub(super) line: Line,
    heard: Heard,
    memory: Memory,
    /// Trays that come before the mailbox at the peer, in bytes.
    trays_there: usize,
    deferred: Deferred,
}

/// What has come.
struct Heard {
    memory: Memory,
    /// Trays that come before the mailbox here, in bytes.
    trays: usize,
    ready: Counter,
    credit: Counter,
    has_ended: bool,
}

impl Heard {
    fn take(&mut self, message: &Message, carried: Span<'_>) -> Result<(), &'static str> {
        if message.credit.0 > 0 {
            raise(&self.credit, message.credit.0, message.credit.1)?;
        }
        match message.kind {
            Kind::Ready => {
                let own = &self.memory.own;
                let offset = message.offset as usize;
                if offset + carried.len() > own.bytes() - self.trays {
                    return Err("it sent more than the mailbox has room for");
                }
                own.span(self.trays + offset, carried.len()).copy_from(carried);
                raise(&self.ready, message.value, message.tag)
            }
            Kind::End => {
                self.has_ended = true;
                Ok(())
            }
            Kind::Hello | Kind::Heard => Ok(()),
            Kind::Put | Kind::Ask | Kind::Fence | Kind::Dial | Kind::Dialled | Kind::Lent => {
                Err("it sent what only connections of several queue pairs do")
            }
        }
    }
}

impl One {
    /// Over a line, between endpoints with as many trays, this side's and the peer's.
    pub(super) fn new(line: Line, memory: Memory, trays: [usize; 2]) -> Self {
        let [trays, trays_there] = trays.map(|count| count * LANE_BYTES);
        let (ready, credit) = (Counter::standalone(), Counter::standalone());
        let heard = Heard { memory: memory.clone(), trays, ready, credit, has_ended: false };
        One { line, heard, memory, trays_there, deferred: Deferred::default() }
    }

    fn mailbox(&self) -> SpanMut<'_> {
        let own = &self.memory.own;
        own.span(self.heard.trays, own.bytes() - self.heard.trays)
    }

    fn peer_mailbox_bytes(&self) -> usize {
        self.memory.theirs.bytes() - self.trays_there
    }

    /// Bytes that it takes beside its mailbox.
    fn kept_bytes(&self) -> usize {
        self.memory.theirs.bytes() + self.heard.trays
    }

    fn is_delivered(&self) -> bool {
        self.line.is_delivered() && !self.deferred.is_due()
    }

    /// Gives the line what takes in what it hears.
    pub(super) fn with<R>(&mut self, run: impl FnOnce(&mut Line, Take<'_>) -> R) -> R {
        let Self { line, heard, .. } = self;
        run(line, &mut |message, carried| heard.take(message, carried))
    }

    /// Whether any more can be sent.
    ///
    /// # Errors
    /// [`TransportError::PeerClosed`] after the peer's end; those of [`Line::check`].
    fn check(&self) -> Result<(), TransportError> {
        if self.heard.has_ended {
            return Err(TransportError::PeerClosed { transport: NAME });
        }
        self.line.check()
    }

    /// Says something, with the credit that waits. Whether there was room.
    fn say(&mut self, kind: Kind) -> Result<bool, TransportError> {
        self.send(None, Some((kind, 0, 0)))
    }

    /// Writes bytes into the peer's mailbox, and says something behind them. Whether there was room.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`]; those of [`One::check`]; the device's.
    fn send(
        &mut self,
        data: Option<(usize, Span<'_>)>,
        says: Option<(Kind, u64, u64)>,
    ) -> Result<bool, TransportError> {
        self.check()?;
        if self.line.is_broken() {
            return Ok(false);
        }
        if let Some((offset, bytes)) = &data {
            check_bounds(NAME, *offset, bytes.len(), self.peer_mailbox_bytes())?;
        }
        let data = data.filter(|(_, bytes)| !bytes.is_empty());
        // A message has them with it where they are few.
        let is_carried = |(_, bytes): &(usize, Span<'_>)| {
            matches!(says, Some((Kind::Ready, ..))) && bytes.len() <= CARRIED_BYTES
        };
        let (carried, data) = if data.as_ref().is_some_and(is_carried) { (data, None) } else { (None, data) };
        let place = data.map(|(offset, bytes)| (self.trays_there + offset, bytes.len()));
        if let Some((at, bytes)) = place
            && !self.line.is_free(at, bytes)?
        {
            return Ok(false);
        }
        if !self.line.has_room(says.map(|(kind, ..)| kind))? {
            return Ok(false);
        }
        if let (Some((at, length)), Some((_, bytes))) = (place, data) {
            self.memory.theirs.span(at, length).copy_from(bytes);
        }
        let message = says.map(|(kind, value, tag)| {
            let credit = self.take_credit();
            let offset = carried.map_or(0, |(offset, _)| offset as u32);
            Message { kind, value, tag, credit, offset, ..Message::default() }
        });
        let place = place.map(|(at, length)| Data::Picture(at, length));
        self.line.send(place, message, carried.map(|(_, bytes)| bytes))
    }

    /// Where a byte of the peer's mailbox is there, and by which key.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`].
    pub(super) fn place(&self, offset: usize, bytes: usize) -> Result<(u64, u32), TransportError> {
        check_bounds(NAME, offset, bytes, self.peer_mailbox_bytes())?;
        Ok(self.line.there(self.trays_there + offset))
    }

    /// Has the device write what is kept until that is over, and says something behind it. The number of the source, if there was room.
    ///
    /// # Errors
    /// As of [`One::send`].
    pub(super) fn send_direct(
        &mut self,
        direct: Direct,
        kept: Kept,
        registration: Arc<Registration>,
        says: Option<(Kind, u64, u64)>,
    ) -> Result<Option<u64>, TransportError> {
        self.check()?;
        if self.line.is_broken() || !self.line.has_room(says.map(|(kind, ..)| kind))? {
            return Ok(None);
        }
        let message = says.map(|(kind, value, tag)| {
            let credit = self.take_credit();
            Message { kind, value, tag, credit, ..Message::default() }
        });
        self.line.send_direct(direct, kept, registration, message)
    }

    /// The credit that waits, which is said with what follows.
    fn take_credit(&mut self) -> (u64, u64) {
        self.deferred.take().map_or((0, 0), |Ready { value, tag }| (value, tag))
    }

    /// Raises the peer's counter of free slots with what is sent next, or now where it waits for a second time.
    fn credit(&mut self, value: u64, tag: u64) -> Result<(), TransportError> {
        self.check()?;
        self.line.idle_looks = 0;
        if !self.deferred.defer(Ready { value, tag }) {
            self.flush_credits()?;
        }
        Ok(())
    }

    /// Says what waits, if there is room.
    fn flush_credits(&mut self) -> Result<(), TransportError> {
        if self.deferred.is_due() {
            self.say(Kind::Heard)?;
        }
        Ok(())
    }

    /// Takes in what has come.
    ///
    /// # Errors
    /// [`TransportError::Protocol`] when the peer said what it must not; the reason for which the queue pair failed.
    fn progress(&mut self) -> Result<PeerState, TransportError> {
        self.with(|line, take| line.look(take))?;
        if self.heard.has_ended {
            return Ok(PeerState::Closed);
        }
        self.line.check()?;
        let waits = self.deferred.is_due() && self.line.idle_looks > IDLE_LOOKS;
        if self.line.owes()? || (waits && !self.line.is_broken()) {
            self.say(Kind::Heard)?;
        }
        Ok(PeerState::Open)
    }

    /// From now on what comes makes the descriptor readable, and no credit waits. Whether nothing has come before that.
    fn arm(&mut self) -> Result<bool, TransportError> {
        if !self.line.is_broken() && !self.heard.has_ended {
            self.flush_credits()?;
        }
        self.with(|line, take| line.arm(take))
    }

    /// Takes in what has come, and what the device has said of the queue pair.
    ///
    /// # Errors
    /// Those of [`One::progress`]; what the device said.
    pub(super) fn hear(&mut self) -> Result<PeerState, TransportError> {
        let heard = self.progress();
        if let Err(TransportError::Completion { .. }) = &heard {
            // Its reason may be there, and the control thread not have come to it yet.
            self.line.queue.port().hear();
        }
        match events::trouble(&self.line.queue) {
            Some(trouble) if !matches!(heard, Ok(PeerState::Closed)) => Err(trouble),
            _ => heard,
        }
    }
}

impl Closing for One {
    fn is_open(&mut self) -> bool {
        matches!(self.progress(), Ok(PeerState::Open))
    }

    fn say_end(&mut self) -> bool {
        self.say(Kind::End).unwrap_or(true)
    }

    fn is_delivered(&self) -> bool {
        One::is_delivered(self)
    }
}

/// An established connection by one queue pair.
pub(super) struct OneConnection {
    pub(super) shared: Arc<Shared>,
    /// None when it is dropped.
    pub(super) one: Option<One>,
    /// For memory of a device that the adapter does not reach; made when it is first needed.
    pub(super) staging: Option<Staging>,
}

impl OneConnection {
    pub(super) fn new(shared: Arc<Shared>, one: One) -> Self {
        OneConnection { shared, one: Some(one), staging: None }
    }

    pub(super) fn one(&self) -> &One {
        self.one.as_ref().expect("there until it is dropped")
    }

    /// # Errors
    /// That this is a forked child.
    pub(super) fn own(&mut self) -> Result<&mut One, TransportError> {
        let one = self.one.as_mut().expect("there until it is dropped");
        one.line.queue.port().check_fork()?;
        Ok(one)
    }
}

fn polled(is_ready: bool) -> Poll<()> {
    if is_ready { Poll::Ready(()) } else { Poll::Pending }
}

impl Connection for OneConnection {
    fn transport(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { load_store: false, put: true, ordered: true, needs_progress: true }
    }

    fn mailbox(&self) -> SpanMut<'_> {
        self.one().mailbox()
    }

    fn kept_bytes(&self) -> usize {
        self.one().kept_bytes()
    }

    fn remote(&self) -> RemoteRegion<'_> {
        RemoteRegion { bytes: self.one().peer_mailbox_bytes(), mapped: None }
    }

    fn counter(&self, kind: CounterKind) -> &Counter {
        match kind {
            CounterKind::Ready => &self.one().heard.ready,
            CounterKind::Credit => &self.one().heard.credit,
        }
    }

    fn peer_counter(&self, _kind: CounterKind) -> Option<&Counter> {
        None
    }

    fn put(&mut self, offset: usize, bytes: Span<'_>, done: &mut usize) -> Result<Poll<()>, TransportError> {
        let put = self.own()?.send(Some((offset, bytes)), None)?;
        *done = if put { bytes.len() } else { *done };
        Ok(polled(put))
    }

    fn fill(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        (value, tag): (u64, u64),
        done: &mut usize,
    ) -> Result<Poll<()>, TransportError> {
        let filled = self.own()?.send(Some((offset, bytes)), Some((Kind::Ready, value, tag)))?;
        *done = if filled { bytes.len() } else { *done };
        Ok(polled(filled))
    }

    fn fill_from(
        &mut self,
        offset: usize,
        source: Span<'_>,
        (value, tag): (u64, u64),
        done: &mut usize,
    ) -> Result<Poll<u64>, TransportError> {
        let large = Some(source).filter(|source| source.len() >= LENT_BYTES_MIN);
        let Some(registration) =
            large.and_then(|source| self.shared.registrations[self.one().line.port()].of(source))
        else {
            return Ok(self.fill(offset, source, (value, tag), done)?.map(|()| 0));
        };
        let one = self.own()?;
        let from = (source.as_ptr() as u64, registration.keys().0);
        let direct = Direct { from, bytes: source.len(), to: one.place(offset, source.len())? };
        let sent = one.send_direct(direct, Kept::Program, registration, Some((Kind::Ready, value, tag)))?;
        Ok(sent.map_or(Poll::Pending, |number| {
            *done = source.len();
            Poll::Ready(number)
        }))
    }

    fn is_free(&self, number: u64) -> bool {
        self.one().line.is_source_free(number)
    }

    fn fence(&mut self) -> Result<(), TransportError> {
        self.own()?.line.fence()
    }

    fn device_link(&mut self) -> Option<&mut dyn DeviceLink> {
        // Devices' memory is known to the first port.
        if self.one().line.port() == 0 { Some(self) } else { None }
    }

    fn signal(&mut self, kind: CounterKind, value: u64, tag: u64) -> Result<Poll<()>, TransportError> {
        let one = self.own()?;
        Ok(polled(match kind {
            CounterKind::Ready => one.send(None, Some((Kind::Ready, value, tag)))?,
            CounterKind::Credit => {
                one.credit(value, tag)?;
                true
            }
        }))
    }

    fn flush_credits(&mut self) {
        // A failure is the next look's to say.
        let _ = self.own().and_then(One::flush_credits);
    }

    fn deferred_credits(&self) -> u64 {
        self.one().deferred.count()
    }

    fn looks_by_calls(&self) -> bool {
        false
    }

    fn arm(&mut self) -> bool {
        self.own().and_then(One::arm).unwrap_or(false)
    }

    fn is_delivered(&self) -> bool {
        self.one().is_delivered()
    }

    fn progress(&mut self) -> Result<PeerState, TransportError> {
        self.own()?.hear()
    }

    fn waits_for_room(&self, _at: usize) -> bool {
        false
    }

    fn wake_at(&self, at: usize) -> Option<BorrowedFd<'_>> {
        (at == 0).then(|| self.one().line.queue.descriptor())
    }
}

impl Drop for OneConnection {
    fn drop(&mut self) {
        let Some(one) = self.one.take() else { return };
        // A child's copy is the parent's queue pair.
        if self.shared.is_forked_child() {
            std::mem::forget(one);
            return;
        }
        self.shared.closed.keep(Box::new(one));
    }
}
