//! Where rank 0 hands the unique id to the other ranks on its host: a Unix socket in a directory that only its user can
//! enter.
//!
//! Invariants: the directory is a real one (not a link) of this user with mode 0700, and is used by its descriptor from
//! then on, so that what was checked is what is used; both sides check the other's user id with the kernel; one process
//! at a time serves a name, which the lock beside the socket decides, so that a socket left by a crash is replaced and
//! one that is served is not. Absent: which name a job has.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, sockopt};
use nix::unistd::geteuid;

use super::UniqueId;
use consort_types::Rank;
use consort_types::error::{Error, Result, seconds};

/// A directory that only this user can enter.
pub(super) struct Directory {
    handle: File,
    path: PathBuf,
}

impl Directory {
    /// Opens `consort-<uid>` in the first of the candidates in which it is or can be made.
    ///
    /// A runtime directory that was inherited from another host or user is passed over, by all ranks alike.
    pub(super) fn open_in(candidates: &[PathBuf]) -> Result<Self> {
        let mut last = Error::invalid(
            "there is no directory for the ranks of this host to meet in",
            "create /tmp, or set XDG_RUNTIME_DIR to a directory of this user",
        );
        for parent in candidates.iter().filter(|path| path.is_absolute()) {
            let path = parent.join(format!("consort-{}", geteuid()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    tracing::debug!(path = %path.display(), %error, "the ranks cannot meet here");
                    last = Error::system(format!("creating the directory {}", path.display()), error);
                }
                _ => return Self::open(&path),
            }
        }
        Err(last)
    }

    /// Opens this directory and checks it.
    fn open(path: &Path) -> Result<Self> {
        let unsafe_because = |what: &str| {
            Error::invalid(
                format!("the directory {} is not safe to meet in: {what}", path.display()),
                "remove it, or set XDG_RUNTIME_DIR to a directory of this user",
            )
        };
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let handle = match OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) {
            Ok(handle) => handle,
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOTDIR | Errno::ELOOP) => return Err(unsafe_because("it is a link or a file")),
                Some(Errno::EACCES) => return Err(unsafe_because("this user may not enter it")),
                _ => return Err(Error::system(format!("opening the directory {}", path.display()), error)),
            },
        };
        let about =
            handle.metadata().map_err(|e| Error::system(format!("looking at {}", path.display()), e))?;
        if about.uid() != geteuid().as_raw() {
            return Err(unsafe_because(&format!("it belongs to user {}, not {}", about.uid(), geteuid())));
        }
        if about.mode() & 0o077 != 0 {
            return Err(unsafe_because(&format!(
                "others may enter it (mode {:o}, must be 700)",
                about.mode() & 0o777
            )));
        }
        Ok(Directory { handle, path: path.to_owned() })
    }

    /// A path to a name in it that leads to the very directory that was checked, and is short.
    fn at(&self, name: &str) -> PathBuf {
        let own = PathBuf::from(format!("/proc/self/fd/{}", self.handle.as_raw_fd()));
        if own.exists() { own.join(name) } else { self.path.join(name) }
    }

    /// A path for people.
    fn shown(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }
}

/// A served name. Dropping it removes the name.
pub(super) struct Door {
    directory: Directory,
    name: String,
    listener: UnixListener,
    /// Held while the door is open; let go when it is closed.
    lock: File,
}

