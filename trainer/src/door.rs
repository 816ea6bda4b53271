//! Where new ranks ask to be taken in: a socket of this host, at which the first rank of a run listens.
//!
//! Invariant: the first rank looks at the door between two steps, and waits for nothing there. A rank that asks keeps its
//! connection, so each side sees at once when the other one ends; where another rank has become the first, the socket is another
//! one, and the rank asks there. Who may write to the socket is of the same user. Absent: ranks on other hosts, which need a
//! channel that can be trusted with an id.

use std::fs::Metadata;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use consort::{Communicator, Options, Rank, UniqueId};

use crate::error::{Error, Result};

/// The pause between two looks of a rank that asks.
const LOOK: Duration = Duration::from_millis(5);
/// How long a rank that asks looks for a run, which may be going on without others meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the rest of an answer may take that has begun.
const ANSWER: Duration = Duration::from_secs(10);

/// The bytes in which a rank says what it would train.
const ASKING: usize = size_of::<u64>();
/// An answer's first byte: a number, a size and an id follow.
const TAKEN: u8 = 1;
/// The run trains something else.
const REFUSED: u8 = 2;
/// The run has ended.
const OVER: u8 = 3;
/// The bytes behind [`TAKEN`].
const PLACE: usize = 2 * size_of::<u32>() + UniqueId::BYTES;

/// A rank that asks.
struct Guest {
    stream: UnixStream,
    said: Vec<u8>,
}

impl Guest {
    /// Hears what it says; whether it is still there.
    fn hear(&mut self) -> bool {
        let mut room = [0; ASKING];
        loop {
            // One byte more than it has to say would be no word of this program.
            match self.stream.read(&mut room) {
                Ok(0) => return false,
                Ok(count) => self.said.extend_from_slice(&room[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock && self.said.len() <= ASKING,
            }
        }
    }
}

/// The door of a run, on its first rank.
pub struct Door {
    path: PathBuf,
    /// Which socket is its own at the path: a number that no other file gets while this one listens.
    number: (u64, u64),
    listener: UnixListener,
    fingerprint: u64,
    guests: Vec<Guest>,
}

/// What a path that is renamed into place is called before.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    name.into()
}

impl Door {
    /// A door for ranks that train what has this `fingerprint`. With `instead` it takes the place of the one of a rank that was
    /// lost.
    ///
    /// # Errors
    /// [`Error::File`] where the socket cannot be made; [`Error::Configuration`] where another run listens.
    pub fn open(path: &Path, fingerprint: u64, instead: bool) -> Result<Self> {
        if !instead && UnixStream::connect(path).is_ok() {
            return Err(Error::configuration(
                format!("another run listens at --door {}", path.display()),
                "name another place",
            ));
        }
        let made = beside(path);
        drop(std::fs::remove_file(&made));
        let failed = |error| Error::file(path, "made", error);
        let listener = UnixListener::bind(&made).map_err(failed)?;
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let number = place_of(&std::fs::symlink_metadata(&made).map_err(failed)?);
        std::fs::rename(&made, path).map_err(failed)?;
        Ok(Door { path: path.into(), number, listener, fingerprint, guests: Vec::new() })
    }

    /// The ranks that wait now.
    pub fn look(&mut self) -> u32 {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                self.guests.push(Guest { stream, said: Vec::new() });
            }
        }
        let own = self.fingerprint.to_le_bytes();
        self.guests.retain_mut(|guest| {
            let stays = guest.hear();
            let other = guest.said.len() >= ASKING && guest.said != own;
            if stays && other {
                drop(guest.stream.write_all(&[REFUSED]));
            }
            stays && !other
        });
        self.guests.iter().filter(|guest| guest.said.len() == ASKING).count() as u32
    }

    /// Gives the first ranks that wait the id and the numbers from `from` to `size`; the ranks that were given one, with whether all
    /// have been.
    pub fn take(&mut self, id: &UniqueId, from: Rank, size: u32) -> (Guests, bool) {
        let (mut taken, mut rank) = (Vec::new(), from);
        let mut rest = Vec::new();
        for mut guest in std::mem::take(&mut self.guests) {
            if rank == size || guest.said.len() < ASKING {
                rest.push(guest);
                continue;
            }
            let mut answer = vec![TAKEN];
            answer.extend_from_slice(&rank.to_le_bytes());
            answer.extend_from_slice(&size.to_le_bytes());
            answer.extend_from_slice(&id.to_bytes());
            if guest.stream.write_all(&answer).is_ok() {
                taken.push(guest);
                rank += 1;
            }
        }
        self.guests = rest;
        (Guests(taken), rank == size)
    }

    /// The run has ended: ranks that wait end, too, and those that come. Where others have gone on without this rank, the door at the
    /// path is theirs, and stays.
    pub fn close(mut self) {
        self.look();
        if std::fs::symlink_metadata(&self.path).is_ok_and(|about| place_of(&about) != self.number) {
            return;
        }
        let sign = beside(&self.path);
        // What is no socket stands for a run that is over.
        drop(std::fs::write(&sign, "").and_then(|()| std::fs::rename(&sign, &self.path)));
        self.look();
        self.guests.iter_mut().for_each(|guest| drop(guest.stream.write_all(&[OVER])));
    }
}

