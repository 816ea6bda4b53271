//! The collectives on typed memory, which communicators, groups and scopes have alike, on the host and on devices.
//!
//! Invariant: what a collective is called, what it takes and which call that makes is said once, in a row of [`collectives`]; a
//! surface says what it takes beside that, and what it does with the call. Absent: forms that one surface alone has.

/// Gives the collectives to a surface's macro, a row at a time: its documentation, its form, its noun, its name with what it
/// takes beside the buffers, and its call. The forms:
///
/// - `apart`, from one buffer to another: the call, or why there is none, is of the two buffers and the number of ranks;
/// - `into`, the same of a collective that has a name of its own in place: both names, the shorter one for devices;
/// - `in_place`, of one buffer: the call is of its elements;
/// - `varying`, from one buffer to another, of blocks that differ in length: the call is of the blocks.
macro_rules! collectives {
    ($surface:ident) => {
        $surface! {
            /// Folds `buffer` over all ranks; every rank's buffer holds the result, the same bits everywhere.
            ///
            /// ```
            /// use consort::{Communicator, ReduceOp};
            ///
            /// let ranks = Communicator::local(2)?;
            /// std::thread::scope(|threads| {
            ///     for comm in &ranks {
            ///         threads.spawn(move || {
            ///             let mut buffer = vec![comm.rank() as f32 + 1.0; 1000];
            ///             comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("both ranks call it");
            ///             assert!(buffer.iter().all(|value| *value == 3.0));
            ///         });
            ///     }
            /// });
            /// # consort::Result::Ok(())
            /// ```
            ///
            /// # Errors
            /// See [`Error`]; this and every collective may return any of its variants.
            in_place "an all-reduce in place" all_reduce(op: ReduceOp)
            |count| Call::all_reduce(T::DATA_TYPE, op, count)
        }
        $surface! {
            /// Folds `buffer` over all ranks into `root`'s; the others' buffers stay as they are.
            ///
            /// # Errors
            /// As [`Communicator::all_reduce`].
            in_place "a reduce in place" reduce(op: ReduceOp, root: Rank)
            |count| Call::reduce(T::DATA_TYPE, op, count, root)
        }
        $surface! {
            /// Every rank's `buffer` becomes `root`'s.
            ///
            /// # Errors
            /// As [`Communicator::all_reduce`].
            in_place "a broadcast in place" broadcast(root: Rank)
            |count| Call::broadcast(T::DATA_TYPE, count, root)
        }
        $surface! {
            /// Folds `input` over all ranks into every rank's `output`.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] when the lengths differ; otherwise as [`Communicator::all_reduce`].
            into "an all-reduce" all_reduce_into all_reduce(op: ReduceOp)
            |input, _output, _size| Ok(Call::all_reduce(T::DATA_TYPE, op, input.len()))
        }
        $surface! {
            /// Folds `input` over all ranks into `output` of `root`; the others may pass an empty `output`.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] when the root's lengths differ; otherwise as [`Communicator::all_reduce`].
            into "a reduce" reduce_into reduce(op: ReduceOp, root: Rank)
            |input, _output, _size| Ok(Call::reduce(T::DATA_TYPE, op, input.len(), root))
        }
        $surface! {
            /// Every rank's `output` becomes `root`'s `input`; the others may pass an empty `input`.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] when the root's lengths differ; otherwise as [`Communicator::all_reduce`].
            into "a broadcast" broadcast_into broadcast(root: Rank)
            |_input, output, _size| Ok(Call::broadcast(T::DATA_TYPE, output.len(), root))
        }
        $surface! {
            /// Every rank's `output` becomes all ranks' `input`, in rank order: `size() * input.len()` elements.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] when the lengths do not fit; otherwise as [`Communicator::all_reduce`].
            apart "an all-gather" all_gather()
            |input, _output, _size| Ok(Call::all_gather(T::DATA_TYPE, input.len()))
        }
        $surface! {
            /// Folds `input` (`size() * output.len()` elements) over all ranks; `output` receives this rank's block.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] when the lengths do not fit; otherwise as [`Communicator::all_reduce`].
            apart "a reduce-scatter" reduce_scatter(op: ReduceOp)
            |_input, output, _size| Ok(Call::reduce_scatter(T::DATA_TYPE, op, output.len()))
        }
        $surface! {
            /// Sends block `r` of `input` to rank `r`; block `r` of `output` comes from rank `r`. Both have `size()`
            /// blocks of equal length.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] when the lengths do not fit; otherwise as [`Communicator::all_reduce`].
            apart "an all-to-all" all_to_all()
            |input, _output, size| block(input.len(), size).map(|count| Call::all_to_all(T::DATA_TYPE, count))
        }
        $surface! {
            /// An all-to-all between groups of `group` consecutive ranks: ranks `0 .. group` are group 0, the next
            /// `group` ranks are group 1, and so on. The ranks of a group must pass the same input, as the ranks of a
            /// tensor-parallel group hold the same tokens; all ranks of a group get the same output.
            ///
            /// With `g` groups, input and output are `g` blocks of equal length: block `h` of the input is for group `h`,
            /// block `h` of the output is the block that group `h` had for this rank's group. A block has a multiple of
            /// `group` elements. Each rank exchanges its part of the blocks, one in `group`, with the ranks of its place
            /// in the other groups, and the ranks of a group gather the parts: `g - 1` messages between groups for a
            /// rank, in place of `group * (g - 1)`.
            ///
            /// That inputs are alike is not checked: where they differ, each part of an output is that of some rank of
            /// the group that sent it.
            ///
            /// Source: DeepSpeed-MoE (arXiv 2201.05596), section 5.3, parallelism-coordinated communication.
            ///
            /// ```
            /// let ranks = consort::Communicator::local(4)?;
            /// std::thread::scope(|threads| {
            ///     for comm in &ranks {
            ///         threads.spawn(move || {
            ///             let group = comm.rank() / 2;
            ///             // Two elements for group 0, two for group 1.
            ///             let input = [0, 1, 2, 3].map(|element| 10 * group + element);
            ///             let mut output = [0; 4];
            ///             comm.all_to_all_replicated(&input, &mut output, 2).expect("all ranks call it");
            ///             assert_eq!(output, [2 * group, 2 * group + 1, 10 + 2 * group, 11 + 2 * group]);
            ///         });
            ///     }
            /// });
            /// # consort::Result::Ok(())
            /// ```
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when `group` is 0 or does not divide `size()`, when the lengths differ or are no
            /// multiple of `size()`; [`Error::Mismatch`](crate::Error::Mismatch) when ranks pass other lengths or groups; otherwise as
            /// [`Communicator::all_reduce`].
            apart "an all-to-all of replicated inputs" all_to_all_replicated(group: u32)
            |input, _output, size| block(input.len(), size)
                .map(|count| Call::all_to_all_replicated(T::DATA_TYPE, count, group))
        }
        $surface! {
            /// The `output` of `root` becomes all ranks' `input`, in rank order; the others may pass an empty `output`.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] when the root's lengths do not fit; otherwise as [`Communicator::all_reduce`].
            apart "a gather" gather(root: Rank)
            |input, _output, _size| Ok(Call::gather(T::DATA_TYPE, input.len(), root))
        }
        $surface! {
            /// Every rank's `output` becomes its block of the `input` of `root`; the others may pass an empty `input`.
            ///
            /// # Errors
            /// As [`Communicator::gather`].
            apart "a scatter" scatter(root: Rank)
            |_input, output, _size| Ok(Call::scatter(T::DATA_TYPE, output.len(), root))
        }
        $surface! {
            /// Every rank's `output` becomes all ranks' `input`; the input of rank `r` has `blocks`' count `r`. Every rank must
            /// pass the same counts; displacements are its own.
            ///
            /// ```
            /// let ranks = consort::Communicator::local(2)?;
            /// std::thread::scope(|threads| {
            ///     for comm in &ranks {
            ///         threads.spawn(move || {
            ///             let input = vec![comm.rank(); 1 + comm.rank() as usize];
            ///             let mut output = [9; 3];
            ///             comm.all_gather_v(&input, &mut output, &[1, 2]).expect("both ranks call it");
            ///             assert_eq!(output, [0, 1, 1]);
            ///         });
            ///     }
            /// });
            ///
            /// // The block lies where the displacement says.
            /// let comm = consort::Communicator::local(1)?.remove(0);
            /// let mut output = [0u32; 5];
            /// comm.all_gather_v(&[7, 8], &mut output, consort::Blocks::at(&[2], &[3]))?;
            /// assert_eq!(output, [0, 0, 0, 7, 8]);
            /// # consort::Result::Ok(())
            /// ```
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the lengths do not fit; [`Error::Mismatch`](crate::Error::Mismatch) when ranks pass other counts;
            /// otherwise as [`Communicator::all_reduce`].
            varying "an all-gather of blocks that differ in length" all_gather_v()
            |blocks| CallV::all_gather(T::DATA_TYPE, blocks)
        }
        $surface! {
            /// Folds the blocks of `input` over all ranks; `output` receives this rank's. Every rank must pass the same
            /// counts; displacements are its own.
            ///
            /// # Errors
            /// As [`Communicator::all_gather_v`].
            varying "a reduce-scatter of blocks that differ in length" reduce_scatter_v(op: ReduceOp)
            |blocks| CallV::reduce_scatter(T::DATA_TYPE, op, blocks)
        }
    };
}

