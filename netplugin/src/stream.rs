//! Messages on a connection, which carries one direction: requests of both ends.
//!
//! ```text
//! isend ──► header (tag i32, zero u32, bytes u64) and bytes ──► ring, the receiver's mailbox ──► the oldest receive with that tag
//!           the ready counter: bytes written since the beginning      the credit counter: bytes taken ◄──┘
//! ```
//!
//! Invariant: what a program hands over stays as it is until its request is over, which is NCCL's rule for it; a message that is longer
//! than its receive is an error and goes nowhere. Absent: who connected.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;

use consort_memory::{Span, SpanMut};
use consort_transports::abi::{
    Code, INTERNAL_ERROR, INVALID_USAGE, RECEIVES_MAX, REMOTE_ERROR, REQUESTS_MAX, SYSTEM_ERROR,
};
use consort_transports::{Connection, CounterKind, PeerState, Tcp, TransportError};

use crate::meeting::Met;
use crate::network::{Network, RING_BYTES};

/// What is written at a time, so that the receiver takes it while more is on its way.
const CHUNK_BYTES: usize = 256 << 10;
/// Bytes that are taken before the sender hears so.
const CREDIT_BYTES: u64 = RING_BYTES as u64 / 4;
const HEADER_BYTES: usize = 16;
/// The beginning of a message is copied behind its header: a short one is written at once.
const STAGED_BYTES: usize = 4096 - HEADER_BYTES;
/// Looks that bring nothing, after which calls of others are answered and sockets mended.
const IDLE_LOOKS: u32 = 32;

/// What a call returns, and why.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) code: Code,
    pub(crate) why: String,
}

impl From<TransportError> for Trouble {
    fn from(error: TransportError) -> Self {
        let code = match error {
            TransportError::PeerClosed { .. }
            | TransportError::Cut { .. }
            | TransportError::Unreachable { .. } => REMOTE_ERROR,
            TransportError::BadAddress { .. } => INVALID_USAGE,
            TransportError::Protocol { .. } => INTERNAL_ERROR,
            _ => SYSTEM_ERROR,
        };
        Trouble { code, why: error.to_string() }
    }
}

fn gone() -> Trouble {
    Trouble { code: REMOTE_ERROR, why: "the peer closed its comm with messages under way".into() }
}

/// What both ends have.
struct Line {
    /// Before the transport, whose end waits for it.
    connection: Box<dyn Connection>,
    _transport: Arc<Tcp>,
    network: Arc<Network>,
    is_closed: bool,
    looks: u32,
}

impl Line {
    fn progress(&mut self) -> Result<(), Trouble> {
        self.looks += 1;
        if self.looks >= IDLE_LOOKS {
            self.looks = 0;
            self.network.serve();
        }
        match self.connection.progress() {
            Ok(state) => self.is_closed |= state == PeerState::Closed,
            Err(TransportError::PeerClosed { .. }) => self.is_closed = true,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// A message to be sent.
struct Outgoing {
    /// Its header and its beginning.
    staged: Vec<u8>,
    data: *const u8,
    bytes: usize,
    /// How much of header and bytes is written.
    at: usize,
}

// SAFETY: the bytes are the program's, which leaves them alone until the request is over, whichever thread asks.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// At most `most` bytes of what is to be written next.
    fn next(&self, most: usize) -> Span<'_> {
        if let Some(rest) = self.staged.get(self.at..).filter(|rest| !rest.is_empty()) {
            return Span::of(&rest[..rest.len().min(most)]);
        }
        let from = self.at - HEADER_BYTES;
        // SAFETY: the program's bytes from there on, which stay as they are until the request is over.
        unsafe { Span::from_raw(self.data.add(from), (self.bytes - from).min(most)) }
    }
}

/// The end that sends.
pub(crate) struct Sending {
    line: Line,
    queue: VecDeque<Outgoing>,
    written: u64,
    /// What is being written: how long it is, and how much of it is taken over.
    current: Option<(usize, usize)>,
    /// Messages that were begun, and that are over.
    begun: u64,
    over: u64,
}

/// Where a part of a receive goes.
pub(crate) struct Part {
    pub(crate) data: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) tag: i32,
    /// What has come, when all has.
    got: Option<usize>,
    /// Whether a message is on its way into it.
    is_taken: bool,
}

