//! A thread's state for its later calls: the depth of its groups, its deadline, and its last two collectives.
//!
//! Invariant: a call that none of these affects finds that out by one load. Absent: the calls of a group (`group`).

use std::cell::Cell;
use std::time::Duration;

struct Said {
    depth: Cell<u32>,
    /// `None` where the communicator decides.
    timeout: Cell<Option<Duration>>,
    /// The last two collectives that could run at once: programs take turns between two, a broadcast from each of two
    /// ranks for one.
    known: [Known; 2],
    /// The one of these that came last.
    latest: Cell<bool>,
}

/// A collective's arguments, and the lengths of its buffers.
struct Known {
    passed: Cell<Passed>,
    lengths: Cell<(usize, usize)>,
}

impl Known {
    const fn nothing() -> Self {
        let passed = Passed { comm: 0, function: 0, numbers: [0; 4] };
        Known { passed: Cell::new(passed), lengths: Cell::new((0, 0)) }
    }
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
            known: [const { Known::nothing() }; 2],
            latest: Cell::new(false),
        }
    };
}

/// The lengths of the buffers of one of the last two collectives, if this one has the same arguments, no group is open
/// on this thread and its deadline is the communicator's.
#[inline(always)]
pub fn repeated(passed: Passed) -> Option<(usize, usize)> {
    let like = |said: &Said| {
        if said.depth.get() != 0 || said.timeout.get().is_some() {
            return None;
        }
        let latest = said.latest.get();
        let known = &said.known[usize::from(latest)];
        if known.passed.get().is(passed) {
            return Some(known.lengths.get());
        }
        let known = &said.known[usize::from(!latest)];
        if !known.passed.get().is(passed) {
            return None;
        }
        said.latest.set(!latest);
        Some(known.lengths.get())
    };
    SAID.try_with(like).ok().flatten()
}

/// Remembers a collective that could run at once.
pub fn remember(passed: Passed, lengths: (usize, usize)) {
    let _ = SAID.try_with(|said| {
        let at = !said.latest.get();
        said.latest.set(at);
        let known = &said.known[usize::from(at)];
        known.passed.set(passed);
        known.lengths.set(lengths);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_two_collectives_are_known() {
        let passed = |root| Passed { comm: 1, function: 2, numbers: [3, 4, root, 0] };
        assert_eq!(repeated(passed(0)), None);
        for root in 0..3 {
            remember(passed(root), (root, 8));
        }
        for root in [2, 1, 1, 2, 1] {
            assert_eq!(repeated(passed(root)), Some((root, 8)));
            assert_eq!(repeated(passed(0)), None, "two have come since");
        }
        // The place of 2, which was met before 1.
        remember(passed(0), (0, 8));
        assert_eq!([0, 1, 2].map(|root| repeated(passed(root)).is_some()), [true, true, false]);
        set_depth(1);
        assert_eq!([0, 1].map(|root| repeated(passed(root))), [None; 2], "in a group");
        set_depth(0);
        set_timeout(Some(Duration::from_secs(1)));
        assert_eq!([0, 1].map(|root| repeated(passed(root))), [None; 2], "with a deadline");
        set_timeout(None);
        assert_eq!(repeated(passed(1)), Some((1, 8)));
    }
}
