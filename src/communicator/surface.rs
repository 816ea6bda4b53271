//! The collectives from one buffer of elements to another, which communicators, groups and scopes have alike.
//!
//! Invariant: what a collective takes and which call that makes is said here once; a surface says only what it does with
//! the call. Absent: buffers in place, blocks that differ, and devices, whose buffers and streams are others.

/// Gives the collectives to a surface's macro. Of each: its documentation, its noun, its name with what it takes beside the
/// buffers, and its call, of the number of ranks and the two buffers.
macro_rules! collectives {
    ($surface:ident) => {
        $surface! {
            /// Every rank's `output` becomes all ranks' `input`, in rank order: `size() * input.len()` elements.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] when the lengths do not fit; otherwise as [`Communicator::all_reduce`].
            "an all-gather" all_gather() |_size, input, _output| Call::all_gather(T::DATA_TYPE, input.len());

            /// Folds `input` (`size() * output.len()` elements) over all ranks; `output` receives this rank's block.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] when the lengths do not fit; otherwise as [`Communicator::all_reduce`].
            "a reduce-scatter" reduce_scatter(op: ReduceOp) |_size, _input, output|
                Call::reduce_scatter(T::DATA_TYPE, op, output.len());

            /// Sends block `r` of `input` to rank `r`; block `r` of `output` comes from rank `r`. Both have `size()`
            /// blocks of equal length.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] when the lengths do not fit; otherwise as [`Communicator::all_reduce`].
            "an all-to-all" all_to_all() |size, input, _output|
                Call::all_to_all(T::DATA_TYPE, block(input.len(), size)?);

            /// The `output` of `root` becomes all ranks' `input`, in rank order; the others may pass an empty `output`.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] when the root's lengths do not fit; otherwise as
            /// [`Communicator::all_reduce`].
            "a gather" gather(root: Rank) |_size, input, _output| Call::gather(T::DATA_TYPE, input.len(), root);

            /// Every rank's `output` becomes its block of the `input` of `root`; the others may pass an empty `input`.
            ///
            /// # Errors
            /// As [`Communicator::gather`].
            "a scatter" scatter(root: Rank) |_size, _input, output| Call::scatter(T::DATA_TYPE, output.len(), root);
        }
    };
}

pub(super) use collectives;
