//! One end of a queue pair: the messages that it sends and hears, and what of both is over.
//!
//! ```text
//! bytes, in this side's picture of the peer's mailbox ──► write ─► the peer's mailbox ┐ one queue pair,
//! a message, and perhaps a few bytes ──────────────────► write ─► the peer's tray    ─┘ one doorbell
//!                                       the message's immediate says which place of the tray ──► completion at the peer
//! ```
//!
//! An immediate says that its message is there, and all writes of the same queue pair before it. What is written stays as it is until
//! the peer has heard of it, so the device can send it again.
//!
//! Invariant: no more messages are under way than the tray has places and the peer has receives; one that is not the next is
//! refused. Absent: how two ends meet, what messages mean, and who waits.

pub(super) mod lent;
mod sleeping;

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use consort_memory::{Span, SpanMut};

use self::lent::Data;
use super::NAME;
use super::ends::{Ends, Memory};
use super::message::{
    Kind, LETTER_BYTES, MESSAGE_BYTES, Message, PLACE_BYTES, TRAY, TRAY_BYTES, later_packet,
};
use super::queue::{BATCH, Peer, Queue, SENDS, WRITES_MAX, Write};
use super::status::{FLUSHED, RECEIVER_NOT_READY, RETRY_EXCEEDED};
use super::sys::{self, Wc};
use crate::TransportError;
use crate::segment::halves;

/// Places of the tray that are kept for what must go out: words of what was heard, and the end.
const RESERVED: u64 = 8;
/// Looks that bring nothing before the device is asked whether what was sent has arrived.
const ASK_AFTER: u32 = 4096;
/// Messages that are heard before a message of its own says so to the peer.
const SAY_AFTER: u64 = 16;
/// How long the reason of a failure may come after what was flushed by it.
const REASON: Duration = Duration::from_millis(200);
/// Work requests between two that have a completion here.
const SIGNAL_AFTER: u32 = 8;
/// A write of this many bytes has a completion of its own where there are other queue pairs: the next goes where least is under way.
const SIGNALLED_BYTES: usize = 32 << 10;

/// What was written and may have to be sent again.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// Its work request.
    id: u64,
    data: Data,
}

/// One end.
pub(super) struct Line {
    pub(super) queue: Queue,
    memory: Memory,
    ends: Ends,
    /// Messages: sent, and heard by the peer; heard here, and said to have been.
    sent: u64,
    acknowledged: u64,
    heard: u64,
    said: u64,
    /// How many of them there were with the last letter; and whether one of the peer's was heard and not said to have been, for which the peer
    /// waits with its next.
    letter: u64,
    has_letter: bool,
    /// Looks in a row that brought nothing.
    pub(super) idle_looks: u32,
    /// The last work request of each message that may be under way.
    last: [u64; TRAY as usize],
    /// Work requests: posted; over by the device's word; and over, as the peer's words show too.
    posted: u64,
    reaped: u64,
    completed: u64,
    unsignalled: u32,
    /// Whether something could not be sent as long as the device has not said more of what is over.
    awaits_device: bool,
    /// The last work request of the queue pair's former life.
    former: u64,
    under_way: VecDeque<UnderWay>,
    /// The bytes of that.
    load: usize,
    /// What the device reads of the program's.
    lent: lent::Lent,
    /// Hellos that have come, and that must before anything else does.
    greeted: u64,
    greetings: u64,
    is_stopped: bool,
    /// What the peer said that it must not.
    wrong: Option<&'static str>,
    /// The status of the completion that broke it, and when it came.
    broke: Option<(Wc, Instant)>,
}

