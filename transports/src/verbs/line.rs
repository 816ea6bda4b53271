//! One end of a connection by a queue pair: what it sends, what it hears, and what of both is over.
//!
//! ```text
//! fill ──► the bytes are copied to where this side keeps them; write of the bytes ─► the peer's mailbox ┐ one queue pair,
//!                                                            write of a message ───► the peer's tray  ─┘ one doorbell
//!                                     the message's immediate says which place of the tray ──► completion at the peer
//! short fill ──► write of a message and the bytes behind it ──► the peer's tray ──► completion; the peer copies them to its mailbox
//! ```
//!
//! A credit waits for the next message, which says it too, unless it is the second.
//!
//! An immediate says that its message is there, and all writes of the same queue pair before it. What is written stays as it is until
//! the peer has heard of it, so the device can send it again.
//!
//! Invariant: no more messages are under way than the tray has places and the peer has receives; one that is not the next is
//! refused. Absent: how two ends meet, and who waits.

mod credits;
pub(super) mod lent;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use consort_memory::{Counter, Mapping, Span, SpanMut};

use self::lent::Direct;
use super::NAME;
use super::message::{
    CARRIED_BYTES, Kind, MESSAGE_BYTES, Message, PLACE_BYTES, Place, TRAY, TRAY_BYTES, later_packet,
};
use super::port::{Domain, Region, Written};
use super::queue::{BATCH, Peer, Queue, SENDS, WRITES_MAX, Write};
use super::status::{FLUSHED, RECEIVER_NOT_READY, RETRY_EXCEEDED};
use super::sys::{self, Wc};
use crate::counters::raise;
use crate::mapped::check_bounds;
use crate::segment::{Nonce, halves};
use crate::{PeerState, TransportError};

/// Places of the tray that are kept for what must go out: words of what was heard, and the end.
const RESERVED: u64 = 8;
/// Looks that bring nothing before a credit waits no longer for another message.
const IDLE_LOOKS: u32 = 32;
/// Looks that bring nothing before the device is asked whether what was sent has arrived.
const ASK_AFTER: u32 = 4096;
/// Messages that are heard before a message of its own says so to the peer.
const SAY_AFTER: u64 = 16;
/// How long the reason of a failure may come after what was flushed by it.
const REASON: Duration = Duration::from_millis(200);
/// Work requests between two that have a completion here.
const SIGNAL_AFTER: u32 = 8;

/// What was written and may have to be sent again.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// Its work request.
    id: u64,
    offset: usize,
    bytes: usize,
}

/// One end.
pub(super) struct Line {
    pub(super) queue: Queue,
    /// A tray and the mailbox, which the peer writes.
    own: Region,
    /// The peer's, as this side has written them.
    theirs: Region,
    pub(super) peer: Place,
    /// The first packet of this side, and what the peer's hello must say.
    first_packet: u32,
    nonce: Nonce,
    pub(super) ready: Counter,
    pub(super) credit: Counter,
    /// Messages: sent, and heard by the peer; heard here, and said to have been.
    sent: u64,
    acknowledged: u64,
    heard: u64,
    said: u64,
    /// The credit that waits, with its tag, and the last that was said; looks since then that brought nothing.
    deferred: Option<(u64, u64)>,
    credited: u64,
    idle_looks: u32,
    /// The last work request of each message that may be under way.
    last: [u64; TRAY as usize],
    /// Work requests: posted; over by the device's word; and over, as the peer's words show too.
    posted: u64,
    reaped: u64,
    completed: u64,
    unsignalled: u32,
    /// The last work request of the queue pair's former life.
    former: u64,
    under_way: VecDeque<UnderWay>,
    /// What the device reads of the program's.
    lent: lent::Lent,
    /// Hellos that have come, and that must before anything else does.
    greeted: u64,
    greetings: u64,
    is_stopped: bool,
    /// The peer has ended.
    pub(super) has_ended: bool,
    /// What it said that it must not.
    wrong: Option<&'static str>,
    /// The status of the completion that broke it, and when it came.
    broke: Option<(Wc, Instant)>,
}

/// Memory of a tray and such a mailbox.
///
/// # Errors
/// [`TransportError::OutOfMemory`].
pub(super) fn memory(
    domain: &Arc<Domain>,
    mailbox_bytes: usize,
    node: Option<u32>,
    by: Written,
) -> Result<Region, TransportError> {
    let out_of = || TransportError::OutOfMemory {
        transport: NAME,
        needed_bytes: mailbox_bytes,
        what: "mailbox",
        source: std::io::Error::from_raw_os_error(libc::ENOMEM),
    };
    let bytes = mailbox_bytes.checked_add(TRAY_BYTES).ok_or_else(out_of)?;
    let mapping = Mapping::anonymous_on(bytes, node).map_err(|error| TransportError::memory(NAME, error))?;
    domain.register(mapping, by)
}

