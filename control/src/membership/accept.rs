//! The answering side of control links, run by the control thread without ever waiting. See `handshake` for what is said.
//!
//! ```text
//! accepted ──► Callee greets ──claim──► its rank is here ──► answered ──► a link, or the table of ranks for a taker
//!                                         └── not yet: parked until it joins
//! ```
//!
//! Invariant: a stranger costs one bounded frame for a bounded time; how many from the network are heard at once is bounded, and
//! the oldest goes when another comes, so that none keeps a rank out.
//! A claim for a rank that is about to join (its peers may be quicker) is kept until it does.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::dial::Subject;
use super::link::{RemoteLink, Stream};
use super::lock;
use super::member::Member;
use super::process::{Shared, Source};
use super::relays::{Giving, Relay};
use crate::frames::Frames;
use crate::handshake::{self, Callee};
use consort_types::Rank;

/// How long a stranger may take to prove itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a claim may wait for its rank to join.
const PARKED: Duration = Duration::from_secs(300);
/// How many strangers from the network are heard at once: they must not use up the process's descriptors. On the host the
/// kernel says who calls.
const STRANGERS_MAX: usize = 256;

/// A greeting with its key.
type Stranger = (u64, Arc<Mutex<Greeting>>);

/// A connection that has not proved anything yet.
pub(super) struct Greeting {
    /// Until it becomes a link's or a taker's, or is dropped.
    stream: Option<Stream>,
    frames: Frames,
    callee: Callee<Subject>,
    since: Instant,
}

