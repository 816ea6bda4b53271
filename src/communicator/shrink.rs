//! Communicators of the ranks that are left.

use std::time::Instant;

use super::Communicator;
use super::agree::{Agreed, Purpose, Unless};
use crate::Rank;
use consort_control::bootstrap;
use consort_control::membership::group::Group;
use consort_types::error::{Error, Result, list};

/// What becomes of the operations of a communicator that is [shrunk](Communicator::shrink).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shrink {
    /// There are none: the communicator works and is idle, and goes on as it was.
    Idle,
    /// They are ended first, as [`Communicator::revoke`] does; also where the communicator has failed already,
    /// because a rank died or does not answer, say.
    Abort,
}

impl Communicator {
    /// A new communicator of all ranks but the `excluded` ones, in the same order. Only the ranks that stay call it,
    /// with the same list. They agree over the control connections, without the excluded ones, which may be dead,
    /// stopped or busy, and whose end does not concern the new communicator.
    ///
    /// With [`Shrink::Abort`] this communicator's calls under way end on all ranks, the excluded ones too; it can be
    /// split, shrunk again or dropped afterwards, but not used. With [`Shrink::Idle`] it goes on.
    ///
    /// An error is about this call; the communicator is what it was. A rank that dies meanwhile may be noticed before
    /// the call returns on one rank and after that on another one, whose new communicator then is of no use: let all
    /// ranks that stay shrink the *old* communicator again, without that rank too.
    ///
    /// ```
    /// use consort::{Communicator, ReduceOp, Shrink};
    ///
    /// let world = Communicator::local(3)?;
    /// std::thread::scope(|threads| {
    ///     for comm in [&world[0], &world[2]] {
    ///         threads.spawn(move || {
    ///             let two = comm.shrink(&[1], Shrink::Idle).expect("ranks 0 and 2 call it");
    ///             assert_eq!((two.rank(), two.size()), (comm.rank() / 2, 2));
    ///             two.barrier().expect("without rank 1");
    ///         });
    ///     }
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the list is empty, names a rank twice, one that does not exist or the caller,
    /// when ranks pass different lists (all of them are named), and with [`Shrink::Idle`] when operations that were
    /// started are not over; [`Error::Timeout`] naming a rank that stays and does not call it, [`Error::PeerLost`] and
    /// [`Error::PeerLeft`] for one that ends; with [`Shrink::Idle`] what [`Communicator::status`] says;
    /// [`Error::Aborted`] when this rank [aborts](Communicator::abort) during the call; [`Error::ConcurrentUse`],
    /// [`Error::Forked`].
    pub fn shrink(&self, excluded: &[Rank], how: Shrink) -> Result<Communicator> {
        let span = tracing::info_span!("shrink", rank = self.rank(), ?excluded, ?how);
        let _entered = span.enter();
        let core = self.core();
        core.check_process()?;
        let excluded = self.leaving(excluded)?;
        let mut stay: Vec<Rank> = (0..self.size()).collect();
        stay.retain(|rank| excluded.binary_search(rank).is_err());
        let aborts = core.aborts();
        // Held meanwhile: nothing else begins on it.
        let _owned = match how {
            Shrink::Idle => {
                core.check()?;
                core.acquire_idle()?.ok_or_else(|| {
                    Error::invalid(
                        "operations that were started on the communicator are not over",
                        "wait for them, or shrink it with Shrink::Abort, which ends them",
                    )
                })?
            }
            Shrink::Abort => {
                core.revoke(&format!("it is shrunk to the ranks without {}", list(&excluded)));
                core.acquire_failed(Instant::now() + self.timeout())?
            }
        };
        let aborting = how == Shrink::Abort;
        let unless = if aborting { Unless::AbortedHere(aborts) } else { Unless::Failed(aborts) };
        let purpose = Purpose::Shrink { excluded, aborting };
        let Agreed { round, .. } = self.agree(purpose, stay.clone(), &[], unless)?;
        let (uid, members) = rest(&core.group, round, &stay);
        Ok(self.among(uid, members))
    }

    /// The list of ranks that do not stay, checked and sorted.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] as [`Communicator::shrink`].
    #[doc(hidden)]
    pub fn leaving(&self, excluded: &[Rank]) -> Result<Vec<Rank>> {
        let refuse = |what: String| {
            Err(Error::invalid(what, "name each rank that does not stay once; only those that stay call it"))
        };
        let mut sorted = excluded.to_vec();
        sorted.sort_unstable();
        let size = self.size();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return refuse(format!("rank {} is to be left out twice", twice[0]));
        }
        match sorted.last() {
            None => refuse("no rank is to be left out".into()),
            Some(rank) if *rank >= size => {
                refuse(format!("rank {rank} is to be left out of a communicator of {size}"))
            }
            Some(_) if sorted.contains(&self.rank()) => {
                refuse(format!("rank {} is to be left out and calls it itself", self.rank()))
            }
            Some(_) => Ok(sorted),
        }
    }
}

/// What those that stay agreed on in `round`: their communicator's name, and its ranks as ranks of the job.
pub fn rest(group: &Group, round: u64, stay: &[Rank]) -> (u64, Vec<Rank>) {
    let members = stay.iter().map(|rank| group.members[*rank as usize]).collect();
    (bootstrap::name(&group.member.key, "shrink", &[group.uid, round]), members)
}
