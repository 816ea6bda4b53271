//! Sources of fills that transports read after the call: memory of the program that a device writes to a peer from where it is.
//!
//! Invariant: nothing of this operation writes where a source is that may still be read, and the operation is over once none may be. A
//! source is free as soon as its connection says so, in the order of the fills of that connection. Absent: which memory
//! a transport reads so, and how it knows when that is over.

use std::collections::BTreeSet;

use super::links::Links;

/// Bytes below which a fill is copied by its transport: to copy as much as this takes no longer than the answer of the peer's
/// adapter, which the end of an operation waits for otherwise.
pub(super) const LENT_BYTES_MIN: usize = 16 << 10;

/// A source that may still be read.
#[derive(Clone, Copy, Debug)]
struct Loan {
    link: usize,
    /// Of the fill, on that link.
    number: u64,
    /// Its addresses, from the first to the one behind the last.
    start: usize,
    end: usize,
}

/// The sources of one operation. Kept when it is over, so that the table is used again.
#[derive(Debug, Default)]
pub(super) struct Lent {
    loans: Vec<Loan>,
    /// Of the source that the operation waits for at present.
    waits_for: Option<usize>,
    /// Whether sources were forgotten in the present turn: a lane may wait for one of them.
    has_retired: bool,
    /// Whether the operation has failed, and the connections of its sources are ended.
    is_fenced: bool,
}

impl Lent {
    /// A fill of a link was lent this source. The table grows only where all of it is still read: a long call lends far more than is read at
    /// one time.
    pub(super) fn lend(&mut self, links: &Links, (link, number): (usize, u64), start: usize, bytes: usize) {
        if self.loans.len() == self.loans.capacity() {
            self.retire(links);
        }
        self.loans.push(Loan { link, number, start, end: start + bytes });
    }

    /// A turn of the operation begins, which waits for nothing yet.
    #[inline]
    pub(super) fn begin_turn(&mut self) {
        (self.waits_for, self.has_retired) = (None, false);
    }

    /// Forgets sources that are free.
    fn retire(&mut self, links: &Links) {
        let before = self.loans.len();
        self.loans.retain(|loan| !links.is_free(loan.link, loan.number));
        self.has_retired |= self.loans.len() < before;
    }

    /// Whether nothing is lent.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.loans.is_empty()
    }

    /// Whether this memory may be written now. If not, its link is [waited for](Lent::waits_for).
    pub(super) fn may_write(&mut self, links: &Links, start: usize, bytes: usize) -> bool {
        self.is_free(links, |loan| loan.start < start + bytes && start < loan.end)
    }

    /// Whether all sources are free. If not, the link of one is [waited for](Lent::waits_for).
    pub(super) fn are_free(&mut self, links: &Links) -> bool {
        self.is_empty() || self.is_free(links, |_| true)
    }

    fn is_free(&mut self, links: &Links, is_asked: impl Fn(&Loan) -> bool) -> bool {
        self.retire(links);
        let busy = self.loans.iter().find(|loan| is_asked(loan)).map(|loan| loan.link);
        self.waits_for = busy.or(self.waits_for);
        busy.is_none()
    }

    /// The link of the source that the operation waited for when it last went no further.
    pub(super) fn waits_for(&self) -> Option<usize> {
        self.waits_for
    }

    /// Whether some source has become free since the operation went no further, or in its last turn, after a lane went no further.
    pub(super) fn has_come(&self, links: &Links) -> bool {
        let is_free = |loan: &Loan| links.is_free(loan.link, loan.number);
        self.waits_for.is_some() && (self.has_retired || self.loans.iter().any(is_free))
    }

    /// The operation has failed: ends the connections of what may still be read, by which nothing comes in a failed communicator. Whether
    /// no device reads for it any more.
    pub(super) fn withdraw(&mut self, links: &mut Links) -> bool {
        if self.go_on(links) {
            return true;
        }
        if !std::mem::replace(&mut self.is_fenced, true) {
            // What cannot be ended has its error at the connection's end.
            self.each_link(|link| links.fence(link));
        }
        self.go_on(links)
    }

    /// Has what is still read go on. Whether nothing is.
    fn go_on(&mut self, links: &mut Links) -> bool {
        self.each_link(|link| links.go_on(link));
        self.are_free(links)
    }

    /// The links of what is lent, each once.
    fn each_link(&self, each: impl FnMut(usize)) {
        let links: BTreeSet<usize> = self.loans.iter().map(|loan| loan.link).collect();
        links.into_iter().for_each(each);
    }

    /// Forgets all: what is still read is another process's, or of an operation that has given up.
    pub(super) fn forget(&mut self) {
        self.loans.clear();
        self.begin_turn();
        self.is_fenced = false;
    }
}
