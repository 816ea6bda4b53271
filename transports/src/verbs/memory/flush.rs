//! A flush of what an adapter has written to memory of a device, by a read of the adapter's own behind it.
//!
//! Invariant: a read of a bus comes behind the writes before it, so when the byte is here they are there. Absent: whether that is needed.

use std::sync::{Arc, Mutex};

use consort_memory::Mapping;

use super::super::port::{Domain, Region, Written};
use super::super::queue::Queue;
use super::super::{NAME, lock};
use crate::TransportError;

/// What reads the byte, and where it goes.
pub(in super::super) struct Flush {
    /// Before the memory that it writes.
    queue: Mutex<Queue>,
    place: Arc<Region>,
}

impl Flush {
    /// # Errors
    /// The device's, such as that it connects no queue pair with itself.
    pub(in super::super) fn new(domain: &Arc<Domain>) -> Result<Self, TransportError> {
        let mapping = Mapping::anonymous(8).map_err(|error| TransportError::memory(NAME, error))?;
        let place = Region::new(std::slice::from_ref(domain), mapping, Written::ByDevice)?;
        Ok(Flush { queue: Mutex::new(Queue::to_itself(domain)?), place })
    }

    /// What was written before to the memory of this address and key is there.
    ///
    /// # Errors
    /// The device's.
    pub(in super::super) fn behind(&self, address: u64, key: u32) -> Result<(), TransportError> {
        lock(&self.queue).read_byte((address, key), (self.place.address(0), self.place.keys(0).0))
    }
}