impl Line {
    /// This side's end of a connection of the endpoint `here` to the endpoint `there`, which it `calls` or by which it is called.
    ///
    /// # Errors
    /// [`TransportError::OutOfMemory`] for what the peer's mailbox is written from; the device's.
    pub(super) fn new(
        own: Region,
        queue: Queue,
        here: &Place,
        there: Place,
        calls: bool,
    ) -> Result<Self, TransportError> {
        let theirs = memory(&queue.domain, there.mailbox_bytes as usize, None, Written::Here)?;
        let mut line = Line {
            queue,
            own,
            theirs,
            peer: there,
            first_packet: here.peer.first_packet,
            nonce: here.nonce,
            ready: Counter::standalone(),
            credit: Counter::standalone(),
            sent: 0,
            acknowledged: 0,
            heard: 0,
            said: 0,
            deferred: None,
            credited: 0,
            idle_looks: 0,
            last: [0; TRAY as usize],
            posted: 0,
            reaped: 0,
            completed: 0,
            unsignalled: 0,
            former: 0,
            under_way: VecDeque::with_capacity(SENDS as usize),
            lent: lent::Lent::default(),
            greeted: 0,
            greetings: if calls { 1 } else { 2 },
            is_stopped: false,
            has_ended: false,
            wrong: None,
            broke: None,
        };
        line.connect()?;
        Ok(line)
    }

    /// Connects the queue pair to the peer's, behind what both have said: each message of the beginning is one packet.
    fn connect(&mut self) -> Result<(), TransportError> {
        let there = self.peer.peer;
        let expected = Peer { first_packet: later_packet(there.first_packet, self.heard), ..there };
        self.queue.connect(&expected, later_packet(self.first_packet, self.sent))
    }

    /// How many hellos have come.
    pub(super) fn greeted(&self) -> u64 {
        self.greeted
    }

    /// Says that the queue pair is there. Whether it could.
    ///
    /// # Errors
    /// As of [`Line::send`].
    pub(super) fn greet(&mut self) -> Result<bool, TransportError> {
        let (value, tag) = halves(&self.peer.nonce);
        self.send(None, Some((Kind::Hello, value, tag)))
    }

    /// Whether it failed in a way in which it does when the peer is not there yet.
    pub(super) fn is_unanswered(&self) -> bool {
        self.broke.is_some_and(|(wc, _)| [FLUSHED, RETRY_EXCEEDED, RECEIVER_NOT_READY].contains(&wc.status))
    }

