//! How the two ends of a connection prove to each other that they belong to one job, before anything else is said: a rank to
//! the root of its rendezvous, and two ranks on their control link.
//!
//! ```text
//! Caller                                                                          Callee
//! awaits the greeting  ◄── greeting: magic, version, challenge ────────────────── greets
//! claims               ─── claim: magic, version, subject, nonce, proof ────────► looks up the subject's key
//! has the link's key   ◄── accept: proof ──────────────────────────────────────── has the link's key
//!   └── refused        ◄── refusal ────────────────────────────────────────────── another job or key
//! ```
//!
//! A proof covers both random numbers, and the caller's also what it says it is (the subject); the key of the connection follows
//! from them.
//!
//! Invariants: the caller says nothing of itself but the subject before the callee has proved the key; a wrong subject and a
//! wrong key get one answer; these frames keep their form for ever, so that two versions can still tell each other that they
//! differ. Absent: which jobs there are, and when strangers are looked at.

use std::io::{Read, Write};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::codec::{Malformed, Taken, Wire, bytes_of};
use crate::frames::{Frames, Progress, frame, kind};
use crate::proof::{prove, proves, random};
use consort_types::error::Error;

/// The version of joining: of what is said after the handshake and the first twelve bytes of a hello.
pub(crate) const JOINING_VERSION: u16 = 12;
/// Begins a greeting and a claim.
pub(crate) const MAGIC: [u8; 8] = *b"consort\x01";
/// The longest payload before a proof.
pub(crate) const UNPROVED_MAX: usize = 128;
/// How long a stranger is heard before it may go for another one.
const HEARING: Duration = Duration::from_millis(100);

/// What a caller belongs to, its random number and its proof.
pub(crate) type Claim<S> = (S, [u8; 32], [u8; 32]);

/// The payload of a greeting or a claim.
pub(crate) fn marked(value: &impl Wire) -> Vec<u8> {
    let mut out = bytes_of(&(MAGIC, JOINING_VERSION));
    value.put(&mut out);
    out
}

/// What [`marked`] wrote, in any version.
pub(crate) fn unmarked<T: Wire>(payload: &[u8]) -> Taken<T> {
    match payload.split_first_chunk() {
        Some((&MAGIC, rest)) => <(u16, T)>::whole(rest).map(|(_, value)| value),
        _ => Err(Malformed("it does not greet as consort does")),
    }
}

/// The side that connects.
pub(crate) struct Caller<S> {
    key: [u8; 32],
    subject: S,
    /// The challenge and this side's answer to it, once claimed.
    claimed: Option<([u8; 32], [u8; 32])>,
}

/// Why there is no proof.
pub(crate) enum Unproved {
    /// The callee says that it is of another job.
    OtherJob,
    /// It said nothing that can be believed, or is gone.
    Because(String),
}

impl<S: Wire> Caller<S> {
    pub(crate) fn new(key: [u8; 32], subject: S) -> Self {
        Caller { key, subject, claimed: None }
    }

    /// Goes on as far as the stream does; ready with the connection's key.
    pub(crate) fn poll(
        &mut self,
        frames: &mut Frames,
        stream: &mut (impl Read + Write),
    ) -> Poll<Result<[u8; 32], Unproved>> {
        let because = |text: &str| Poll::Ready(Err(Unproved::Because(text.into())));
        loop {
            match frames.outgoing.write(stream) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(error) => return because(&error.to_string()),
            }
            let wanted: &[u8] =
                if self.claimed.is_none() { &[kind::GREETING] } else { &[kind::ACCEPT, kind::REFUSAL] };
            let bound = |kind| wanted.contains(&kind).then_some(UNPROVED_MAX);
            let (kind, payload) = match frames.incoming.read(stream, bound) {
                Progress::Frame(kind, payload) => (kind, payload),
                Progress::Pending => return Poll::Pending,
                Progress::Ended | Progress::Broken(_) => return because("it closed the connection"),
                Progress::Malformed(_) => return because("what answers there is not consort"),
            };
            let Some((challenge, nonce)) = self.claimed else {
                match self.claim(&payload) {
                    Ok(claim) => frames.outgoing.push(claim),
                    Err(text) => return because(&text),
                }
                continue;
            };
            if kind == kind::REFUSAL {
                return Poll::Ready(Err(Unproved::OtherJob));
            }
            let proof = <[u8; 32]>::whole(&payload).unwrap_or_default();
            if !proves(&self.key, "root", &[&nonce, &challenge], &proof) {
                return because("what answers there does not know the job's secret");
            }
            return Poll::Ready(Ok(connection_key(&self.key, &challenge, &nonce)));
        }
    }

    /// The frame that answers a greeting.
    fn claim(&mut self, greeting: &[u8]) -> Result<Vec<u8>, String> {
        let challenge: [u8; 32] = unmarked(greeting).map_err(|what| what.0.to_owned())?;
        let nonce = random().map_err(|error| error.to_string())?;
        self.claimed = Some((challenge, nonce));
        let (subject, parts) = (&self.subject, bytes_of(&self.subject));
        let proof = prove(&self.key, "joiner", &[&challenge, &nonce, &parts]);
        let mut claim = marked(subject);
        (nonce, proof).put(&mut claim);
        Ok(frame(kind::CLAIM, &[&claim]))
    }
}

