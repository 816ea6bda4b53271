//! The bar that a waiting person sees on standard error.
//!
//! Invariant: nothing is written unless a terminal is there to show it and the run has lasted a while, and a
//! bar is always cleared before a line of results is written.

use std::io::Write;
use std::time::{Duration, Instant};

/// Runs shorter than this show no bar.
const PATIENCE: Duration = Duration::from_secs(2);
/// The bar is drawn at most this often.
const INTERVAL: Duration = Duration::from_millis(100);
const WIDTH: usize = 24;

/// Begins a line in which a rank process tells its parent about its progress.
pub(crate) const MARK: u8 = 1;

/// Where the bar goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Nowhere,
    /// As marked lines to the parent process, which owns the terminal.
    Parent,
    Terminal,
}

/// What has been done of a run.
pub(crate) struct Progress {
    way: Way,
    begun: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(way: Way) -> Self {
        Self { way, begun: Instant::now(), drawn: None }
    }

    /// `done` of `total` steps are done and `what` begins; a total of 0 is unknown.
    pub(crate) fn step(&mut self, done: u64, total: u64, what: &str) {
        let soon = self.drawn.is_some_and(|drawn| drawn.elapsed() < INTERVAL);
        if self.way == Way::Nowhere || self.begun.elapsed() < PATIENCE || soon {
            return;
        }
        self.drawn = Some(Instant::now());
        let text = bar(done, total, what, self.begun.elapsed());
        match self.way {
            Way::Parent => drop(std::io::stderr().write_all(format!("{}{text}\n", char::from(MARK)).as_bytes())),
            _ => draw(&text),
        }
    }

    /// Before a line of results.
    pub(crate) fn clear(&mut self) {
        if self.drawn.take().is_some() && self.way == Way::Terminal {
            clear();
        }
    }
}

/// Draws a bar over the last one.
pub(crate) fn draw(text: &str) {
    drop(write!(std::io::stderr(), "\r\x1b[K{text}"));
}

/// Removes the bar.
pub(crate) fn clear() {
    drop(write!(std::io::stderr(), "\r\x1b[K"));
}

fn bar(done: u64, total: u64, what: &str, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    if total == 0 {
        return format!("{seconds} s  {what}");
    }
    let filled = (done.min(total) as usize * WIDTH) / total as usize;
    format!("[{}{}] {done}/{total}  {seconds} s  {what}", "#".repeat(filled), ".".repeat(WIDTH - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars() {
        let second = Duration::from_secs(1);
        assert_eq!(bar(6, 24, "timing", second * 5), "[######..................] 6/24  5 s  timing");
        assert_eq!(bar(9, 8, "x", second), "[########################] 9/8  1 s  x");
        assert_eq!(bar(3, 0, "x", second), "1 s  x");
    }
}
