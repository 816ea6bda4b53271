//! The collectives whose blocks differ in length; `include/consort.h` is their contract.
//!
//! Invariant: counts and displacements are copied before the call returns. They determine how far a buffer reaches.

use std::ffi::{c_int, c_void};

use consort::CallV;
use consort_nccl::operation::{How, Operation, What};
use consort_nccl::{Comm, Counts, Failure, Reduction, Result, Varying, thread};

use crate::boundary::{call_in_group, exported};
use crate::buffers::{self, Given};
use crate::collectives::{Passed, data_type, rank};
use crate::handles;

/// One number for each rank, which C passed.
///
/// # Safety
/// `start` must be null or have `ranks` numbers.
unsafe fn numbers(start: *const usize, ranks: u32) -> Option<Vec<usize>> {
    // SAFETY: checked for null; otherwise this function's own contract.
    let number = |at: u32| unsafe { start.add(at as usize).read_unaligned() };
    (!start.is_null()).then(|| (0..ranks).map(number).collect())
}

/// Counts that C passed, with displacements or null.
///
/// # Safety
/// Each must be null or have one entry for each of `ranks`.
unsafe fn counts(
    what: &str,
    counts: *const usize,
    displacements: *const usize,
    ranks: u32,
) -> Result<Counts> {
    // SAFETY: this function's own contract.
    let (counts, displacements) = unsafe { (numbers(counts, ranks), numbers(displacements, ranks)) };
    let Some(counts) = counts else {
        return Err(Failure::argument(
            format!("{what} is null"),
            format!("pass one count for each of the {ranks} ranks"),
        ));
    };
    Ok(Counts::new(counts, displacements))
}

/// A collective that C called: `what` makes it, from its communicator and the number of ranks.
///
/// # Safety
/// The buffers must hold the data that the call reads and writes, and no other thread may use them until it is over.
unsafe fn varying(name: &str, passed: Passed, what: impl FnOnce(&Comm, u32) -> Result<Varying>) -> c_int {
    call_in_group(name, passed.comm, || {
        let comm = handles::comm(passed.comm)?;
        let varying = what(&comm, comm.size()?)?;
        let (rank, call) = (comm.rank()?, varying.call());
        // SAFETY: this function's own contract; the counts determine their lengths.
        let (buffers, stream) = unsafe {
            buffers::passed(
                &comm,
                Given {
                    input: (passed.input, Some(call.input_bytes(rank))),
                    output: (passed.output, Some(call.output_bytes(rank))),
                    stream: passed.stream,
                },
            )?
        };
        let what = What::Varying(varying);
        let how = How { timeout: thread::timeout(), algorithm: None };
        comm.issue(Operation { what, how, buffers }, stream.as_ref())
    })
}

/// The blocks of the root. Those that other ranks pass do not matter.
///
/// # Safety
/// As [`counts`], on the root.
unsafe fn of_root(
    (root, comm): (u32, &Comm),
    what: &str,
    counts: *const usize,
    displacements: *const usize,
    ranks: u32,
) -> Result<Counts> {
    if comm.rank()? != root {
        return Ok(Counts::none());
    }
    // SAFETY: this function's own contract.
    unsafe { self::counts(what, counts, displacements, ranks) }
}

/// Defines collectives of blocks: the parameters of each between its buffers and its communicator, and the call that
/// it makes of them and of the number of ranks.
macro_rules! collectives {
    ($(
        $(#[$documentation:meta])*
        fn $name:ident($($argument:ident: $type:ty),*) |$comm:ident, $ranks:ident| $what:expr;
    )*) => {exported! {$(
        $(#[$documentation])*
        fn $name(
            input: *const c_void, output: *mut c_void, $($argument: $type,)* comm: *mut c_void, stream: *mut c_void
        ) -> c_int {
            let passed = Passed { input, output, comm, stream, config: std::ptr::null() };
            // SAFETY: this function's own contract, also of the arrays that `what` reads.
            unsafe { varying(stringify!($name), passed, |$comm, $ranks| $what) }
        }
    )*}};
}

collectives! {
    /// All-gather: all ranks get the blocks of all. The block of rank `r` has `counts[r]` elements.
    ///
    /// # Safety
    /// The buffers must hold the data that the call reads and writes, and no other thread may use them until it is
    /// over. `counts` and `displacements` must be null or have an entry for each rank.
    fn consortAllGatherV(counts: *const usize, displacements: *const usize, element: c_int) |_comm, ranks| {
        let blocks = self::counts("counts", counts, displacements, ranks)?;
        let element = data_type(element)?;
        Ok(Varying::new(Counts::none(), blocks, |_, blocks| CallV::all_gather(element, blocks)))
    };

    /// Reduce-scatter: rank `r` gets its block of `counts[r]` elements of the fold.
    ///
    /// # Safety
    /// As [`consortAllGatherV`].
    fn consortReduceScatterV(
        counts: *const usize, displacements: *const usize, element: c_int, op: c_int
    ) |comm, ranks| {
        let blocks = self::counts("counts", counts, displacements, ranks)?;
        let element = data_type(element)?;
        let Reduction { op, scalar } = comm.reduction(op, element)?;
        Ok(Varying::new(blocks, Counts::none(), |blocks, _| {
            let call = CallV::reduce_scatter(element, op, blocks);
            scalar.map_or(call, |scalar| call.scaled_by(scalar))
        }))
    };

    /// All-to-all: rank `r` gets `sent[r]` elements, and `received[r]` come from it.
    ///
    /// # Safety
    /// As [`consortAllGatherV`].
    fn consortAllToAllV(
        sent: *const usize, sent_from: *const usize, received: *const usize, received_at: *const usize, element: c_int
    ) |_comm, ranks| {
        let sent = counts("sendcounts", sent, sent_from, ranks)?;
        let received = counts("recvcounts", received, received_at, ranks)?;
        let element = data_type(element)?;
        Ok(Varying::new(sent, received, |sent, received| CallV::all_to_all(element, sent, received)))
    };

    /// Gather: `root` gets the blocks of all ranks.
    ///
    /// # Safety
    /// As [`consortAllGatherV`]; on ranks other than the root, `output`, `counts` and `displacements` may have any
    /// value.
    fn consortGatherV(
        count: usize, counts: *const usize, displacements: *const usize, element: c_int, root: c_int
    ) |comm, ranks| {
        let (element, root) = (data_type(element)?, rank(root)?);
        let blocks = of_root((root, comm), "recvcounts", counts, displacements, ranks)?;
        Ok(Varying::new(Counts::none(), blocks, |_, blocks| CallV::gather(element, count, blocks, root)))
    };

    /// Scatter: every rank gets its block of the root's.
    ///
    /// # Safety
    /// As [`consortAllGatherV`]; on ranks other than the root, `input`, `counts` and `displacements` may have any
    /// value.
    fn consortScatterV(
        counts: *const usize, displacements: *const usize, count: usize, element: c_int, root: c_int
    ) |comm, ranks| {
        let (element, root) = (data_type(element)?, rank(root)?);
        let blocks = of_root((root, comm), "sendcounts", counts, displacements, ranks)?;
        Ok(Varying::new(blocks, Counts::none(), |blocks, _| CallV::scatter(element, blocks, count, root)))
    };
}