// SAFETY: as of a message that is sent.
unsafe impl Send for Part {}

impl Part {
    pub(crate) fn new(data: *mut u8, bytes: usize, tag: i32) -> Self {
        Part { data, bytes, tag, got: None, is_taken: false }
    }
}

struct Receive {
    number: u64,
    parts: Vec<Part>,
}

/// A message that is coming.
struct Incoming {
    tag: i32,
    bytes: usize,
    at: usize,
    /// The receive's number and the part, once there is one with its tag.
    into: Option<(u64, usize)>,
}

/// The end that receives.
pub(crate) struct Receiving {
    line: Line,
    receives: VecDeque<Receive>,
    header: [u8; HEADER_BYTES],
    /// Bytes of the next header that are there.
    of_header: usize,
    incoming: Option<Incoming>,
    taken: u64,
    credited: u64,
    begun: u64,
}

/// One end.
pub(crate) enum End {
    Sending(Sending),
    Receiving(Receiving),
    /// Its comm is closed, with requests that were not over: they go no further.
    Closed,
}

impl End {
    fn line((connection, transport): Met, network: Arc<Network>) -> Line {
        Line { connection, _transport: transport, network, is_closed: false, looks: 0 }
    }

    /// The end that sends over a new connection.
    ///
    /// # Errors
    /// Where the peer's mailbox is of another length.
    pub(crate) fn sending(met: Met, network: Arc<Network>) -> Result<Self, Trouble> {
        let line = Self::line(met, network);
        if line.connection.remote().bytes != RING_BYTES {
            let why =
                "the peer's ring has another length: do both sides have the same version of the plugin?";
            return Err(Trouble { code: INVALID_USAGE, why: why.into() });
        }
        let queue = VecDeque::with_capacity(REQUESTS_MAX);
        Ok(End::Sending(Sending { line, queue, written: 0, current: None, begun: 0, over: 0 }))
    }

    /// The end that receives over a new connection.
    pub(crate) fn receiving(met: Met, network: Arc<Network>) -> Self {
        End::Receiving(Receiving {
            line: Self::line(met, network),
            receives: VecDeque::with_capacity(REQUESTS_MAX),
            header: [0; HEADER_BYTES],
            of_header: 0,
            incoming: None,
            taken: 0,
            credited: 0,
            begun: 0,
        })
    }

    /// Begins to send. The request's number; none where too many are under way.
    ///
    /// # Errors
    /// What broke the connection; a comm that receives.
    pub(crate) fn send(&mut self, data: *const u8, bytes: usize, tag: i32) -> Result<Option<u64>, Trouble> {
        let End::Sending(sending) = self else { return Err(wrong("isend on a comm that receives")) };
        if sending.queue.len() == REQUESTS_MAX {
            return Ok(None);
        }
        let mut staged = Vec::with_capacity(HEADER_BYTES + bytes.min(STAGED_BYTES));
        staged.extend(tag.to_le_bytes());
        staged.extend([0; 4]);
        staged.extend((bytes as u64).to_le_bytes());
        let first = bytes.min(STAGED_BYTES);
        staged.resize(HEADER_BYTES + first, 0);
        // SAFETY: the program's bytes, which it leaves alone until the request is over; none where the length is 0.
        let head = if first == 0 { Span::empty() } else { unsafe { Span::from_raw(data, first) } };
        SpanMut::of(&mut staged[HEADER_BYTES..]).copy_from(head);
        sending.queue.push_back(Outgoing { staged, data, bytes, at: 0 });
        sending.begun += 1;
        sending.push()?;
        Ok(Some(sending.begun - 1))
    }

