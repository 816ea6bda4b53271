//! Whether a path is lost: down for so long that what they carried is to be planned for without them.
//!
//! ```text
//!            down for `after` in all, and down now
//!   sound ─────────────────────────────────────────► lost
//!         ◄─────────────────────────────────────────
//!                     open for `after` in a row
//! ```
//!
//! Invariant: a path that opens and breaks again and again is lost as one that stays down is, since only a path that has been open for
//! as long begins anew. Absent: what follows from it.

use std::time::Duration;

/// What is known of a path.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Soundness {
    /// Since when it has not been open for long.
    down: Option<Duration>,
    /// Since when it is open in a row.
    open: Option<Duration>,
    is_lost: bool,
}

impl Soundness {
    /// Takes a look at the path; whether it is lost.
    pub(crate) fn look(&mut self, is_open: bool, now: Duration, after: Duration) -> bool {
        if is_open {
            let since = *self.open.get_or_insert(now);
            if now.saturating_sub(since) >= after {
                (self.down, self.is_lost) = (None, false);
            }
        } else {
            self.open = None;
            let since = *self.down.get_or_insert(now);
            self.is_lost |= now.saturating_sub(since) >= after;
        }
        self.is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(30);

    /// What is known after looks, a second each, at a path that is open (`#`) or down (`.`).
    fn looked(path: &mut Soundness, looks: &str, begin: u64) -> (bool, u64) {
        let mut last = (false, begin);
        for (at, look) in (begin..).zip(looks.bytes()) {
            last = (path.look(look == b'#', Duration::from_secs(at), AFTER), at + 1);
        }
        last
    }

    #[test]
    fn a_path_is_lost_after_thirty_seconds_and_sound_after_as_many() {
        let mut path = Soundness::default();
        let (is_lost, at) = looked(&mut path, &".".repeat(30), 5);
        assert!(!is_lost, "for 29 s");
        let (is_lost, at) = looked(&mut path, ".", at);
        assert!(is_lost, "for 30 s");
        let (is_lost, at) = looked(&mut path, &"#".repeat(30), at);
        assert!(is_lost, "back for 29 s");
        assert!(!looked(&mut path, "#", at).0, "back for 30 s");
    }

    #[test]
    fn a_path_that_opens_and_breaks_again_is_lost_too() {
        let mut path = Soundness::default();
        let (is_lost, at) = looked(&mut path, &"..##".repeat(7), 0);
        assert!(!is_lost);
        let (is_lost, at) = looked(&mut path, "##", at);
        assert!(!is_lost, "it is open");
        assert!(looked(&mut path, ".", at).0);
    }

    #[test]
    fn a_short_pause_leaves_a_path_sound() {
        let mut path = Soundness::default();
        let pause = format!("{}{}", ".".repeat(20), "#".repeat(31));
        let (is_lost, at) = looked(&mut path, &pause.repeat(3), 0);
        assert!(!is_lost);
        assert!(!looked(&mut path, &".".repeat(30), at).0, "counted anew");
    }
}
