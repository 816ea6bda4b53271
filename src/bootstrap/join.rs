//! One rank's way to the table.
//!
//! Invariants: blocks no longer than its deadline and a little ([`VERDICT_GRACE`]); says nothing of itself before the
//! root has proved that it knows the secret; after its hello was taken it waits for the one answer that all ranks get,
//! and does not try again. Absent: threads, connections to other ranks.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::UniqueId;
use super::frames::{Incoming, Progress};
use super::proof::{Secret, digest, prove, proves, random};
use super::wire::{self, FAILURE_MAX, Hello, Proof, SIZE_MAX, Table, UNPROVED_MAX, kind, table_max};
use crate::error::{Error, seconds};

type Result<T, E = Error> = std::result::Result<T, E>;

/// The root decides at the deadline; its answer may take this long to arrive.
pub(super) const VERDICT_GRACE: Duration = Duration::from_secs(1);
/// How long a root that must already be there may refuse connections before it counts as gone.
const GONE_AFTER: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(200);
const ATTEMPT_MIN: Duration = Duration::from_millis(250);
const ATTEMPT_MAX: Duration = Duration::from_secs(5);

/// Joins the job of `id` and returns when all ranks have, or with the error that all of them get.
///
/// # Errors
/// [`Error::InvalidArgument`] if the hello cannot be right; [`Error::Settings`], [`Error::MissingRanks`],
/// [`Error::PeerLost`] and [`Error::Join`] as the root decides; [`Error::Join`] if there is no root.
pub(crate) fn join(id: &UniqueId, hello: Hello, timeout: Duration) -> Result<Table> {
    if hello.size == 0 || hello.size > SIZE_MAX || hello.rank >= hello.size {
        return Err(Error::invalid(
            format!("rank {} of {} ranks cannot be", hello.rank, hello.size),
            format!("ranks count from 0 to size - 1, and a job has 1 to {SIZE_MAX} ranks"),
        ));
    }
    wire::encode_hello(&hello, timeout)?;
    if hello.size == 1 {
        return alone(id, hello);
    }
    if id.addresses.is_empty() {
        return Err(Error::Join {
            rank: hello.rank,
            cause:
                "the unique id carries no address, because the process that created it could listen nowhere"
                    .into(),
            hint: "give that host a network, or name one of its addresses in CONSORT_BIND".into(),
        });
    }
    Joiner::new(id, hello, timeout).run()
}

/// The table of a job of one rank, for which nobody needs to be asked.
fn alone(id: &UniqueId, mut hello: Hello) -> Result<Table> {
    for address in &mut hello.member.tcp {
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
    }
    if let Some(root) = &id.root {
        root.stop();
    }
    let (job, key) = derive(&id.secret, &random()?);
    Ok(Table { job, key, members: vec![hello.member] })
}

/// Name and key of one gathering.
fn derive(secret: &Secret, nonce: &[u8; 32]) -> ([u8; 16], [u8; 32]) {
    let mut job = [0; 16];
    job.copy_from_slice(&prove(&secret.0, "gathering", &[nonce])[..16]);
    (job, prove(&secret.0, "session key", &[nonce]))
}

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
}

struct Joiner<'a> {
    id: &'a UniqueId,
    hello: Hello,
    timeout: Duration,
    begun: Instant,
}

impl<'a> Joiner<'a> {
    fn new(id: &'a UniqueId, hello: Hello, timeout: Duration) -> Self {
        // A timeout beyond a year is none, and keeps the arithmetic on instants from overflowing.
        let timeout = timeout.min(Duration::from_secs(365 * 24 * 3600));
        Joiner { id, hello, timeout, begun: Instant::now() }
    }

    fn remaining(&self) -> Duration {
        self.timeout.saturating_sub(self.begun.elapsed())
    }