pub(super) fn accept(shared: &Arc<Shared>, unix: bool) {
    loop {
        let goes = if unix { Ok(None) } else { who_goes(shared) };
        // Without room the others wait in the listener's queue until the oldest had its hearing.
        let Ok(goes) = goes else { return shared.hear_network(false) };
        let accepted = if unix {
            shared.unix.accept().map(|(stream, _)| Stream::Unix(stream))
        } else {
            shared.tcp.accept().map(|(stream, _)| Stream::Tcp(stream))
        };
        let begun = match accepted {
            Ok(stream) => {
                if let Some((key, oldest)) = goes {
                    lock(&oldest).drop_stream(shared, key, "too many prove nothing, and it is the oldest");
                }
                begin(shared, stream)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => {
                tracing::warn!("accepting a control connection failed: {error}");
                std::thread::sleep(Duration::from_millis(10));
                return;
            }
        };
        if let Err(error) = begun {
            tracing::warn!("cannot use a control connection: {error}");
        }
    }
}

/// Which stranger from the network goes when another one is heard: the oldest if there are too many. An honest rank that is
/// sent away calls again.
///
/// # Errors
/// From when another one can be heard.
fn who_goes(shared: &Shared) -> Result<Option<Stranger>, Instant> {
    let mut strangers = greetings(shared);
    strangers.retain(|(_, greeting)| matches!(lock(greeting).stream, Some(Stream::Tcp(_))));
    let since = strangers.iter().map(|(_, greeting)| lock(greeting).since);
    let goes = handshake::make_room(since, STRANGERS_MAX, Instant::now())?;
    Ok(goes.map(|oldest| strangers.swap_remove(oldest)))
}

fn begin(shared: &Arc<Shared>, stream: Stream) -> io::Result<()> {
    if matches!(stream, Stream::Unix(_)) && !stream.peer_is_same_user() {
        return Err(io::Error::other("another user called the control socket"));
    }
    stream.set_nonblocking(true)?;
    let mut frames = Frames::default();
    let callee = Callee::greet(&mut frames).map_err(io::Error::other)?;
    // A fresh connection takes a greeting; whatever goes wrong shows when it is read.
    let _ = frames.outgoing.write(&mut &stream);
    let greeting = Greeting { stream: Some(stream), frames, callee, since: Instant::now() };
    let greeting = Arc::new(Mutex::new(greeting));
    let held = lock(&greeting);
    let Some(stream) = &held.stream else { return Ok(()) };
    shared.watch(stream.as_fd(), Source::Greeting(greeting.clone())).map(drop)
}

/// A stranger has said something, or its rank may have joined.
pub(super) fn go_on(shared: &Arc<Shared>, key: u64, greeting: &Mutex<Greeting>) {
    let mut greeting = lock(greeting);
    if let Err(reason) = greeting.step(shared, key) {
        greeting.drop_stream(shared, key, &reason);
    }
    if greeting.stream.is_none() {
        // It is no stranger any more: there is room for another one.
        shared.hear_network(true);
    }
}

/// Looks again at the claims whose rank had not joined.
pub(super) fn retry_parked(shared: &Arc<Shared>) {
    for (key, greeting) in greetings(shared) {
        if lock(&greeting).callee.has_claim() {
            go_on(shared, key, &greeting);
        }
    }
    // What has become a link leaves room.
    shared.hear_network(true);
}

/// Drops the strangers that took too long, and hears others again.
pub(super) fn expire(shared: &Arc<Shared>) {
    for (key, greeting) in greetings(shared) {
        let mut greeting = lock(&greeting);
        let patience = if greeting.callee.has_claim() { PARKED } else { PATIENCE };
        if greeting.since.elapsed() > patience {
            greeting.drop_stream(shared, key, "it proved nothing in time");
        }
    }
    shared.hear_network(true);
}

fn greetings(shared: &Shared) -> Vec<Stranger> {
    let sources = lock(&shared.sources);
    let greeting = |(key, source): (&u64, &Source)| match source {
        Source::Greeting(greeting) => Some((*key, greeting.clone())),
        _ => None,
    };
    sources.iter().filter_map(greeting).collect()
}

impl Greeting {
    fn step(&mut self, shared: &Arc<Shared>, key: u64) -> Result<(), String> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let Subject { job, from, to } = match self.callee.hear(&mut self.frames, &mut &*stream) {
            Poll::Pending => return Ok(()),
            Poll::Ready(claimed) => *claimed?,
        };
        match shared.relays.find(&job, to) {
            Some(Some(relay)) => return self.give(shared, key, relay, from),
            Some(None) => {
                return Err(format!("rank {from} asks for a table of ranks that is not handed on any more"));
            }
            None => {}
        }
        let Some(member) = shared.find_member(&job, to) else { return Ok(()) };
        let belongs = (from as usize) < member.table.len();
        // Who cannot prove it changes nothing.
        let is_proved = belongs && self.callee.is_proved(&member.key);
        if is_proved && !member.is_to_answer(from) {
            return Err(format!("rank {from} is linked, or called by this rank"));
        }
        let linked = self.answer(shared, key, &member, from, belongs);
        if linked.is_err() && is_proved {
            member.give_up_answering(from);
        }
        linked
    }

    /// Answers the claim, and makes a link of what is proved.
    fn answer(
        &mut self,
        shared: &Arc<Shared>,
        key: u64,
        member: &Arc<Member>,
        from: Rank,
        belongs: bool,
    ) -> Result<(), String> {
        let Some(stream) = self.accept(shared, key, &member.key, from, belongs)? else { return Ok(()) };
        RemoteLink::new(shared, member, from, stream)
            .and_then(
                |link| if member.is_sparse() { shared.expect(link) } else { shared.adopt(member, link) },
            )
            .map_err(|error| format!("it cannot be linked: {error}"))
    }

    /// Hands the table of ranks on to who proves that it is of the job.
    fn give(&mut self, shared: &Arc<Shared>, key: u64, relay: Arc<Relay>, from: Rank) -> Result<(), String> {
        let Some(stream) = self.accept(shared, key, &relay.table.key, from, relay.has(from))? else {
            return Ok(());
        };
        Giving::begin(shared, relay, stream, from)
            .map_err(|error| format!("the table of ranks cannot be handed on: {error}"))
    }

    /// Answers the claim; the stream, watched no longer, where it is proved.
    fn accept(
        &mut self,
        shared: &Shared,
        key: u64,
        of_job: &[u8; 32],
        from: Rank,
        belongs: bool,
    ) -> Result<Option<Stream>, String> {
        let Some(stream) = &self.stream else { return Ok(None) };
        let accepted = self.callee.answer(&mut self.frames, of_job, belongs).is_some();
        // A fresh connection takes the answer; one that does not is dropped.
        if !self.frames.outgoing.write(&mut &*stream).is_ok_and(|sent| sent) {
            return Err("it does not take the answer".into());
        }
        if !accepted {
            return Err(format!("it says it is rank {from} and cannot prove it"));
        }
        shared.unwatch(stream.as_fd(), key);
        Ok(self.stream.take())
    }

    fn drop_stream(&mut self, shared: &Shared, key: u64, reason: &str) {
        tracing::debug!("dropping a control connection: {reason}");
        if let Some(stream) = self.stream.take() {
            shared.unwatch(stream.as_fd(), key);
        }
    }
}
