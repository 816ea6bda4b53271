//! What a device says of itself while it is open: ports that go down or come back, queue pairs and whole devices that fail.
//!
//! Invariant: reading events never blocks; each that was taken is given back before the next is read. Absent: who reads them when.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::port::Opened;
use super::queue::Queue;
use super::sys::{self, AsyncEvent, Qp};
use super::{NAME, lock};
use crate::{AdapterTrouble, Service, TransportError};

/// What a device has said that is not over.
#[derive(Default)]
pub(super) struct Events {
    /// Whether anything of it does not work: the one thing that is looked at where all is well.
    has_trouble: AtomicBool,
    trouble: Mutex<Trouble>,
    /// Bits of the ports that are down.
    down: AtomicU32,
    /// Whether its events can be read no longer.
    is_deaf: AtomicBool,
}

#[derive(Default)]
struct Trouble {
    /// Why the whole device has failed.
    device: Option<&'static str>,
    /// Queue pairs and completion queues that have failed, by their addresses, and why.
    objects: Vec<(usize, &'static str)>,
}

/// An event, as `verbs.h` names it.
fn name(event: u32) -> &'static str {
    match event {
        sys::EVENT_CQ_ERR => "IBV_EVENT_CQ_ERR",
        sys::EVENT_QP_FATAL => "IBV_EVENT_QP_FATAL",
        sys::EVENT_QP_REQ_ERR => "IBV_EVENT_QP_REQ_ERR",
        sys::EVENT_QP_ACCESS_ERR => "IBV_EVENT_QP_ACCESS_ERR",
        sys::EVENT_DEVICE_FATAL => "IBV_EVENT_DEVICE_FATAL",
        sys::EVENT_PORT_ACTIVE => "IBV_EVENT_PORT_ACTIVE",
        sys::EVENT_PORT_ERR => "IBV_EVENT_PORT_ERR",
        sys::EVENT_LID_CHANGE => "IBV_EVENT_LID_CHANGE",
        sys::EVENT_PKEY_CHANGE => "IBV_EVENT_PKEY_CHANGE",
        sys::EVENT_GID_CHANGE => "IBV_EVENT_GID_CHANGE",
        _ => "another event",
    }
}

/// What an event of a port means, where it is one that people should hear of.
fn of_port(event: u32) -> Option<&'static str> {
    Some(match event {
        sys::EVENT_PORT_ERR => {
            "the port is down: what is sent goes by other ports of its connections, or fails after some seconds unless the port comes back; look at the cable and the switch"
        }
        sys::EVENT_PORT_ACTIVE => "the port is active",
        sys::EVENT_LID_CHANGE => {
            "the port has another local id: connections that were made before may fail, and new ones use it"
        }
        sys::EVENT_PKEY_CHANGE => "the port's partitions have changed: see NCCL_IB_PKEY",
        sys::EVENT_GID_CHANGE => {
            "the port's table of addresses has changed: connections over an address that is gone fail; look at the interface's addresses"
        }
        _ => return None,
    })
}

impl Events {
    /// Whether a port is down, as far as its device has said.
    pub(super) fn is_down(&self, port: u8) -> bool {
        self.down.load(Ordering::Relaxed) >> (port & 31) & 1 == 1
    }

    /// Keeps what an event says of a port.
    fn note(&self, event: &AsyncEvent) {
        let bit = |port: u32| 1u32.checked_shl(port).unwrap_or(0);
        match event.event_type {
            sys::EVENT_PORT_ERR => self.down.fetch_or(bit(event.port()), Ordering::Relaxed),
            sys::EVENT_PORT_ACTIVE => self.down.fetch_and(!bit(event.port()), Ordering::Relaxed),
            _ => 0,
        };
    }
}

impl Opened {
    /// Has the descriptor of its events never block.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn quieten(&self) -> Result<(), TransportError> {
        let fd = self.events_descriptor().as_raw_fd();
        // SAFETY: a descriptor that is open as long as the context.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        // SAFETY: the same.
        if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
            let call = "fcntl of a device's events";
            return Err(TransportError::system(NAME, call, io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Becomes readable when the device has said something.
    fn events_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the context of an open device, whose descriptor stays until it is closed.
        unsafe { BorrowedFd::borrow_raw((*self.context).async_fd) }
    }

    /// Takes in what the device has said.
    pub(super) fn hear(&self) {
        if self.stamp.is_forked_child() || self.events.is_deaf.load(Ordering::Relaxed) {
            return;
        }
        loop {
            let mut event = AsyncEvent { element: 0, event_type: u32::MAX };
            // SAFETY: an open context whose descriptor does not block, and room for an event.
            if unsafe { (self.functions.get_async_event)(self.context, &raw mut event) } != 0 {
                let error = io::Error::last_os_error();
                if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
                    self.events.is_deaf.store(true, Ordering::Relaxed);
                    tracing::warn!(device = self.device, %error, "an RDMA device's events can be read no longer");
                }
                return;
            }
            self.take(&event);
            // SAFETY: the event that was just taken.
            unsafe { (self.functions.ack_async_event)(&raw mut event) };
        }
    }

