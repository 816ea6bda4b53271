//! Watching a process of this host: a descriptor that becomes readable when the process ends.
//!
//! Invariant: the descriptor names the process, not its number, so a number used again is never taken for it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// A process, held by descriptor (`pidfd_open(2)`, Linux 5.3). Close-on-exec.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Holds the process with this number.
    ///
    /// # Errors
    /// The system's error: there is no such process, or the kernel or its seccomp filter does not offer the call.
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: the call takes two integers and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        Ok(PidFd(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn readable(pidfd: &PidFd, timeout_ms: u16) -> bool {
        let mut fds = [nix::poll::PollFd::new(pidfd.as_fd(), nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, timeout_ms).expect("poll") == 1
    }

    #[test]
    fn becomes_readable_when_the_process_ends() {
        let mut child = Command::new("sleep").arg("30").spawn().expect("sleep starts");
        let pidfd = PidFd::open(child.id() as i32).expect("pidfd_open");
        assert!(!readable(&pidfd, 0));
        child.kill().expect("kill");
        assert!(readable(&pidfd, 5000));
        child.wait().expect("wait");
        assert!(PidFd::open(i32::MAX).is_err());
    }
}
