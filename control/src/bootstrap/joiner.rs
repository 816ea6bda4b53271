//! What one rank says to the root and hears from it, whatever carries it and whatever the time.
//!
//! ```text
//! dial an address ► handshake ► hello ► verdict
//!   └── refused, silent, not of this job ──► the next address ──► none left: pause, and again from the first
//! ```
//!
//! Invariants: has its answer by its deadline and a little ([`VERDICT_GRACE`]), if it is asked when it wants to be; says
//! nothing of itself before the root has proved that it knows the secret; after its hello was taken it waits for the one
//! answer that all ranks get, and does not try again; never blocks. Absent: sockets, clocks, sleep (see `join`).

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::UniqueId;
use super::distance::RoundTrip;
use super::relay::{Reference, Referral, Spread};
use super::stream::Dial;
use super::wire::{self, FAILURE_MAX, Hello, REFERRAL_MAX, SIZE_MAX, Table, table_max};
use crate::codec::{Malformed, Wire};
use crate::frames::{Frames, Progress, frame, kind};
use crate::handshake::{Caller, Unproved};
use crate::proof::{Secret, digest, prove, proves, random};
use consort_types::error::{Error, seconds};

type Result<T, E = Error> = std::result::Result<T, E>;

/// The root decides at the deadline; its answer may take this long to arrive.
pub const VERDICT_GRACE: Duration = Duration::from_secs(1);
/// How long a root that must already be there may refuse connections before it counts as gone.
const GONE_AFTER: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(200);
const ATTEMPT_MIN: Duration = Duration::from_millis(250);
const ATTEMPT_MAX: Duration = Duration::from_secs(5);

/// Why one attempt did not lead to a verdict.
enum Failed {
    /// Nothing listens there.
    Refused,
    /// A rendezvous listens there, but of another job.
    OtherJob,
    /// Anything that may pass or that says nothing about the root.
    Unclear(String),
}

impl Failed {
    fn text(&self) -> &str {
        match self {
            Failed::Refused => "nothing listens there",
            Failed::OtherJob => "this is the rendezvous of another job",
            Failed::Unclear(text) => text,
        }
    }

    fn unclear(text: impl Into<String>) -> Self {
        Failed::Unclear(text.into())
    }
}

impl From<Unproved> for Failed {
    fn from(unproved: Unproved) -> Self {
        match unproved {
            Unproved::OtherJob => Failed::OtherJob,
            Unproved::Because(text) => Failed::Unclear(text),
        }
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused => Failed::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Failed::unclear("no answer"),
            _ => Failed::Unclear(error.to_string()),
        }
    }
}

/// What a rank has when all have come.
#[derive(Debug)]
pub enum Joined {
    /// The table.
    Whole(Table),
    /// Those that hand it on.
    Elsewhere(Reference),
}

#[cfg(any(test, feature = "testing"))]
impl Joined {
    /// The table of a rank that was given it.
    pub fn whole(self) -> Result<Table> {
        match self {
            Joined::Whole(table) => Ok(table),
            Joined::Elsewhere(_) => Err(Error::internal("the root gave no table")),
        }
    }
}

/// One rank on its way to the table, over connections of kind `S`.
pub struct Joiner<S> {
    addresses: Vec<SocketAddr>,
    secret: Secret,
    job: u64,
    agreed: bool,
    hello: Hello,
    timeout: Duration,
    begun: Instant,
    /// How long connecting may take in this round.
    limit: Duration,
    /// Those of this round, one for each address that was tried.
    failures: Vec<(SocketAddr, Failed)>,
    state: State<S>,
}

enum State<S> {
    /// The next address is to be tried, or the round is over.
    Next,
    /// Until the next round.
    Pausing(Instant),
    /// An address is being tried.
    Attempting(Box<Attempt<S>>),
    /// The answer was given.
    Over,
}

/// One attempt at one address.
struct Attempt<S> {
    address: SocketAddr,
    stream: S,
    /// When its stage has to be over.
    until: Instant,
    stage: Stage,
    frames: Frames,
}

