//! One end of a connection by two comms: what it sends, what it hears, and what of both is over.
//!
//! ```text
//! fill ──► header and bytes are copied into a place ──► isend ──► the peer's oldest receive ──► copied into its mailbox
//!          a long fill in pieces, the signal with the last                                      counters are raised
//! ```
//!
//! A receiver has a receive posted in each of its places, so a message never waits to be asked for. What a plugin sends on one comm
//! comes in the order in which it was sent; a message that is not the next is refused.
//!
//! Invariant: no more requests are under way on a comm than it has places, which any plugin allows; only the oldest is asked whether
//! it is over, as NCCL does. Absent: how two ends meet, and who waits.

use std::time::{Duration, Instant};

use consort_memory::{Counter, Mapping, Span, SpanMut};

use super::NAME;
use super::message::{HEADER_BYTES, Header, Kind, Place, piece_bytes};
use super::network::{Comm, Failed, Places, Request};
use crate::counters::raise;
use crate::mapped::check_bounds;
use crate::segment::{Nonce, halves};
use crate::{PeerState, TransportError};

/// Places of a comm, and requests under way on it: half of what a plugin allows.
const PLACES: usize = crate::abi::REQUESTS_MAX / 2;
/// Places begin at cache lines.
const ALIGNMENT: usize = 64;
/// Messages that are heard in one look, at most: a peer that sends for ever keeps no thread for ever.
const HEARD_AT_ONCE: usize = 4 * PLACES;
/// How long the peer's end may come after what failed because of it.
const REASON: Duration = Duration::from_millis(500);

/// Requests of a comm in their order: which of its places each has follows from its number.
struct Requests {
    places: Places,
    of: [Option<Request>; PLACES],
    /// Requests that were begun, and those of them that are over.
    begun: u64,
    over: u64,
}

impl Requests {
    fn new(comm: Comm, piece_bytes: usize) -> Result<Self, TransportError> {
        let place_bytes = (HEADER_BYTES + piece_bytes).next_multiple_of(ALIGNMENT);
        Ok(Requests {
            places: Places::new(comm, PLACES, place_bytes)?,
            of: [None; PLACES],
            begun: 0,
            over: 0,
        })
    }

    fn place(&self, number: u64) -> usize {
        (number % PLACES as u64) as usize
    }

    fn has_begun(&mut self, request: Option<Request>) -> bool {
        let at = self.place(self.begun);
        self.of[at] = request;
        self.begun += u64::from(request.is_some());
        request.is_some()
    }

    /// The bytes of the oldest request, where it is over.
    fn oldest(&mut self) -> Result<Option<usize>, Failed> {
        let Some(request) = self.of[self.place(self.over)] else { return Ok(None) };
        let bytes = self.places.test(request)?;
        if bytes.is_some() {
            let at = self.place(self.over);
            self.of[at] = None;
            self.over += 1;
        }
        Ok(bytes)
    }
}

/// One end.
pub(super) struct Line {
    sends: Requests,
    receives: Requests,
    /// What the peer fills.
    mailbox: Mapping,
    peer_mailbox_bytes: usize,
    /// Of this endpoint, and of the peer's.
    nonces: [Nonce; 2],
    pub(super) ready: Counter,
    pub(super) credit: Counter,
    /// Messages that lie in places, sent or not, with their bytes.
    said: u64,
    bytes_of: [usize; PLACES],
    /// Whether the peer's hello has come.
    pub(super) is_greeted: bool,
    /// The peer has ended.
    has_ended: bool,
    /// What it said that it must not.
    wrong: Option<&'static str>,
    /// What failed first, and when.
    broke: Option<(Failed, Instant)>,
    /// Whether nothing more can be heard.
    is_deaf: bool,
}

