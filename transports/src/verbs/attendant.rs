//! What the control thread does for RDMA: it hears what devices say, and looks after connections that were closed, and after those that have
//! lost a queue pair while their ranks are in no call.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::NAME;
use crate::{Service, TransportError};

/// Several services as one.
pub(super) struct Attendant {
    parts: [Arc<dyn Service>; 3],
    epoll: Epoll,
}

impl Attendant {
    /// # Errors
    /// The system's.
    pub(super) fn new(parts: [Arc<dyn Service>; 3]) -> Result<Self, TransportError> {
        let failed = |call| move |error: nix::Error| TransportError::system(NAME, call, error);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("epoll_create1"))?;
        for part in &parts {
            let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
            epoll.add(part.descriptor(), readable).map_err(failed("epoll_ctl of a service"))?;
        }
        Ok(Attendant { parts, epoll })
    }
}

impl Service for Attendant {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn serve(&self) {
        self.parts.iter().for_each(|part| part.serve());
    }

    fn has_chores(&self) -> bool {
        self.parts.iter().any(|part| part.has_chores())
    }
}
