//! Deadlines, failures and reports of a communicator.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::Communicator;
use consort_control::membership::inquiry::Inquiry;
use consort_control::report::{Report, analyse};
use consort_types::error::Result;

/// The time that a report waits for the answers of the other ranks.
const ANSWERS: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_micros(200);

/// A communicator whose calls have another deadline; made by [`Communicator::with_timeout`].
pub struct WithTimeout<'a> {
    view: Communicator,
    of: PhantomData<&'a Communicator>,
}

impl Deref for WithTimeout<'_> {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        &self.view
    }
}

impl std::fmt::Debug for WithTimeout<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view.fmt(f)
    }
}

impl Communicator {
    /// How long an operation may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// This communicator with another deadline for the calls made through what is returned. A rank's deadline is
    /// its own; the first that passes ends the operation on all ranks.
    ///
    /// ```
    /// use std::time::Duration;
    /// use consort::{Communicator, ReduceOp};
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// let mut gradients = [1.0f32; 8];
    /// comm.with_timeout(Duration::from_secs(5)).all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// # consort::Result::Ok(())
    /// ```
    pub fn with_timeout(&self, timeout: Duration) -> WithTimeout<'_> {
        WithTimeout { view: self.view_with(Some(timeout), None), of: PhantomData }
    }

    /// Whether the communicator still works. Any thread may ask at any time; it does not wait, so that within a
    /// moment of the first failure another one may be named, nearer to the cause.
    ///
    /// # Errors
    /// The failure that ended it, or [`Error::Forked`](crate::Error::Forked).
    pub fn status(&self) -> Result<()> {
        self.core.check_process()?;
        self.core.group.failure()
    }

    /// Ends the communicator on all ranks: calls under way return [`Error::Aborted`](crate::Error::Aborted) within a second.
    /// When several ranks abort at the same time, all ranks get the error of the same one. Any thread may abort at any time,
    /// and more than once.
    pub fn abort(&self, reason: &str) {
        if !self.core.is_forked() {
            self.core.abort(reason);
        }
    }

    /// Ends all operations on all ranks, as [`abort`](Communicator::abort) does, but keeps the communicator for
    /// what follows: after [`Error::Revoked`](crate::Error::Revoked) all ranks can [`split`](Communicator::split) it, and some can
    /// [`shrink`](Communicator::shrink) it, which then goes over the control connections. Any thread may do it at
    /// any time.
    pub fn revoke(&self, reason: &str) {
        if !self.core.is_forked() {
            self.core.revoke(reason);
        }
    }

    /// The operations of every rank, and the ranks that are guilty of an operation that does not end. Any thread may ask
    /// at any time, also while another waits in a call; it takes half a second when ranks do not answer. After a
    /// deadline has passed it is the report that all ranks share.
    ///
    /// ```
    /// let comm = consort::Communicator::local(1)?.remove(0);
    /// let report = comm.report()?;
    /// assert_eq!(report.guilty, consort::Guilty::Nobody);
    /// println!("{report}");
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn report(&self) -> Result<Report> {
        self.core.check_process()?;
        let group = &self.core.group;
        if group.has_failed()
            && let Some(report) = group.report()
        {
            return Ok(Arc::unwrap_or_clone(report));
        }
        let now = || group.clock().now();
        let mut inquiry = Inquiry::start(group, now() + ANSWERS);
        while !inquiry.is_over(group, now()) {
            std::thread::sleep(PAUSE);
        }
        let open = group.position().open;
        let operation = open.as_ref().map(|open| (open.sequence, open.descriptor));
        let waited = open.map_or(Duration::ZERO, |open| open.age);
        Ok(group.located(analyse(&inquiry.evidence(group, operation, waited))))
    }

    /// The report that the library made last by itself: after `CONSORT_REPORT_AFTER` seconds of an operation that does
    /// not end, or when its deadline passed. Asks no rank.
    pub fn last_report(&self) -> Option<Report> {
        self.core.group.report().map(Arc::unwrap_or_clone)
    }
}
