//! The shadow of memory: for every 16 bytes, which were ever written, and the accesses that a race may be with.
//!
//! Invariant: an aligned access of at most 16 bytes lies in one granule.

use super::races::Granule;

/// Bytes of a granule.
pub(super) const GRANULE: usize = 16;

/// The shadow of an allocation or of a block's shared memory.
pub(super) struct Shadow {
    written: Vec<u16>,
    granules: Vec<Granule>,
    /// Granules that hold anything.
    touched: Vec<u32>,
}

impl Shadow {
    pub(super) fn new(bytes: usize, written: bool) -> Self {
        let count = bytes.div_ceil(GRANULE);
        Self {
            written: vec![if written { u16::MAX } else { 0 }; count],
            granules: (0..count).map(|_| Granule::default()).collect(),
            touched: Vec::new(),
        }
    }

    /// Grows the shadow to at least `bytes` bytes.
    pub(super) fn reach(&mut self, bytes: usize) {
        let count = bytes.div_ceil(GRANULE);
        if count > self.granules.len() {
            self.written.resize(count, 0);
            self.granules.resize_with(count, Granule::default);
        }
    }

    /// Bytes shadowed so far, whole granules.
    pub(super) fn bytes(&self) -> u64 {
        (self.granules.len() * GRANULE) as u64
    }

    /// Orders everything before this point before everything after it.
    pub(super) fn forget(&mut self) {
        for at in self.touched.drain(..) {
            self.granules[at as usize] = Granule::default();
        }
    }

    pub(super) fn granule(&mut self, offset: usize) -> &mut Granule {
        let at = offset / GRANULE;
        let granule = &mut self.granules[at];
        if granule.is_empty() {
            self.touched.push(at as u32);
        }
        granule
    }

    pub(super) fn written(&mut self, offset: usize, bytes: usize) {
        for at in offset..offset + bytes {
            self.written[at / GRANULE] |= 1 << (at % GRANULE);
        }
    }

    pub(super) fn all_written(&self, offset: usize, bytes: usize) -> bool {
        (offset..offset + bytes).all(|at| self.written[at / GRANULE] >> (at % GRANULE) & 1 == 1)
    }
}
