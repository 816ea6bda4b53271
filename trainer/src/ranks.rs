//! Tensor parallel: the ranks of a layer have parts of its matrices, and of its heads (Shoeybi and others, 2019).
//!
//! Invariant: the first matrices of a half block are cut by outputs and the last by inputs, so a half block joins its ranks twice: what
//! goes in comes to all of them, and what goes out is the sum of theirs; backward the other way around. With sequence
//! parallelism (Korthikanti and others, 2022) a rank has an equal share of the tokens between half blocks: what goes in is an
//! all-gather of rows, what goes out a reduce-scatter. Without, tokens are on all ranks, and only sums are exchanged.

use std::cell::Cell;
use std::time::{Duration, Instant};

use consort::{Communicator, ReduceOp};

use crate::error::Result;
use crate::number::Number;
use crate::products::Into;

/// Whether what ranks exchange goes on beside what they compute. The bits are the same.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Overlap {
    /// It does, wherever what is computed does not need it yet.
    #[default]
    Beside,
    /// It begins when what it would go on beside is over, and is waited for at once: so what the other hides can be measured.
    Apart,
}

/// What the exchanges of a rank along an axis have cost it.
#[derive(Clone, Default, Debug)]
pub struct Account {
    waited: Cell<Duration>,
    sent: Cell<usize>,
}

impl Account {
    /// The time in which the rank did nothing but wait for them.
    pub fn waited(&self) -> Duration {
        self.waited.get()
    }

    /// The bytes that it sent, where the ranks are in a ring.
    pub fn sent(&self) -> usize {
        self.sent.get()
    }

    /// Adds a wait that began at `begun` and is over.
    pub fn wait(&self, begun: Instant) {
        self.waited.set(self.waited.get() + begun.elapsed());
    }

    /// Adds bytes.
    pub fn send(&self, bytes: usize) {
        self.sent.set(self.sent.get() + bytes);
    }
}

/// What each of `ranks` ranks sends in a ring, in bytes, when `elements` are summed and shared, or their shares are gathered.
pub(crate) fn ring<T>(elements: usize, ranks: u32) -> usize {
    elements * (ranks as usize - 1) / ranks as usize * size_of::<T>()
}

/// Runs `join`, in which the rank does nothing but wait for others, and adds its time to `account`.
pub fn timing<R>(account: Option<&Account>, join: impl FnOnce() -> R) -> R {
    let begun = Instant::now();
    let result = join();
    account.inspect(|account| account.wait(begun));
    result
}

/// The ranks that share each layer.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tensor<'a> {
    comm: Option<&'a Communicator>,
    overlap: Overlap,
    /// Where what joining them costs is added up.
    account: Option<&'a Account>,
}

impl<'a> Tensor<'a> {
    /// The ranks of `comm`, `None` for a rank that has all of each layer.
    pub fn new(comm: Option<&'a Communicator>) -> Self {
        Tensor { comm, overlap: Overlap::default(), account: None }
    }

    /// The same ranks, whose sums go on beside other work or do not.
    pub fn overlapping(self, overlap: Overlap) -> Self {
        Tensor { overlap, ..self }
    }

    /// The same ranks; what joining them costs this one is added to `account`.
    pub fn counted(self, account: &'a Account) -> Self {
        Tensor { account: Some(account), ..self }
    }

    /// Runs `join`, in which the rank does nothing but join the others.
    pub fn timing<R>(&self, join: impl FnOnce() -> R) -> R {
        timing(self.account, join)
    }

    /// Counts what this rank sends when elements are summed or gathered once around.
    fn count<T>(&self, elements: usize) {
        self.account.inspect(|account| account.send(ring::<T>(elements, self.size() as u32)));
    }

    /// The sums, or whatever `op` is, of what all ranks have; nothing where there is one.
    ///
    /// # Errors
    /// What the all-reduce ends with.
    pub fn all_reduce<T: Number>(&self, values: &mut [T], op: ReduceOp) -> Result<()> {
        let Some(comm) = self.comm else { return Ok(()) };
        self.count::<T>(2 * values.len());
        Ok(self.timing(|| comm.all_reduce(values, op))?)
    }

    /// Whether sums go on beside other work.
    pub fn overlap(&self) -> Overlap {
        self.overlap
    }