/// Ranks that were given a place, and come.
pub struct Guests(Vec<Guest>);

impl Guests {
    /// Whether all of them are still there.
    pub fn are_there(&mut self) -> bool {
        self.0.iter_mut().all(Guest::hear)
    }
}

/// A place in a run.
pub struct Place {
    rank: Rank,
    size: u32,
    id: UniqueId,
    /// By which the run sees that this rank is there.
    stream: UnixStream,
}

impl Place {
    /// Takes it: returns when all ranks have come, old and new.
    ///
    /// # Errors
    /// As [`Communicator::join_with`] and [`Communicator::barrier`]; the rank may ask again.
    pub fn join(self) -> consort::Result<Communicator> {
        let comm = Communicator::join_with(self.rank, self.size, &self.id, &Options::default())?;
        comm.barrier()?;
        // The run sees this rank by the communicator from here on.
        drop(self.stream);
        Ok(comm)
    }
}

/// Where a file is, for as long as it is there.
fn place_of(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

/// Which socket is at a path, also when that of another has come in its place.
fn number(path: &Path) -> Option<(u64, i64, i64)> {
    let about = std::fs::symlink_metadata(path).ok()?;
    Some((about.ino(), about.ctime(), about.ctime_nsec()))
}

/// Asks at the door until there is a place; `None` when the run has ended.
///
/// # Errors
/// [`Error::File`] where no run listens for a long time; [`Error::Configuration`] where the run trains something else.
pub fn ask(path: &Path, fingerprint: u64) -> Result<Option<Place>> {
    let mut since = Instant::now();
    let mut is_said = false;
    loop {
        let about = std::fs::symlink_metadata(path);
        if about.is_ok_and(|about| !about.file_type().is_socket()) {
            return Ok(None);
        }
        let socket = number(path);
        match UnixStream::connect(path) {
            Err(error) if since.elapsed() > PATIENCE => return Err(Error::file(path, "found", error)),
            Err(_) => {}
            Ok(stream) => {
                if !std::mem::replace(&mut is_said, true) {
                    eprintln!("consort-trainer: process {} waits at the door", std::process::id());
                }
                match wait(stream, fingerprint, || number(path) == socket) {
                    Ok(Answer::Taken(place)) => return Ok(Some(place)),
                    Ok(Answer::Refused) => {
                        return Err(Error::configuration(
                            format!("the run at --door {} has other options or another text", path.display()),
                            "start new ranks with its arguments, file and program",
                        ));
                    }
                    Ok(Answer::Over) => return Ok(None),
                    // Its first rank was lost, or is another one.
                    Err(_) => since = Instant::now(),
                }
            }
        }
        std::thread::sleep(LOOK);
    }
}

enum Answer {
    Taken(Place),
    Refused,
    Over,
}

/// Asks at one socket, as long as it `is_there`.
fn wait(mut stream: UnixStream, fingerprint: u64, is_there: impl Fn() -> bool) -> std::io::Result<Answer> {
    stream.write_all(&fingerprint.to_le_bytes())?;
    stream.set_read_timeout(Some(LOOK))?;
    let mut first = [0];
    loop {
        match stream.read(&mut first) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => break,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                if !is_there() {
                    return Err(ErrorKind::NotFound.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    match first[0] {
        TAKEN => {}
        REFUSED => return Ok(Answer::Refused),
        OVER => return Ok(Answer::Over),
        _ => return Err(ErrorKind::InvalidData.into()),
    }
    stream.set_read_timeout(Some(ANSWER))?;
    let mut place = [0; PLACE];
    stream.read_exact(&mut place)?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| place[4 * at + byte]));
    let id = std::array::from_fn(|byte| place[8 + byte]);
    let id = UniqueId::from_bytes(&id).map_err(|_| ErrorKind::InvalidData)?;
    Ok(Answer::Taken(Place { rank: word(0), size: word(1), id, stream }))
}
