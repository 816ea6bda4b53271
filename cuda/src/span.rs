//! Ranges of addresses that a device may read or write.
//!
//! Invariant: a range is a number and a length, never made into a reference; the host touches nothing through it.
//! Unlike a [`Span`](consort_memory::Span) it borrows nothing, because the work that is given it goes on after the call: **the
//! memory must stay until the work that was given a range of it is over**. Dropping an owner does not wait for that (it
//! might wait for ever: streams wait for other ranks); where some driver waits, so much the better. The device's own
//! mapping goes with the memory, so what is too late finds nothing, which the driver reports as an illegal address that
//! ends the context, or the bytes of a later owner. Absent: whose memory it is.

/// Addresses that a device may reach: of its own memory, a peer's, or the host's that is pinned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeviceSpan {
    address: u64,
    bytes: usize,
}

impl DeviceSpan {
    /// The range of `bytes` bytes from `address` on, for bindings that receive addresses.
    ///
    /// # Safety
    /// The device that is given it may read and write these bytes, and they stay, with no other data in them,
    /// until the work that was given the range is over. If they are the host's, no reference to them exists while
    /// the device writes them.
    ///
    /// # Panics
    /// If the range does not end at an address.
    pub unsafe fn from_raw(address: u64, bytes: usize) -> Self {
        Self::new(address, bytes)
    }

    /// A range of nothing.
    pub const fn empty() -> Self {
        Self { address: 0, bytes: 0 }
    }

    pub(super) fn new(address: u64, bytes: usize) -> Self {
        assert!(address.checked_add(bytes as u64).is_some(), "a range of {bytes} bytes at {address:#x}");
        Self { address, bytes }
    }

    /// Where it begins, as devices see it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The `bytes` bytes from `offset` on.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn slice(&self, offset: usize, bytes: usize) -> DeviceSpan {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "device span of {} bytes cut at {offset}+{bytes}",
            self.bytes
        );
        DeviceSpan { address: self.address + offset as u64, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_bounded() {
        let span = DeviceSpan::new(0x1000, 16);
        assert_eq!(span.slice(4, 8), DeviceSpan::new(0x1004, 8));
        assert_eq!(span.slice(16, 0).address(), 0x1010);
        assert!(span.slice(16, 0).is_empty() && span.len() == 16);
        for (offset, bytes) in [(0, 17), (17, 0), (9, 8), (1, usize::MAX), (usize::MAX, 1)] {
            assert!(std::panic::catch_unwind(|| span.slice(offset, bytes)).is_err(), "{offset}+{bytes}");
        }
        assert!(std::panic::catch_unwind(|| DeviceSpan::new(u64::MAX, 1)).is_err());
    }
}