impl Door {
    /// Begins to serve `name`, replacing what a crash may have left.
    pub(super) fn open(directory: Directory, name: &str, rank: Rank) -> Result<Self> {
        let shown = directory.shown(name);
        let lock = Self::lock(&directory, name, rank)?;
        let path = directory.at(name);
        match std::fs::remove_file(&path) {
            Ok(()) => tracing::debug!(path = shown, "replaced the socket of a rank 0 that crashed"),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::system(format!("removing the stale socket {shown}"), error)),
        }
        let listen = |error| Error::system(format!("listening at {shown}"), error);
        let listener = UnixListener::bind(&path).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        Ok(Door { directory, name: name.to_owned(), listener, lock })
    }

    fn lock(directory: &Directory, name: &str, rank: Rank) -> Result<File> {
        let path = directory.at(&lock_name(name));
        let shown = directory.shown(name);
        let failed = |error| Error::system(format!("locking {shown}"), error);
        // Again, if a door was just closing: it removes the file while others have opened it already.
        for attempt in 0..100 {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(OFlag::O_NOFOLLOW.bits())
                .open(&path)
                .map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if attempt < 10 => {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                }
                Err(TryLockError::WouldBlock) => {
                    let mut holder = String::new();
                    let _ = (&file).take(64).read_to_string(&mut holder);
                    return Err(Error::Join {
                        rank,
                        cause: format!("another rank 0 of the same job waits at {shown} ({})", holder.trim()),
                        hint: "end that process, or distinguish the two jobs: with CONSORT_JOB, or by giving each its own \
                               CONSORT_ADDRESS and CONSORT_SECRET"
                            .into(),
                    });
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            let same = |a: std::fs::Metadata, b: std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
            if let (Ok(opened), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(&path))
                && same(opened, named)
            {
                // For the message above only.
                let _ = file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0)));
                let _ = writeln!(file, "process {}", std::process::id());
                return Ok(file);
            }
        }
        Err(Error::internal(format!("the lock beside {shown} changes all the time")))
    }

    /// Gives the id to all callers of this user.
    pub(super) fn answer(&self, id: &[u8; UniqueId::BYTES]) {
        for _ in 0..64 {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "the unique id cannot be handed out");
                    thread::sleep(Duration::from_millis(10));
                    return;
                }
            };
            match peer_user(&stream) {
                Ok(user) if user == geteuid().as_raw() => {
                    // An empty socket takes so few bytes at once, so this does not block.
                    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
                    if let Err(error) = socket::send(stream.as_raw_fd(), id, flags) {
                        tracing::debug!(%error, "a rank left before it was given the unique id");
                    }
                }
                user => tracing::warn!(?user, "another user asked for the unique id and did not get it"),
            }
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        for name in [self.name.clone(), lock_name(&self.name)] {
            if let Err(error) = std::fs::remove_file(self.directory.at(&name)) {
                tracing::debug!(%error, name, "a meeting place was removed by another process");
            }
        }
        // A forked child may hold both, so closing them would not be enough.
        let _ = socket::shutdown(self.listener.as_raw_fd(), socket::Shutdown::Both);
        let _ = self.lock.unlock();
    }
}

fn lock_name(name: &str) -> String {
    format!("{name}.lock")
}

fn peer_user(stream: &UnixStream) -> nix::Result<u32> {
    socket::getsockopt(stream, sockopt::PeerCredentials).map(|credentials| credentials.uid())
}

/// Fetches the id at a door that may open later.
pub(super) fn fetch(
    directory: &Directory,
    name: &str,
    rank: Rank,
    timeout: Duration,
) -> Result<[u8; UniqueId::BYTES]> {
    let begun = Instant::now();
    loop {
        let left = timeout.saturating_sub(begun.elapsed());
        let why = match knock(directory, name, left) {
            Ok(id) => return Ok(id),
            Err(error) => error,
        };
        if left.is_zero() {
            return Err(Error::Join {
                rank,
                cause: format!(
                    "rank 0 did not offer the job's unique id at {} within {}: {why}",
                    directory.shown(name),
                    seconds(timeout)
                ),
                hint: "check that rank 0 was started on this host by the same user, and its own error messages; for ranks \
                       on several hosts, or in containers that do not share that directory, set CONSORT_ADDRESS and \
                       CONSORT_SECRET"
                    .into(),
            });
        }
        // In proportion to the time already lost, so that little is added to it.
        let pause = (begun.elapsed() / 4).clamp(Duration::from_millis(1), Duration::from_millis(20));
        thread::sleep(pause.min(left));
    }
}

fn knock(directory: &Directory, name: &str, left: Duration) -> std::io::Result<[u8; UniqueId::BYTES]> {
    // Not blocking: a door whose queue is full would otherwise keep a caller for ever.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new(&directory.at(name))?)?;
    let stream = UnixStream::from(socket);
    let user = peer_user(&stream)?;
    if user != geteuid().as_raw() {
        return Err(std::io::Error::other(format!("user {user} serves it, not {}", geteuid())));
    }
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(left.clamp(Duration::from_millis(10), Duration::from_secs(5))))?;
    let mut id = [0; UniqueId::BYTES];
    // The time is for all of it: an id may drip.
    match socket::recv(stream.as_raw_fd(), &mut id, MsgFlags::MSG_WAITALL)? {
        UniqueId::BYTES => Ok(id),
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Err(ErrorKind::TimedOut.into()),
    }
}
