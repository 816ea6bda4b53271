//! Starts the ranks as processes, passes on their output, and leaves none of them behind.
//!
//! Invariant: when the parent is gone, so are its children: they ask the kernel to be killed with it, and the
//! parent returns only when all have been waited for. The job's id travels through each child's standard
//! input, never through its arguments or environment, where others could read it. Process numbers are used
//! only while the process has not been waited for, so no stranger is ever killed.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use consort::Options;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id as WaitId, WaitPidFlag, waitid};
use nix::unistd::{getpid, getppid};

use crate::arguments::Place;
use crate::backend::{self, Id, Member};
use crate::failure::{Exit, Failure};
use crate::progress;

/// The time in which ranks may notice that one failed, and say so, before they are killed.
const GRACE: Duration = Duration::from_secs(3);
/// The pause between two looks at them in that time.
const LOOK: Duration = Duration::from_millis(5);
/// The pause between two drawings of the bar.
const TICK: Duration = Duration::from_secs(1);

/// The way of both output streams of the parent: with one way the bar and the lines do not mix.
struct Screen {
    begun: Instant,
    /// The bar's text, if there is something to say.
    bar: Option<String>,
    /// Whether it is on the terminal.
    drawn: bool,
    /// Whether standard output failed to take something.
    broken: bool,
    over: bool,
}

impl Screen {
    fn new() -> Self {
        Self { begun: Instant::now(), bar: None, drawn: false, broken: false, over: false }
    }

    fn draw(&mut self) {
        let elapsed = self.begun.elapsed();
        if let Some(bar) = self.bar.as_ref().filter(|_| elapsed >= progress::PATIENCE) {
            progress::draw(bar, elapsed);
            self.drawn = true;
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            progress::clear();
        }
    }

    fn out(&mut self, line: &[u8]) {
        self.clear();
        let mut out = std::io::stdout().lock();
        self.broken |= out.write_all(line).and_then(|()| out.flush()).is_err();
    }

    fn error(&mut self, rank: u32, line: &[u8]) {
        if let [progress::MARK, text @ ..] = line {
            self.bar = Some(String::from_utf8_lossy(text).trim_end().to_owned());
            self.draw();
            return;
        }
        self.clear();
        let line = String::from_utf8_lossy(line);
        drop(writeln!(std::io::stderr(), "[{rank}] {}", line.trim_end_matches('\n')));
    }
}

type Shared = Arc<Mutex<Screen>>;

fn lock(screen: &Shared) -> MutexGuard<'_, Screen> {
    screen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the bar's clock going.
fn tick(screen: Shared) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        while !lock(&screen).over {
            lock(&screen).draw();
            thread::park_timeout(TICK);
        }
    })
}

fn relay(from: impl Read + Send + 'static, each: impl Fn(&[u8]) + Send + 'static) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            each(&line);
            line.clear();
        }
    })
}

/// How a rank ended, in words; `None` if it ended well.
fn verdict(status: ExitStatus) -> Option<(Exit, String)> {
    if let Some(number) = status.signal() {
        let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
        let core = if status.core_dumped() { ", core dumped" } else { "" };
        return Some((Exit::Library, format!("was killed by signal {number} ({name}{core})")));
    }
    match status.code() {
        Some(0) => None,
        Some(code) => Some((Exit::from_code(code), format!("ended with exit status {code}"))),
        None => Some((Exit::Internal, "ended without a status".into())),
    }
}

/// The children that have not been waited for.
struct Family {
    children: Vec<Option<Child>>,
    /// Ranks that failed by themselves, in the order in which they did.
    failed: Vec<(u32, Exit, String)>,
    /// Ranks that had to be killed.
    killed: Vec<u32>,
}

impl Family {
    fn alive(&self) -> bool {
        self.children.iter().any(Option::is_some)
    }