    /// The ranks, if there are several.
    pub fn comm(&self) -> Option<&'a Communicator> {
        self.comm
    }

    /// How many ranks.
    pub fn size(&self) -> usize {
        self.comm.map_or(1, |comm| comm.size() as usize)
    }
}

/// Rows of tokens where the ranks of a layer are joined: those of all tokens, and those of this rank's share, which are the
/// same where tokens are on all ranks.
pub struct Joint<T> {
    own: Vec<T>,
    /// Where they differ from this rank's.
    all: Option<Vec<T>>,
}

impl<T: Number> Joint<T> {
    /// Room for `tokens` tokens, `width` elements each, that `sharers` ranks share.
    pub fn new(tokens: usize, width: usize, sharers: usize) -> Self {
        let room = |tokens: usize| vec![T::ZERO; tokens * width];
        Joint { own: room(tokens / sharers), all: (sharers > 1).then(|| room(tokens)) }
    }

    /// The rows of this rank's tokens.
    pub fn own(&self) -> &[T] {
        &self.own
    }

    /// The rows of this rank's tokens, to be written; see [`Joint::gather`].
    pub fn own_mut(&mut self) -> &mut [T] {
        &mut self.own
    }

    /// The rows of all tokens.
    pub fn all(&self) -> &[T] {
        self.all.as_ref().unwrap_or(&self.own)
    }

    /// The rows of all tokens, to be written; see [`Joint::sum`].
    pub fn all_mut(&mut self) -> &mut [T] {
        self.all.as_mut().unwrap_or(&mut self.own)
    }

    /// From the rows of each rank's tokens those of all, on every rank.
    ///
    /// # Errors
    /// What the all-gather ends with.
    pub fn gather(&mut self, ranks: &Tensor<'_>) -> Result<()> {
        if let (Some(comm), Some(all)) = (ranks.comm, &mut self.all) {
            ranks.count::<T>(all.len());
            ranks.timing(|| comm.all_gather(&self.own, all))?;
        }
        Ok(())
    }

    /// From each rank's addends for all tokens their sums: those of its own tokens, or of all where all ranks have them.
    ///
    /// # Errors
    /// What the reduce-scatter or all-reduce ends with.
    pub fn sum(&mut self, ranks: &Tensor<'_>) -> Result<()> {
        match (ranks.comm, &mut self.all) {
            (Some(comm), Some(all)) => {
                ranks.count::<T>(all.len());
                Ok(ranks.timing(|| comm.reduce_scatter(all, &mut self.own, ReduceOp::Sum))?)
            }
            _ => ranks.all_reduce(&mut self.own, ReduceOp::Sum),
        }
    }

    /// As [`Joint::sum`], while `work` goes on, or after it where ranks are [apart](Overlap::Apart).
    ///
    /// # Errors
    /// What `work`, or else the reduce-scatter or all-reduce, ends with.
    pub fn sum_beside(&mut self, ranks: &Tensor<'_>, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(comm) = ranks.comm.filter(|_| ranks.overlap == Overlap::Beside) else {
            work()?;
            return self.sum(ranks);
        };
        let Joint { own, all } = self;
        ranks.count::<T>(all.as_ref().map_or(2 * own.len(), Vec::len));
        let worked = comm.scope(|scope| {
            let sum = match all {
                Some(all) => scope.reduce_scatter(all, own, ReduceOp::Sum)?,
                None => scope.all_reduce(own, ReduceOp::Sum)?,
            };
            let worked = work();
            ranks.timing(|| sum.wait())?;
            Ok(worked)
        });
        worked?
    }

    /// Adds what `addend` gives on all ranks together to `to`, this rank's tokens. A rank that is alone adds in place.
    ///
    /// # Errors
    /// As [`Joint::sum`].
    pub fn add(
        &mut self,
        ranks: &Tensor<'_>,
        to: &mut [T],
        addend: impl FnOnce(&mut [T], Into),
    ) -> Result<()> {
        if ranks.comm.is_none() {
            addend(to, Into::Add);
            return Ok(());
        }
        addend(self.all_mut(), Into::Replace);
        self.sum(ranks)?;
        to.iter_mut().zip(self.own()).for_each(|(to, sum)| *to += *sum);
        Ok(())
    }
}
