//! Several calls, on one communicator or on several, that start together and go on side by side.
//!
//! Invariant: while the body of a group runs, calls are written down and nothing is started, so a body that fails or
//! panics leaves nothing behind; when [`group`] has returned, all that was started has ended, driven by the
//! calling thread, so no loan outlives the call and none can be forgotten. Absent: waiting (see
//! [`together`](super::together)).

use std::cell::RefCell;

use consort_kernels::{DataType, Element, ReduceOp};
use consort_memory::{Span, SpanMut};

use super::Communicator;
use super::surface::{collectives, method};
use super::together::{Bundle, Entry, run};
use super::typed::block;
use crate::Rank;
use crate::engine::Buffers;
use consort_types::blocks::Blocks;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};
use consort_types::varying::CallV;

/// Takes the calls of a [`group`].
pub struct Group<'env> {
    /// Behind a cell, which also keeps `'env` from being shortened to lend what lives less long than the group.
    calls: RefCell<Calls<'env>>,
}

#[derive(Default)]
struct Calls<'env> {
    bundles: Vec<Bundle<'env>>,
    /// The error of the first call that was refused.
    refused: Option<Error>,
}

/// Runs the calls that `body` makes, all of them together: returns when all are over.
///
/// Messages go on side by side, so that ranks may send to each other in any order; those between the same two ranks
/// match in the order in which they were made. The collectives of a communicator run in the order in which they
/// were made, different communicators side by side. One thread may so call on several ranks of its process:
///
/// ```
/// use consort::{Communicator, ReduceOp};
///
/// let ranks = Communicator::local(4)?;
/// let mut buffers: Vec<Vec<u32>> = (0..4).map(|rank| vec![rank; 8]).collect();
/// consort::group(|group| {
///     for (comm, buffer) in ranks.iter().zip(&mut buffers) {
///         group.all_reduce(comm, buffer, ReduceOp::Sum)?;
///     }
///     Ok(())
/// })?;
/// assert!(buffers.iter().all(|buffer| buffer[..] == [6; 8]));
/// # consort::Result::Ok(())
/// ```
///
/// Nothing starts before `body` has ended, and nothing does if it returns an error or if a call in it was refused.
/// A group within the body of another is a group of its own: it has run when it returns.
///
/// Buffers must live longer than the group:
///
/// ```compile_fail,E0597
/// let comm = consort::Communicator::local(1)?.remove(0);
/// consort::group(|group| {
///     let mut buffer = [1.0f32];
///     group.all_reduce(&comm, &mut buffer, consort::ReduceOp::Sum)
/// })?;
/// # consort::Result::Ok(())
/// ```
/// and what a call has is its own until the group is over:
///
/// ```compile_fail,E0499
/// let comm = consort::Communicator::local(1)?.remove(0);
/// let mut buffer = [1.0f32];
/// consort::group(|group| {
///     group.all_reduce(&comm, &mut buffer, consort::ReduceOp::Sum)?;
///     group.all_reduce(&comm, &mut buffer, consort::ReduceOp::Sum)
/// })?;
/// # consort::Result::Ok(())
/// ```
///
/// # Errors
/// What `body` returned; what the first call was refused for; [`Error::ConcurrentUse`] when another thread uses one
/// of the communicators; otherwise the first error of an operation. The operations of other communicators are then
/// given a second to end, after which these communicators are aborted.
pub fn group<'env, R>(body: impl FnOnce(&Group<'env>) -> Result<R>) -> Result<R> {
    let group = Group { calls: RefCell::default() };
    let value = body(&group)?;
    let Calls { bundles, refused } = group.calls.into_inner();
    if let Some(error) = refused {
        return Err(error);
    }
    run(&bundles)?;
    Ok(value)
}

