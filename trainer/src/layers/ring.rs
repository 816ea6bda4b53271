//! Attention of ranks that share every sequence: keys and values go around the ring of the ranks (Liu and others, 2023,
//! arXiv 2310.01889).
//!
//! Invariant: a sequence is cut into twice as many chunks as there are ranks; rank r has chunk r and, counted from the end,
//! chunk r again. So a rank's tokens lie in the order of their positions, every rank makes equally many scores, and none of a
//! query with a later key but on the diagonal. A rank begins with its own keys, so each query has seen one before parts are
//! joined. Outputs are joined, and gradients of keys summed, in the order of the ring from the rank that has the tokens; so the
//! same inputs give the same bits each time. A rank that is alone computes what it computes without a ring. Absent: layers
//! that see one token at a time, which need no other rank, and the sums of the gradients of weights.

use std::time::Instant;

use consort::Communicator;

use super::attention::{Attention, InputGradients, Inputs, Part, Scratch};
use crate::error::{Error, Result};
use crate::number::Number;
use crate::products::Into;
use crate::ranks::{Account, Overlap};

/// The positions in a sequence of `sequence` tokens that rank `rank` of `ranks` has, in their order.
///
/// # Errors
/// [`Error::Configuration`] where several ranks cannot have two equal chunks each.
pub fn positions(sequence: usize, rank: u32, ranks: u32) -> Result<Vec<usize>> {
    if ranks == 1 {
        return Ok((0..sequence).collect());
    }
    let (rank, chunks) = (rank as usize, 2 * ranks as usize);
    if sequence == 0 || !sequence.is_multiple_of(chunks) {
        return Err(Error::configuration(
            format!(
                "sequences of {sequence} tokens are not cut into {chunks} equal chunks, two for each of {ranks} ranks"
            ),
            "make --sequence a multiple of twice the ranks that share a sequence",
        ));
    }
    let chunk = |number: usize| number * (sequence / chunks)..(number + 1) * (sequence / chunks);
    Ok(chunk(rank).chain(chunk(chunks - 1 - rank)).collect())
}

/// The scores that rank `rank` makes with the keys of rank `from`, where a rank has `tokens` tokens of a sequence.
fn part(rank: u32, from: u32, tokens: usize) -> Part {
    match from.cmp(&rank) {
        std::cmp::Ordering::Equal => Part::Causal,
        // Its first chunk is before both of this rank's, its second behind both.
        std::cmp::Ordering::Less => Part::Full { queries: 0..tokens, keys: 0..tokens / 2 },
        // Both of its chunks lie between this rank's.
        std::cmp::Ordering::Greater => Part::Full { queries: tokens / 2..tokens, keys: 0..tokens },
    }
}

/// What one pass took on this rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effort {
    /// Scores that were made.
    pub scores: usize,
    /// Elements that were sent.
    pub sent: usize,
}

/// Room for the scores of one block, and for keys and values that come and go, with their gradients.
pub struct Room<T> {
    scratch: Scratch<T>,
    /// Keys and values that are looked at, then the sums of their gradients.
    here: Vec<T>,
    /// Those that come next.
    next: Vec<T>,
    /// What this rank adds to the sums.
    own: Vec<T>,
}

/// The ranks that share sequences, and this rank's place among them.
pub struct Ring<'c> {
    /// `None` for a rank that is alone.
    comm: Option<&'c Communicator>,
    positions: Vec<usize>,
    overlap: Overlap,
    /// Where what waiting for keys costs, and sending them, is added up.
    account: Option<&'c Account>,
}

impl<T: Number> Room<T> {
    /// Room for `tokens` tokens of a rank, which shares sequences with others or does not.
    pub fn new(is_shared: bool, attention: &Attention, tokens: usize) -> Self {
        let block = if is_shared { 2 * tokens * attention.kv_heads * attention.head } else { 0 };
        let room = |len: usize| vec![T::ZERO; len];
        Room {
            scratch: Scratch::new(attention.sequence),
            here: room(2 * block),
            next: room(2 * block),
            own: room(block),
        }
    }
}