impl Line {
    /// This side's end, of the endpoint `here`, to the endpoint `there`; its hello is said.
    ///
    /// # Errors
    /// [`TransportError::OutOfMemory`]; the plugin's.
    pub(super) fn new(
        [sending, receiving]: [Comm; 2],
        mailbox: Mapping,
        here: &Place,
        there: &Place,
    ) -> Result<Self, TransportError> {
        let peer_mailbox_bytes = there.mailbox_bytes as usize;
        let mut line = Line {
            sends: Requests::new(sending, piece_bytes(peer_mailbox_bytes))?,
            receives: Requests::new(receiving, piece_bytes(mailbox.bytes()))?,
            mailbox,
            peer_mailbox_bytes,
            nonces: [here.nonce, there.nonce],
            ready: Counter::standalone(),
            credit: Counter::standalone(),
            said: 0,
            bytes_of: [0; PLACES],
            is_greeted: false,
            has_ended: false,
            wrong: None,
            broke: None,
            is_deaf: false,
        };
        let (value, tag) = halves(&there.nonce);
        line.say(Kind::Hello, (value, tag), 0, Span::empty());
        line.post_receives();
        Ok(line)
    }

    pub(super) fn mailbox(&self) -> SpanMut<'_> {
        self.mailbox.span(0, self.mailbox.bytes())
    }

    pub(super) fn peer_mailbox_bytes(&self) -> usize {
        self.peer_mailbox_bytes
    }

    /// Bytes that it takes beside its mailbox.
    pub(super) fn kept_bytes(&self) -> usize {
        self.sends.places.bytes() + self.receives.places.bytes()
    }

    /// Whether the plugin is done with all that was said.
    pub(super) fn is_flushed(&self) -> bool {
        self.said == self.sends.over
    }

    /// Whether any more can be said.
    ///
    /// # Errors
    /// [`TransportError::PeerClosed`] after its end; what failed.
    fn check(&self) -> Result<(), TransportError> {
        if let Some(what) = self.wrong {
            return Err(TransportError::Protocol { transport: NAME, what });
        }
        if self.has_ended {
            return Err(TransportError::PeerClosed { transport: NAME });
        }
        match &self.broke {
            Some((failed, since)) if self.is_deaf || since.elapsed() > REASON => Err(failed.clone().into()),
            _ => Ok(()),
        }
    }

    /// Puts bytes and a signal behind them. How much is said is in `done`. Whether all is.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`]; those of [`Line::progress`].
    pub(super) fn put(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        done: &mut usize,
        says: Option<(Kind, u64, u64)>,
    ) -> Result<bool, TransportError> {
        self.check()?;
        check_bounds(NAME, offset, bytes.len(), self.peer_mailbox_bytes)?;
        let piece_bytes = piece_bytes(self.peer_mailbox_bytes);
        loop {
            let piece = piece_bytes.min(bytes.len() - *done);
            let is_last = *done + piece == bytes.len();
            let (kind, value, tag) = says.filter(|_| is_last).unwrap_or((Kind::Bytes, 0, 0));
            if kind == Kind::Bytes && piece == 0 {
                return Ok(true);
            }
            if !self.has_room() || self.broke.is_some() {
                return Ok(false);
            }
            self.say(kind, (value, tag), offset + *done, bytes.slice(*done, piece));
            *done += piece;
            if is_last {
                return Ok(true);
            }
        }
    }

    /// Says the end, where there is room. Whether it was said.
    pub(super) fn end(&mut self) -> bool {
        let is_free = self.said - self.sends.over < PLACES as u64;
        if is_free {
            self.say(Kind::End, (0, 0), 0, Span::empty());
        }
        is_free
    }

    /// Whether a place is free, and one for the end.
    fn has_room(&mut self) -> bool {
        let most = PLACES as u64 - 1;
        if self.said - self.sends.over >= most {
            self.hand_over();
        }
        self.said - self.sends.over < most
    }

    /// Puts a message into the next place, which is free, and hands it over.
    fn say(&mut self, kind: Kind, (value, tag): (u64, u64), offset: usize, bytes: Span<'_>) {
        let header = Header {
            kind,
            number: self.said as u32,
            offset: offset as u64,
            bytes: bytes.len() as u64,
            value,
            tag,
        };
        let at = self.sends.place(self.said);
        let place = self.sends.places.place(at);
        place.slice(0, HEADER_BYTES).copy_from(Span::of(&header.encode()));
        place.slice(HEADER_BYTES, bytes.len()).copy_from(bytes);
        self.bytes_of[at] = HEADER_BYTES + bytes.len();
        self.said += 1;
        self.hand_over();
    }

    /// Sees what of the sends is over, and has the plugin send what it had no room for.
    fn hand_over(&mut self) {
        if self.broke.is_some() {
            return;
        }
        if let Err(failed) = self.try_hand_over() {
            self.broke = Some((failed, Instant::now()));
        }
    }

    fn try_hand_over(&mut self) -> Result<(), Failed> {
        while self.sends.oldest()?.is_some() {}
        while self.sends.begun < self.said {
            let at = self.sends.place(self.sends.begun);
            let request = self.sends.places.send(at, self.bytes_of[at])?;
            if !self.sends.has_begun(request) {
                break;
            }
        }
        Ok(())
    }

    fn post_receives(&mut self) {
        while !self.has_ended && self.receives.begun - self.receives.over < PLACES as u64 {
            let at = self.receives.place(self.receives.begun);
            match self.receives.places.receive(at) {
                Ok(request) if self.receives.has_begun(request) => {}
                Ok(_) => return,
                // What has come may still be heard: the peer's end among it.
                Err(failed) => {
                    self.broke.get_or_insert((failed, Instant::now()));
                    return;
                }
            }
        }
    }

    /// Takes in what has come, and goes on with what is to be sent.
    ///
    /// # Errors
    /// [`TransportError::Protocol`] when the peer said what it must not; what failed.
    pub(super) fn progress(&mut self) -> Result<PeerState, TransportError> {
        for _ in 0..HEARD_AT_ONCE {
            if self.wrong.is_some() || self.is_deaf || self.has_ended || !self.hear() {
                break;
            }
        }
        if self.has_ended && self.wrong.is_none() {
            return Ok(PeerState::Closed);
        }
        self.hand_over();
        self.check()?;
        Ok(PeerState::Open)
    }

    /// Hears the oldest message, if it has come. Whether it had.
    fn hear(&mut self) -> bool {
        if self.broke.is_none() {
            self.post_receives();
        }
        let at = self.receives.place(self.receives.over);
        match self.receives.oldest() {
            Ok(Some(bytes)) => {
                self.wrong = self.take(at, bytes).err();
                true
            }
            Ok(None) => false,
            Err(failed) => {
                self.broke.get_or_insert((failed, Instant::now()));
                self.is_deaf = true;
                false
            }
        }
    }

    /// Takes the message in a place.
    fn take(&mut self, at: usize, bytes: usize) -> Result<(), &'static str> {
        let place = self.receives.places.place(at);
        if bytes > place.len() {
            return Err("the plugin reports more bytes than a receive has room for");
        }
        let mut header = [0; HEADER_BYTES];
        SpanMut::of(&mut header).copy_from(place.slice(0, HEADER_BYTES).read());
        let number = (self.receives.over - 1) as u32;
        let header = Header::decode(&header).filter(|header| header.number == number);
        let Header { kind, offset, bytes: of_mailbox, value, tag, .. } =
            header.ok_or("it sent what is not the next message")?;
        if (kind == Kind::Hello) == self.is_greeted {
            return Err("it did not say hello when it should, or did when it should not");
        }
        if kind == Kind::Hello && (value, tag) != halves(&self.nonces[0]) {
            return Err("its hello is for another endpoint");
        }
        let is_whole = usize::try_from(of_mailbox).is_ok_and(|of| of <= bytes && bytes - of == HEADER_BYTES);
        if !is_whole {
            return Err("a message is longer or shorter than its header says");
        }
        let (of_mailbox, mailbox_bytes) = (of_mailbox as usize, self.mailbox.bytes());
        let offset = usize::try_from(offset).ok().filter(|offset| *offset <= mailbox_bytes);
        let offset = offset.filter(|offset| of_mailbox <= mailbox_bytes - offset);
        let offset = offset.ok_or("it put bytes beyond the mailbox")?;
        self.mailbox.span(offset, of_mailbox).copy_from(place.slice(HEADER_BYTES, of_mailbox).read());
        match kind {
            Kind::Bytes => {}
            Kind::Ready => raise(&self.ready, value, tag)?,
            Kind::Credit => raise(&self.credit, value, tag)?,
            Kind::Hello => self.is_greeted = true,
            Kind::End => self.has_ended = true,
        }
        Ok(())
    }
}
