//! The root's loop: sleep until something happens, and let the gathering deal with it.
//!
//! Invariants: one thread that only ever sleeps in `poll`; before a table is sent, every listener is closed and the door
//! is gone, so that a rank which has joined can use the same place for the next job at once. Absent: what is decided and
//! said (see `gathering`).

use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{Shutdown, shutdown};

use super::Limits;
use super::gathering::{Complete, Gathering};
use crate::bootstrap::UniqueId;
use crate::bootstrap::door::Door;
use crate::bootstrap::stream::patience;

/// How long accepting pauses when the process is out of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// The most connections accepted before others are looked at.
const BATCH: usize = 64;

pub(super) struct Service {
    listeners: Vec<TcpListener>,
    woken: Arc<EventFd>,
    door: Option<Door>,
    id_bytes: [u8; UniqueId::BYTES],
    gathering: Gathering<TcpStream>,
    accept_from: Instant,
    over: Arc<AtomicBool>,
}

impl Service {
    /// `over` becomes true before any rank hears that all are here.
    pub(super) fn new(
        listeners: Vec<TcpListener>,
        woken: Arc<EventFd>,
        door: Option<Door>,
        id: &UniqueId,
        hosts: Vec<IpAddr>,
        limits: Limits,
        over: Arc<AtomicBool>,
    ) -> Self {
        Service {
            listeners,
            woken,
            door,
            id_bytes: id.to_bytes(),
            gathering: Gathering::new(id, hosts, limits),
            accept_from: Instant::now(),
            over,
        }
    }

    pub(super) fn run(mut self) {
        while !self.gathering.finished(Instant::now()) {
            let ready = match self.sleep() {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "the root cannot poll and ends");
                    break;
                }
            };
            let now = Instant::now();
            if ready.woken {
                let _ = self.woken.read();
                self.gathering.stop(now);
            }
            if let Some(complete) = self.gathering.serve(ready.connections, now) {
                self.announce(complete, now);
            }
            if ready.newcomers {
                self.accept(now);
            }
            if ready.door
                && let Some(door) = &self.door
            {
                door.answer(&self.id_bytes);
            }
            self.gathering.expire(now);
        }
        self.close_listeners();
        tracing::debug!(place = self.gathering.place(), "the root has ended");
        self.gathering.close();
    }

    /// Whether newcomers can be taken now, or from when.
    fn accepting(&self, now: Instant) -> Result<(), Option<Instant>> {
        if self.listeners.is_empty() {
            return Err(None);
        }
        if now < self.accept_from {
            return Err(Some(self.accept_from));
        }
        self.gathering.accepting(now)
    }

    fn sleep(&self) -> Result<Ready, Errno> {
        let now = Instant::now();
        let accepting = self.accepting(now);
        let until = self.gathering.until().into_iter().chain(accepting.err().flatten()).min();
        let mut polled = vec![PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        let listeners = if accepting.is_ok() { self.listeners.as_slice() } else { &[] };
        polled.extend(listeners.iter().map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)));
        polled.extend(self.door.iter().map(|door| PollFd::new(door.as_fd(), PollFlags::POLLIN)));
        for (stream, sending) in self.gathering.connections() {
            let wanted = if sending { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
            polled.push(PollFd::new(stream.as_fd(), wanted));
        }
        poll(&mut polled, patience(until, now))?;
        let mut ready = polled.iter().map(|fd| fd.any().unwrap_or(true));
        let woken = ready.next().unwrap_or(false);
        let newcomers = ready.by_ref().take(listeners.len()).fold(false, |any, one| any | one);
        let door = self.door.is_some() && ready.next().unwrap_or(false);
        let connections = ready.enumerate().filter_map(|(at, ready)| ready.then_some(at)).collect();
        Ok(Ready { woken, newcomers, door, connections })
    }

    fn accept(&mut self, now: Instant) {
        for at in 0..self.listeners.len() {
            for _ in 0..BATCH {
                if self.accepting(now).is_err() {
                    return;
                }
                let (stream, peer) = match self.listeners[at].accept() {
                    Ok(taken) => taken,
                    Err(error) => match error.kind() {
                        ErrorKind::WouldBlock => break,
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                        _ => {
                            tracing::warn!(%error, "the root cannot take a connection; it may need a higher limit of open files (ulimit -n)");
                            self.accept_from = now + PAUSE;
                            return;
                        }
                    },
                };
                match stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)) {
                    Ok(()) => self.gathering.connected(stream, peer, now),
                    Err(error) => tracing::debug!(%peer, %error, "a connection broke at once"),
                }
            }
        }
    }

    /// All are here: closes every way in before any rank can know that, and tells them.
    fn announce(&mut self, complete: Complete, now: Instant) {
        self.close_listeners();
        self.door = None;
        self.over.store(true, Ordering::Release);
        self.gathering.announce(complete, now);
    }

    fn close_listeners(&mut self) {
        for listener in self.listeners.drain(..) {
            // Not only closed: a forked child may hold the same socket, and connections would wait there for ever.
            let _ = shutdown(listener.as_raw_fd(), Shutdown::Both);
        }
    }
}

/// What poll found.
struct Ready {
    woken: bool,
    newcomers: bool,
    door: bool,
    connections: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_listens_any_more_once_a_table_is_on_its_way() {
        let id = UniqueId::lone().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // A fork would hold the same socket: it must not go on taking connections there.
        let forked = listener.try_clone().unwrap();
        let woken = Arc::new(EventFd::new().unwrap());
        let over = Arc::<AtomicBool>::default();
        let limits = Limits::default();
        let mut service = Service::new(vec![listener], woken, None, &id, Vec::new(), limits, over.clone());
        service.announce(Complete::default(), Instant::now());
        assert!(service.listeners.is_empty() && service.door.is_none());
        assert!(over.load(Ordering::Acquire));
        let refused = std::net::TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        drop(forked);
    }
}