    /// Begins to receive into these parts. The request's number; none where too many are under way.
    ///
    /// # Errors
    /// A comm that sends, too many parts.
    pub(crate) fn receive(&mut self, parts: Vec<Part>) -> Result<Option<u64>, Trouble> {
        let End::Receiving(receiving) = self else { return Err(wrong("irecv on a comm that sends")) };
        if parts.is_empty() || parts.len() > RECEIVES_MAX {
            return Err(wrong("irecv of no buffer or of more than 8"));
        }
        if receiving.receives.len() == REQUESTS_MAX {
            return Ok(None);
        }
        receiving.receives.push_back(Receive { number: receiving.begun, parts });
        receiving.begun += 1;
        Ok(Some(receiving.begun - 1))
    }

    /// Goes on, and says whether a request is over: then with the bytes of each of its parts; a send has one, whose length the caller knows.
    ///
    /// # Errors
    /// What broke the connection; a message that is longer than its receive.
    pub(crate) fn test(&mut self, number: u64) -> Result<Option<Vec<usize>>, Trouble> {
        match self {
            End::Sending(sending) => sending.test(number),
            End::Receiving(receiving) => receiving.test(number),
            End::Closed => {
                Err(Trouble { code: REMOTE_ERROR, why: "its comm was closed before it was over".into() })
            }
        }
    }
}

fn wrong(what: &str) -> Trouble {
    Trouble { code: INTERNAL_ERROR, why: format!("NCCL called {what}") }
}

impl Sending {
    fn test(&mut self, number: u64) -> Result<Option<Vec<usize>>, Trouble> {
        if number >= self.over {
            self.line.progress()?;
            self.push()?;
        }
        if number < self.over {
            self.line.looks = 0;
            // Its length is the caller's.
            return Ok(Some(Vec::new()));
        }
        if self.line.is_closed { Err(gone()) } else { Ok(None) }
    }

