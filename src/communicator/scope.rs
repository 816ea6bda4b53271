//! Operations that borrow the caller's buffers and end with the scope.

use std::cell::RefCell;
use std::sync::Arc;

use consort_kernels::{Element, ReduceOp};
use consort_memory::{Held, Lender, lend};

use super::surface::{collectives, method};
use super::typed::block;
use super::{Communicator, Core};
use crate::Rank;
use crate::engine::Source;
use crate::ticket::Ticket;
use consort_types::blocks::Blocks;
use consort_types::call::Call;
use consort_types::error::{Error, Result};
use consort_types::varying::CallV;

/// Starts operations on borrowed buffers; made by [`Communicator::scope`].
pub struct Scope<'a, 'scope, 'env: 'scope> {
    comm: &'a Communicator,
    lender: &'scope Lender<'scope, 'env>,
    tickets: RefCell<Vec<Arc<Ticket>>>,
}

/// An operation started in a [`Scope`].
pub struct ScopedWork<'a> {
    core: &'a Arc<Core>,
    ticket: Arc<Ticket>,
}

impl ScopedWork<'_> {
    /// Whether the operation is over, well or not.
    pub fn is_done(&self) -> bool {
        self.ticket.is_done()
    }

    /// Waits until the operation is over. The buffer stays lent until the scope ends.
    ///
    /// # Errors
    /// Whatever the operation ended with.
    pub fn wait(&self) -> Result<()> {
        self.core.wait_for(&self.ticket)
    }
}

impl Communicator {
    /// Runs `body`, in which operations may be started on buffers that outlive the scope; returns when all of
    /// them are over, also when `body` panics.
    ///
    /// ```
    /// use consort::{Communicator, ReduceOp};
    ///
    /// let ranks = Communicator::local(1)?;
    /// let (mut first, mut second) = (vec![1.0f32; 10], vec![2.0f32; 10]);
    /// ranks[0].scope(|scope| {
    ///     scope.all_reduce(&mut first, ReduceOp::Sum)?;
    ///     scope.all_reduce(&mut second, ReduceOp::Sum)?;
    ///     Ok(())
    /// })?;
    /// assert_eq!((first[0], second[0]), (1.0, 2.0));
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// What `body` returned, or else the first error of an operation in it.
    pub fn scope<'env, R>(
        &self,
        body: impl for<'a, 'scope> FnOnce(&'a Scope<'a, 'scope, 'env>) -> Result<R>,
    ) -> Result<R> {
        self.core().check()?;
        lend(|lender| {
            let scope = Scope { comm: self, lender, tickets: RefCell::new(Vec::new()) };
            let end = End { core: self.core(), tickets: &scope.tickets };
            let result = body(&scope);
            let waited = end.wait();
            result.and_then(|value| waited.map(|()| value))
        })
    }
}

/// Waits for everything that was started when the scope is left.
struct End<'a> {
    core: &'a Arc<Core>,
    tickets: &'a RefCell<Vec<Arc<Ticket>>>,
}

impl End<'_> {
    fn wait(&self) -> Result<()> {
        let tickets = std::mem::take(&mut *self.tickets.borrow_mut());
        tickets.iter().map(|ticket| self.core.wait_for(ticket)).fold(Ok(()), Result::and)
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}

/// Collectives that are started.
macro_rules! in_scopes {
    ($(#[$about:meta])* into $($row:tt)*) => {};
    ($(#[$about:meta])* in_place $noun:literal reduce $($row:tt)*) => {};
    ($(#[$about:meta])* $form:ident $noun:literal $($row:tt)*) => {
        method! { {
            (&'a self) &'env [T], &'env mut [T], () ['b] 'b of self.comm.size() => Result<ScopedWork<'a>>;
            apart |call, input, output| self.apart(call?, None, input, output);
            in_place |call, buffer| self.in_place(call, buffer);
            varying |call, input, output| match call.planned() {
                Some((call, blocks)) => self.apart(call, Some(blocks), input, output),
                None => Err(Error::internal("a collective of messages in a scope")),
            };
        }
            #[doc = concat!("Starts ", $noun, ".")]
            ///
            /// # Errors
            /// What can be seen at once; the rest comes when it is waited for.
            $form $noun $($row)*
        }
    };
}

impl<'a, 'env> Scope<'a, '_, 'env> {
    collectives!(in_scopes);

    fn in_place<T: Element>(&'a self, call: Call, buffer: &'env mut [T]) -> Result<ScopedWork<'a>> {
        let bytes = size_of_val(buffer);
        let held = self.lender.share_mut(buffer);
        call.check(self.comm.rank(), self.comm.size(), held.read(), held.span())?;
        self.start(call, None, Source::Within(held.clone(), 0, bytes), held)
    }

    fn apart<T: Element>(
        &'a self,
        call: Call,
        blocks: Option<Blocks<'_>>,
        input: &'env [T],
        output: &'env mut [T],
    ) -> Result<ScopedWork<'a>> {
        let (from, to) = (self.lender.share(input), self.lender.share_mut(output));
        let (rank, size) = (self.comm.rank(), self.comm.size());
        match blocks {
            Some(blocks) => call.check_blocks(rank, size, blocks, from.read(), to.span())?,
            None => call.check(rank, size, from.read(), to.span())?,
        }
        self.start(call, blocks, Source::Apart(from), to)
    }

    fn start(
        &'a self,
        call: Call,
        blocks: Option<Blocks<'_>>,
        input: Source,
        output: Held,
    ) -> Result<ScopedWork<'a>> {
        let (call, process, timeout) =
            (self.comm.with_own_algorithm(call), self.comm.process(), self.comm.timeout());
        let core = self.comm.core();
        let ticket = core.start(process, call, blocks, timeout, input, Some(output))?;
        let mut tickets =
            self.tickets.try_borrow_mut().map_err(|_| Error::internal("a scope used while it ends"))?;
        tickets.push(ticket.clone());
        Ok(ScopedWork { core, ticket })
    }
}