    /// Stops the queue pair, to greet again a peer that may not have been there: then it is known what has come.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn stop(&mut self) -> Result<(), TransportError> {
        self.is_stopped = true;
        self.queue.stop()
    }

    /// Whether a queue pair that was stopped has given out everything that had come, and has begun again where the two stand.
    ///
    /// # Errors
    /// The device's; [`TransportError::Protocol`].
    pub(super) fn has_begun_again(&mut self) -> Result<bool, TransportError> {
        self.listen()?;
        if !self.queue.is_drained() {
            return Ok(false);
        }
        self.queue.begin_again()?;
        // What the peer has answered has arrived; what it has not is said again, under the same packet's number.
        self.sent = self.heard.min(1);
        self.acknowledged = self.sent;
        (self.reaped, self.completed, self.former) = (self.posted, self.posted, self.posted);
        (self.last, self.unsignalled) = ([self.posted; TRAY as usize], 0);
        (self.broke, self.is_stopped) = (None, false);
        self.connect()?;
        // Or the answer to what was heard, which is all the same.
        self.greet()
    }

    pub(super) fn mailbox(&self) -> SpanMut<'_> {
        self.own.span(TRAY_BYTES, self.own.bytes() - TRAY_BYTES)
    }

    pub(super) fn peer_mailbox_bytes(&self) -> usize {
        self.theirs.bytes() - TRAY_BYTES
    }

    /// Bytes that it takes beside its mailbox.
    pub(super) fn kept_bytes(&self) -> usize {
        self.theirs.bytes() + TRAY_BYTES
    }

    /// Whether all that was sent has arrived.
    pub(super) fn is_delivered(&self) -> bool {
        self.completed == self.posted && self.deferred.is_none()
    }

    /// Whether any more can be sent.
    ///
    /// # Errors
    /// [`TransportError::PeerClosed`] after its end; the reason for which the queue pair failed.
    pub(super) fn check(&self) -> Result<(), TransportError> {
        if let Some(what) = self.wrong {
            return Err(TransportError::Protocol { transport: NAME, what });
        }
        if self.has_ended {
            return Err(TransportError::PeerClosed { transport: NAME });
        }
        match self.broke {
            Some((wc, _)) if !self.is_undecided() => Err(self.failure(&wc)),
            _ => Ok(()),
        }
    }

    /// Whether this number of work requests, and one message more, have room.
    fn has_room(&mut self, writes: u64, message: Option<Kind>) -> Result<bool, TransportError> {
        let reserved = match message {
            Some(Kind::Heard | Kind::End) => 1,
            _ => RESERVED,
        };
        if message.is_some() && self.sent - self.acknowledged >= TRAY - reserved {
            return Ok(false);
        }
        // What must go out has room when nothing else has.
        let most = u64::from(SENDS) - if reserved == 1 { 0 } else { 2 * WRITES_MAX as u64 };
        if self.posted - self.reaped + writes > most {
            self.hear_of_sent()?;
        }
        Ok(self.posted - self.reaped + writes <= most)
    }

    /// Whether a part of the peer's mailbox is not being written.
    fn is_free(&mut self, offset: usize, bytes: usize) -> Result<bool, TransportError> {
        let overlaps = |of: &UnderWay| of.offset < offset + bytes && offset < of.offset + of.bytes;
        if !self.under_way.iter().any(overlaps) {
            return Ok(true);
        }
        self.hear_of_sent()?;
        let is_free = !self.under_way.iter().any(overlaps);
        // Nothing else may ever say that it is over.
        if !is_free {
            self.ask_device()?;
        }
        Ok(is_free)
    }

    /// Has the device say that all work before is over, where it would not.
    fn ask_device(&mut self) -> Result<(), TransportError> {
        if self.unsignalled > 0 && self.has_room(1, None)? {
            let ask = self.next_write(0, 0, None, true);
            self.queue.post(&[ask])?;
        }
        Ok(())
    }

    fn next_write(
        &mut self,
        offset: usize,
        bytes: usize,
        immediate: Option<u32>,
        is_signalled: bool,
    ) -> Write {
        self.posted += 1;
        self.unsignalled = if is_signalled { 0 } else { self.unsignalled + 1 };
        Write {
            from: self.theirs.address(offset),
            lkey: self.theirs.keys().0,
            bytes: bytes as u32,
            to: self.peer.start + offset as u64,
            rkey: self.peer.key,
            immediate,
            is_signalled,
            id: self.posted,
            is_direct: false,
        }
    }

    /// Writes bytes into the peer's mailbox, and says something behind them. Whether there was room.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`]; those of [`Line::check`]; the device's.
    pub(super) fn send(
        &mut self,
        data: Option<(usize, Span<'_>)>,
        says: Option<(Kind, u64, u64)>,
    ) -> Result<bool, TransportError> {
        self.send_data(data, None, says)
    }

    /// The same, or with bytes that the device reads where they are.
    fn send_data(
        &mut self,
        data: Option<(usize, Span<'_>)>,
        direct: Option<Direct>,
        says: Option<(Kind, u64, u64)>,
    ) -> Result<bool, TransportError> {
        self.check()?;
        if self.broke.is_some() {
            return Ok(false);
        }
        if let Some((offset, bytes)) = &data {
            check_bounds(NAME, *offset, bytes.len(), self.peer_mailbox_bytes())?;
        }
        let data = data.filter(|(_, bytes)| !bytes.is_empty());
        // A message has them with it where they are few and the offset has a name there.
        let is_carried = |(offset, bytes): &(usize, Span<'_>)| {
            matches!(says, Some((Kind::Ready, ..)))
                && bytes.len() <= CARRIED_BYTES
                && u32::try_from(*offset).is_ok()
        };
        let (carried, data) = if data.as_ref().is_some_and(is_carried) { (data, None) } else { (None, data) };
        if let Some((offset, bytes)) = &data
            && !self.is_free(*offset, bytes.len())?
        {
            return Ok(false);
        }
        if !self.has_room(WRITES_MAX as u64, says.map(|(kind, ..)| kind))? {
            return Ok(false);
        }
        let mut writes: [Option<Write>; WRITES_MAX] = [None; WRITES_MAX];
        if let Some((offset, bytes)) = data {
            self.theirs.span(TRAY_BYTES + offset, bytes.len()).copy_from(bytes);
            // Nothing else says that it is over.
            let write = self.next_write(TRAY_BYTES + offset, bytes.len(), None, says.is_none());
            self.under_way.push_back(UnderWay { id: write.id, offset, bytes: bytes.len() });
            writes[0] = Some(write);
        } else if let Some(direct) = &direct {
            writes[0] = Some(direct.write(self.next_write(0, direct.bytes, None, says.is_none())));
        }
        if let Some((kind, value, tag)) = says {
            let place = (self.sent % TRAY) as usize;
            let at = place * PLACE_BYTES;
            let (offset, length) = carried.as_ref().map_or((0, 0), |(offset, bytes)| (*offset, bytes.len()));
            // A hello may be said again, and a credit is not.
            let credit = if kind == Kind::Hello { None } else { self.deferred.take() };
            self.credited = credit.map_or(self.credited, |(value, _)| value);
            let message = Message {
                kind,
                number: self.sent as u32,
                heard: self.heard as u32,
                value,
                tag,
                credit: credit.unwrap_or_default(),
                offset: offset as u32,
                carried: length as u8,
            };
            self.theirs.span(at, MESSAGE_BYTES).copy_from(Span::of(&message.encode()));
            if let Some((_, bytes)) = carried {
                self.theirs.span(at + MESSAGE_BYTES, length).copy_from(bytes);
            }
            let must_say = direct.is_some() || matches!(kind, Kind::Hello | Kind::End);
            let is_signalled = must_say || self.unsignalled >= SIGNAL_AFTER;
            writes[1] = Some(self.next_write(at, MESSAGE_BYTES + length, Some(place as u32), is_signalled));
            self.last[place] = self.posted;
            (self.sent, self.said) = (self.sent + 1, self.heard);
        }
        let mut posted: [Write; WRITES_MAX] = [Write::default(); WRITES_MAX];
        let count = writes.into_iter().flatten().enumerate().fold(0, |_, (at, write)| {
            posted[at] = write;
            at + 1
        });
        self.queue.post(&posted[..count]).inspect_err(|_| {
            // What follows would have wrong numbers.
            self.broke.get_or_insert((Wc { status: FLUSHED, ..Wc::default() }, Instant::now()));
        })?;
        Ok(true)
    }

    /// What of this side's writes is over.
    fn hear_of_sent(&mut self) -> Result<(), TransportError> {
        let mut completions = [Wc::default(); BATCH];
        loop {
            let count = self.queue.sent(&mut completions)?;
            for wc in &completions[..count] {
                if wc.wr_id <= self.former {
                    continue;
                }
                if wc.status == 0 {
                    self.reaped = self.reaped.max(wc.wr_id);
                    self.completed = self.completed.max(wc.wr_id);
                } else {
                    self.lent.flush(wc.wr_id);
                    self.fail(wc);
                }
            }
            if count < BATCH {
                break;
            }
        }
        self.retire();
        Ok(())
    }

    /// Keeps why it failed: what was flushed then says least.
    fn fail(&mut self, wc: &Wc) {
        if self.broke.is_none_or(|(before, _)| before.status == FLUSHED) {
            self.broke = Some((*wc, Instant::now()));
        }
    }

    /// Whether it has failed, and the completion that says why may still come.
    fn is_undecided(&self) -> bool {
        self.broke.is_some_and(|(wc, since)| wc.status == FLUSHED && since.elapsed() < REASON)
    }

    /// Hears what has come.
    fn listen(&mut self) -> Result<(), TransportError> {
        let mut completions = [Wc::default(); BATCH];
        loop {
            let count = self.queue.received(&mut completions)?;
            for wc in &completions[..count] {
                self.hear(wc)?;
            }
            if count == 0 {
                return self.hear_of_sent();
            }
        }
    }

    /// Takes in what has come.
    ///
    /// # Errors
    /// [`TransportError::Protocol`] when the peer said what it must not; the reason for which the queue pair failed.
    pub(super) fn progress(&mut self) -> Result<PeerState, TransportError> {
        let heard = self.heard;
        self.listen()?;
        if self.has_ended {
            return Ok(PeerState::Closed);
        }
        self.check()?;
        self.idle_looks = if self.heard != heard { 0 } else { self.idle_looks.saturating_add(1) };
        // A peer that has nothing to say does not say what it has heard either.
        if self.broke.is_none() && self.idle_looks == ASK_AFTER && self.completed < self.posted {
            self.ask_device()?;
        }
        let waits = self.deferred.is_some() && self.idle_looks > IDLE_LOOKS;
        if self.broke.is_none() && (waits || self.heard - self.said >= SAY_AFTER) {
            self.send(None, Some((Kind::Heard, 0, 0)))?;
        }
        Ok(PeerState::Open)
    }

    /// From now on what comes makes the descriptor readable, and no credit waits. Whether nothing has come before that.
    ///
    /// # Errors
    /// As of [`Line::progress`].
    pub(super) fn arm(&mut self) -> Result<bool, TransportError> {
        if self.broke.is_none() && !self.has_ended {
            self.flush_credits()?;
        }
        self.queue.arm()?;
        let before = (self.heard, self.broke.is_some());
        self.listen()?;
        // What had come may have been announced late, and have taken the place of what is to come.
        Ok((self.heard, self.broke.is_some()) == before && self.queue.is_armed())
    }

    fn hear(&mut self, wc: &Wc) -> Result<(), TransportError> {
        // What was flushed of a former life says nothing of this one.
        if wc.wr_id != self.queue.life() {
            return Ok(());
        }
        if wc.status != 0 {
            if !self.is_stopped {
                self.fail(wc);
            }
            return Ok(());
        }
        let heard = self.next_message(wc).and_then(|message| self.take(&message));
        heard.map_err(|what| {
            self.wrong = Some(what);
            TransportError::Protocol { transport: NAME, what }
        })?;
        if self.is_stopped { Ok(()) } else { self.queue.post_receive() }
    }

    /// The message of a completion.
    fn next_message(&self, wc: &Wc) -> Result<Message, &'static str> {
        if self.heard - self.said >= TRAY {
            return Err("it sent more than it has places for");
        }
        let place = self.heard % TRAY;
        if wc.opcode != sys::WC_RECV_RDMA_WITH_IMM || u64::from(u32::from_be(wc.imm_data)) != place {
            return Err("it sent what is not the next message");
        }
        // What the device wrote is read after the completion.
        fence(Ordering::Acquire);
        let mut bytes = [0; MESSAGE_BYTES];
        SpanMut::of(&mut bytes).copy_from(self.own.read(place as usize * PLACE_BYTES, MESSAGE_BYTES));
        let message = Message::decode(&bytes).filter(|message| message.number == self.heard as u32);
        message.ok_or("it sent what is not a message")
    }

    fn take(&mut self, message: &Message) -> Result<(), &'static str> {
        if message.kind == Kind::Hello && (message.value, message.tag) != halves(&self.nonce) {
            return Err("its hello is for another endpoint");
        }
        if (message.kind == Kind::Hello) != (self.greeted < self.greetings) {
            return Err("it did not say hello when it should, or did when it should not");
        }
        let (place, carried) = ((self.heard % TRAY) as usize, usize::from(message.carried));
        let end = (message.offset as usize).checked_add(carried);
        if end.is_none_or(|end| end > self.own.bytes() - TRAY_BYTES) {
            return Err("it sent more than the mailbox has room for");
        }
        self.heard += 1;
        self.acknowledge(message.heard)?;
        if message.credit.0 > 0 {
            raise(&self.credit, message.credit.0, message.credit.1)?;
        }
        match message.kind {
            Kind::Ready => {
                let bytes = self.own.read(place * PLACE_BYTES + MESSAGE_BYTES, carried);
                self.own.span(TRAY_BYTES + message.offset as usize, carried).copy_from(bytes);
                raise(&self.ready, message.value, message.tag)?;
            }
            Kind::Hello => self.greeted += 1,
            Kind::Heard => {}
            Kind::End => self.has_ended = true,
        }
        Ok(())
    }

    /// How many of this side's messages the peer has heard, by the lower half of the number.
    fn acknowledge(&mut self, heard: u32) -> Result<(), &'static str> {
        let new = u64::from(heard.wrapping_sub(self.acknowledged as u32));
        if new > self.sent - self.acknowledged {
            return Err("it says that it has heard what was not sent");
        }
        self.acknowledged += new;
        if let Some(last) = self.acknowledged.checked_sub(1).filter(|_| new > 0) {
            self.completed = self.completed.max(self.last[(last % TRAY) as usize]);
            self.retire();
        }
        Ok(())
    }

    fn failure(&self, wc: &Wc) -> TransportError {
        super::status::failure(&self.queue, &self.peer, wc)
    }
}
