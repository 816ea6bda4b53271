//! All regions of the process by address.
//!
//! Invariant: regions do not overlap; readers work on a snapshot that never changes. Absent: any access to the bytes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::region::Region;

/// The regions as they were at some moment.
pub(crate) type Snapshot = Arc<BTreeMap<u64, Arc<Region>>>;

/// All regions of the process.
#[derive(Debug, Default)]
pub(crate) struct Table {
    regions: RwLock<Snapshot>,
    changes: AtomicU64,
}

/// The region that has this address.
pub(crate) fn find(regions: &Snapshot, address: u64) -> Option<&Arc<Region>> {
    let (_, region) = regions.range(..=address).next_back()?;
    (address - region.start < region.bytes).then_some(region)
}

impl Table {
    pub(crate) fn snapshot(&self) -> Snapshot {
        Arc::clone(&self.regions.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of changes of the table.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn find(&self, address: u64) -> Option<Arc<Region>> {
        find(&self.snapshot(), address).cloned()
    }

    /// Replaces the regions by those that `change` leaves. `None` of `change` leaves the table as it was.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut BTreeMap<u64, Arc<Region>>) -> Option<T>,
    ) -> Option<T> {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let mut copy = BTreeMap::clone(&regions);
        let result = change(&mut copy)?;
        *regions = Arc::new(copy);
        self.changes.fetch_add(1, Ordering::Release);
        Some(result)
    }

    pub(crate) fn insert(&self, region: Region) {
        self.change(|regions| {
            regions.insert(region.start, Arc::new(region)).or(None).map_or(Some(()), |_| Some(()))
        });
    }

    /// Removes the region that starts at `start`, if `wanted` accepts it.
    pub(crate) fn remove(&self, start: u64, wanted: impl FnOnce(&Region) -> bool) -> Option<Arc<Region>> {
        self.change(|regions| if wanted(regions.get(&start)?) { regions.remove(&start) } else { None })
    }

    /// Whether any region has an address in this range.
    pub(crate) fn overlaps(&self, start: u64, bytes: u64) -> bool {
        let regions = self.snapshot();
        let last = regions.range(..start + bytes).next_back();
        last.is_some_and(|(_, region)| region.start + region.bytes > start)
    }
}