    /// Writes what there is room for.
    fn push(&mut self) -> Result<(), Trouble> {
        while let Some(front) = self.queue.front_mut().filter(|_| !self.line.is_closed) {
            let credit = self.line.connection.counter(CounterKind::Credit).value();
            let used = self.written.checked_sub(credit).filter(|used| *used <= RING_BYTES as u64);
            let used = used.ok_or_else(|| Trouble {
                code: INTERNAL_ERROR,
                why: "the peer has taken more than was written".into(),
            })?;
            let offset = (self.written % RING_BYTES as u64) as usize;
            let room = (RING_BYTES - used as usize).min(RING_BYTES - offset).min(CHUNK_BYTES);
            let (most, mut done) = self.current.unwrap_or((room, 0));
            if most == 0 {
                return Ok(());
            }
            let bytes = front.next(most);
            let length = bytes.len();
            let ready = (self.written + length as u64, 0);
            match self.line.connection.fill(offset, bytes, ready, &mut done) {
                Ok(Poll::Pending) => {
                    self.current = Some((length, done));
                    return Ok(());
                }
                Ok(Poll::Ready(())) => {}
                Err(TransportError::PeerClosed { .. }) => {
                    self.line.is_closed = true;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
            self.current = None;
            self.written += length as u64;
            front.at += length;
            if front.at == HEADER_BYTES + front.bytes {
                self.queue.pop_front();
                self.over += 1;
            }
        }
        Ok(())
    }
}

impl Receiving {
    fn test(&mut self, number: u64) -> Result<Option<Vec<usize>>, Trouble> {
        self.line.progress()?;
        let has_moved = self.take()?;
        let at = self.receives.iter().position(|receive| receive.number == number);
        let at = at.ok_or_else(|| wrong("test on a request that is over"))?;
        if self.receives[at].parts.iter().all(|part| part.got.is_some()) {
            let receive = self.receives.remove(at);
            self.line.looks = 0;
            return Ok(receive.map(|receive| receive.parts.iter().filter_map(|part| part.got).collect()));
        }
        if self.line.is_closed && !has_moved { Err(gone()) } else { Ok(None) }
    }

    /// Takes what is there, as far as there are receives for it. Whether any was.
    fn take(&mut self) -> Result<bool, Trouble> {
        let before = self.taken;
        let ready = self.line.connection.counter(CounterKind::Ready).value();
        if ready.checked_sub(self.taken).is_none_or(|here| here > RING_BYTES as u64) {
            return Err(Trouble {
                code: INTERNAL_ERROR,
                why: "the peer wrote more than the ring has room for".into(),
            });
        }
        loop {
            let here = (ready - self.taken) as usize;
            let offset = (self.taken % RING_BYTES as u64) as usize;
            let most = here.min(RING_BYTES - offset);
            let Some(incoming) = &mut self.incoming else {
                let piece = most.min(HEADER_BYTES - self.of_header);
                if piece == 0 {
                    break;
                }
                let to = &mut self.header[self.of_header..self.of_header + piece];
                SpanMut::of(to).copy_from(self.line.connection.mailbox().slice(offset, piece).read());
                self.of_header += piece;
                self.taken += piece as u64;
                if self.of_header == HEADER_BYTES {
                    self.incoming = Some(incoming(&self.header));
                    self.of_header = 0;
                }
                continue;
            };
            let Some((number, part)) = incoming.into.or_else(|| claim(&mut self.receives, incoming.tag))
            else {
                break;
            };
            incoming.into = Some((number, part));
            let Some(receive) = self.receives.iter_mut().find(|receive| receive.number == number) else {
                break;
            };
            let part = &mut receive.parts[part];
            if incoming.bytes > part.bytes {
                let (sent, bytes, tag) = (incoming.bytes, part.bytes, part.tag);
                let why = format!(
                    "a message of {sent} bytes with tag {tag} came for a receive of {bytes}; do all ranks make the same calls \
                     with the same settings?"
                );
                return Err(Trouble { code: INVALID_USAGE, why });
            }
            let piece = most.min(incoming.bytes - incoming.at);
            if piece > 0 {
                // SAFETY: inside the program's buffer, as was looked at above; it stays away until the request is over.
                let to = unsafe { SpanMut::from_raw(part.data.add(incoming.at), piece) };
                to.copy_from(self.line.connection.mailbox().slice(offset, piece).read());
                incoming.at += piece;
                self.taken += piece as u64;
            } else if incoming.at < incoming.bytes {
                break;
            }
            if incoming.at == incoming.bytes {
                part.got = Some(incoming.bytes);
                self.incoming = None;
            }
        }
        self.credit()?;
        Ok(self.taken != before)
    }

    /// Says what was taken, now and then.
    fn credit(&mut self) -> Result<(), Trouble> {
        if self.taken - self.credited < CREDIT_BYTES || self.line.is_closed {
            return Ok(());
        }
        match self.line.connection.signal(CounterKind::Credit, self.taken, 0) {
            Ok(Poll::Ready(())) => {
                self.credited = self.taken;
                self.line.connection.flush_credits();
            }
            Ok(Poll::Pending) => {}
            Err(TransportError::PeerClosed { .. }) => self.line.is_closed = true,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

fn incoming(header: &[u8; HEADER_BYTES]) -> Incoming {
    let tag = i32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&header[8..]);
    Incoming { tag, bytes: u64::from_le_bytes(bytes) as usize, at: 0, into: None }
}

/// The oldest part with this tag into which nothing has come.
fn claim(receives: &mut VecDeque<Receive>, tag: i32) -> Option<(u64, usize)> {
    receives.iter_mut().find_map(|receive| {
        let at = receive.parts.iter().position(|part| !part.is_taken && part.tag == tag)?;
        receive.parts[at].is_taken = true;
        Some((receive.number, at))
    })
}