/// The method of a row. A surface says what the method takes before and behind the buffers, the types of these (of elements
/// `T`) and for how long blocks are lent, how many ranks there are, what the method returns, and how a call of each form runs.
macro_rules! method {
    ($surface:tt $(#[$about:meta])* into $noun:literal $name:ident $short:ident $($row:tt)*) => {
        method! { $surface $(#[$about])* apart $noun $name $($row)* }
    };
    ({
        ($($of:tt)*) $input:ty, $output:ty, ($($behind:tt)*) $([$($lent:lifetime)?] $blocks:lifetime)? of $ranks:expr => $ends:ty;
        apart |$made:ident, $from:ident, $to:ident| $run:expr;
        $($others:tt)*
    } $(#[$about:meta])* apart $noun:literal $name:ident($($argument:ident: $type:ty),*)
        |$in:ident, $out:ident, $size:ident| $call:expr
    ) => {
        $(#[$about])*
        pub fn $name<T: Element>(
            $($of)*, input: $input, output: $output, $($argument: $type,)* $($behind)*
        ) -> $ends {
            let ($in, $out, $size) = (&input, &output, $ranks);
            let $made: Result<Call> = $call;
            let ($from, $to) = (input, output);
            $run
        }
    };
    ({
        ($($of:tt)*) $input:ty, $output:ty, () [$($lent:lifetime)?] $blocks:lifetime of $ranks:expr => $ends:ty;
        apart |$made:ident, $from:ident, $to:ident| $run:expr;
        in_place |$made_in_place:ident, $both:ident| $run_in_place:expr;
        $($others:tt)*
    } $(#[$about:meta])* in_place $noun:literal $name:ident($($argument:ident: $type:ty),*) |$count:ident| $call:expr) => {
        $(#[$about])*
        pub fn $name<T: Element>($($of)*, buffer: $output, $($argument: $type),*) -> $ends {
            let $count = buffer.len();
            let ($made_in_place, $both) = ($call, buffer);
            $run_in_place
        }
    };
    ({
        ($($of:tt)*) $input:ty, $output:ty, () [$($lent:lifetime)?] $blocks:lifetime of $ranks:expr => $ends:ty;
        apart |$made:ident, $from:ident, $to:ident| $run:expr;
        in_place |$made_in_place:ident, $both:ident| $run_in_place:expr;
        varying |$made_varying:ident, $all_from:ident, $all_to:ident| $run_varying:expr;
    } $(#[$about:meta])* varying $noun:literal $name:ident($($argument:ident: $type:ty),*) |$of_blocks:ident| $call:expr) => {
        $(#[$about])*
        pub fn $name<$($lent,)? T: Element>(
            $($of)*, input: $input, output: $output, blocks: impl Into<Blocks<$blocks>>, $($argument: $type),*
        ) -> $ends {
            let $of_blocks = blocks.into();
            let ($made_varying, $all_from, $all_to) = ($call, input, output);
            $run_varying
        }
    };
}

pub(crate) use {collectives, method};
