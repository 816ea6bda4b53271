//! One connection at the root, from the greeting to the last byte of the verdict.
//!
//! Invariants: never blocks; nothing but a proof is read before the proof; a connection that misbehaves is closed and
//! costs the others nothing. Absent: what other connections do, and decisions.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::frames::{Incoming, Outgoing, Progress};
use super::super::proof::{Secret, prove, proves, random};
use super::super::stream::Stream;
use super::super::wire::{self, HELLO_MAX, HelloSeen, UNPROVED_MAX, kind};
use crate::codec::Malformed;
use consort_types::Rank;
use consort_types::error::Error;

/// How long a refused stranger may take to read why.
const DRAIN: Duration = Duration::from_secs(1);

/// Where a connection stands.
enum State {
    /// It was greeted and has proved nothing.
    Proving { challenge: [u8; 32] },
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
    incoming: Incoming,
    outgoing: Outgoing,
}

impl<S: Stream> Connection<S> {
    /// Takes a new connection and greets it.
    pub(super) fn greet(
        stream: S,
        peer: SocketAddr,
        now: Instant,
        patience: Duration,
    ) -> Result<Self, Error> {
        let challenge = random()?;
        let mut connection = Connection {
            stream,
            peer,
            since: now,
            rank: None,
            until: Some(now + patience),
            state: State::Proving { challenge },
            key: [0; 32],
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
        };
        connection.outgoing.push(wire::frame(kind::GREETING, &[&wire::encode_greeting(&challenge)]));
        Ok(connection)
    }

    pub(super) fn unproved(&self) -> bool {
        matches!(self.state, State::Proving { .. } | State::Leaving { stranger: true, .. })
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
        !self.outgoing.is_empty()
    }

    /// It was heard as this rank and waits from now on.
    pub(super) fn wait(&mut self, rank: Rank) {
        self.rank = Some(rank);
        self.state = State::Waiting;
        self.until = None;
    }

    /// Queues the verdict, the last that is said here. `digest` is that of `body`.
    pub(super) fn tell(&mut self, frame_kind: u8, body: &Arc<[u8]>, digest: &[u8; 32], until: Instant) {
        let label = if frame_kind == kind::TABLE { "table" } else { "failure" };
        let code = prove(&self.key, label, &[digest]);
        let mut head = wire::frame_head(frame_kind, code.len() + body.len());
        head.extend_from_slice(&code);
        self.outgoing.push(head);
        self.outgoing.push(body.clone());
        self.state = State::Leaving { stranger: false, silent: false };
        self.until = Some(until);
    }

    fn refuse(&mut self, now: Instant) {
        self.outgoing.push(wire::frame(kind::REFUSAL, &[&[0]]));
        self.state = State::Leaving { stranger: true, silent: false };
        self.until = Some(now + DRAIN);
    }

    /// Sends what can be sent.
    pub(super) fn write(&mut self) -> Event {
        match self.outgoing.write(&mut self.stream) {
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
        match self.state {
            State::Proving { challenge } => {
                let bound = |k| (k == kind::PROOF).then_some(UNPROVED_MAX);
                match self.incoming.read(&mut self.stream, bound) {
                    Progress::Frame(_, payload) => self.check(&challenge, &payload, secret, job, hello, now),
                    Progress::Pending => Event::None,
                    Progress::Closed => Event::Close(Some("it closed before proving anything")),
                    Progress::Malformed(what) => Event::Close(Some(what.0)),
                }
            }
            State::Proved => {
                let bound = |k| (k == kind::HELLO).then_some(HELLO_MAX);
                match self.incoming.read(&mut self.stream, bound) {
                    Progress::Frame(_, payload) => match self.heard(&payload) {
                        Ok(hello) => Event::Hello(Box::new(hello)),
                        Err(what) => Event::Close(Some(what.0)),
                    },
                    Progress::Pending => Event::None,
                    Progress::Closed => Event::Close(Some("it closed before saying which rank it is")),
                    Progress::Malformed(what) => Event::Close(Some(what.0)),
                }
            }
            State::Waiting => match self.incoming.read(&mut self.stream, |_| None) {
                Progress::Pending => Event::None,
                Progress::Closed => {
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
                    Err(_) if stranger => Event::Close(None),
                    Err(_) => Event::Close(Some("it broke while the verdict was sent")),
                }
            }
        }
    }

    fn check(
        &mut self,
        challenge: &[u8; 32],
        payload: &[u8],
        secret: &Secret,
        job: u64,
        patience: Duration,
        now: Instant,
    ) -> Event {
        let answer = match wire::decode_proof(payload) {
            Ok(answer) => answer,
            Err(what) => return Event::Close(Some(what.0)),
        };
        let parts: [&[u8]; 3] = [challenge, &answer.nonce, &answer.job.to_le_bytes()];
        // One answer for another job and for a wrong secret: a stranger learns nothing from the difference.
        if !proves(&secret.0, "joiner", &parts, &answer.proof) || answer.job != job {
            tracing::warn!(peer = %self.peer, "refused at the rendezvous: it belongs to another job or has a wrong secret");
            self.refuse(now);
            return Event::None;
        }
        self.key = prove(&secret.0, "connection", &[challenge, &answer.nonce]);
        self.outgoing
            .push(wire::frame(kind::ACCEPT, &[&prove(&secret.0, "root", &[&answer.nonce, challenge])]));
        self.state = State::Proved;
        self.until = Some(now + patience);
        Event::None
    }

    fn heard(&self, payload: &[u8]) -> Result<HelloSeen, Malformed> {
        let (code, body) = payload.split_first_chunk::<32>().ok_or(Malformed("its hello ends too early"))?;
        if !proves(&self.key, "hello", &[body], code) {
            return Err(Malformed("its hello was changed on the way"));
        }
        wire::decode_hello(body)
    }
}
