//! The end of a rank's death: the others agree to go on without it, as `Communicator::shrink` does.
//!
//! Invariant: never waits; the rank's outcome is the failure, with the result of going on.

use std::task::Poll;
use std::time::Instant;

use super::process::{Failed, Outcome};
use consort::testing::rest;
use consort_control::membership::group::{Agreement, Group};
use consort_types::Rank;

pub(super) struct Shrinking {
    stay: Vec<Rank>,
    agreement: Option<Agreement>,
    failed: Failed,
}

/// A new communicator's name and ranks.
pub(super) type Shrunk = (u64, Vec<Rank>);

impl Shrinking {
    pub(super) fn begin(group: &Group, dead: Rank, until: Instant, failed: Failed) -> Self {
        let stay: Vec<Rank> = (0..group.size()).filter(|rank| *rank != dead).collect();
        let words = vec![u64::from(dead), u64::from(group.rank)];
        let agreement = Agreement::begin(group, stay.clone(), words, 1, until);
        Shrinking { stay, agreement: Some(agreement), failed }
    }

    /// The new communicator's name and ranks once they agree, `None` after that; or why they do not agree.
    pub(super) fn poll(&mut self, group: &Group, now: Instant) -> Poll<Result<Option<Shrunk>, String>> {
        let Some(agreement) = &mut self.agreement else { return Poll::Ready(Ok(None)) };
        match agreement.poll(group, now) {
            None => Poll::Pending,
            Some(Ok(agreed)) => {
                self.agreement = None;
                let said = agreed.words.iter().map(|words| words[1] as Rank);
                assert!(said.eq(self.stay.iter().copied()), "words of others than those that stay");
                Poll::Ready(Ok(Some(rest(group, agreed.round, &self.stay))))
            }
            Some(Err(disagreement)) => {
                self.agreement.take().into_iter().for_each(|agreement| agreement.give_up(group));
                Poll::Ready(Err(format!("{disagreement:?}")))
            }
        }
    }

    pub(super) fn outcome(self, went_on: Result<(), String>) -> Outcome {
        Outcome::Failed(Failed { went_on: Some(went_on), ..self.failed })
    }
}
