//! The answering side of a control link, run by the control thread without ever waiting.
//!
//! Invariant: a stranger costs one bounded buffer for a bounded time; how many are heard at once is bounded, and the oldest
//! goes when another comes, so that none keeps a rank out.
//! A greeting for a rank that is about to join (its peers may be quicker) is kept until it does.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::dial::{ANSWER, DIAL, HELLO_BYTES, Introduction, PROOF_BYTES};
use super::link::{RemoteLink, Stream};
use super::process::{Shared, Source, random};

/// How long a stranger may take to prove itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a greeting may wait for its rank to join.
const PARKED: Duration = Duration::from_secs(300);
/// How many greetings from the network are heard at once: strangers must not use up the process's
/// descriptors. On the host the kernel tells who calls.
const GREETINGS_MAX: usize = 256;

/// A stranger may be dropped for another one after it had this long.
const HEARING: Duration = Duration::from_millis(100);

/// A connection that has not proved anything yet.
pub(super) struct Greeting {
    stream: Option<Stream>,
    buffer: Vec<u8>,
    introduction: Option<Introduction>,
    answered: bool,
    since: Instant,
}

/// What a greeting needs next.
enum Next {
    /// More bytes.
    Wait,
    /// It is over, for this reason.
    Drop(String),
    /// It became a link.
    Done,
}

pub(super) fn accept(shared: &Arc<Shared>, unix: bool) {
    loop {
        let accepted = if unix {
            shared.unix.accept().map(|(stream, _)| Stream::Unix(stream))
        } else {
            shared.tcp.accept().map(|(stream, _)| Stream::Tcp(stream))
        };
        match accepted {
            Ok(stream) => begin(shared, stream),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    tracing::warn!("accepting a control connection failed: {error}");
                    std::thread::sleep(Duration::from_millis(10));
                }
                return;
            }
        }
    }
}

/// Whether another stranger from the network can be heard. The oldest goes if there are too many: an honest rank calls
/// again, and who names a job that is not here must not keep ranks out until its patience ends.
fn make_room(shared: &Shared) -> bool {
    let mut strangers = greetings(shared);
    strangers.retain(|(_, greeting)| greeting_is_tcp(greeting));
    if strangers.len() < GREETINGS_MAX {
        return true;
    }
    let since = |(_, greeting): &(u64, Arc<Mutex<Greeting>>)| {
        greeting.lock().unwrap_or_else(PoisonError::into_inner).since
    };
    let Some((key, oldest)) = strangers.into_iter().min_by_key(since) else { return false };
    let mut oldest = oldest.lock().unwrap_or_else(PoisonError::into_inner);
    if oldest.since.elapsed() < HEARING {
        return false;
    }
    if let Some(stream) = oldest.stream.take() {
        tracing::warn!("too many control connections that prove nothing; dropping the oldest");
        shared.unwatch(stream.as_fd(), key);
    }
    true
}

fn begin(shared: &Arc<Shared>, stream: Stream) {
    match &stream {
        Stream::Unix(_) if !stream.peer_is_same_user() => {
            tracing::warn!("another user called the control socket; dropping it");
            return;
        }
        Stream::Unix(_) => {}
        #[cfg(any(test, feature = "testing"))]
        Stream::Simulated(_) => {}
        Stream::Tcp(_) => {
            if !make_room(shared) {
                tracing::warn!("too many control connections that prove nothing; dropping one");
                return;
            }
        }
    }
    if let Err(error) = stream.set_nonblocking(true) {
        tracing::warn!("cannot use a control connection: {error}");
        return;
    }
    if let Stream::Tcp(stream) = &stream {
        let _ = stream.set_nodelay(true);
    }
    let greeting = Greeting {
        stream: Some(stream),
        buffer: Vec::with_capacity(HELLO_BYTES),
        introduction: None,
        answered: false,
        since: Instant::now(),
    };
    let greeting = Arc::new(Mutex::new(greeting));
    let held = greeting.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(stream) = &held.stream
        && let Err(error) = shared.watch(stream.as_fd(), Source::Greeting(greeting.clone()))
    {
        tracing::warn!("cannot watch a control connection: {error}");
    }
}

/// A greeting has something to read, or its rank may have joined.
pub(super) fn go_on(shared: &Arc<Shared>, key: u64, greeting: &Arc<Mutex<Greeting>>) {
    let mut greeting = greeting.lock().unwrap_or_else(PoisonError::into_inner);
    match greeting.step(shared, key) {
        Next::Wait | Next::Done => {}
        Next::Drop(reason) => {
            tracing::debug!("dropping a control connection: {reason}");
            if let Some(stream) = greeting.stream.take() {
                shared.unwatch(stream.as_fd(), key);
            }
        }
    }
}