    fn take(&self, event: &AsyncEvent) {
        let (device, said) = (self.device.as_str(), name(event.event_type));
        self.events.note(event);
        let mut trouble = lock(&self.events.trouble);
        match event.event_type {
            sys::EVENT_QP_FATAL | sys::EVENT_QP_REQ_ERR | sys::EVENT_QP_ACCESS_ERR => {
                let qp = event.element as *const Qp;
                // SAFETY: a queue pair stays until the events of it that were taken have been given back.
                let number = unsafe { (*qp).qp_num };
                tracing::warn!(
                    device,
                    queue_pair = number,
                    event = said,
                    "a queue pair of an RDMA device has failed"
                );
                trouble.objects.push((qp as usize, said));
            }
            sys::EVENT_CQ_ERR => {
                tracing::warn!(device, event = said, "a completion queue of an RDMA device has failed");
                trouble.objects.push((event.element as usize, said));
            }
            sys::EVENT_DEVICE_FATAL => {
                tracing::warn!(device, event = said, "an RDMA device has failed: its connections are lost");
                trouble.device = Some(said);
            }
            other => match of_port(other) {
                Some(meaning) => tracing::warn!(device, port = event.port(), event = said, "{meaning}"),
                None => tracing::debug!(device, event = other, "an RDMA device has said something"),
            },
        }
        // Set behind what it announces, under the same lock.
        let has_trouble = trouble.device.is_some() || !trouble.objects.is_empty();
        self.events.has_trouble.store(has_trouble, Ordering::Relaxed);
    }

    /// Objects that are there no longer cannot fail.
    pub(super) fn forget(&self, objects: [usize; 3]) {
        if !self.events.has_trouble.load(Ordering::Relaxed) {
            return;
        }
        let mut trouble = lock(&self.events.trouble);
        trouble.objects.retain(|(object, _)| !objects.contains(object));
        let has_trouble = trouble.device.is_some() || !trouble.objects.is_empty();
        self.events.has_trouble.store(has_trouble, Ordering::Relaxed);
    }
}

/// Whether a device has said that it has failed.
pub(super) fn has_failed(opened: &Opened) -> bool {
    opened.events.has_trouble.load(Ordering::Relaxed) && lock(&opened.events.trouble).device.is_some()
}

/// Why a queue pair works no longer, where its device has said so. One load where all is well.
pub(super) fn trouble(queue: &Queue) -> Option<TransportError> {
    let opened = queue.port().opened();
    if !opened.events.has_trouble.load(Ordering::Relaxed) {
        return None;
    }
    let trouble = lock(&opened.events.trouble);
    let of_queue = trouble.objects.iter().find(|(object, _)| queue.objects().contains(object));
    let device = opened.device.clone();
    let (subject, event, remedy) = match (trouble.device, of_queue) {
        (Some(event), _) => {
            let remedy = "look at the system's log for the adapter: it is being reset, was removed, or needs other firmware";
            (format!("the adapter {device}"), event, remedy)
        }
        (None, Some((_, event))) => {
            let remedy = "look at the system's log for the adapter, and at the first error of the peer";
            (format!("queue pair {}", queue.number()), *event, remedy)
        }
        (None, None) => return None,
    };
    Some(TransportError::adapter(NAME, AdapterTrouble::Event { subject, device, event, remedy }))
}

/// Hears the events of several devices; served by the process's control thread.
pub(super) struct Watch {
    devices: Vec<Arc<Opened>>,
    epoll: Epoll,
}

impl Watch {
    /// # Errors
    /// The system's.
    pub(super) fn new(devices: Vec<Arc<Opened>>) -> Result<Self, TransportError> {
        let failed = |call| move |error: nix::Error| TransportError::system(NAME, call, error);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("epoll_create1"))?;
        for device in &devices {
            let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
            epoll
                .add(device.events_descriptor(), readable)
                .map_err(failed("epoll_ctl of a device's events"))?;
        }
        Ok(Watch { devices, epoll })
    }
}

impl Service for Watch {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn serve(&self) {
        for device in &self.devices {
            device.hear();
            if device.events.is_deaf.load(Ordering::Relaxed) {
                // It would be readable for ever.
                let _ = self.epoll.delete(device.events_descriptor());
            }
        }
    }
}