/// What an attempt waits for.
enum Stage {
    /// The connection, for so long.
    Connecting { limit: Duration },
    /// Proof that it is the root.
    Proving(Caller<u64>),
    /// The verdict. Both sides have proved themselves, so there is no other attempt.
    Verdict { key: [u8; 32] },
}

impl<S: Read + Write> Joiner<S> {
    /// A rank that begins to join the job of `id` now.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the hello cannot be right; [`Error::Join`] if there is no address to look at.
    pub fn new(id: &UniqueId, hello: Hello, timeout: Duration, now: Instant) -> Result<Self> {
        if hello.size == 0 || hello.size > SIZE_MAX || hello.rank >= hello.size {
            return Err(Error::invalid(
                format!("rank {} of {} ranks cannot be", hello.rank, hello.size),
                format!("ranks count from 0 to size - 1, and a job has 1 to {SIZE_MAX} ranks"),
            ));
        }
        wire::encode_hello(&hello, timeout)?;
        if hello.size > 1 && id.addresses.is_empty() {
            return Err(Error::Join {
                rank: hello.rank,
                cause: "the unique id carries no address, because the process that created it could listen nowhere"
                    .into(),
                hint: "give that host a network, or name one of its addresses in CONSORT_BIND".into(),
            });
        }
        Ok(Joiner {
            addresses: id.addresses.clone(),
            secret: id.secret,
            job: id.job,
            agreed: id.agreed,
            hello,
            // A timeout beyond a year is none, and keeps the arithmetic on instants from overflowing.
            timeout: timeout.min(Duration::from_secs(365 * 24 * 3600)),
            begun: now,
            limit: ATTEMPT_MIN,
            failures: Vec::new(),
            state: State::Next,
        })
    }

    /// When it wants to be asked at the latest, if nothing happens on its connection before; `None` after the answer.
    pub fn until(&self) -> Option<Instant> {
        match &self.state {
            State::Next => Some(self.begun),
            State::Pausing(until) => Some(*until),
            State::Attempting(attempt) => Some(attempt.until),
            State::Over => None,
        }
    }

    /// The connection it waits for, if it does: until that takes bytes (or is connected, or not) if true, until there
    /// are bytes to read if false.
    pub fn stream(&self) -> Option<(&S, bool)> {
        match &self.state {
            State::Attempting(attempt) => {
                let connecting = matches!(attempt.stage, Stage::Connecting { .. });
                Some((&attempt.stream, connecting || !attempt.frames.outgoing.is_empty()))
            }
            _ => None,
        }
    }