    /// Takes note of all that have ended.
    fn look(&mut self) {
        for (rank, slot) in (0u32..).zip(&mut self.children) {
            let Some(child) = slot else { continue };
            let ended = match child.try_wait() {
                Ok(None) => continue,
                Ok(Some(status)) => verdict(status),
                Err(error) => Some((Exit::Internal, format!("cannot be waited for: {error}"))),
            };
            *slot = None;
            if let Some((exit, text)) = ended.filter(|_| !self.killed.contains(&rank)) {
                self.failed.push((rank, exit, text));
            }
        }
    }

    fn kill(&mut self) {
        self.look();
        for (rank, slot) in (0u32..).zip(&mut self.children) {
            if let Some(child) = slot {
                self.killed.push(rank);
                drop(child.kill());
                drop(child.wait());
                *slot = None;
            }
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts `ranks` processes of this program and waits for them.
pub(crate) fn run(
    verbose: bool,
    ranks: u32,
    note: &str,
    id: &Id,
    arguments: &[OsString],
) -> Result<Exit, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::internal(format!("this program does not find itself: {error}")))?;
    let screen = Arc::new(Mutex::new(Screen::new()));
    let mut relays = Vec::new();
    let mut family = Family { children: Vec::new(), failed: Vec::new(), killed: Vec::new() };
    let progress = std::io::stderr().is_terminal();
    for rank in 0..ranks {
        let place = Place { rank, size: ranks, parent: getpid().as_raw(), progress };
        let mut child = Command::new(&program)
            .args(arguments.iter().skip(1))
            .arg(place.argument())
            .arg(format!("--as-rank-note={note}"))
            .stdin(Stdio::piped())
            .stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() })
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::internal(format!("cannot start rank {rank}: {error}")))?;
        if verbose {
            eprintln!("collbench: rank {rank} is process {}", child.id());
        }
        // A child that has already died is noticed below, by its status.
        drop(child.stdin.take().map(|mut pipe| pipe.write_all(id)));
        if let Some(pipe) = child.stdout.take() {
            let screen = screen.clone();
            relays.push(relay(pipe, move |line| lock(&screen).out(line)));
        }
        if let Some(pipe) = child.stderr.take() {
            let screen = screen.clone();
            relays.push(relay(pipe, move |line| lock(&screen).error(rank, line)));
        }
        family.children.push(Some(child));
    }

    let ticker = progress.then(|| tick(screen.clone()));
    while family.alive() && family.failed.is_empty() {
        // Returns when any child has ended, and leaves it to be waited for.
        match waitid(WaitId::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Ok(_) | Err(nix::Error::EINTR) => family.look(),
            Err(error) => return Err(Failure::internal(format!("waiting for the ranks failed: {error}"))),
        }
    }
    let deadline = Instant::now() + GRACE;
    while family.alive() && Instant::now() < deadline {
        thread::sleep(LOOK);
        family.look();
    }
    family.kill();
    for relay in relays {
        drop(relay.join());
    }
    lock(&screen).over = true;
    if let Some(ticker) = ticker {
        ticker.thread().unpark();
        drop(ticker.join());
    }
    lock(&screen).clear();
    if lock(&screen).broken {
        return Err(Failure::internal("the results could not be written to standard output"));
    }
    Ok(summary(&family.failed, &family.killed))
}

/// Says on standard error how the run failed, if it did; returns the worst exit code.
fn summary(failed: &[(u32, Exit, String)], killed: &[u32]) -> Exit {
    for line in summary_lines(failed, killed) {
        eprintln!("collbench: {line}");
    }
    failed.iter().fold(Exit::Done, |worst, (_, exit, _)| worst.worse(*exit))
}

fn summary_lines(failed: &[(u32, Exit, String)], killed: &[u32]) -> Vec<String> {
    let mut lines = Vec::new();
    if failed.iter().all(|(_, exit, _)| *exit == Exit::WrongData) && !failed.is_empty() {
        lines.push("FAILED: wrong data, or too little bandwidth; see the table and the lines above".into());
    } else {
        // A rank that was killed explains the ranks that merely lost it, in whatever order they were noticed.
        let first = failed.iter().find(|(_, _, text)| text.starts_with("was killed")).or(failed.first());
        if let Some((rank, _, text)) = first {
            lines.push(format!("FAILED: rank {rank} {text}"));
            for (other, _, text) in failed.iter().filter(|(other, ..)| other != rank) {
                lines.push(format!("then rank {other} {text}"));
            }
        }
    }
    for rank in killed {
        lines.push(format!("rank {rank} did not end by itself within {} s and was killed", GRACE.as_secs()));
    }
    lines
}

