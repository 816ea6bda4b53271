//! The listening socket of a process at one of its addresses.
//!
//! Invariant: one listener serves any number of jobs; a caller says which job it means and proves that it knows that
//! job's key, and is passed to the endpoint that it named. An answer is only for callers that have proved the key, so
//! strangers do not learn which jobs are here: a caller of a job whose transports have gone hears so, by that job's
//! key, which is kept for a while; a caller of any other job is hung up on, without a word. Absent: what becomes of a
//! caller ([`super::TcpConnecting`]).

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use consort_memory::Waker;
use nix::sys::socket::{Backlog, listen};

use super::handshake::{HELLO_BYTES, JobName, Key, Verdict, job_of};
use super::linger::Lingering;
use super::{NAME, send_small, system};
use crate::ports::listen_within;
use crate::reception::Reception;
use crate::segment::Nonce;
use crate::{Service, TransportError};

/// A listening socket for any number of [`super::Tcp`]s.
#[derive(Debug)]
pub struct Listener {
    pub(super) here: SocketAddr,
    service: OwnedFd,
    desk: Mutex<Desk>,
    lingering: Mutex<Lingering>,
}

/// Jobs that have gone and whose late callers hear so.
const DISMISSED_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Desk {
    reception: Reception,
    /// Keys of the jobs here, with how many transports have each; none has those of `dismissed`.
    jobs: HashMap<JobName, (Key, usize)>,
    /// The last that went, in order; one that came again may still be among them.
    dismissed: VecDeque<JobName>,
    /// Endpoints whose connection is not there yet; with the caller, when it came before they asked for it.
    pub(super) expected: HashMap<Nonce, Expected>,
}

/// What a listener knows of an endpoint.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) job: JobName,
    pub(super) caller: Option<Caller>,
    /// What is rung when it comes.
    pub(super) waker: Option<u64>,
}

/// A caller that proved to know the key.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) nonce: Nonce,
    pub(super) socket: OwnedFd,
}

impl Listener {
    /// Listens on `bind`, an address of this machine that the peers can reach, at a port the system picks.
    ///
    /// # Errors
    /// [`TransportError::BadAddress`] when `bind` is unspecified (peers get it), or the system's error.
    pub fn new(bind: IpAddr) -> Result<Self, TransportError> {
        Self::within(bind, None)
    }

    /// As [`Listener::new`], at a port of the range where there is one.
    ///
    /// # Errors
    /// Those of [`Listener::new`], and [`TransportError::PortsInUse`] when each port of the range is in use.
    pub fn within(bind: IpAddr, ports: Option<RangeInclusive<u16>>) -> Result<Self, TransportError> {
        if bind.is_unspecified() {
            let reason = "the address to listen on must be one that peers can connect to";
            return Err(TransportError::BadAddress { transport: NAME, reason });
        }
        let refused = |call| move |error| TransportError::system(NAME, call, error);
        let listener = listen_within(bind, ports.clone()).map_err(|error| match ports {
            Some(ports) if error.kind() == ErrorKind::AddrInUse => {
                let (first, last) = ports.into_inner();
                TransportError::PortsInUse { transport: NAME, address: bind, first, last }
            }
            _ => refused("bind")(error),
        })?;
        let here = listener.local_addr().map_err(refused("getsockname"))?;
        listener.set_nonblocking(true).map_err(refused("fcntl"))?;
        // Again, for a longer queue than the standard library's: all ranks call at the same time.
        listen(&listener, Backlog::MAXCONN).map_err(|error| system("listen", error))?;
        let reception = Reception::new(NAME, listener.into(), HELLO_BYTES)?;
        let service = reception.service()?;
        let desk = Mutex::new(Desk {
            reception,
            jobs: HashMap::new(),
            dismissed: VecDeque::new(),
            expected: HashMap::new(),
        });
        Ok(Self { here, service, desk, lingering: Mutex::default() })
    }

    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lingering(&self) -> MutexGuard<'_, Lingering> {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Callers may name this job from now on.
    pub(super) fn admit(&self, key: &Key) {
        self.desk().jobs.entry(key.job).or_insert_with(|| (key.clone(), 0)).1 += 1;
    }

    /// One transport of the job less.
    pub(super) fn dismiss(&self, key: &Key) {
        let Desk { jobs, dismissed, .. } = &mut *self.desk();
        let Some((_, transports)) = jobs.get_mut(&key.job) else { return };
        *transports -= 1;
        if *transports == 0 {
            dismissed.retain(|job| *job != key.job);
            dismissed.push_back(key.job);
        }
        if dismissed.len() > DISMISSED_MAX
            && let Some(job) = dismissed.pop_front()
            && jobs.get(&job).is_some_and(|(_, transports)| *transports == 0)
        {
            jobs.remove(&job);
        }
    }
}

impl Service for Listener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.service.as_fd()
    }

    fn serve(&self) {
        self.lingering().tidy();
        // Its holder is serving already, or is about to be done.
        let Ok(mut desk) = self.desk.try_lock() else { return };
        let Desk { reception, jobs, expected, .. } = &mut *desk;
        reception.serve(
            |_| true,
            |socket, hello| {
                let Some((key, _)) = job_of(hello).and_then(|job| jobs.get(&job)) else {
                    tracing::debug!(transport = NAME, "turned a caller away: its job is not here");
                    return;
                };
                let Some((caller, callee)) = key.check_hello(hello) else {
                    tracing::debug!(transport = NAME, "turned a caller away: it does not know the key");
                    return;
                };
                match expected.get_mut(&callee).filter(|expected| expected.job == key.job) {
                    // The latest counts: an earlier one of the same caller has been given up by it.
                    Some(expected) => {
                        expected.caller = Some(Caller { nonce: caller, socket });
                        expected.waker.into_iter().for_each(Waker::ring);
                    }
                    None => {
                        tracing::debug!(transport = NAME, "turned a caller away: its peer has gone");
                        let _ = send_small(&socket, &key.answer(Verdict::Gone, &caller, &callee));
                    }
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_range_holds_every_listener_and_a_full_one_says_so() {
        let [.., high, low] = std::process::id().to_be_bytes();
        let ip: IpAddr = Ipv4Addr::new(127, high.clamp(1, 254), low, 3).into();
        let listener = || Listener::within(ip, Some(17_000..=17_001));
        let held = [listener().expect("free"), listener().expect("free")];
        let mut ports = held.each_ref().map(|listener| listener.here.port());
        ports.sort_unstable();
        assert_eq!(ports, [17_000, 17_001]);
        let error = listener().expect_err("both are taken");
        assert!(matches!(error, TransportError::PortsInUse { first: 17_000, last: 17_001, .. }), "{error:?}");
        let text = error.to_string();
        let parts = [&ip.to_string(), "all 2 ports", "CONSORT_PORTS=17000-17001", "widen CONSORT_PORTS"];
        assert!(parts.iter().all(|part| text.contains(*part)), "{text}");
        drop(held);
        listener().expect("free again");
    }
}