impl<'c> Ring<'c> {
    /// The ranks of `comm`, which share sequences of `sequence` tokens; `None` is a rank that has whole ones.
    ///
    /// # Errors
    /// As [`positions`].
    pub fn new(comm: Option<&'c Communicator>, sequence: usize) -> Result<Self> {
        let (rank, ranks) = comm.map_or((0, 1), |comm| (comm.rank(), comm.size()));
        Ok(Ring {
            comm: comm.filter(|_| ranks > 1),
            positions: positions(sequence, rank, ranks)?,
            overlap: Overlap::default(),
            account: None,
        })
    }

    /// A rank that has whole sequences of `sequence` tokens.
    pub fn alone(sequence: usize) -> Self {
        Ring { comm: None, positions: (0..sequence).collect(), overlap: Overlap::default(), account: None }
    }

    /// The same ranks, whose keys go around beside the scores or after them.
    pub fn overlapping(self, overlap: Overlap) -> Self {
        Ring { overlap, ..self }
    }

    /// The same ranks; the time in which this one does nothing but wait for keys and sums is added to `account`, and what it sends.
    pub fn counted(self, account: &'c Account) -> Self {
        Ring { account: Some(account), ..self }
    }

    /// Whether several ranks share sequences.
    pub fn is_shared(&self) -> bool {
        self.comm.is_some()
    }

    /// The positions of this rank's tokens of a sequence, in the order in which they lie.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// As [`Attention::forward`] of whole sequences, of this rank's queries: `inputs` are this rank's tokens of all sequences,
    /// one sequence after the other, each in the order of positions, and `attention.sequence` is the number of
    /// [`Ring::positions`]. All ranks must have equally many sequences.
    ///
    /// Each rank sends its keys and values and those that come to it, `2 * tokens * kv_heads * head` elements in each of
    /// as many messages as there are other ranks.
    ///
    /// # Errors
    /// [`Error::Library`] when another rank is lost, or has other lengths.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
    pub fn forward<T: Number>(
        &self,
        attention: &Attention,
        inputs: Inputs<'_, T>,
        (out, logs): (&mut [T], &mut [T]),
        room: &mut Room<T>,
    ) -> Result<Effort> {
        let Room { scratch, here, next, .. } = room;
        let Some(comm) = self.ranks(attention) else {
            let scores = attention.forward(inputs, out, logs, scratch);
            return Ok(Effort { scores, sent: 0 });
        };
        let block = 2 * inputs.k.len();
        let (mut here, mut next) = (&mut here[..block], &mut next[..block]);
        let mut effort = Effort::default();
        place(inputs, here);
        for step in 0..comm.size() {
            let mut compute = || {
                let (part, into) = self.step(comm, step);
                let (k, v) = here.split_at(block / 2);
                attention.forward_part(
                    &part,
                    into,
                    Inputs { k, v, ..inputs },
                    (&mut *out, &mut *logs),
                    scratch,
                )
            };
            if step + 1 == comm.size() {
                effort.scores += compute();
                break;
            }
            effort.scores += self.hop(comm, here, next, compute)?;
            effort.sent += block;
            std::mem::swap(&mut here, &mut next);
        }
        Ok(effort)
    }

