//! What ranks tell each other of their devices, through the host.
//!
//! Invariant: nothing is said on a communicator that has failed. Absent: what is said.

use consort_kernels::DataType;
use consort_memory::{Span, SpanMut};

use crate::communicator::Communicator;
use crate::engine::Buffers;
use consort_types::call::{Call, Kind};
use consort_types::error::Result;

/// What all ranks say, of equal length, in their order. A collective.
///
/// # Errors
/// As every collective.
pub(super) fn tell_all(communicator: &Communicator, mine: &[u8]) -> Result<Vec<u8>> {
    let core = communicator.core();
    core.check()?;
    let mut all = vec![0u8; mine.len() * communicator.size() as usize];
    let call = Call::new(Kind::Devices, DataType::Uint8, None, 0, mine.len());
    let buffers = Buffers { input: Span::of(mine), output: SpanMut::of(&mut all) };
    core.collective(call, None, communicator.timeout(), buffers)?;
    Ok(all)
}
