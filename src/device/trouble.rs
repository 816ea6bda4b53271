//! The driver's errors, in the library's words.

use consort_cuda::CudaError;

use crate::Rank;
use consort_types::error::Error;

/// The error of rank `rank` for what the driver said about `what`.
pub(super) fn failed(rank: Rank, what: impl Into<String>, error: CudaError) -> Error {
    Error::Device { rank, what: what.into(), cause: error.to_string() }
}