/// What takes a message in, with the bytes that came with it; what is wrong with it.
pub(super) type Take<'a> = &'a mut dyn FnMut(&Message, Span<'_>) -> Result<(), &'static str>;

impl Line {
    /// This side's end, connected.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn new(queue: Queue, memory: Memory, ends: Ends) -> Result<Self, TransportError> {
        let mut line = Line {
            queue,
            memory,
            ends,
            sent: 0,
            acknowledged: 0,
            heard: 0,
            said: 0,
            letter: 0,
            has_letter: false,
            idle_looks: 0,
            last: [0; TRAY as usize],
            posted: 0,
            reaped: 0,
            completed: 0,
            unsignalled: 0,
            awaits_device: false,
            former: 0,
            under_way: VecDeque::with_capacity(SENDS as usize),
            load: 0,
            lent: lent::Lent::default(),
            greeted: 0,
            greetings: if ends.calls { 1 } else { 2 },
            is_stopped: false,
            wrong: None,
            broke: None,
        };
        line.connect()?;
        Ok(line)
    }

    /// Connects the queue pair to the peer's, behind what both have said: each message of the beginning is one packet.
    fn connect(&mut self) -> Result<(), TransportError> {
        let there = self.ends.peer;
        let expected = Peer { first_packet: later_packet(there.first_packet, self.heard), ..there };
        self.queue.connect(&expected, later_packet(self.ends.first_packet, self.sent), self.ends.is_alone)
    }

    /// How many hellos have come.
    pub(super) fn greeted(&self) -> u64 {
        self.greeted
    }

    /// Which of the endpoint's ports it uses.
    pub(super) fn port(&self) -> usize {
        self.ends.port
    }

    /// Whether this side greets.
    pub(super) fn calls(&self) -> bool {
        self.ends.calls
    }

    /// Where a byte of the peer's memory is there, and by which key.
    pub(super) fn there(&self, offset: usize) -> (u64, u32) {
        (self.ends.start + offset as u64, self.ends.key)
    }

    /// Says that the queue pair is there. Whether it could.
    ///
    /// # Errors
    /// As of [`Line::send`].
    pub(super) fn greet(&mut self) -> Result<bool, TransportError> {
        let (value, tag) = halves(&self.ends.nonces[1]);
        self.say(Message { kind: Kind::Hello, value, tag, ..Message::default() })
    }

    /// Whether it failed in a way in which it does when the peer is not there yet.
    pub(super) fn is_unanswered(&self) -> bool {
        self.broke.is_some_and(|(wc, _)| [FLUSHED, RETRY_EXCEEDED, RECEIVER_NOT_READY].contains(&wc.status))
    }

    /// Stops the queue pair: then it is known what has come.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn stop(&mut self) -> Result<(), TransportError> {
        self.is_stopped = true;
        self.queue.stop()
    }

    /// Whether a queue pair that was stopped has given out everything that had come.
    ///
    /// # Errors
    /// The device's; [`TransportError::Protocol`].
    pub(super) fn is_drained(&mut self, take: Take<'_>) -> Result<bool, TransportError> {
        self.listen(take)?;
        Ok(self.queue.is_drained())
    }

    /// Whether a queue pair that was stopped has given out everything that had come, and has begun again where the two stand.
    ///
    /// # Errors
    /// The device's; [`TransportError::Protocol`].
    pub(super) fn has_begun_again(&mut self, take: Take<'_>) -> Result<bool, TransportError> {
        if !self.is_drained(take)? {
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

    /// Whether all that was sent has arrived.
    pub(super) fn is_delivered(&self) -> bool {
        self.completed == self.posted
    }

    /// Bytes that were written and may not have arrived.
    pub(super) fn load(&self) -> usize {
        self.load
    }

    /// Whether any more can be sent.
    ///
    /// # Errors
    /// [`TransportError::Protocol`]; the reason for which the queue pair failed.
    pub(super) fn check(&self) -> Result<(), TransportError> {
        if let Some(what) = self.wrong {
            return Err(TransportError::Protocol { transport: NAME, what });
        }
        match self.broke {
            Some((wc, _)) if !self.is_undecided() => {
                Err(super::status::failure(&self.queue, &self.ends.peer, &wc))
            }
            _ => Ok(()),
        }
    }

    /// Whether it has failed, perhaps for a reason that is still to come.
    pub(super) fn is_broken(&self) -> bool {
        self.broke.is_some()
    }

    /// Whether the next message of this kind, and what is written before it, have room.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn has_room(&mut self, message: Option<Kind>) -> Result<bool, TransportError> {
        self.has_room_for(WRITES_MAX as u64, message)
    }

    fn has_room_for(&mut self, writes: u64, message: Option<Kind>) -> Result<bool, TransportError> {
        let reserved = match message {
            Some(Kind::Heard | Kind::End | Kind::Fence) => 1,
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
        let has_room = self.posted - self.reaped + writes <= most;
        self.awaits_device |= !has_room;
        Ok(has_room)
    }

    /// Whether a part of the peer's memory is not being written.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn is_free(&mut self, offset: usize, bytes: usize) -> Result<bool, TransportError> {
        let overlaps = |of: &UnderWay| of.data.overlaps(offset, bytes);
        if !self.under_way.iter().any(overlaps) {
            return Ok(true);
        }
        self.hear_of_sent()?;
        let is_free = !self.under_way.iter().any(overlaps);
        // Nothing else may ever say that it is over.
        if !is_free {
            self.awaits_device = true;
            self.ask_device()?;
        }
        Ok(is_free)
    }

    /// Has the device say whether all that was sent has arrived, where nothing says so yet.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn ask(&mut self) -> Result<(), TransportError> {
        if self.broke.is_none() && self.completed < self.posted { self.ask_device() } else { Ok(()) }
    }

    /// Has the device say that all work before is over, where it would not.
    fn ask_device(&mut self) -> Result<(), TransportError> {
        if self.unsignalled > 0 && self.has_room_for(1, None)? {
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
            from: self.memory.theirs.address(offset),
            lkey: self.memory.theirs.keys(self.ends.port).0,
            bytes: bytes as u32,
            to: self.ends.start + offset as u64,
            rkey: self.ends.key,
            immediate,
            is_signalled,
            id: self.posted,
            is_direct: false,
        }
    }

    /// Says something alone. Whether there was room.
    ///
    /// # Errors
    /// As of [`Line::send`].
    pub(super) fn say(&mut self, message: Message) -> Result<bool, TransportError> {
        self.send(None, Some(message), None)
    }

    /// Writes bytes into the peer's memory, and says something behind them; a few bytes may go with the message. Whether there was room.
    ///
    /// # Errors
    /// Those of [`Line::check`]; the device's.
    pub(super) fn send(
        &mut self,
        data: Option<Data>,
        message: Option<Message>,
        carried: Option<Span<'_>>,
    ) -> Result<bool, TransportError> {
        self.check()?;
        if self.broke.is_some() || !self.has_room(message.map(|message| message.kind))? {
            return Ok(false);
        }
        let mut writes: [Option<Write>; WRITES_MAX] = [None; WRITES_MAX];
        if let Some(data) = data {
            // Nothing else says that it is over where there is no message.
            let is_weighed = data.bytes() >= SIGNALLED_BYTES && !self.ends.is_alone;
            let is_signalled = message.is_none() || is_weighed;
            let write = match &data {
                Data::Picture(offset, bytes) => self.next_write(*offset, *bytes, None, is_signalled),
                Data::Direct(direct) => direct.write(self.next_write(0, direct.bytes, None, is_signalled)),
            };
            self.under_way.push_back(UnderWay { id: write.id, data });
            self.load += data.bytes();
            writes[0] = Some(write);
        }
        if let Some(message) = message {
            let place = (self.sent % TRAY) as usize;
            let at = self.ends.trays[1] + place * PLACE_BYTES;
            let length = carried.map_or(0, |bytes| bytes.len());
            let (number, heard) = (self.sent as u32, self.heard as u32);
            let message = Message { number, heard, carried: length as u8, ..message };
            let theirs = &self.memory.theirs;
            theirs.span(at, MESSAGE_BYTES).copy_from(Span::of(&message.encode()));
            if let Some(bytes) = carried {
                theirs.span(at + MESSAGE_BYTES, length).copy_from(bytes);
            }
            let is_last = matches!(message.kind, Kind::Hello | Kind::End | Kind::Fence);
            // Of what only the device reads, either of the two says that it is over.
            let is_unsaid = matches!(data, Some(Data::Direct(_))) && self.unsignalled > 0;
            let must_say = is_last || is_unsaid;
            let is_signalled = must_say || self.unsignalled >= SIGNAL_AFTER;
            writes[1] = Some(self.next_write(at, MESSAGE_BYTES + length, Some(place as u32), is_signalled));
            self.last[place] = self.posted;
            (self.sent, self.said, self.has_letter) = (self.sent + 1, self.heard, false);
        }
        let mut posted: [Write; WRITES_MAX] = [Write::default(); WRITES_MAX];
        let count = writes.into_iter().flatten().enumerate().fold(0, |_, (at, write)| {
            posted[at] = write;
            at + 1
        });
        // What was sent last is asked for in its turn.
        self.idle_looks = 0;
        self.queue.post(&posted[..count]).inspect_err(|_| {
            // What follows would have wrong numbers.
            self.broke.get_or_insert((Wc { status: FLUSHED, ..Wc::default() }, Instant::now()));
        })?;
        Ok(true)
    }

    /// Puts a letter behind the peer's tray, and says so; its bytes are at most [`LETTER_BYTES`]. Whether there was room, for which
    /// the peer must have heard the letter before.
    ///
    /// # Errors
    /// As of [`Line::send`].
    pub(super) fn send_letter(&mut self, kind: Kind, letter: &[u8]) -> Result<bool, TransportError> {
        if self.acknowledged < self.letter {
            return Ok(false);
        }
        let at = self.ends.trays[1] + TRAY_BYTES;
        self.memory.theirs.span(at, letter.len()).copy_from(Span::of(letter));
        let message = Message { kind, value: letter.len() as u64, ..Message::default() };
        let is_sent = self.send(Some(Data::Picture(at, letter.len())), Some(message), None)?;
        self.letter = if is_sent { self.sent } else { self.letter };
        Ok(is_sent)
    }

    /// What of this side's writes is over.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn hear_of_sent(&mut self) -> Result<(), TransportError> {
        let mut completions = [Wc::default(); BATCH];
        loop {
            let count = self.queue.sent(&mut completions)?;
            self.awaits_device &= count == 0;
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
    ///
    /// # Errors
    /// The device's; [`TransportError::Protocol`] when the peer said what it must not.
    pub(super) fn listen(&mut self, take: Take<'_>) -> Result<(), TransportError> {
        let mut completions = [Wc::default(); BATCH];
        loop {
            let count = self.queue.received(&mut completions)?;
            let mut failed = None;
            for wc in &completions[..count] {
                // What has come is heard although there is no room for more.
                if let Err(error) = self.hear(wc, take) {
                    failed.get_or_insert(error);
                }
                if self.wrong.is_some() {
                    break;
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
            if count == 0 {
                return self.hear_of_sent();
            }
        }
    }

    /// Hears what has come, and counts looks that bring nothing. Whether anything has come.
    ///
    /// # Errors
    /// Those of [`Line::listen`].
    pub(super) fn look(&mut self, take: Take<'_>) -> Result<bool, TransportError> {
        let heard = self.heard;
        self.listen(take)?;
        self.idle_looks = if self.heard != heard { 0 } else { self.idle_looks.saturating_add(1) };
        Ok(self.heard != heard)
    }

    /// Asks the device now and then whether what was sent has arrived, as a peer that has nothing to say does not say what it has heard
    /// either. Whether the peer waits for a word of what was heard here.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn owes(&mut self) -> Result<bool, TransportError> {
        if self.broke.is_none() && self.idle_looks == ASK_AFTER && self.completed < self.posted {
            self.ask_device()?;
        }
        Ok(self.broke.is_none() && (self.has_letter || self.heard - self.said >= SAY_AFTER))
    }

    fn hear(&mut self, wc: &Wc, take: Take<'_>) -> Result<(), TransportError> {
        if wc.status != 0 {
            if !self.is_stopped {
                self.fail(wc);
            }
            return Ok(());
        }
        let heard = self.next_message(wc).and_then(|message| self.take(&message, take));
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
        let at = self.ends.trays[0] + place as usize * PLACE_BYTES;
        SpanMut::of(&mut bytes).copy_from(self.memory.own.read(at, MESSAGE_BYTES));
        let message = Message::decode(&bytes).filter(|message| message.number == self.heard as u32);
        message.ok_or("it sent what is not a message")
    }

    fn take(&mut self, message: &Message, take: Take<'_>) -> Result<(), &'static str> {
        if message.kind == Kind::Hello && (message.value, message.tag) != halves(&self.ends.nonces[0]) {
            return Err("its hello is for another endpoint");
        }
        if (message.kind == Kind::Hello) != (self.greeted < self.greetings) {
            return Err("it did not say hello when it should, or did when it should not");
        }
        let at = self.ends.trays[0] + (self.heard % TRAY) as usize * PLACE_BYTES;
        self.heard += 1;
        self.acknowledge(message.heard)?;
        match message.kind {
            Kind::Hello => {
                self.greeted += 1;
                Ok(())
            }
            Kind::Fence => {
                self.has_letter = true;
                let bytes = usize::try_from(message.value).unwrap_or(usize::MAX);
                if bytes > LETTER_BYTES {
                    return Err("it sent a letter that is too long");
                }
                take(message, self.memory.own.read(self.ends.trays[0] + TRAY_BYTES, bytes))
            }
            _ => take(message, self.memory.own.read(at + MESSAGE_BYTES, message.carried.into())),
        }
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
}
