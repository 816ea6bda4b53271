//! The bar that a waiting person sees on standard error.
//!
//! Invariant: nothing is written unless a terminal is there to show it and the run has lasted a while, and a
//! bar is always cleared before a line of results is written.

use std::io::Write;
use std::time::{Duration, Instant};

/// Runs shorter than this show no bar.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// The bar is drawn at most this often.
const INTERVAL: Duration = Duration::from_millis(100);
/// Steps on this many bytes last long enough to be announced each; announcing short ones would disturb them.
const LARGE_BYTES: u64 = 64 << 20;
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
    /// When the bar was last drawn, or passed to the parent; `None` if it is not there.
    shown: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(way: Way) -> Self {
        Self { way, begun: Instant::now(), shown: None }
    }

    /// `done` of `total` steps are done and `what` begins, on `bytes` bytes; a total of 0 is unknown.
    pub(crate) fn step(&mut self, done: u64, total: u64, bytes: u64, what: &str) {
        let late = self.begun.elapsed() >= PATIENCE;
        let soon = self.shown.is_some_and(|shown| shown.elapsed() < INTERVAL);
        let large = bytes >= LARGE_BYTES;
        let tell = match self.way {
            Way::Nowhere => false,
            // The parent waits out the patience, so it must know early of a step that will last.
            Way::Parent => large || (late && !soon),
            Way::Terminal => late && (large || !soon),
        };
        if !tell {
            return;
        }
        self.shown = Some(Instant::now());
        let text = bar(done, total, what);
        match self.way {
            Way::Parent => {
                drop(std::io::stderr().write_all(format!("{}{text}\n", char::from(MARK)).as_bytes()))
            }
            _ => draw(&text, self.begun.elapsed()),
        }
    }

    /// Before a line of results.
    pub(crate) fn clear(&mut self) {
        if self.shown.take().is_some() && self.way == Way::Terminal {
            clear();
        }
    }
}

/// Draws a bar over the last one.
pub(crate) fn draw(text: &str, elapsed: Duration) {
    drop(write!(std::io::stderr(), "\r\x1b[K{text}  {} s", elapsed.as_secs()));
}

/// Removes the bar.
pub(crate) fn clear() {
    drop(write!(std::io::stderr(), "\r\x1b[K"));
}

fn bar(done: u64, total: u64, what: &str) -> String {
    if total == 0 {
        return what.to_owned();
    }
    let filled = (done.min(total) as usize * WIDTH) / total as usize;
    format!("[{}{}] {done}/{total}  {what}", "#".repeat(filled), ".".repeat(WIDTH - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars() {
        assert_eq!(bar(6, 24, "timing"), "[######..................] 6/24  timing");
        assert_eq!(bar(9, 8, "x"), "[########################] 9/8  x");
        assert_eq!(bar(3, 0, "x"), "x");
    }
}
