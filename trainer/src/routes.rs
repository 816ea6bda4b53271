//! How rows of tokens come to the ranks of their experts and back: the library's experts, as the model sees them.
//!
//! Invariant: what was sent is named by a [`Sent`], which backward needs again. Absent: which expert a token chooses, and what
//! experts compute.

use std::any::Any;

use consort::experts::{Dispatched, Experts};
use consort::{Real, Result};

/// Rows that were dispatched.
pub struct Sent {
    /// Rows of each of this rank's experts, in the order in which they lie.
    pub counts: Vec<usize>,
    handle: Box<dyn Any + Send>,
}

impl Sent {
    fn handle<T: Real>(&self) -> &Dispatched<T> {
        self.handle.downcast_ref().expect("rows go back in the type in which they came")
    }
}

/// Sends rows to experts. All ranks that share the experts call each function, in the same order.
pub trait Routes<T> {
    /// Sends rows to the experts that were chosen for them, `weights` with them: as [`Experts::dispatch`].
    ///
    /// # Errors
    /// As there.
    fn dispatch(&mut self, tokens: &[T], choices: &[i32], weights: &[T], rows: &mut Vec<T>) -> Result<Sent>;

    /// The weighted sums of what experts returned: as [`Experts::combine`].
    ///
    /// # Errors
    /// As there.
    fn combine(&mut self, sent: &Sent, outputs: &[T], sums: &mut [T]) -> Result<()>;

    /// The gradients of the outputs and of the weights, from the outputs and the gradients of the sums: as [`Experts::combine_gradient`].
    ///
    /// # Errors
    /// As there.
    fn combine_gradient(
        &mut self,
        sent: &Sent,
        of: (&[T], &[T]),
        d_outputs: &mut Vec<T>,
        d_weights: &mut [T],
    ) -> Result<()>;

    /// The gradient of the tokens, from that of the rows: as [`Experts::dispatch_gradient`].
    ///
    /// # Errors
    /// As there.
    fn dispatch_gradient(&mut self, sent: &Sent, d_rows: &[T], d_tokens: &mut [T]) -> Result<()>;

    /// The bytes that were given away for other ranks, since the ways were made.
    fn sent_bytes(&self) -> usize;
}

/// The library's experts, and what was sent to them.
pub struct Ways<T: Real> {
    experts: Experts<T>,
    sent: u64,
}

impl<T: Real> Ways<T> {
    /// The ways to these experts.
    pub fn new(experts: Experts<T>) -> Self {
        Ways { experts, sent: 0 }
    }
}

impl<T: Real<Sum = T> + Send + 'static> Routes<T> for Ways<T> {
    fn dispatch(&mut self, tokens: &[T], choices: &[i32], weights: &[T], rows: &mut Vec<T>) -> Result<Sent> {
        let handle = self.experts.dispatch(tokens, choices, weights, rows)?;
        self.sent += handle.traffic().bytes;
        Ok(Sent { counts: handle.counts().to_vec(), handle: Box::new(handle) })
    }

    fn combine(&mut self, sent: &Sent, outputs: &[T], sums: &mut [T]) -> Result<()> {
        self.sent += self.experts.combine(sent.handle(), outputs, sums)?.bytes;
        Ok(())
    }

    fn combine_gradient(
        &mut self,
        sent: &Sent,
        (outputs, d_sums): (&[T], &[T]),
        d_outputs: &mut Vec<T>,
        d_weights: &mut [T],
    ) -> Result<()> {
        let handle = sent.handle();
        self.sent += self.experts.combine_gradient(handle, outputs, d_sums, d_outputs, d_weights)?.bytes;
        Ok(())
    }

    fn dispatch_gradient(&mut self, sent: &Sent, d_rows: &[T], d_tokens: &mut [T]) -> Result<()> {
        self.sent += self.experts.dispatch_gradient(sent.handle(), d_rows, d_tokens)?.bytes;
        Ok(())
    }

    fn sent_bytes(&self) -> usize {
        self.sent as usize
    }
}
