//! The root: one thread in the process that created the id, at which all ranks arrive.
//!
//! Invariant: it is joined when the last clone of its id drops in the process that created it, within
//! [`Limits::flush`]; a forked child neither stops nor waits for it. Absent: when the thread sleeps (see `service`), what
//! is decided (see `gathering` and `verdict`) and said (see `connection`).

mod connection;
mod gathering;
mod service;
mod verdict;
mod views;

use std::fmt;
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;

use super::door::Door;
use super::interfaces;
use super::relay::Spread;
use super::unique_id::UniqueId;
use consort_types::error::{Error, Result};
pub use gathering::Gathering;

/// How much patience the root has with whom.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most connections at a time that have proved nothing.
    pub unproved_max: usize,
    /// How long a connection may take to prove that it belongs to the job.
    pub proof: Duration,
    /// How long a connection that proved it may take to say which rank it is.
    pub hello: Duration,
    /// How long a rank may take to receive the verdict, and dropping the id to deliver it.
    pub flush: Duration,
    /// How long ranks that still come hear of a failure, unless the id is dropped.
    pub linger: Duration,
    /// How the table of ranks is spread.
    pub spread: Spread,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            unproved_max: 256,
            proof: Duration::from_secs(5),
            hello: Duration::from_secs(10),
            flush: Duration::from_secs(5),
            // As long as ranks wait for each other by default.
            linger: Duration::from_secs(300),
            spread: Spread::default(),
        }
    }
}

/// The handle of the root's thread.
pub(super) struct Root {
    /// The process whose thread it is: a fork has the handle, but not the thread.
    process: u32,
    wake: Arc<EventFd>,
    /// Whether it was asked to stop, or all ranks have come and agree: what is left to do is to tell those who are here.
    over: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Root").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Root {
    /// Starts the root of `id` at these listeners; `door` hands the id to local processes.
    pub(super) fn start(
        listeners: Vec<TcpListener>,
        door: Option<Door>,
        id: &UniqueId,
        limits: Limits,
    ) -> Result<Root> {
        let prepare = |error| Error::system("preparing the root's sockets", error);
        for listener in &listeners {
            listener.set_nonblocking(true).map_err(prepare)?;
        }
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| prepare(error.into()))?);
        let mut hosts: Vec<IpAddr> = id.addresses.iter().map(|address| address.ip()).collect();
        if hosts.iter().any(IpAddr::is_unspecified) {
            hosts = interfaces::usable()?;
        }
        hosts.retain(|ip| !ip.is_loopback());
        let over = Arc::<AtomicBool>::default();
        let service = service::Service::new(listeners, wake.clone(), door, id, hosts, limits, over.clone());
        let thread = thread::Builder::new()
            .name("consort-root".into())
            .spawn(move || {
                // The program's signal handlers run on the program's own threads.
                if let Err(error) = SigSet::all().thread_block() {
                    tracing::debug!(%error, "the root's thread takes signals");
                }
                service.run();
            })
            .map_err(|error| Error::system("starting the thread consort-root", error))?;
        Ok(Root { process: std::process::id(), wake, over, thread: Mutex::new(Some(thread)) })
    }

    /// Asks the thread to tell all ranks that wait and to end; does not wait.
    pub(super) fn stop(&self) {
        if std::process::id() == self.process {
            self.over.store(true, Ordering::Release);
            // A thread that has ended does not need it.
            let _ = self.wake.write(1);
        }
    }

    /// Whether dropping it takes nothing from any rank: all ranks have come and agree, it was asked to stop, or its thread has
    /// ended. True for a rank that has joined by it, but not in a forked child, which does not hear of what happens.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || self.ended()
    }

    /// Whether the thread has ended.
    pub(super) fn ended(&self) -> bool {
        self.thread.lock().is_ok_and(|thread| thread.as_ref().is_none_or(JoinHandle::is_finished))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().ok().and_then(Option::take);
        let Some(thread) = thread else { return };
        if std::process::id() != self.process {
            // The thread belongs to the parent, and detaching it here would touch memory of a thread that is not.
            std::mem::forget(thread);
            return;
        }
        self.stop();
        if thread.join().is_err() {
            tracing::error!("the thread consort-root panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::{Hello, Member, join};

    #[test]
    fn a_forked_child_neither_stops_nor_waits_for_the_thread() {
        let mut id =
            UniqueId::create_on(&[IpAddr::from([127, 0, 0, 1])], None, None, Limits::default()).unwrap();
        // As a fork sees it: the same handle, in another process.
        let mut root = std::sync::Arc::into_inner(id.root.take().unwrap()).unwrap();
        root.process += 1;
        root.stop();
        drop(root);
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let id = id.clone();
                let hello = Hello { rank, size: 2, settings: vec![], member: Member::unknown() };
                thread::spawn(move || join(&id, hello, Duration::from_secs(30)))
            })
            .collect();
        for rank in ranks {
            rank.join().unwrap().unwrap();
        }
    }
}
