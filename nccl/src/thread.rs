//! A thread's state for its later calls: the depth of its groups, its deadline, and its last collective.
//!
//! Invariant: a call that none of these affects finds that out by one load. Absent: the calls of a group (`group`).

use std::cell::Cell;
use std::time::Duration;

struct Said {
    depth: Cell<u32>,
    /// `None` where the communicator decides.
    timeout: Cell<Option<Duration>>,
    /// The last collective that could run at once: its arguments, and the lengths of its buffers.
    passed: Cell<Passed>,
    lengths: Cell<(usize, usize)>,
}

/// A collective's arguments in C, without its buffers and its stream.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    /// The communicator's handle, which no other communicator gets for a long time.
    pub comm: usize,
    /// The function's address.
    pub function: usize,
    /// All numbers, in their order; 0 where there are fewer.
    pub numbers: [usize; 4],
}

impl Passed {
    /// Whether it is the same, compared word by word: a longer load of freshly written words has to wait until all
    /// earlier stores have left this core, and the peer's line is one of them.
    #[inline(always)]
    fn is(self, other: Passed) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = (self.numbers, other.numbers);
        let numbers = (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h);
        (self.comm ^ other.comm) | (self.function ^ other.function) | numbers == 0
    }
}

thread_local! {
    static SAID: Said = const {
        Said {
            depth: Cell::new(0),
            timeout: Cell::new(None),
            passed: Cell::new(Passed { comm: 0, function: 0, numbers: [0; 4] }),
            lengths: Cell::new((0, 0)),
        }
    };
}

/// The lengths of the last collective's buffers, if this one has the same arguments, no group is open on this thread
/// and its deadline is the communicator's.
#[inline(always)]
pub fn repeated(passed: Passed) -> Option<(usize, usize)> {
    let like = |said: &Said| {
        let is_plain = said.depth.get() == 0 && said.timeout.get().is_none();
        (said.passed.get().is(passed) && is_plain).then(|| said.lengths.get())
    };
    SAID.try_with(like).ok().flatten()
}

/// Remembers a collective that could run at once.
pub fn remember(passed: Passed, lengths: (usize, usize)) {
    let _ = SAID.try_with(|said| {
        said.passed.set(passed);
        said.lengths.set(lengths);
    });
}

/// Whether no group is open on this thread, and its deadline is the communicator's.
#[inline]
pub fn is_plain() -> bool {
    SAID.try_with(|said| said.depth.get() == 0 && said.timeout.get().is_none()).unwrap_or(true)
}

/// How many groups are open on this thread, one within the other.
#[inline]
pub(super) fn depth() -> u32 {
    SAID.try_with(|said| said.depth.get()).unwrap_or(0)
}

/// Sets the depth. A thread that ends opens no groups.
pub(super) fn set_depth(depth: u32) {
    let _ = SAID.try_with(|said| said.depth.set(depth));
}

/// The deadline of this thread's calls; `None` where the communicator decides.
pub fn timeout() -> Option<Duration> {
    SAID.try_with(|said| said.timeout.get()).ok().flatten()
}

/// Sets it; returns the one before, or `None` on a thread that is ending.
pub fn set_timeout(timeout: Option<Duration>) -> Option<Option<Duration>> {
    SAID.try_with(|said| said.timeout.replace(timeout)).ok()
}