/// Looks again at the greetings whose rank had not joined.
pub(super) fn retry_parked(shared: &Arc<Shared>) {
    for (key, greeting) in greetings(shared) {
        let parked = {
            let greeting = greeting.lock().unwrap_or_else(PoisonError::into_inner);
            greeting.introduction.is_some() && !greeting.answered
        };
        if parked {
            go_on(shared, key, &greeting);
        }
    }
}

/// Drops the greetings that took too long.
pub(super) fn expire(shared: &Arc<Shared>) {
    for (key, greeting) in greetings(shared) {
        let mut greeting = greeting.lock().unwrap_or_else(PoisonError::into_inner);
        let patience = if greeting.introduction.is_some() && !greeting.answered { PARKED } else { PATIENCE };
        if greeting.since.elapsed() > patience
            && let Some(stream) = greeting.stream.take()
        {
            tracing::debug!("dropping a control connection that proved nothing in time");
            shared.unwatch(stream.as_fd(), key);
        }
    }
}

fn greetings(shared: &Shared) -> Vec<(u64, Arc<Mutex<Greeting>>)> {
    let sources = shared.sources.lock().unwrap_or_else(PoisonError::into_inner);
    let greeting = |(key, source): (&u64, &Source)| match source {
        Source::Greeting(greeting) => Some((*key, greeting.clone())),
        _ => None,
    };
    sources.iter().filter_map(greeting).collect()
}

fn greeting_is_tcp(greeting: &Mutex<Greeting>) -> bool {
    matches!(greeting.lock().unwrap_or_else(PoisonError::into_inner).stream, Some(Stream::Tcp(_)))
}

impl Greeting {
    fn step(&mut self, shared: &Arc<Shared>, key: u64) -> Next {
        if self.introduction.is_none() {
            match self.read_to(HELLO_BYTES) {
                Ok(true) => {}
                Ok(false) => return Next::Wait,
                Err(reason) => return Next::Drop(reason),
            }
            let hello = self.buffer.first_chunk().and_then(Introduction::read_hello);
            let Some(introduction) = hello else {
                return Next::Drop("not a greeting of this protocol".into());
            };
            self.introduction = Some(introduction);
            self.buffer.clear();
        }
        let Some(introduction) = self.introduction else { return Next::Wait };
        let (job, to) = (introduction.job, introduction.to);
        let Some(member) = shared.find_member(&job, to) else {
            // Nothing more may come before the answer; whatever does come is the end.
            return match self.read_to(1) {
                Ok(false) => Next::Wait,
                Ok(true) => Next::Drop("it does not wait for the answer".into()),
                Err(reason) => Next::Drop(reason),
            };
        };
        let Some(introduction) = &mut self.introduction else { return Next::Wait };
        if introduction.from as usize >= member.table.len() {
            return Next::Drop(format!("rank {} is not of this job", introduction.from));
        }
        if !self.answered {
            let Ok(nonce) = random() else { return Next::Drop("no random bytes".into()) };
            introduction.answerer = nonce;
            let mut answer = nonce.to_vec();
            answer.extend_from_slice(&introduction.proof(&member.key, ANSWER));
            self.answered = true;
            self.since = Instant::now();
            // A fresh connection takes 48 bytes; one that does not is dropped.
            match self.stream.as_ref().map(|mut stream| stream.write(&answer)) {
                Some(Ok(bytes)) if bytes == answer.len() => {}
                _ => return Next::Drop("it does not take the answer".into()),
            }
        }
        match self.read_to(PROOF_BYTES) {
            Ok(true) => {}
            Ok(false) => return Next::Wait,
            Err(reason) => return Next::Drop(reason),
        }
        let (Some(introduction), Some(proof)) = (self.introduction, self.buffer.first_chunk()) else {
            return Next::Wait;
        };
        if !introduction.is_proved(&member.key, DIAL, proof) {
            return Next::Drop(format!("it says it is rank {} and cannot prove it", introduction.from));
        }
        let Some(stream) = self.stream.take() else { return Next::Done };
        shared.unwatch(stream.as_fd(), key);
        let adopted = RemoteLink::new(shared, &member, introduction.from, stream)
            .and_then(|link| shared.adopt(&member, link));
        match adopted {
            Ok(()) => Next::Done,
            Err(error) => Next::Drop(format!("it cannot be linked: {error}")),
        }
    }

    /// Reads until `bytes` are there; `false` when more must come. Never reads past them: what follows is the
    /// link's.
    fn read_to(&mut self, bytes: usize) -> Result<bool, String> {
        let Some(mut stream) = self.stream.as_ref() else { return Err("it is closed".into()) };
        while self.buffer.len() < bytes {
            let mut chunk = [0; 64];
            let wanted = (bytes - self.buffer.len()).min(chunk.len());
            match stream.read(&mut chunk[..wanted]) {
                Ok(0) => return Err("it hung up".into()),
                Ok(read) => self.buffer.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(true)
    }
}
