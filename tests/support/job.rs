//! Ranks as processes: started together, read from, stopped, killed, and never left behind.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use consort::UniqueId;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The longest time that a line or the end of a rank is waited for, unless the test sets another.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// The time that may pass beside the time that a contract allows: a second, as the host below may take a core; three
/// under `.ci/disturb`, which takes cores from the rank of the fault, from the control threads and from the test that
/// reads the time, 150 ms at a time and several times in a row.
pub fn stolen() -> Duration {
    Duration::from_secs(if std::env::var_os("CONSORT_TEST_DISTURBED").is_some() { 3 } else { 1 })
}

/// Held by tests that run processes.
static CORES: RwLock<()> = RwLock::new(());

/// Process tests of one program run one at a time: several jobs on two cores would miss each other's deadlines.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    CORES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Tests whose ranks wait for deadlines most of the time run beside each other.
pub fn waiting() -> RwLockReadGuard<'static, ()> {
    CORES.read().unwrap_or_else(PoisonError::into_inner)
}

/// A job to be started.
#[derive(Debug)]
pub struct Start {
    program: &'static str,
    scenario: &'static str,
    size: u32,
    arguments: Vec<String>,
    environment: Vec<(Option<u32>, String, String)>,
    wrapper: Vec<String>,
    ranks: Option<Vec<u32>>,
}

impl Start {
    /// `size` processes of `program`, each a rank in `scenario`.
    pub fn new(program: &'static str, scenario: &'static str, size: u32) -> Self {
        let (arguments, environment, wrapper) = (Vec::new(), Vec::new(), Vec::new());
        Start { program, scenario, size, arguments, environment, wrapper, ranks: None }
    }

    /// An argument `name=value` for all ranks.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.arguments.push(format!("{name}={}", value.to_string()));
        self
    }

    /// A variable for all ranks.
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((None, name.into(), value.to_string()));
        self
    }

    /// A variable for one rank.
    pub fn env_of(mut self, rank: u32, name: &str, value: impl ToString) -> Self {
        self.environment.push((Some(rank), name.into(), value.to_string()));
        self
    }

    /// A command that runs rank 0.
    pub fn wrapped(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Only these ranks are started.
    pub fn only(mut self, ranks: &[u32]) -> Self {
        self.ranks = Some(ranks.to_vec());
        self
    }

    /// Starts them, each with the id on its input.
    ///
    /// # Panics
    /// If a process cannot be started.
    pub fn go(self) -> Job {
        let id = UniqueId::create().expect("an id");
        let ranks = self.ranks.clone().unwrap_or_else(|| (0..self.size).collect());
        let processes = ranks.iter().map(|rank| self.start(*rank, &id)).collect();
        Job { processes, _id: id }
    }

    fn start(&self, rank: u32, id: &UniqueId) -> Process {
        let mut words: Vec<String> = if rank == 0 { self.wrapper.clone() } else { Vec::new() };
        words.extend([self.program, self.scenario].map(str::to_owned));
        words.extend([rank, self.size].map(|number| number.to_string()));
        words.extend(self.arguments.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (of, name, value) in &self.environment {
            if of.is_none_or(|of| of == rank) {
                command.env(name, value);
            }
        }
        let mut child = command.spawn().unwrap_or_else(|error| panic!("starting {words:?}: {error}"));
        let mut input = child.stdin.take().expect("piped");
        // The next question to a rank finds that it died at once.
        let _ = input.write_all(&id.to_bytes()).and_then(|()| input.flush());
        let said = Log::of(child.stdout.take().expect("piped"));
        let complained = Log::of(child.stderr.take().expect("piped"));
        Process { rank, child, input, said, complained, read: 0, ended: None }
    }
}

/// Lines in their order of arrival, with their times.
#[derive(Clone, Default, Debug)]
struct Log(Arc<(Mutex<Lines>, Condvar)>);

#[derive(Default, Debug)]
struct Lines {
    lines: Vec<(Instant, String)>,
    over: bool,
}

impl Log {
    fn of(stream: impl Read + Send + 'static) -> Self {
        let log = Log::default();
        let copy = log.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(std::result::Result::ok) {
                copy.lock().lines.push((Instant::now(), line));
                copy.0.1.notify_all();
            }
            copy.lock().over = true;
            copy.0.1.notify_all();
        });
        log
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self) -> String {
        self.lock().lines.iter().map(|(_, line)| format!("    {line}\n")).collect()
    }
}

struct Process {
    rank: u32,
    child: Child,
    input: ChildStdin,
    said: Log,
    complained: Log,
    /// Number of lines of `said` that were returned already.
    read: usize,
    ended: Option<ExitStatus>,
}

/// Started ranks; killed when dropped.
pub struct Job {
    processes: Vec<Process>,
    /// Its root runs in the test's own process.
    _id: UniqueId,
}

