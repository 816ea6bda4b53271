//! One connection at the root, from the greeting to the last byte of the verdict.
//!
//! ```text
//! Proving ──proof──► Proved ──hello──► Waiting ──verdict──► Leaving ──sent──► closed
//!    └── refusal ──► Leaving (stranger) ──sent, read──► closed
//! ```
//!
//! Invariants: never blocks; nothing but a proof is read before the proof; a connection that misbehaves is closed and
//! costs the others nothing. Absent: what other connections do, and decisions.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::super::stream::Stream;
use super::super::wire::{self, HELLO_MAX, HelloSeen};
use crate::codec::Malformed;
use crate::frames::{Frames, Progress, frame_head, kind};
use crate::handshake::Callee;
use crate::proof::{Secret, prove, proves};
use consort_types::Rank;
use consort_types::error::Error;

/// How long a refused stranger may take to read why.
const DRAIN: Duration = Duration::from_secs(1);

/// Where a connection stands.
enum State {
    /// It was greeted and has proved nothing.
    Proving(Callee<u64>),
    /// It proved that it belongs to the job, and has not said who it is.
    Proved,
    /// It is a rank that waits for the verdict.
    Waiting,
    /// Everything was said; closed once it has been sent (and, for strangers, read).
    Leaving { stranger: bool, silent: bool },
}

/// What the gathering must know of.
pub(super) enum Event {
    /// Nothing.
    None,
    /// It is done or gone: forget it. The text is for the log; none if all went as it should.
    Close(Option<&'static str>),
    /// It said who it is.
    Hello(Box<HelloSeen>),
    /// A rank that waited has gone.
    Lost(&'static str),
}

pub(super) struct Connection<S> {
    pub(super) stream: S,
    pub(super) peer: SocketAddr,
    pub(super) since: Instant,
    /// The rank, once heard.
    pub(super) rank: Option<Rank>,
    /// When patience ends.
    pub(super) until: Option<Instant>,
    state: State,
    key: [u8; 32],
    frames: Frames,
}

impl<S: Stream> Connection<S> {
    /// Takes a new connection and greets it.
    pub(super) fn greet(
        stream: S,
        peer: SocketAddr,
        now: Instant,
        patience: Duration,
    ) -> Result<Self, Error> {
        let mut frames = Frames::default();
        let state = State::Proving(Callee::greet(&mut frames)?);
        let until = Some(now + patience);
        Ok(Connection { stream, peer, since: now, rank: None, until, state, key: [0; 32], frames })
    }

    pub(super) fn unproved(&self) -> bool {
        matches!(self.state, State::Proving(_) | State::Leaving { stranger: true, .. })
    }

    pub(super) fn waiting(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    /// A rank to which not all of its verdict has been sent.
    pub(super) fn being_told(&self) -> bool {
        matches!(self.state, State::Leaving { stranger: false, .. })
    }

    /// Whether there is something to send.
    pub(super) fn sending(&self) -> bool {
        !self.frames.outgoing.is_empty()
    }

    /// It was heard as this rank and waits from now on.
    pub(super) fn wait(&mut self, rank: Rank) {
        self.rank = Some(rank);
        self.state = State::Waiting;
        self.until = None;
    }

    /// Queues the verdict, the last that is said here. `digest` is that of `body`.
    pub(super) fn tell(&mut self, frame_kind: u8, body: &Arc<[u8]>, digest: &[u8; 32], until: Instant) {
        let code = prove(&self.key, wire::label(frame_kind), &[digest]);
        let mut head = frame_head(frame_kind, code.len() + body.len());
        head.extend_from_slice(&code);
        self.frames.outgoing.push(head);
        self.frames.outgoing.push(body.clone());
        self.state = State::Leaving { stranger: false, silent: false };
        self.until = Some(until);
    }

    /// Sends what can be sent.
    pub(super) fn write(&mut self) -> Event {
        match self.frames.outgoing.write(&mut self.stream) {
            Ok(true) => {}
            Ok(false) => return Event::None,
            Err(error) if error.kind() == ErrorKind::WriteZero => {
                return self.broken("it takes nothing more");
            }
            Err(_) => return self.broken("sending to it failed"),
        }
        match &mut self.state {
            State::Leaving { stranger: false, .. } => Event::Close(None),
            // Closing with bytes unread would reset the connection and destroy what was just sent.
            State::Leaving { stranger: true, silent } if !*silent => {
                *silent = true;
                match self.stream.shutdown_write() {
                    Ok(()) => Event::None,
                    Err(_) => Event::Close(None),
                }
            }
            _ => Event::None,
        }
    }

    fn broken(&self, why: &'static str) -> Event {
        match self.state {
            State::Waiting => Event::Lost(why),
            _ => Event::Close(Some(why)),
        }
    }

    /// Reads what can be read; at most one message.
    pub(super) fn read(&mut self, secret: &Secret, job: u64, hello: Duration, now: Instant) -> Event {
        let incoming = &mut self.frames.incoming;
        match &mut self.state {
            State::Proving(callee) => {
                let claimed = match callee.hear(&mut self.frames, &mut self.stream) {
                    Poll::Pending => return Event::None,
                    Poll::Ready(Err(why)) => return Event::Close(Some(why)),
                    Poll::Ready(Ok(claimed)) => *claimed,
                };
                match callee.answer(&mut self.frames, &secret.0, claimed == job) {
                    Some(key) => {
                        self.key = key;
                        self.state = State::Proved;
                        self.until = Some(now + hello);
                    }
                    None => {
                        tracing::warn!(peer = %self.peer, "refused at the rendezvous: it belongs to another job or has a wrong secret");
                        self.state = State::Leaving { stranger: true, silent: false };
                        self.until = Some(now + DRAIN);
                    }
                }
                Event::None
            }
            State::Proved => {
                let bound = |k| (k == kind::HELLO).then_some(HELLO_MAX);
                match incoming.read(&mut self.stream, bound) {
                    Progress::Frame(_, payload) => match self.heard(&payload) {
                        Ok(hello) => Event::Hello(Box::new(hello)),
                        Err(what) => Event::Close(Some(what.0)),
                    },
                    Progress::Pending => Event::None,
                    Progress::Ended | Progress::Broken(_) => {
                        Event::Close(Some("it closed before saying which rank it is"))
                    }
                    Progress::Malformed(what) => Event::Close(Some(what.0)),
                }
            }
            State::Waiting => match incoming.read(&mut self.stream, |_| None) {
                Progress::Pending => Event::None,
                Progress::Ended | Progress::Broken(_) => {
                    Event::Lost("its process ended, or closed its connection, before all ranks had joined")
                }
                _ => Event::Lost("it spoke out of turn while it should have waited"),
            },
            State::Leaving { stranger, .. } => {
                let mut piece = [0u8; 4096];
                match self.stream.read(&mut piece) {
                    Ok(0) => Event::Close(None),
                    // A bounded piece for each time that the root is called, until the time is over.
                    Ok(_) => Event::None,
                    Err(error) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => {
                        Event::None
                    }
                    Err(_) if *stranger => Event::Close(None),
                    Err(_) => Event::Close(Some("it broke while the verdict was sent")),
                }
            }
        }
    }

    fn heard(&self, payload: &[u8]) -> Result<HelloSeen, Malformed> {
        let (code, body) = payload.split_first_chunk::<32>().ok_or(Malformed("its hello ends too early"))?;
        if !proves(&self.key, "hello", &[body], code) {
            return Err(Malformed("its hello was changed on the way"));
        }
        wire::decode_hello(body)
    }
}
