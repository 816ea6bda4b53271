//! The operating system's view of a process: threads, descriptors, sockets, memory; and seeds.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

pub use consort_testing::{Random, given_seed};

/// Threads of this process.
///
/// # Panics
/// Without procfs.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("procfs").count()
}

/// Open descriptors of this process, as `number -> what`.
///
/// # Panics
/// Without procfs.
pub fn descriptors() -> Vec<String> {
    descriptors_of("self")
}

fn descriptors_of(process: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return Vec::new() };
    let mut links: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name(), std::fs::read_link(entry.path()).ok()?)))
        .map(|(number, link)| format!("{} -> {}", number.to_string_lossy(), link.display()))
        // The directory that is being read.
        .filter(|link| !link.ends_with("/fd"))
        .collect();
    links.sort();
    links
}

/// The inodes of a process's sockets.
pub fn sockets(pid: u32) -> BTreeSet<String> {
    descriptors_of(&pid.to_string())
        .iter()
        .filter_map(|link| Some(link.split_once("socket:[")?.1.trim_end_matches(']').to_owned()))
        .collect()
}

/// Those of `inodes` that still stand in the kernel's table of Unix sockets.
pub fn unix_sockets_left(inodes: &BTreeSet<String>) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let left =
        table.lines().filter(|line| line.split_whitespace().nth(6).is_some_and(|i| inodes.contains(i)));
    left.map(str::to_owned).collect()
}

/// Names of this library in /dev/shm.
pub fn shared_memory_names() -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("consort")).collect()
}

/// Where this process has memory files mapped, and those in /dev/shm.
///
/// # Panics
/// Without procfs.
pub fn shared_mappings() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let shared = maps.lines().filter(|line| line.contains("/memfd:") || line.contains("/dev/shm/"));
    shared.map(str::to_owned).collect()
}

/// Measures how long a thread that asks for a core waits for it: other programs may have all of them.
#[derive(Debug)]
pub struct Starvation {
    waited: Arc<AtomicU64>,
    _asks: mpsc::Sender<()>,
}

impl Starvation {
    /// Begins; the thread ends some time after this is dropped.
    pub fn watch() -> Self {
        let (asks, ends) = mpsc::channel::<()>();
        let waited = Arc::new(AtomicU64::new(0));
        let sum = Arc::clone(&waited);
        std::thread::spawn(move || {
            const NAP: Duration = Duration::from_millis(5);
            loop {
                let before = Instant::now();
                if ends.recv_timeout(NAP) != Err(mpsc::RecvTimeoutError::Timeout) {
                    return;
                }
                // Relaxed: a number alone.
                sum.fetch_add((before.elapsed() - NAP).as_micros() as u64, Ordering::Relaxed);
            }
        });
        Starvation { waited, _asks: asks }
    }

    /// What it has waited so far.
    pub fn so_far(&self) -> Duration {
        Duration::from_micros(self.waited.load(Ordering::Relaxed))
    }
}

/// A number of /proc/self/status, in its own unit.
pub fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The time for which a test waits for an event that comes soon, if it comes at all.
pub const SOON: Duration = Duration::from_secs(20);

/// Waits until `found` is true, a bounded time.
pub fn eventually(within: Duration, mut found: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + within;
    while !found() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Prints that a thing is not tested here: past the test harness, which hides the output of passing tests.
pub fn skip(reason: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("SKIP: {reason}\n").as_bytes());
}

/// Time that the threads of this process have had a core.
///
/// # Panics
/// If the system does not report it.
pub fn cpu_time() -> Duration {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).expect("getrusage");
    let time =
        |time: nix::sys::time::TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000);
    time(usage.user_time()) + time(usage.system_time())
}