/// This rank and what its first line says, where it was started as one: by this program, or by a launcher. `is_asked_for` is
/// whether ranks are to be started here, which a launcher has done.
pub(crate) fn started(
    place: Option<Place>,
    note: Option<&str>,
    is_asked_for: bool,
    options: &Options,
) -> Result<Option<(Member, String)>, Failure> {
    if let Some(place) = place {
        let id = enter(place)?;
        let member = backend::join(place.rank, place.size, &id, options)?;
        return Ok(Some((member, note.unwrap_or_default().to_owned())));
    }
    let Some(launch) = backend::detect()?.filter(|launch| launch.size > 1) else { return Ok(None) };
    if is_asked_for {
        let text = format!("{} started the ranks; leave out --ranks and --threads", launch.launcher);
        return Err(Failure::usage(text));
    }
    let note = format!("{} ranks: as {} says", launch.size, launch.launcher);
    Ok(Some((backend::launched(options)?, note)))
}

/// In a rank process: ties its life to the parent's and reads the job's id.
pub(crate) fn enter(place: Place) -> Result<Id, Failure> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|error| Failure::internal(format!("PR_SET_PDEATHSIG failed: {error}")))?;
    // The parent may have died before the line above.
    if getppid().as_raw() != place.parent {
        return Err(Failure::internal("the process that started this rank is gone"));
    }
    let mut id = [0; 128];
    std::io::stdin().read_exact(&mut id).map_err(|error| {
        Failure::internal(format!("the job's id did not arrive on standard input: {error}"))
    })?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_in_words() {
        let of = |raw: i32| verdict(ExitStatus::from_raw(raw));
        assert_eq!(of(0), None);
        assert_eq!(of(7 << 8), Some((Exit::WrongData, "ended with exit status 7".into())));
        assert_eq!(of(101 << 8), Some((Exit::Internal, "ended with exit status 101".into())));
        assert_eq!(of(9), Some((Exit::Library, "was killed by signal 9 (SIGKILL)".into())));
        assert_eq!(
            of(11 | 0x80),
            Some((Exit::Library, "was killed by signal 11 (SIGSEGV, core dumped)".into()))
        );
    }

    #[test]
    fn the_cause_is_named_before_its_consequences() {
        let failed = [
            (0, Exit::Library, "ended with exit status 3".to_owned()),
            (1, Exit::Library, "was killed by signal 9 (SIGKILL)".to_owned()),
        ];
        let lines = summary_lines(&failed, &[2]);
        assert_eq!(lines[0], "FAILED: rank 1 was killed by signal 9 (SIGKILL)");
        assert_eq!(lines[1], "then rank 0 ended with exit status 3");
        assert!(lines[2].starts_with("rank 2 did not end by itself"));
        assert_eq!(summary(&failed, &[]), Exit::Library);
        assert_eq!(summary(&[], &[]), Exit::Done);
        let wrong = [0, 1].map(|rank| (rank, Exit::WrongData, "ended with exit status 7".to_owned()));
        assert_eq!(summary_lines(&wrong, &[]).len(), 1);
    }

    #[test]
    fn a_family_leaves_nobody_behind() {
        let sleep = || Some(Command::new("sleep").arg("1000").spawn().unwrap());
        let mut family = Family { children: vec![sleep(), sleep()], failed: vec![], killed: vec![] };
        let processes: Vec<u32> = family.children.iter().map(|child| child.as_ref().unwrap().id()).collect();
        family.look();
        assert!(family.alive());
        family.kill();
        assert!(!family.alive() && family.failed.is_empty() && family.killed == [0, 1]);
        for process in processes {
            assert!(!std::path::Path::new(&format!("/proc/{process}/cwd")).exists());
        }
    }
}