    /// Goes as far as it gets now. Ready once: with the table, or where that is, when all ranks have joined, or the error that all get.
    pub fn poll<D: Dial<Stream = S>>(&mut self, dial: &mut D, now: Instant) -> Poll<Result<Joined>> {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Over => {
                    return Poll::Ready(Err(Error::internal(
                        "a rank was asked again after it had its answer",
                    )));
                }
                State::Pausing(until) if now < until => {
                    self.state = State::Pausing(until);
                    return Poll::Pending;
                }
                State::Pausing(_) => self.state = State::Next,
                State::Next if self.hello.size == 1 => return Poll::Ready(self.alone()),
                State::Next => match self.addresses.get(self.failures.len()) {
                    Some(&address) => match self.begin(dial, address, now) {
                        Ok(attempt) => self.state = State::Attempting(Box::new(attempt)),
                        Err(failed) => self.failed(address, failed),
                    },
                    None => {
                        if let Err(error) = self.pause(now) {
                            return Poll::Ready(Err(error));
                        }
                    }
                },
                State::Attempting(mut attempt) => match self.proceed(&mut attempt, dial, now) {
                    Poll::Pending => {
                        self.state = State::Attempting(attempt);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(verdict)) => return Poll::Ready(verdict),
                    Poll::Ready(Err(failed)) => self.failed(attempt.address, failed),
                },
            }
        }
    }

    fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begun)
    }

    fn remaining(&self, now: Instant) -> Duration {
        self.timeout.saturating_sub(self.elapsed(now))
    }

    /// The table of a job of one rank, which needs no root.
    fn alone(&self) -> Result<Joined> {
        let mut member = self.hello.member.clone();
        for address in &mut member.tcp {
            match address.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
                IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
                _ => {}
            }
        }
        let nonce = random()?;
        let (job, key) = self.named(&nonce);
        Ok(Joined::Whole(Table { job, key, nonce, spread: Spread::default(), members: [member].into() }))
    }

    /// Name and key of the gathering with this nonce.
    fn named(&self, nonce: &[u8; 32]) -> ([u8; 16], [u8; 32]) {
        let job = prove(&self.secret.0, "gathering", &[nonce]);
        (std::array::from_fn(|byte| job[byte]), prove(&self.secret.0, "session key", &[nonce]))
    }

    fn failed(&mut self, address: SocketAddr, failed: Failed) {
        tracing::debug!(%address, rank = self.hello.rank, cause = failed.text(), "no rendezvous");
        self.failures.push((address, failed));
        self.state = State::Next;
    }

    /// No address led to the root: gives up, or tries again a little later.
    fn pause(&mut self, now: Instant) -> Result<()> {
        let clear = self.failures.iter().all(|(_, failed)| !matches!(failed, Failed::Unclear(_)));
        let other = self.failures.iter().any(|(_, failed)| matches!(failed, Failed::OtherJob));
        let gone = clear && !self.agreed && self.elapsed(now) >= GONE_AFTER;
        if clear && other || gone || self.remaining(now).is_zero() {
            return Err(self.nowhere(other, now));
        }
        // In proportion to the time already lost, so that little is added to it.
        let pause = (self.elapsed(now) / 4).clamp(PAUSE_MIN, PAUSE_MAX);
        self.state = State::Pausing(now + pause.min(self.remaining(now)));
        self.limit = (self.limit * 2).min(ATTEMPT_MAX);
        self.failures.clear();
        Ok(())
    }

    fn nowhere(&self, other: bool, now: Instant) -> Error {
        let tried: Vec<String> =
            self.failures.iter().map(|(address, failed)| format!("{address}: {}", failed.text())).collect();
        let waited = seconds(self.elapsed(now));
        let hint = if other {
            "give every rank of this job the same id (or the same CONSORT_ADDRESS and CONSORT_SECRET), and each job an \
             address of its own"
        } else if self.agreed {
            "check that rank 0 runs, its own error messages, that CONSORT_ADDRESS names its host and a port that no \
             firewall closes"
        } else {
            "check that the process that created the unique id (rank 0) still runs and keeps it, its own error messages, \
             and that no firewall keeps this host from those addresses (CONSORT_BIND chooses others)"
        };
        Error::Join {
            rank: self.hello.rank,
            cause: format!("it found no rendezvous of its job within {waited} ({})", tried.join("; ")),
            hint: hint.into(),
        }
    }

    fn begin<D: Dial<Stream = S>>(
        &self,
        dial: &mut D,
        address: SocketAddr,
        now: Instant,
    ) -> Result<Attempt<S>, Failed> {
        let limit = self.limit.min(self.remaining(now)).max(Duration::from_millis(1));
        Ok(Attempt {
            address,
            stream: dial.dial(address)?,
            until: now + limit,
            stage: Stage::Connecting { limit },
            frames: Frames::default(),
        })
    }

    /// Goes on with an attempt: a verdict, if the root took the hello.
    fn proceed<D: Dial<Stream = S>>(
        &self,
        attempt: &mut Attempt<S>,
        dial: &mut D,
        now: Instant,
    ) -> Poll<Result<Result<Joined>, Failed>> {
        loop {
            let Attempt { stream, frames, .. } = attempt;
            match &mut attempt.stage {
                Stage::Connecting { limit } => {
                    match dial.connected(stream)? {
                        Poll::Ready(()) => {}
                        Poll::Pending if now < attempt.until => return Poll::Pending,
                        Poll::Pending => return Poll::Ready(Err(Failed::unclear("no answer"))),
                    }
                    // Connected, so a process is there; a busy root may take a while to greet.
                    attempt.until =
                        now + (*limit * 4).min(self.remaining(now)).max(Duration::from_millis(50));
                    attempt.stage = Stage::Proving(Caller::new(self.secret.0, self.job));
                }
                Stage::Proving(caller) => {
                    let key = match caller.poll(frames, stream) {
                        Poll::Ready(key) => key?,
                        Poll::Pending if now < attempt.until => return Poll::Pending,
                        Poll::Pending => {
                            return Poll::Ready(Err(Failed::unclear(
                                "it accepts connections, but says nothing",
                            )));
                        }
                    };
                    let hello = self.placed(dial.round_trip(stream));
                    let body = match wire::encode_hello(&hello, self.remaining(now)) {
                        Ok(body) => body,
                        Err(error) => return Poll::Ready(Ok(Err(error))),
                    };
                    frames.outgoing.push(frame(kind::HELLO, &[&prove(&key, "hello", &[&body]), &body]));
                    attempt.until = self.begun + self.timeout + VERDICT_GRACE;
                    attempt.stage = Stage::Verdict { key };
                }
                Stage::Verdict { key } => {
                    let key = *key;
                    return self.verdict(attempt, &key, now).map(Ok);
                }
            }
        }
    }

    /// The hello of a rank that is so far from the meeting point.
    fn placed(&self, measured: Option<Duration>) -> Hello {
        let mut hello = self.hello.clone();
        if let Some(measured) = measured {
            hello.member.round_trip = RoundTrip::of(measured);
            tracing::debug!(rank = hello.rank, ?measured, "the way to the rendezvous and back");
        }
        hello
    }

    /// Both sides have proved themselves: hello, then the verdict.
    fn verdict(&self, attempt: &mut Attempt<S>, key: &[u8; 32], now: Instant) -> Poll<Result<Joined>> {
        let Attempt { address, stream, frames, until, .. } = attempt;
        let bound = |k| match k {
            kind::TABLE => Some(table_max(self.hello.size)),
            kind::REFERRAL => Some(REFERRAL_MAX),
            kind::FAILURE => Some(FAILURE_MAX),
            _ => None,
        };
        let progress = match frames.outgoing.write(stream) {
            Ok(true) => frames.incoming.read(stream, bound),
            Ok(false) => Progress::Pending,
            Err(error) => Progress::Broken(error),
        };
        let cause = match progress {
            Progress::Frame(answer, payload) => match self.open(answer, &payload, key) {
                Ok(verdict) => return Poll::Ready(verdict),
                Err(what) => format!("the root at {address} answered wrongly: {}", what.0),
            },
            Progress::Pending if now < *until => return Poll::Pending,
            Progress::Pending => {
                let waited = seconds(self.elapsed(now));
                format!("the root at {address} accepted it, but gave no answer in {waited}")
            }
            Progress::Ended | Progress::Broken(_) => {
                format!("the root at {address} ended or was killed while this rank waited for the others")
            }
            Progress::Malformed(what) => format!("the root at {address} answered wrongly: {}", what.0),
        };
        Poll::Ready(Err(Error::Join {
            rank: self.hello.rank,
            cause,
            hint: "look at the output of the process that created the unique id (rank 0) first".into(),
        }))
    }

    /// What the root's answer says, if it is the root's.
    fn open(&self, answer: u8, payload: &[u8], key: &[u8; 32]) -> Result<Result<Joined>, Malformed> {
        let (code, body) = payload.split_first_chunk::<32>().ok_or(Malformed("it ends too early"))?;
        if !proves(key, wire::label(answer), &[&digest(body)], code) {
            return Err(Malformed("its answer was changed on the way"));
        }
        if answer == kind::FAILURE {
            return Error::whole(body).map(Err);
        }
        let size = self.hello.size;
        if answer == kind::REFERRAL {
            let Referral { nonce, digest, sources } = Referral::decode(body, size)?;
            let (job, key) = self.named(&nonce);
            return Ok(Ok(Joined::Elsewhere(Reference { job, key, sources, size, digest })));
        }
        let (nonce, spread, members) = wire::decode_table(body, size)?;
        let (job, key) = self.named(&nonce);
        Ok(Ok(Joined::Whole(Table { job, key, nonce, spread, members: members.into() })))
    }
}