/// Collectives that are written down.
macro_rules! in_groups {
    ($(#[$about:meta])* into $noun:literal reduce_into $($row:tt)*) => {};
    ($(#[$about:meta])* into $noun:literal broadcast_into $($row:tt)*) => {};
    ($(#[$about:meta])* $form:ident $noun:literal $name:ident $($row:tt)*) => {
        method! { {
            (&self, comm: &'env Communicator) &'env [T], &'env mut [T], () [] 'env of comm.size() => Result<()>;
            apart |call, input, output| {
                self.execute(comm, &self.noting(call)?, Span::of(input), SpanMut::of(output))
            };
            in_place |call, buffer| {
                let both = SpanMut::of(buffer);
                self.execute(comm, &call, both.read(), both)
            };
            varying |call, input, output| self.execute_v(comm, &call, Span::of(input), SpanMut::of(output));
        }
            #[doc = concat!("As [`Communicator::", stringify!($name), "`].")]
            ///
            /// # Errors
            /// What can be seen at once; the group is then refused, whatever its body returns.
            $form $noun $name $($row)*
        }
    };
}

impl<'env> Group<'env> {
    collectives!(in_groups);

    /// As [`Communicator::send`]; a rank may send to itself what it receives in the same group.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn send<T: Element>(&self, comm: &'env Communicator, input: &'env [T], to: Rank) -> Result<()> {
        self.send_bytes(comm, T::DATA_TYPE, Span::of(input), to)
    }

    /// As [`Communicator::receive`]. See [`Group::send`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn receive<T: Element>(
        &self,
        comm: &'env Communicator,
        output: &'env mut [T],
        from: Rank,
    ) -> Result<()> {
        self.receive_bytes(comm, T::DATA_TYPE, SpanMut::of(output), from)
    }

    /// As [`Communicator::execute`]. What one call of the group writes, no other may use.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn execute(
        &self,
        comm: &'env Communicator,
        call: &Call,
        input: Span<'env>,
        output: SpanMut<'env>,
    ) -> Result<()> {
        self.noting(call.check(comm.rank(), comm.size(), input, output))?;
        self.add(comm, Entry { call: *call, blocks: None, buffers: Buffers { input, output } })
    }

    /// As [`Communicator::execute_v`]. See [`Group::execute`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn execute_v(
        &self,
        comm: &'env Communicator,
        call: &CallV<'env>,
        input: Span<'env>,
        output: SpanMut<'env>,
    ) -> Result<()> {
        self.noting(call.check(comm.rank(), comm.size(), input, output))?;
        for (call, blocks, input, output) in self.noting(comm.parts(call, input, output))? {
            self.add(comm, Entry { call, blocks, buffers: Buffers { input, output } })?;
        }
        Ok(())
    }

    /// As [`Communicator::send_bytes`]. See [`Group::send`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn send_bytes(
        &self,
        comm: &'env Communicator,
        data_type: DataType,
        input: Span<'env>,
        to: Rank,
    ) -> Result<()> {
        let call = self.noting(comm.message(Kind::Send, data_type, input.len(), to))?;
        self.add(comm, Entry { call, blocks: None, buffers: Buffers { input, output: SpanMut::empty() } })
    }

    /// As [`Communicator::receive_bytes`]. See [`Group::send`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn receive_bytes(
        &self,
        comm: &'env Communicator,
        data_type: DataType,
        output: SpanMut<'env>,
        from: Rank,
    ) -> Result<()> {
        let call = self.noting(comm.message(Kind::Receive, data_type, output.len(), from))?;
        self.add(comm, Entry { call, blocks: None, buffers: Buffers { input: Span::empty(), output } })
    }

    fn add(&self, comm: &'env Communicator, entry: Entry<'env>) -> Result<()> {
        let entry = Entry { call: comm.with_own_algorithm(entry.call), ..entry };
        self.noting(comm.core().check().and_then(|()| comm.core().planning.admit(&entry.call)))?;
        let bundles = &mut self.calls.borrow_mut().bundles;
        match bundles.iter_mut().find(|bundle| bundle.is_on(comm)) {
            Some(bundle) => bundle.push(comm, entry),
            None => bundles.push(Bundle::new(comm, entry)),
        }
        Ok(())
    }

    /// A refused call refuses the group.
    fn noting<R>(&self, result: Result<R>) -> Result<R> {
        if let Err(error) = &result {
            self.calls.borrow_mut().refused.get_or_insert_with(|| error.clone());
        }
        result
    }
}

impl std::fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("communicators", &self.calls.borrow().bundles.len())
            .finish_non_exhaustive()
    }
}