    fn run(&self) -> Result<Table> {
        let mut limit = ATTEMPT_MIN;
        loop {
            let mut failures: Vec<(SocketAddr, Failed)> = Vec::new();
            for address in &self.id.addresses {
                match self.attempt(*address, limit.min(self.remaining()).max(Duration::from_millis(1))) {
                    Ok(verdict) => return verdict,
                    Err(failed) => {
                        tracing::debug!(%address, rank = self.hello.rank, cause = failed.text(), "no rendezvous");
                        failures.push((*address, failed));
                    }
                }
            }
            let clear = failures.iter().all(|(_, failed)| !matches!(failed, Failed::Unclear(_)));
            let other = failures.iter().any(|(_, failed)| matches!(failed, Failed::OtherJob));
            let gone = clear && !self.id.agreed && self.begun.elapsed() >= GONE_AFTER;
            if clear && other || gone || self.remaining().is_zero() {
                return Err(self.nowhere(&failures, other));
            }
            // In proportion to the time already lost, so that little is added to it.
            let pause = (self.begun.elapsed() / 4).clamp(PAUSE_MIN, PAUSE_MAX);
            thread::sleep(pause.min(self.remaining()));
            limit = (limit * 2).min(ATTEMPT_MAX);
        }
    }

    fn nowhere(&self, failures: &[(SocketAddr, Failed)], other: bool) -> Error {
        let tried: Vec<String> =
            failures.iter().map(|(address, failed)| format!("{address}: {}", failed.text())).collect();
        let waited = seconds(self.begun.elapsed());
        let hint = if other {
            "give every rank of this job the same id (or the same CONSORT_ADDRESS and CONSORT_SECRET), and each job an \
             address of its own"
        } else if self.id.agreed {
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

    /// One attempt at one address: a verdict, if the root took the hello.
    fn attempt(&self, address: SocketAddr, limit: Duration) -> Result<Result<Table>, Failed> {
        let unclear = |error: std::io::Error| match error.kind() {
            ErrorKind::ConnectionRefused => Failed::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Failed::Unclear("no answer".into()),
            _ => Failed::Unclear(error.to_string()),
        };
        let stream = TcpStream::connect_timeout(&address, limit).map_err(unclear)?;
        // Where nobody listens, TCP can connect a socket to itself; that one must go, it holds rank 0's port.
        if stream.local_addr().map_err(unclear)? == address {
            return Err(Failed::Refused);
        }
        stream.set_nodelay(true).map_err(unclear)?;
        // Connected, so somebody is there; a busy root may take a while to greet.
        let proving = Instant::now() + (limit * 4).min(self.remaining()).max(Duration::from_millis(50));
        let mut link = Link { stream, incoming: Incoming::default() };
        let challenge = match link.read_until(proving, |k| (k == kind::GREETING).then_some(UNPROVED_MAX)) {
            Progress::Frame(_, payload) => {
                wire::decode_greeting(&payload).map_err(|m| Failed::Unclear(m.0.into()))?
            }
            other => return Err(Failed::Unclear(silence(&other).into())),
        };
        let nonce: [u8; 32] = random().map_err(|error| Failed::Unclear(error.to_string()))?;
        let (secret, job) = (&self.id.secret.0, self.id.job);
        let proof = prove(secret, "joiner", &[&challenge, &nonce, &job.to_le_bytes()]);
        let proof = wire::encode_proof(&Proof { job, nonce, proof });
        link.write_until(proving, &wire::frame(kind::PROOF, &[&proof])).map_err(unclear)?;
        let bound = |k| [kind::ACCEPT, kind::REFUSAL].contains(&k).then_some(UNPROVED_MAX);
        match link.read_until(proving, bound) {
            Progress::Frame(kind::ACCEPT, payload) => {
                let proof = <[u8; 32]>::try_from(payload.as_slice()).unwrap_or_default();
                if !proves(secret, "root", &[&nonce, &challenge], &proof) {
                    return Err(Failed::Unclear(
                        "somebody answers who does not know the job's secret".into(),
                    ));
                }
            }
            Progress::Frame(..) => return Err(Failed::OtherJob),
            other => return Err(Failed::Unclear(silence(&other).into())),
        }
        let key = prove(secret, "connection", &[&challenge, &nonce]);
        Ok(self.converse(&mut link, address, &key))
    }

    /// Both sides have proved themselves: hello, then the verdict.
    fn converse(&self, link: &mut Link, address: SocketAddr, key: &[u8; 32]) -> Result<Table> {
        let refuse = |cause: String| Error::Join {
            rank: self.hello.rank,
            cause,
            hint: "look at the output of the process that created the unique id (rank 0) first".into(),
        };
        let deadline = self.begun + self.timeout + VERDICT_GRACE;
        let body = wire::encode_hello(&self.hello, self.remaining())?;
        let code = prove(key, "hello", &[&body]);
        link.write_until(deadline, &wire::frame(kind::HELLO, &[&code, &body]))
            .map_err(|error| refuse(format!("the root at {address} did not take its hello: {error}")))?;
        let bound = |k| match k {
            kind::TABLE => Some(table_max(self.hello.size)),
            kind::FAILURE => Some(FAILURE_MAX),
            _ => None,
        };
        let (answer, payload) = match link.read_until(deadline, bound) {
            Progress::Frame(answer, payload) => (answer, payload),
            Progress::Pending => {
                let waited = seconds(self.begun.elapsed());
                return Err(refuse(format!(
                    "the root at {address} accepted it, but gave no answer in {waited}"
                )));
            }
            Progress::Closed => {
                return Err(refuse(format!(
                    "the root at {address} ended or was killed while this rank waited for the others"
                )));
            }
            Progress::Malformed(what) => {
                return Err(refuse(format!("the root at {address} answered wrongly: {}", what.0)));
            }
        };
        let malformed =
            |what: wire::Malformed| refuse(format!("the root at {address} answered wrongly: {}", what.0));
        let Some((code, body)) = payload.split_first_chunk::<32>() else {
            return Err(malformed(wire::Malformed("it ends too early")));
        };
        let label = if answer == kind::TABLE { "table" } else { "failure" };
        if !proves(key, label, &[&digest(body)], code) {
            return Err(malformed(wire::Malformed("its answer was changed on the way")));
        }
        if answer == kind::FAILURE {
            return Err(wire::decode_failure(body).map_err(malformed)?);
        }
        let (nonce, members) = wire::decode_table(body, self.hello.size).map_err(malformed)?;
        let (job, key) = derive(&self.id.secret, &nonce);
        Ok(Table { job, key, members })
    }
}

fn silence(progress: &Progress) -> &'static str {
    match progress {
        Progress::Pending => "somebody listens there, but says nothing",
        Progress::Malformed(_) => "what answers there is not consort",
        _ => "it closed the connection",
    }
}

/// A blocking connection with deadlines.
struct Link {
    stream: TcpStream,
    incoming: Incoming,
}

impl Link {
    /// Reads a frame; `Pending` means that the deadline has passed.
    fn read_until(&mut self, deadline: Instant, bound: impl Fn(u8) -> Option<usize>) -> Progress {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Progress::Pending;
            }
            if self.stream.set_read_timeout(Some(left)).is_err() {
                return Progress::Closed;
            }
            // A stranger may drip a byte at a time: each read is limited, and this loop ends at the deadline.
            let mut once = Once { stream: &mut self.stream, spent: false };
            match self.incoming.read(&mut once, &bound) {
                Progress::Pending => {}
                done => return done,
            }
        }
    }

    fn write_until(&mut self, deadline: Instant, bytes: &[u8]) -> std::io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.stream.set_write_timeout(Some(left))?;
        self.stream.write_all(bytes)
    }
}

/// Lets one read through, so that the caller can look at its clock between reads.
struct Once<'a> {
    stream: &'a mut TcpStream,
    spent: bool,
}

impl std::io::Read for Once<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if std::mem::replace(&mut self.spent, true) {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.stream.read(into)
    }
}
