//! Starts the ranks of this host as processes, and leaves none of them behind.
//!
//! Invariant: a rank process asks the kernel to be killed with the process that started it, and that one returns only when it
//! has waited for all of them. A rank finds the others as under any launcher: by `CONSORT_RANK`, `CONSORT_SIZE` and a job's
//! name of its own.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{getpid, getppid};

use crate::error::{Error, Result};

/// The time in which ranks may notice that one failed, and say so, before they are killed.
const GRACE: Duration = Duration::from_secs(3);
/// The pause between two looks at them in that time.
const LOOK: Duration = Duration::from_millis(5);
/// The argument by which a rank process knows its parent.
pub const PARENT: &str = "--started-by";

fn failed(what: String) -> Error {
    Error::Launch { what, hint: "what the ranks said is above" }
}

fn system(what: &str, error: impl std::fmt::Display) -> Error {
    Error::Launch {
        what: format!("{what}: {error}"),
        hint: "start fewer ranks, or start them with another launcher",
    }
}

/// How a rank ended, in words; `None` if it ended well.
fn verdict(rank: u32, status: ExitStatus) -> Option<String> {
    match (status.signal(), status.code()) {
        (_, Some(0)) => None,
        (Some(signal), _) => {
            let name = Signal::try_from(signal).map_or("unknown", Signal::as_str);
            Some(format!("rank {rank} was killed by signal {signal} ({name})"))
        }
        (None, code) => Some(format!("rank {rank} ended with exit status {}", code.unwrap_or(-1))),
    }
}

/// How rank processes are started.
struct Start {
    program: PathBuf,
    arguments: Vec<OsString>,
    ranks: u32,
    elastic: bool,
    /// The directory of the door at which new ranks ask, if there is one.
    lobby: Option<Lobby>,
}

/// A directory of this user alone, which goes when this does.
struct Lobby(PathBuf);

impl Lobby {
    fn new() -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        let path = std::env::temp_dir().join(format!("consort-trainer-{}-{now}", getpid()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| system(&format!("{} cannot be made", path.display()), error))?;
        Ok(Lobby(path))
    }

    fn door(&self) -> PathBuf {
        self.0.join("door")
    }
}

