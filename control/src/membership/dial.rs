//! The dialling side of a control link, run by the thread that joins a job, and the greeting's wire form.
//!
//! Both sides prove that they know the job's session key, each over both nonces, before anything else is said.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::link::{RemoteLink, Stream};
use super::member::Member;
use super::patience::Patience;
use super::process::{Shared, random};
use super::race;
use crate::bootstrap;
use consort_types::Rank;
use consort_types::error::Result;

pub(super) const MAGIC: [u8; 8] = *b"CSRTCTL1";
/// Magic, job, from, to, nonce.
pub(super) const HELLO_BYTES: usize = 8 + 16 + 4 + 4 + 16;
/// Nonce, proof.
pub(super) const ANSWER_BYTES: usize = 16 + 32;
pub(super) const PROOF_BYTES: usize = 32;

/// What a greeting is about: the rank that dials, the rank that answers, their nonces.
#[derive(Clone, Copy)]
pub(super) struct Introduction {
    pub(super) job: [u8; 16],
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) dialler: [u8; 16],
    pub(super) answerer: [u8; 16],
}

impl Introduction {
    fn parts(&self) -> [Vec<u8>; 5] {
        [
            self.job.to_vec(),
            self.from.to_le_bytes().to_vec(),
            self.to.to_le_bytes().to_vec(),
            self.dialler.to_vec(),
            self.answerer.to_vec(),
        ]
    }

    pub(super) fn proof(&self, key: &[u8; 32], label: &str) -> [u8; 32] {
        let parts = self.parts();
        bootstrap::prove(key, label, &parts.each_ref().map(Vec::as_slice))
    }

    pub(super) fn is_proved(&self, key: &[u8; 32], label: &str, proof: &[u8; 32]) -> bool {
        let parts = self.parts();
        bootstrap::proves(key, label, &parts.each_ref().map(Vec::as_slice), proof)
    }

    pub(super) fn hello(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.job);
        bytes[24..28].copy_from_slice(&self.from.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.to.to_le_bytes());
        bytes[32..].copy_from_slice(&self.dialler);
        bytes
    }

    pub(super) fn read_hello(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let u32_at = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        (bytes[..8] == MAGIC).then_some(())?;
        Some(Introduction {
            job: bytes[8..24].try_into().ok()?,
            from: u32_at(24)?,
            to: u32_at(28)?,
            dialler: bytes[32..].try_into().ok()?,
            answerer: [0; 16],
        })
    }
}

pub(super) const ANSWER: &str = "control answer";
pub(super) const DIAL: &str = "control dial";

/// Links `member` to `peer` of another process, trying until `deadline`.
///
/// # Errors
/// The last thing that went wrong.
pub fn dial(
    shared: &Arc<Shared>,
    member: &Arc<Member>,
    peer: Rank,
    patience: Patience<'_>,
) -> Result<io::Result<()>> {
    let nonce = random::<16>()?;
    let introduction =
        Introduction { job: member.job, from: member.rank, to: peer, dialler: nonce, answerer: [0; 16] };
    // Addresses at which something else answered.
    let mut strange = Vec::new();
    loop {
        let attempt = connect(shared, member, peer, &strange, patience).and_then(|stream| {
            let at = stream.peer_address();
            if let Err(error) = greet(&stream, introduction, &member.key, patience) {
                strange.extend(at);
                return Err(match at {
                    Some(at) => io::Error::new(error.kind(), format!("{at}: {error}")),
                    None => error,
                });
            }
            if let Some(at) = at {
                *shared.reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(at.ip());
            }
            RemoteLink::new(shared, member, peer, stream).and_then(|link| shared.adopt(member, link))
        });
        match attempt {
            Ok(()) => return Ok(Ok(())),
            Err(error) if patience.left().is_zero() => return Ok(Err(error)),
            Err(error) => {
                tracing::debug!(rank = member.rank, peer, "control link not up yet: {error}");
                std::thread::sleep(Duration::from_millis(5).min(patience.left()));
            }
        }
    }
}

/// An abstract Unix socket where both ranks see the same host as the same user, else TCP.
fn connect(
    shared: &Shared,
    member: &Member,
    peer: Rank,
    strange: &[SocketAddr],
    patience: Patience<'_>,
) -> io::Result<Stream> {
    let there = &member.table[peer as usize];
    let here = &member.table[member.rank as usize];
    if there.host_key == here.host_key
        && !there.unix.is_empty()
        && !here.unix.is_empty()
        && let Ok(address) = std::os::unix::net::SocketAddr::from_abstract_name(&there.unix)
        && let Ok(stream) = UnixStream::connect_addr(&address)
    {
        let stream = Stream::Unix(stream);
        // Another user's rank would turn it away; over TCP the job's key is proof enough.
        if stream.peer_is_same_user() {
            return Ok(stream);
        }
    }
    let like = *shared.reached.lock().unwrap_or_else(PoisonError::into_inner);
    race::connect_to_any(&there.tcp, like, strange, patience).map(Stream::Tcp)
}

pub(super) fn greet(
    stream: &Stream,
    mut introduction: Introduction,
    key: &[u8; 32],
    patience: Patience<'_>,
) -> io::Result<()> {
    let hurry = || {
        let turn = patience.turn();
        if turn.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { stream.set_timeouts(turn) }
    };
    hurry()?;
    let mut stream = stream;
    stream.write_all(&introduction.hello())?;
    let (mut answer, mut got) = ([0; ANSWER_BYTES], 0);
    while got < ANSWER_BYTES {
        // The deadline is for all of it: an answer may drip.
        hurry()?;
        match stream.read(&mut answer[got..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => got += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A turn is over, which need not be all.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    introduction.answerer.copy_from_slice(&answer[..16]);
    let proof = answer[16..].first_chunk().expect("an answer is a nonce and a proof");
    if !introduction.is_proved(key, ANSWER, proof) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the other side does not know the job's key",
        ));
    }
    stream.write_all(&introduction.proof(key, DIAL))
}
