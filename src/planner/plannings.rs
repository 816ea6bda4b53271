//! What a communicator plans for, one after the other: the machine that its ranks joined on, and machines of hosts that have lost paths.
//!
//! Invariant: each is numbered in the order in which it was first planned for, which is the same on all ranks, and stays where it is as
//! long as the communicator; one thread at a time adds. Absent: when ranks go over to another ([`crate::engine`]).

use std::sync::{Arc, OnceLock};

use consort_control::membership::group::LostPaths;
use consort_memory::sync::{AtomicU32, Ordering};

use super::{Planner, Planning};
use consort_settings::options::Settings;

/// The most machines of a communicator; then it stays with the one that it has.
const MACHINES_MAX: usize = 256;

/// The plannings of a communicator.
#[derive(Debug)]
pub(crate) struct Plannings {
    first: Known,
    current: AtomicU32,
}

#[derive(Debug)]
struct Known {
    lost: Vec<LostPaths>,
    planning: Arc<Planning>,
    next: OnceLock<Box<Known>>,
}

impl Known {
    fn new(lost: Vec<LostPaths>, planning: Arc<Planning>) -> Self {
        Known { lost, planning, next: OnceLock::new() }
    }
}

impl Plannings {
    pub(crate) fn new(planning: Arc<Planning>) -> Self {
        Plannings { first: Known::new(Vec::new(), planning), current: AtomicU32::new(0) }
    }

    fn all(&self) -> impl Iterator<Item = &Known> {
        std::iter::successors(Some(&self.first), |known| known.next.get().map(|next| &**next))
    }

    /// The one with this number.
    pub(crate) fn nth(&self, number: u16) -> &Arc<Planning> {
        self.all().nth(number.into()).map_or(&self.first.planning, |known| &known.planning)
    }

    /// The one for which the next call is planned.
    pub(crate) fn current(&self) -> &Arc<Planning> {
        // Acquire: pairs with the Release of who has added it.
        self.nth(self.current.load(Ordering::Acquire) as u16)
    }

    /// Goes over to the machine whose hosts have lost these paths: its number. A change past the last machine that there may be changes
    /// nothing.
    pub(crate) fn go_over(&self, lost: &[LostPaths], planner: &Planner, settings: &Settings) -> u16 {
        let known = self.all().position(|known| known.lost == lost);
        let count = self.all().count();
        let number = match known {
            Some(number) => number,
            None if count >= MACHINES_MAX => return self.current.load(Ordering::Relaxed) as u16,
            None => {
                let machine = self.first.planning.joined_on().without(lost);
                let planning = planner.planning(machine, settings);
                if let Some(last) = self.all().last() {
                    last.next.get_or_init(|| Box::new(Known::new(lost.to_vec(), planning)));
                }
                count
            }
        };
        self.current.store(number as u32, Ordering::Release);
        number as u16
    }
}
