//! What bindings of other interfaces ask of a communicator, and programs of the Rust interface do not.

use std::time::Duration;

use consort_algorithms::catalogue::Algorithm;

use super::Communicator;
use crate::Rank;
use consort_settings::options::TIMEOUT_MAX;
use consort_types::call::Call;
use consort_types::error::Result;

#[doc(hidden)]
impl Communicator {
    /// A number that all its ranks have, and hardly any other communicator.
    pub fn hash(&self) -> u64 {
        self.core().group.uid
    }

    /// The ranks whose processes use no device, as they said when they joined.
    pub fn ranks_without_devices(&self) -> Vec<Rank> {
        let group = &self.core().group;
        let without = (0..).zip(&group.members).filter(|(_, of)| !group.member.table[**of as usize].devices);
        without.map(|(rank, _)| rank).collect()
    }

    /// A view for one call, with a deadline or an algorithm of its own.
    pub fn view_with(&self, timeout: Option<Duration>, algorithm: Option<Algorithm>) -> Self {
        let timeout = timeout.map_or(self.timeout, |set| set.clamp(Duration::from_millis(1), TIMEOUT_MAX));
        self.view(timeout, algorithm.or(self.algorithm))
    }

    /// The call, by the algorithm that this view of the communicator names.
    pub fn with_own_algorithm(&self, call: Call) -> Call {
        Call {
            algorithm: if call.kind.is_message() { None } else { self.algorithm.or(call.algorithm) },
            ..call
        }
    }

    /// Whether an operation is under way. From any thread.
    pub fn is_in_use(&self) -> bool {
        self.core().is_in_use()
    }

    /// Waits until everything that was put into streams is over.
    ///
    /// # Errors
    /// As [`Communicator::barrier`].
    pub fn finish_streams(&self, timeout: Duration) -> Result<()> {
        self.core().finish_streams(timeout)
    }
}