    /// As [`Attention::backward`] of whole sequences, of this rank's queries, keys and values. See [`Ring::forward`].
    ///
    /// Keys and values travel as in forward. The sums of their gradients follow one step behind and go once more, to the rank
    /// that has the tokens: as many messages of as many elements as there are ranks.
    ///
    /// # Errors
    /// As [`Ring::forward`].
    ///
    /// # Panics
    /// As [`Ring::forward`].
    pub fn backward<T: Number>(
        &self,
        attention: &Attention,
        inputs: Inputs<'_, T>,
        outputs: (&[T], &[T], &[T]),
        gradients: InputGradients<'_, T>,
        room: &mut Room<T>,
    ) -> Result<Effort> {
        let Room { scratch, here, next, own } = room;
        let Some(comm) = self.ranks(attention) else {
            let scores = attention.backward(inputs, outputs, gradients, scratch);
            return Ok(Effort { scores, sent: 0 });
        };
        let block = 2 * inputs.k.len();
        let (mut here, mut next) = (&mut here[..2 * block], &mut next[..2 * block]);
        let own = &mut own[..block];
        let mut effort = Effort::default();
        place(inputs, here);
        next[block..].fill(T::ZERO);
        for step in 0..comm.size() {
            // Keys and values go on until every rank has had them; sums come from a rank that has computed before.
            let begin = if step + 1 < comm.size() { 0 } else { block };
            let end = if step > 0 { 2 * block } else { block };
            effort.scores += self.hop(comm, &here[begin..end], &mut next[begin..end], || {
                let (part, into) = self.step(comm, step);
                let (k, v) = here[..block].split_at(block / 2);
                own.fill(T::ZERO);
                let (d_k, d_v) = own.split_at_mut(block / 2);
                let gradients = InputGradients { q: &mut *gradients.q, k: d_k, v: d_v };
                attention.backward_part(&part, into, Inputs { k, v, ..inputs }, outputs, gradients, scratch)
            })?;
            effort.sent += end - begin;
            next[block..].iter_mut().zip(&*own).for_each(|(sum, own)| *sum += *own);
            std::mem::swap(&mut here, &mut next);
        }
        self.hop(comm, &here[block..], &mut next[block..], || ())?;
        effort.sent += block;
        let (d_k, d_v) = next[block..].split_at(block / 2);
        gradients.k.copy_from_slice(d_k);
        gradients.v.copy_from_slice(d_v);
        Ok(effort)
    }

    /// The ranks, if there are several.
    fn ranks(&self, attention: &Attention) -> Option<&'c Communicator> {
        assert_eq!(attention.sequence, self.positions.len(), "tokens of a sequence, and their positions");
        self.comm
    }

    /// Sends `from` to the next rank of the ring and receives `to` from the one before, while `compute` goes on, which needs
    /// nothing of what comes; after it where ranks are [apart](Overlap::Apart).
    fn hop<T: Number, R>(
        &self,
        comm: &Communicator,
        from: &[T],
        to: &mut [T],
        compute: impl FnOnce() -> R,
    ) -> Result<R> {
        let (rank, ranks) = (comm.rank(), comm.size());
        let mut compute = Some(compute);
        let before = compute.take_if(|_| self.overlap == Overlap::Apart).map(|compute| compute());
        let mut begun = Instant::now();
        let beside = comm.scope(|scope| {
            let work = scope.exchange(from, (rank + 1) % ranks, to, (rank + ranks - 1) % ranks)?;
            let computed = compute.map(|compute| {
                let computed = compute();
                begun = Instant::now();
                computed
            });
            work.wait()?;
            self.account.inspect(|account| {
                account.wait(begun);
                account.send(size_of_val(from));
            });
            Ok(computed)
        })?;
        Ok(before.or(beside).expect("it is computed before or beside"))
    }

    /// The scores of a step, and whether they are the first of their queries.
    fn step(&self, comm: &Communicator, step: u32) -> (Part, Into) {
        let from = (comm.rank() + comm.size() - step) % comm.size();
        let into = if step == 0 { Into::Replace } else { Into::Add };
        (part(comm.rank(), from, self.positions.len()), into)
    }
}

/// Keys and values, as they travel.
fn place<T: Number>(inputs: Inputs<'_, T>, to: &mut [T]) {
    let (k, rest) = to.split_at_mut(inputs.k.len());
    k.copy_from_slice(inputs.k);
    rest[..inputs.v.len()].copy_from_slice(inputs.v);
}

#[cfg(test)]
mod tests;