/// The side that is called.
pub(crate) struct Callee<S> {
    challenge: [u8; 32],
    claim: Option<Claim<S>>,
}

impl<S: Wire> Callee<S> {
    /// Begins with the greeting.
    pub(crate) fn greet(frames: &mut Frames) -> Result<Self, Error> {
        let challenge: [u8; 32] = random()?;
        frames.outgoing.push(frame(kind::GREETING, &[&marked(&challenge)]));
        Ok(Callee { challenge, claim: None })
    }

    /// Whether the caller has claimed something.
    pub(crate) fn has_claim(&self) -> bool {
        self.claim.is_some()
    }

    /// What the caller says that it belongs to. Nothing more may come before it has its answer.
    pub(crate) fn hear(
        &mut self,
        frames: &mut Frames,
        stream: &mut impl Read,
    ) -> Poll<Result<&S, &'static str>> {
        let awaited = self.claim.is_none();
        let bound = |kind| (awaited && kind == kind::CLAIM).then_some(UNPROVED_MAX);
        match frames.incoming.read(stream, bound) {
            Progress::Frame(_, payload) => match unmarked(&payload) {
                Ok(claim) => self.claim = Some(claim),
                Err(what) => return Poll::Ready(Err(what.0)),
            },
            Progress::Pending => {}
            Progress::Ended | Progress::Broken(_) => {
                return Poll::Ready(Err("it closed before proving anything"));
            }
            Progress::Malformed(what) => return Poll::Ready(Err(what.0)),
        }
        match &self.claim {
            Some((subject, ..)) => Poll::Ready(Ok(subject)),
            None => Poll::Pending,
        }
    }

    /// Whether the caller has proved that it knows the key.
    pub(crate) fn is_proved(&self, key: &[u8; 32]) -> bool {
        self.claim.as_ref().is_some_and(|(subject, nonce, proof)| {
            proves(key, "joiner", &[&self.challenge, nonce, &bytes_of(subject)], proof)
        })
    }

    /// Answers a claim to what `key` belongs to, unless the caller `belongs` elsewhere: the connection's key, or none for a
    /// caller that is refused.
    pub(crate) fn answer(&self, frames: &mut Frames, key: &[u8; 32], belongs: bool) -> Option<[u8; 32]> {
        let (challenge, (_, nonce, _)) = (&self.challenge, self.claim.as_ref()?);
        let accepted = self.is_proved(key) && belongs;
        frames.outgoing.push(if accepted {
            frame(kind::ACCEPT, &[&prove(key, "root", &[nonce, challenge])])
        } else {
            frame(kind::REFUSAL, &[&[0]])
        });
        accepted.then(|| connection_key(key, challenge, nonce))
    }
}

fn connection_key(key: &[u8; 32], challenge: &[u8; 32], nonce: &[u8; 32]) -> [u8; 32] {
    prove(key, "connection", &[challenge, nonce])
}

/// Whether another stranger can be heard beside those that came at `since`, `most` of them at a time. Of too many the oldest
/// goes (its place among them is returned), but not before it had its hearing, and newcomers wait in the listener's queue until
/// then: so each is heard for a while, however many call that say nothing.
///
/// # Errors
/// From when another one can be heard.
pub(crate) fn make_room(
    since: impl Iterator<Item = Instant>,
    most: usize,
    now: Instant,
) -> Result<Option<usize>, Instant> {
    let since: Vec<Instant> = since.collect();
    if since.len() < most {
        return Ok(None);
    }
    match since.into_iter().enumerate().min_by_key(|(_, since)| *since) {
        Some((_, since)) if since + HEARING > now => Err(since + HEARING),
        oldest => Ok(oldest.map(|(at, _)| at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_strangers_the_oldest_goes_when_it_had_its_hearing() {
        let now = Instant::now();
        let since = [now, now - HEARING / 2, now - HEARING / 4];
        assert_eq!(make_room(since.into_iter(), 4, now), Ok(None));
        assert_eq!(make_room(since.into_iter(), 3, now), Err(now + HEARING / 2), "it waits in the queue");
        assert_eq!(make_room(since.into_iter(), 3, now + HEARING / 2), Ok(Some(1)));
        assert_eq!(make_room(since.into_iter(), 2, now + HEARING), Ok(Some(1)));
    }
}