impl Job {
    fn process(&mut self, rank: u32) -> &mut Process {
        self.processes.iter_mut().find(|process| process.rank == rank).expect("a rank of the job")
    }

    /// The rank's process.
    pub fn pid(&mut self, rank: u32) -> u32 {
        self.process(rank).child.id()
    }

    /// The ranks that were started.
    pub fn ranks(&self) -> Vec<u32> {
        self.processes.iter().map(|process| process.rank).collect()
    }

    /// All lines of all ranks, for messages of tests that fail.
    pub fn output(&self) -> String {
        let text = |process: &Process| {
            let (said, complained) = (process.said.text(), process.complained.text());
            format!("  rank {} said\n{said}  and complained\n{complained}", process.rank)
        };
        self.processes.iter().map(text).collect()
    }

    /// The rest of the rank's next line that begins with `begin`, and its time.
    ///
    /// # Panics
    /// If it does not come within [`PATIENCE`].
    pub fn line_at(&mut self, rank: u32, begin: &str) -> (String, Instant) {
        let until = Instant::now() + PATIENCE;
        let process = self.process(rank);
        let log = process.said.clone();
        let mut lines = log.lock();
        loop {
            while process.read < lines.lines.len() {
                let (at, line) = lines.lines[process.read].clone();
                process.read += 1;
                if let Some(rest) = line.strip_prefix(begin) {
                    return (rest.trim().to_owned(), at);
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || lines.over {
                drop(lines);
                // The rank's error output may still be on its way.
                std::thread::sleep(Duration::from_millis(50));
                panic!("rank {rank} did not say '{begin}':\n{}", self.output());
            }
            lines = log.0.1.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The rest of the rank's next line that begins with `begin`.
    ///
    /// # Panics
    /// As [`Job::line_at`].
    pub fn line(&mut self, rank: u32, begin: &str) -> String {
        self.line_at(rank, begin).0
    }

    /// The rest of every line that begins with `begin` so far, returned before or not, with its time.
    pub fn said(&mut self, rank: u32, begin: &str) -> Vec<(String, Instant)> {
        let lines = self.process(rank).said.clone();
        let lines = lines.lock();
        let rest = |(at, line): &(Instant, String)| Some((line.strip_prefix(begin)?.trim().to_owned(), *at));
        lines.lines.iter().filter_map(rest).collect()
    }

    /// Sends the rank a line.
    pub fn say(&mut self, rank: u32, line: &str) {
        let input = &mut self.process(rank).input;
        let _ = writeln!(input, "{line}").and_then(|()| input.flush());
    }

    /// Sends the rank a signal.
    ///
    /// # Panics
    /// If there is no such process.
    pub fn signal(&mut self, rank: u32, signal: Signal) {
        let pid = self.pid(rank);
        kill(Pid::from_raw(pid as i32), signal).expect("the process is there");
    }

    /// The inodes of all sockets of all ranks.
    pub fn sockets(&mut self) -> BTreeSet<String> {
        self.processes.iter().flat_map(|process| crate::system::sockets(process.child.id())).collect()
    }

    /// How the rank ended.
    ///
    /// # Panics
    /// If it does not within [`PATIENCE`].
    pub fn end(&mut self, rank: u32) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            let process = self.process(rank);
            if let Some(status) = process.ended {
                return status;
            }
            process.ended = process.child.try_wait().expect("a child");
            if process.ended.is_none() {
                assert!(Instant::now() < until, "rank {rank} does not end:\n{}", self.output());
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Asserts that all ranks end well.
    ///
    /// # Panics
    /// If one does not.
    pub fn all_end_well(&mut self) {
        for rank in self.ranks() {
            let status = self.end(rank);
            assert!(status.success(), "rank {rank} ended with {status}:\n{}", self.output());
        }
    }

    /// The rank's next line `failed Variant: text`, whose variant must be this one; the text, and when it came.
    ///
    /// # Panics
    /// If it is another.
    pub fn failure_at(&mut self, rank: u32, variant: &str) -> (String, Instant) {
        let (line, at) = self.line_at(rank, "failed ");
        let Some(text) = line.strip_prefix(variant).and_then(|rest| rest.strip_prefix(':')) else {
            panic!("rank {rank} should fail with {variant}, but: {line}\n{}", self.output());
        };
        (text.trim().to_owned(), at)
    }

    /// As [`Job::failure_at`], without the time.
    ///
    /// # Panics
    /// As [`Job::failure_at`].
    pub fn failure(&mut self, rank: u32, variant: &str) -> String {
        self.failure_at(rank, variant).0
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for process in &mut self.processes {
            if process.ended.is_none() {
                let pid = Pid::from_raw(process.child.id() as i32);
                let _ = kill(pid, Signal::SIGCONT);
                let _ = kill(pid, Signal::SIGKILL);
                let _ = process.child.wait();
            }
        }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.output())
    }
}
