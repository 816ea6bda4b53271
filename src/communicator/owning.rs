//! Operations that are started on buffers which they own.
//!
//! Invariant: a buffer goes in by value and comes back from [`Work::wait`]; a `Vec` and memory of [`alloc`](crate::alloc) alike,
//! the latter without a copy, as in calls that wait. Absent: borrowed buffers, which are a scope's.

use consort_kernels::{Element, ReduceOp};
use consort_memory::{Buffer, Buffers, Held, HeldRead, Lease};

use super::point::{exchanged, message};
use super::surface::collectives;
use super::typed::block;
use super::{Communicator, Work};
use crate::Rank;
use crate::engine::{Memory, Source, Start};
use consort_types::blocks::Blocks;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};
use consort_types::stretch::Stretch;
use consort_types::varying::CallV;

/// Collectives that are started, by their rows.
macro_rules! owning {
    ($(#[$about:meta])* in_place $noun:literal all_reduce $($row:tt)*) => {
        owned! { start_all_reduce all_reduce in_place $noun $($row)* }
    };
    ($(#[$about:meta])* in_place $noun:literal reduce $($row:tt)*) => {
        owned! { start_reduce reduce in_place $noun $($row)* }
    };
    ($(#[$about:meta])* in_place $noun:literal broadcast $($row:tt)*) => {
        owned! { start_broadcast broadcast in_place $noun $($row)* }
    };
    ($(#[$about:meta])* into $noun:literal all_reduce_into all_reduce $($row:tt)*) => {
        owned! { start_all_reduce_into all_reduce_into apart $noun $($row)* }
    };
    ($(#[$about:meta])* into $noun:literal reduce_into reduce $($row:tt)*) => {
        owned! { start_reduce_into reduce_into apart $noun $($row)* }
    };
    ($(#[$about:meta])* into $noun:literal broadcast_into broadcast $($row:tt)*) => {
        owned! { start_broadcast_into broadcast_into apart $noun $($row)* }
    };
    ($(#[$about:meta])* apart $noun:literal all_gather $($row:tt)*) => {
        owned! { start_all_gather_into all_gather apart $noun $($row)* }
    };
    ($(#[$about:meta])* apart $noun:literal reduce_scatter $($row:tt)*) => {
        owned! { start_reduce_scatter reduce_scatter apart $noun $($row)* }
    };
    ($(#[$about:meta])* apart $noun:literal all_to_all $($row:tt)*) => {
        owned! { start_all_to_all all_to_all apart $noun $($row)* }
    };
    ($(#[$about:meta])* apart $noun:literal all_to_all_replicated $($row:tt)*) => {
        owned! { start_all_to_all_replicated all_to_all_replicated apart $noun $($row)* }
    };
    ($(#[$about:meta])* apart $noun:literal gather $($row:tt)*) => {
        owned! { start_gather gather apart $noun $($row)* }
    };
    ($(#[$about:meta])* apart $noun:literal scatter $($row:tt)*) => {
        owned! { start_scatter scatter apart $noun $($row)* }
    };
    ($(#[$about:meta])* varying $noun:literal all_gather_v $($row:tt)*) => {
        owned! { start_all_gather_v all_gather_v varying $noun $($row)* }
    };
    ($(#[$about:meta])* varying $noun:literal reduce_scatter_v $($row:tt)*) => {
        owned! { start_reduce_scatter_v reduce_scatter_v varying $noun $($row)* }
    };
}

/// The method of a row, by its form.
macro_rules! owned {
    ($start:ident $name:ident in_place $noun:literal ($($argument:ident: $type:ty),*) |$count:ident| $call:expr) => {
        #[doc = concat!("Starts ", $noun, " that goes on by itself: as [`Communicator::", stringify!($name), "`], see [`Work`].")]
        ///
        /// # Errors
        /// What can be seen at once; the rest comes from [`Work::wait`].
        pub fn $start<T: Element, B: Buffer<Element = T>>(
            &self, buffer: B, $($argument: $type),*
        ) -> Result<Work<B>> {
            let lease = Lease::new(buffer);
            let $count = lease.len();
            self.start_in_place($call, lease)
        }
    };
    ($start:ident $name:ident apart $noun:literal ($($argument:ident: $type:ty),*)
        |$in:ident, $out:ident, $size:ident| $call:expr
    ) => {
        #[doc = concat!("Starts ", $noun, " that goes on by itself: as [`Communicator::", stringify!($name), "`], see [`Work`].")]
        ///
        /// # Errors
        /// As [`Communicator::start_all_reduce`].
        pub fn $start<T: Element, A: Buffer<Element = T>, B: Buffer<Element = T>>(
            &self, input: A, output: B, $($argument: $type),*
        ) -> Result<Work<(A, B)>> {
            let leases = (Lease::new(input), Lease::new(output));
            let ($in, $out, $size) = (&leases.0, &leases.1, self.size());
            let call: Result<Call> = $call;
            self.start_apart(call?, None, leases)
        }
    };
    ($start:ident $name:ident varying $noun:literal ($($argument:ident: $type:ty),*) |$of_blocks:ident| $call:expr) => {
        #[doc = concat!("Starts ", $noun, " that goes on by itself: as [`Communicator::", stringify!($name), "`], see [`Work`].")]
        ///
        /// # Errors
        /// As [`Communicator::start_all_reduce`].
        pub fn $start<'a, T: Element, A: Buffer<Element = T>, B: Buffer<Element = T>>(
            &self, input: A, output: B, blocks: impl Into<Blocks<'a>>, $($argument: $type),*
        ) -> Result<Work<(A, B)>> {
            let $of_blocks = blocks.into();
            let (call, blocks) = $call.planned().ok_or_else(|| Error::internal("a started collective of messages"))?;
            self.start_apart(call, Some(blocks), (Lease::new(input), Lease::new(output)))
        }
    };
}

impl Communicator {
    collectives!(owning);

    /// Starts an in-place all-gather that goes on by itself; this rank's block of `buffer` is the input.
    ///
    /// # Errors
    /// As [`Communicator::start_all_reduce`].
    pub fn start_all_gather<T: Element, B: Buffer<Element = T>>(&self, buffer: B) -> Result<Work<B>> {
        let lease = Lease::new(buffer);
        self.start_in_place(Call::all_gather(T::DATA_TYPE, block(lease.len(), self.size())?), lease)
    }

    /// Starts an in-place reduce-scatter that goes on by itself; this rank's block of `buffer` receives the result. The other
    /// blocks are unspecified afterwards.
    ///
    /// ```
    /// use consort::{Communicator, ReduceOp};
    ///
    /// let ranks = Communicator::local(2)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &ranks {
    ///         threads.spawn(move || {
    ///             let work = comm.start_reduce_scatter_in_place(vec![1, 2, 3, 4], ReduceOp::Sum)?;
    ///             // ... compute ...
    ///             let buffer = work.wait()?;
    ///             let own = comm.rank() as usize * 2;
    ///             assert_eq!(buffer[own..own + 2], [[2, 4], [6, 8]][comm.rank() as usize]);
    ///             consort::Result::Ok(())
    ///         });
    ///     }
    /// });
    /// let uneven = ranks[0].start_reduce_scatter_in_place(vec![1, 2, 3], ReduceOp::Sum);
    /// assert!(uneven.is_err(), "2 ranks have no equal blocks of 3");
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::start_all_reduce`]; [`Error::InvalidArgument`] when the length is no multiple of `size()`.
    pub fn start_reduce_scatter_in_place<T: Element, B: Buffer<Element = T>>(
        &self,
        buffer: B,
        op: ReduceOp,
    ) -> Result<Work<B>> {
        let lease = Lease::new(buffer);
        self.start_in_place(Call::reduce_scatter(T::DATA_TYPE, op, block(lease.len(), self.size())?), lease)
    }

    /// Starts to send `buffer` to rank `to`, as [`Communicator::send`]. It goes on beside collectives and other messages; those to
    /// the same rank arrive in the order in which they were started.
    ///
    /// ```
    /// let ranks = consort::Communicator::local(2)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &ranks {
    ///         threads.spawn(move || {
    ///             let other = 1 - comm.rank();
    ///             // Both send first.
    ///             let sent = comm.start_send(vec![comm.rank(); 100_000], other)?;
    ///             let received = comm.start_receive(vec![0; 100_000], other)?.wait()?;
    ///             assert!(received.iter().all(|value| *value == other));
    ///             sent.wait().map(drop)
    ///         });
    ///     }
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::send`] what can be seen at once; the rest comes from [`Work::wait`].
    pub fn start_send<T: Element, B: Buffer<Element = T>>(&self, buffer: B, to: Rank) -> Result<Work<B>> {
        let lease = Lease::new(buffer);
        let held = lease.hold();
        let call = self.alone(Kind::Send, T::DATA_TYPE, held.len(), to)?;
        self.start(vec![message(call, Source::Apart(held.into()), None)], lease)
    }

    /// Starts to receive what rank `from` sends. See [`Communicator::start_send`].
    ///
    /// # Errors
    /// As [`Communicator::start_send`].
    pub fn start_receive<T: Element, B: Buffer<Element = T>>(
        &self,
        buffer: B,
        from: Rank,
    ) -> Result<Work<B>> {
        let lease = Lease::new(buffer);
        let held = lease.hold();
        let call = self.alone(Kind::Receive, T::DATA_TYPE, held.len(), from)?;
        self.start(vec![message(call, Source::Elsewhere, Some(held))], lease)
    }

    /// Starts to send `input` to rank `to` and to receive `output` from rank `from`, as [`Communicator::exchange_into`]. See
    /// [`Communicator::start_send`].
    ///
    /// # Errors
    /// As [`Communicator::start_send`].
    pub fn start_exchange<T: Element, A: Buffer<Element = T>, B: Buffer<Element = T>>(
        &self,
        input: A,
        to: Rank,
        output: B,
        from: Rank,
    ) -> Result<Work<(A, B)>> {
        self.core().check()?;
        let leases = (Lease::new(input), Lease::new(output));
        let (sent, received) = (leases.0.hold(), leases.1.hold());
        let calls = self.both(T::DATA_TYPE, sent.read(), to, received.span(), from)?;
        self.start(exchanged(calls, sent.into(), received), leases)
    }

    /// Starts an all-to-all of blocks that differ in length, which goes on by itself: as [`Communicator::all_to_all_v`], see [`Work`].
    /// Each block is a message: those between two ranks in one direction arrive in the order in which they were started.
    ///
    /// ```
    /// let ranks = consort::Communicator::local(2)?;
    /// std::thread::scope(|threads| {
    ///     for comm in &ranks {
    ///         threads.spawn(move || {
    ///             // Rank 0 keeps one value and sends two, rank 1 sends three and keeps none.
    ///             let (sent, received) = [([1, 2], [1, 3]), ([3, 0], [2, 0])][comm.rank() as usize];
    ///             let output = vec![9; received.iter().sum()];
    ///             let work = comm.start_all_to_all_v(vec![comm.rank(); 3], &sent, output, &received)?;
    ///             // ... compute ...
    ///             let (_, output) = work.wait()?;
    ///             assert_eq!(output, [&[0, 1, 1, 1][..], &[0, 0]][comm.rank() as usize]);
    ///             consort::Result::Ok(())
    ///         });
    ///     }
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::start_all_reduce`]; [`Error::Mismatch`] with the two ranks and their counts when these differ.
    pub fn start_all_to_all_v<'a, T: Element, A: Buffer<Element = T>, B: Buffer<Element = T>>(
        &self,
        input: A,
        sent: impl Into<Blocks<'a>>,
        output: B,
        received: impl Into<Blocks<'a>>,
    ) -> Result<Work<(A, B)>> {
        let call = CallV::all_to_all(T::DATA_TYPE, sent.into(), received.into());
        self.start_messages(&call, (Lease::new(input), Lease::new(output)))
    }

    /// Starts a gather of blocks that differ in length, which goes on by itself: as [`Communicator::gather_v`], see [`Work`].
    ///
    /// # Errors
    /// As [`Communicator::start_all_to_all_v`].
    pub fn start_gather_v<'a, T: Element, A: Buffer<Element = T>, B: Buffer<Element = T>>(
        &self,
        input: A,
        output: B,
        blocks: impl Into<Blocks<'a>>,
        root: Rank,
    ) -> Result<Work<(A, B)>> {
        let leases = (Lease::new(input), Lease::new(output));
        let call = CallV::gather(T::DATA_TYPE, leases.0.len(), blocks.into(), root);
        self.start_messages(&call, leases)
    }

    /// Starts a scatter of blocks that differ in length, which goes on by itself: as [`Communicator::scatter_v`], see [`Work`].
    ///
    /// # Errors
    /// As [`Communicator::start_all_to_all_v`].
    pub fn start_scatter_v<'a, T: Element, A: Buffer<Element = T>, B: Buffer<Element = T>>(
        &self,
        input: A,
        blocks: impl Into<Blocks<'a>>,
        output: B,
        root: Rank,
    ) -> Result<Work<(A, B)>> {
        let leases = (Lease::new(input), Lease::new(output));
        let call = CallV::scatter(T::DATA_TYPE, blocks.into(), leases.1.len(), root);
        self.start_messages(&call, leases)
    }

    /// Starts the messages of a call; what the rank has for itself is copied at once.
    fn start_messages<A: Buffer, B: Buffer>(
        &self,
        call: &CallV<'_>,
        leases: (Lease<A>, Lease<B>),
    ) -> Result<Work<(A, B)>> {
        self.core().check()?;
        let (from, to) = (HeldRead::from(leases.0.hold()), leases.1.hold());
        let (input, output) = (from.read(), to.span());
        call.check(self.rank(), self.size(), input, output)?;
        let (mut calls, mut own) = (Vec::new(), (None, None));
        for (call, _, sent, received) in self.parts(call, input, output)? {
            match (call.kind, call.root == self.rank()) {
                (Kind::Send, true) => own.0 = Some(sent),
                (_, true) => own.1 = Some(received),
                (Kind::Send, false) => {
                    let sent = from.part(sent.start() - input.start(), sent.len());
                    calls.push(message(call, Source::Apart(sent), None));
                }
                (_, false) => {
                    let received = to.part(received.start() - output.start(), received.len());
                    calls.push(message(call, Source::Elsewhere, Some(received)));
                }
            }
        }
        if let (Some(sent), Some(received)) = own {
            received.copy_from(sent);
        }
        self.start(calls, leases)
    }

    fn start_in_place<B: Buffer>(&self, call: Call, lease: Lease<B>) -> Result<Work<B>> {
        let (rank, size) = (self.rank(), self.size());
        let whole = lease.hold();
        // All-gather reads its own block of what it writes, reduce-scatter writes its own of what it reads. A rank without
        // input reads nothing.
        let own = |bytes: usize| {
            let is_part = bytes != 0 && whole.len() > bytes;
            if is_part { rank as usize * bytes } else { 0 }
        };
        let (in_bytes, out_bytes) = (call.input_bytes(rank, size), call.output_bytes(rank, size));
        let (from, to) = (own(in_bytes), own(out_bytes));
        let output = if out_bytes == 0 { lease.hold() } else { whole.part(to, out_bytes) };
        call.check(rank, size, whole.read().slice(from, in_bytes), output.span())?;
        self.start_collective(call, None, Source::Within(whole, from, in_bytes), output, lease)
    }

    fn start_apart<A: Buffer, B: Buffer>(
        &self,
        call: Call,
        blocks: Option<Blocks<'_>>,
        leases: (Lease<A>, Lease<B>),
    ) -> Result<Work<(A, B)>> {
        let (from, to) = (leases.0.hold(), leases.1.hold());
        let (rank, size) = (self.rank(), self.size());
        match blocks {
            Some(blocks) => call.check_blocks(rank, size, blocks, from.read(), to.span())?,
            None => call.check(rank, size, from.read(), to.span())?,
        }
        self.start_collective(call, blocks, Source::Apart(from.into()), to, leases)
    }

    fn start_collective<B: Buffers>(
        &self,
        call: Call,
        blocks: Option<Blocks<'_>>,
        input: Source,
        output: Held,
        leases: B::Leases,
    ) -> Result<Work<B>> {
        let call = self.with_own_algorithm(call);
        let memory = Memory { input, output: Some(output), _kept: Vec::new() };
        self.start(vec![Start { call, blocks, memory }], leases)
    }

    fn start<B: Buffers>(&self, calls: Vec<Start<'_>>, leases: B::Leases) -> Result<Work<B>> {
        self.core().check()?;
        let ticket = self.core().start(self.process(), calls, self.timeout())?;
        Ok(Work::new(self.core().clone(), self.process().clone(), ticket, leases))
    }
}