impl Drop for Lobby {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

impl Start {
    /// Starts rank `rank`, or, if it `joins`, a new one in its place.
    fn rank(&self, rank: u32, joins: bool) -> Result<Child> {
        let (own, ranks) = (getpid(), self.ranks.to_string());
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg(format!("{PARENT}={own}"));
        if let Some(lobby) = &self.lobby {
            command.arg("--door").arg(lobby.door());
        }
        if joins {
            command.arg("--join");
        }
        command
            .env("CONSORT_RANK", rank.to_string())
            .env("CONSORT_SIZE", &ranks)
            .env("CONSORT_LOCAL_RANK", rank.to_string())
            .env("CONSORT_LOCAL_SIZE", &ranks)
            .env("CONSORT_JOB", format!("trainer-{own}"))
            .stdin(Stdio::null())
            // Any of them can become the first.
            .stdout(if rank == 0 || self.elastic { Stdio::inherit() } else { Stdio::null() })
            .spawn()
            .map_err(|error| system(&format!("rank {rank} cannot be started"), error))
    }
}

/// The rank processes that have not been waited for, by rank.
struct Family {
    children: Vec<(u32, Child)>,
    /// How ranks failed, in the order in which that was seen.
    failures: Vec<String>,
    /// The ranks that were killed, as far as none was started in their place.
    killed: Vec<u32>,
    /// Whether one of those that ended last ended well.
    is_well: bool,
}

impl Family {
    /// Takes note of all that have ended.
    fn look(&mut self) {
        let Family { children, failures, killed, is_well } = self;
        let mut ended = Vec::new();
        children.retain_mut(|(rank, child)| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                let failure = verdict(*rank, status);
                ended.push(failure.is_none());
                // What a rank says itself another one would say, too.
                if status.signal().is_some() {
                    killed.push(*rank);
                }
                failures.extend(failure);
                false
            }
            Err(error) => {
                failures.push(format!("rank {rank} cannot be waited for: {error}"));
                false
            }
        });
        if !ended.is_empty() {
            *is_well = ended.contains(&true);
        }
    }

    /// Waits until the next one ends.
    fn wait(&mut self) -> Result<()> {
        // Returns when any child has ended, and leaves it to be waited for.
        match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Ok(_) | Err(nix::Error::EINTR) => {
                self.look();
                Ok(())
            }
            Err(error) => Err(system("the ranks cannot be waited for", error)),
        }
    }

    /// Waits for all; the failure of some is no reason to end the others, and for the first `restarts` that are killed others are
    /// started.
    fn wait_for_all(&mut self, start: &Start, mut restarts: usize) -> Result<()> {
        let mut said = 0;
        while !self.children.is_empty() {
            self.wait()?;
            for failure in self.failures.iter().skip(said).filter(|_| !self.children.is_empty()) {
                eprintln!("consort-trainer: {failure}; the others may go on");
            }
            said = self.failures.len();
            for rank in std::mem::take(&mut self.killed) {
                // None is started for a run that has ended.
                if restarts > 0 && !self.children.is_empty() {
                    restarts -= 1;
                    eprintln!("consort-trainer: a process is started in the place of rank {rank}");
                    self.children.push((rank, start.rank(rank, true)?));
                }
            }
        }
        match self.failures.first() {
            Some(first) if !self.is_well => Err(failed(first.clone())),
            _ => Ok(()),
        }
    }

    /// The ranks that had to be killed.
    fn kill(&mut self) -> Vec<u32> {
        self.look();
        let kill = |(rank, mut child): (u32, Child)| {
            drop(child.kill());
            drop(child.wait());
            rank
        };
        std::mem::take(&mut self.children).into_iter().map(kill).collect()
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs `ranks` processes of this program with its own arguments, and waits for them. The first failure ends all of them, unless
/// they are `elastic`: then the run has ended well if the last one has, and for the first `restarts` that are killed others are started,
/// which ask at `door`, or else at one of this run's own.
///
/// # Errors
/// [`Error::Launch`] with the first rank that failed.
pub fn run(ranks: u32, elastic: bool, restarts: usize, door: Option<&Path>) -> Result<()> {
    let program =
        std::env::current_exe().map_err(|error| system("this program does not find itself", error))?;
    let arguments = std::env::args_os().skip(1).collect();
    let lobby = (restarts > 0 && door.is_none()).then(Lobby::new).transpose()?;
    let start = Start { program, arguments, ranks, elastic, lobby };
    let mut family =
        Family { children: Vec::new(), failures: Vec::new(), killed: Vec::new(), is_well: false };
    for rank in 0..ranks {
        family.children.push((rank, start.rank(rank, false)?));
    }
    if elastic {
        return family.wait_for_all(&start, restarts);
    }
    while !family.children.is_empty() && family.failures.is_empty() {
        family.wait()?;
    }
    let deadline = Instant::now() + GRACE;
    while !family.children.is_empty() && Instant::now() < deadline {
        std::thread::sleep(LOOK);
        family.look();
    }
    let killed = family.kill();
    match family.failures.first() {
        None => Ok(()),
        Some(first) if killed.is_empty() => Err(failed(first.clone())),
        Some(first) => {
            Err(failed(format!("{first}; ranks {killed:?} did not end by themselves and were killed")))
        }
    }
}

/// In a rank process: ties its life to that of the process that started it.
///
/// # Errors
/// [`Error::Launch`] when that process is gone.
pub fn enter(parent: i32) -> Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|error| system("PR_SET_PDEATHSIG failed", error))?;
    // It may have gone before the line above.
    if getppid().as_raw() != parent {
        return Err(failed("the process that started this rank is gone".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_in_words() {
        let of = |raw| verdict(3, ExitStatus::from_raw(raw));
        assert_eq!(of(0), None);
        assert_eq!(of(2 << 8), Some("rank 3 ended with exit status 2".into()));
        assert_eq!(of(9), Some("rank 3 was killed by signal 9 (SIGKILL)".into()));
    }

    #[test]
    fn a_family_that_is_dropped_leaves_no_process() {
        let sleep = || Command::new("sleep").arg("1000").spawn().unwrap();
        let family = Family {
            children: vec![(0, sleep()), (1, sleep())],
            failures: vec![],
            killed: vec![],
            is_well: false,
        };
        let ids: Vec<u32> = family.children.iter().map(|(_, child)| child.id()).collect();
        drop(family);
        for id in ids {
            assert!(!std::path::Path::new(&format!("/proc/{id}/cwd")).exists(), "{id}");
        }
    }
}
