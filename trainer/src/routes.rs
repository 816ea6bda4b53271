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
}

impl<T: Real<Sum = T> + Send + 'static> Routes<T> for Experts<T> {
    fn dispatch(&mut self, tokens: &[T], choices: &[i32], weights: &[T], rows: &mut Vec<T>) -> Result<Sent> {
        let handle = Experts::dispatch(self, tokens, choices, weights, rows)?;
        Ok(Sent { counts: handle.counts().to_vec(), handle: Box::new(handle) })
    }

    fn combine(&mut self, sent: &Sent, outputs: &[T], sums: &mut [T]) -> Result<()> {
        Experts::combine(self, sent.handle(), outputs, sums).map(drop)
    }

    fn combine_gradient(
        &mut self,
        sent: &Sent,
        (outputs, d_sums): (&[T], &[T]),
        d_outputs: &mut Vec<T>,
        d_weights: &mut [T],
    ) -> Result<()> {
        Experts::combine_gradient(self, sent.handle(), outputs, d_sums, d_outputs, d_weights).map(drop)
    }

    fn dispatch_gradient(&mut self, sent: &Sent, d_rows: &[T], d_tokens: &mut [T]) -> Result<()> {
        Experts::dispatch_gradient(self, sent.handle(), d_rows, d_tokens).map(drop)
    }
}
