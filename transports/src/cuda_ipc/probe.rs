//! The self-test of a way between two devices, in two steps: each side writes a pattern to where it thinks the peer's
//! memory is, and, after a rendezvous, looks for the peer's in its own.
//!
//! Invariant: both steps go through the copies of the device, to and from memory that was never used for the pattern,
//! so that nothing is found that was not written by the peer. Memory that a copy which has not ended may touch is never
//! given back. Absent: the rendezvous, how long a step may take, and what becomes of a way that fails.

use std::task::Poll;

use consort_cuda::{Context, DeviceMemory, DeviceSpan, Event, StreamRef};

use super::{NAME, refused};
use crate::TransportError;

/// The bytes that a seed stands for.
fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(|| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    });
    words.flat_map(u64::to_le_bytes).take(bytes).collect()
}

/// Memory of the device that holds these bytes.
fn staged(context: &Context, bytes: &[u8]) -> Result<DeviceMemory, TransportError> {
    let memory = context.allocate(bytes.len()).map_err(refused("memory for a self-test"))?;
    memory.copy_from_host(0, bytes).map_err(refused("a self-test's copy to its own device"))?;
    Ok(memory)
}

/// A step of the self-test that a stream is about to do, or does. Dropped before it is over, it keeps its memory for ever:
/// the device may still use it.
#[derive(Debug)]
#[must_use = "whether a step has ended is found by polling"]
pub struct Probe {
    /// Only `drop` takes it.
    staging: Option<DeviceMemory>,
    event: Event,
    /// What is to be found, in the second step.
    expected: Option<Vec<u8>>,
    what: &'static str,
    is_over: bool,
}

/// Begins the first step: writes the pattern of a seed, in all of `to`.
///
/// # Errors
/// [`TransportError::Driver`]; on some machines this is where a lie shows.
pub fn write_pattern(stream: &StreamRef, to: DeviceSpan, seed: u64) -> Result<Probe, TransportError> {
    let staging = staged(stream.context(), &pattern(to.len(), seed))?;
    let from = staging.span();
    Probe::begin(stream, staging, (to, from), None, "a self-test's copy to the peer")
}

/// Begins the second step, after the peer has said that it is done with the first: looks for the pattern of the peer's
/// seed, in all of `own`. It may also be asked of a peer's memory: whether this side can load what the peer has there.
///
/// # Errors
/// [`TransportError::Driver`].
pub fn check_pattern(stream: &StreamRef, own: DeviceSpan, seed: u64) -> Result<Probe, TransportError> {
    let staging = staged(stream.context(), &vec![0; own.len()])?;
    let to = staging.span();
    Probe::begin(stream, staging, (to, own), Some(pattern(own.len(), seed)), "a self-test's copy")
}

impl Probe {
    fn begin(
        stream: &StreamRef,
        staging: DeviceMemory,
        (to, from): (DeviceSpan, DeviceSpan),
        expected: Option<Vec<u8>>,
        what: &'static str,
    ) -> Result<Self, TransportError> {
        let context = stream.context();
        let event = context.create_event().map_err(refused(what))?;
        let mut probe = Probe { staging: Some(staging), event, expected, what, is_over: true };
        let _entered = context.enter().map_err(refused(what))?;
        stream.copy(to, from).map_err(refused(what))?;
        probe.is_over = false;
        stream.record(&probe.event).map_err(refused(what))?;
        Ok(probe)
    }

    /// Whether the step is over. The caller decides for how long it asks.
    ///
    /// # Errors
    /// [`TransportError::Driver`], and of the second step [`TransportError::SelfTest`] for any byte that is another.
    pub fn poll(&mut self) -> Result<Poll<()>, TransportError> {
        if !self.is_over && !self.event.query().map_err(refused(self.what))? {
            return Ok(Poll::Pending);
        }
        self.is_over = true;
        let (Some(expected), Some(staging)) = (&self.expected, &self.staging) else {
            return Ok(Poll::Ready(()));
        };
        let mut found = vec![0; expected.len()];
        staging.copy_to_host(0, &mut found).map_err(refused("a self-test's copy to the host"))?;
        match expected.iter().zip(&found).position(|(expected, found)| expected != found) {
            None => Ok(Poll::Ready(())),
            Some(at) => Err(TransportError::SelfTest {
                transport: NAME,
                at,
                expected: expected[at],
                found: found[at],
            }),
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if !self.is_over {
            std::mem::forget(self.staging.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ() {
        let (one, other) = (pattern(4096, 0), pattern(4096, 1));
        assert_eq!(pattern(4096, 0), one);
        assert_eq!(pattern(13, 0), one[..13]);
        assert!(one.chunks(8).zip(other.chunks(8)).all(|(one, other)| one != other && one != [0; 8]));
        assert!(one.windows(16).all(|window| window[..8] != window[8..]));
    }
}
