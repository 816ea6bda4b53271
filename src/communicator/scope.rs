//! Operations that borrow the caller's buffers and end with the scope.

use std::cell::RefCell;
use std::sync::Arc;

use consort_kernels::{Element, ReduceOp};
use consort_memory::{Held, Lender, lend};

use super::point::{exchanged, message};
use super::surface::{collectives, method};
use super::typed::block;
use super::{Communicator, Core};
use crate::Rank;
use crate::engine::{Memory, Source, Start};
use crate::ticket::Ticket;
use consort_types::blocks::Blocks;
use consort_types::call::{Call, Kind};
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

    /// Starts to send `input` to rank `to`, as [`Communicator::send`]. It goes on beside collectives and other messages; those to
    /// the same rank arrive in the order in which they were started.
    ///
    /// ```
    /// let ranks = consort::Communicator::local(2)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &ranks {
    ///         threads.spawn(move || {
    ///             let (sent, other) = (vec![comm.rank(); 100_000], 1 - comm.rank());
    ///             let mut received = vec![0; 100_000];
    ///             // Both send first.
    ///             comm.scope(|scope| {
    ///                 scope.send(&sent, other)?;
    ///                 scope.receive(&mut received, other)?.wait()
    ///             })
    ///             .expect("both ranks call it");
    ///             assert!(received.iter().all(|value| *value == other));
    ///         });
    ///     }
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::send`] what can be seen at once; the rest comes when it is waited for.
    pub fn send<T: Element>(&'a self, input: &'env [T], to: Rank) -> Result<ScopedWork<'a>> {
        let call = self.comm.alone(Kind::Send, T::DATA_TYPE, size_of_val(input), to)?;
        self.start(vec![message(call, Source::Apart(self.lender.share(input)), None)])
    }

    /// Starts to receive what rank `from` sends. See [`Scope::send`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn receive<T: Element>(&'a self, output: &'env mut [T], from: Rank) -> Result<ScopedWork<'a>> {
        let call = self.comm.alone(Kind::Receive, T::DATA_TYPE, size_of_val(output), from)?;
        self.start(vec![message(call, Source::Elsewhere, Some(self.lender.share_mut(output)))])
    }

    /// Starts to send `input` to rank `to` and to receive `output` from rank `from`, as
    /// [`Communicator::exchange_into`]. See [`Scope::send`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn exchange<T: Element>(
        &'a self,
        input: &'env [T],
        to: Rank,
        output: &'env mut [T],
        from: Rank,
    ) -> Result<ScopedWork<'a>> {
        self.comm.core().check()?;
        let (held, written) = (self.lender.share(input), self.lender.share_mut(output));
        let calls = self.comm.both(T::DATA_TYPE, held.read(), to, written.span(), from)?;
        self.start(exchanged(calls, held, written))
    }

    fn in_place<T: Element>(&'a self, call: Call, buffer: &'env mut [T]) -> Result<ScopedWork<'a>> {
        let bytes = size_of_val(buffer);
        let held = self.lender.share_mut(buffer);
        call.check(self.comm.rank(), self.comm.size(), held.read(), held.span())?;
        self.collective(call, None, Source::Within(held.clone(), 0, bytes), held)
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
        self.collective(call, blocks, Source::Apart(from), to)
    }

    fn collective(
        &'a self,
        call: Call,
        blocks: Option<Blocks<'_>>,
        input: Source,
        output: Held,
    ) -> Result<ScopedWork<'a>> {
        let call = self.comm.with_own_algorithm(call);
        let memory = Memory { input, output: Some(output), _kept: Vec::new() };
        self.start(vec![Start { call, blocks, memory }])
    }

    fn start(&'a self, calls: Vec<Start<'_>>) -> Result<ScopedWork<'a>> {
        let core = self.comm.core();
        core.check()?;
        let ticket = core.start(self.comm.process(), calls, self.comm.timeout())?;
        let mut tickets =
            self.tickets.try_borrow_mut().map_err(|_| Error::internal("a scope used while it ends"))?;
        tickets.push(ticket.clone());
        Ok(ScopedWork { core, ticket })
    }
}
