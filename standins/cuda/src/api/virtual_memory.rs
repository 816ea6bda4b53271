//! Virtual memory: allocations, reserved addresses, mappings of the one into the other, access rights, descriptors.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::boundary::{In, Out, exports};
use crate::code::{Answer, Code};
use crate::driver::{self, Allocation};
use crate::memory::{Bytes, GRANULARITY, Kind, Mapping, Place, Region, Store, adopt};

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// `CUmemLocationType`: 1 is a device.
    pub kind: u32,
    /// Its ordinal.
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// `CUmemAllocationType`: 1 is pinned.
    pub kind: u32,
    /// `CUmemAllocationHandleType`s: 1 is a descriptor.
    pub handle_types: u32,
    /// Where the memory is.
    pub location: Location,
    /// Not used.
    pub win32: usize,
    /// Compression, reachability for network cards, usage.
    pub flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The device that gets the access.
    pub location: Location,
    /// Read is 1, write is 2.
    pub flags: u32,
}

const DEVICE: u32 = 1;
const PINNED: u32 = 1;
const DESCRIPTOR: u32 = 1;

fn is_whole(number: u64) -> bool {
    number.is_multiple_of(GRANULARITY)
}

fn device_of(location: Location) -> Answer<u32> {
    driver::get()?.device(location.id)?;
    if location.kind == DEVICE { Ok(location.id as u32) } else { Err(Code::NOT_SUPPORTED) }
}

fn check(properties: &Properties) -> Answer<u32> {
    if properties.kind != PINNED {
        return Err(Code::INVALID_VALUE);
    }
    if properties.handle_types & !DESCRIPTOR != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    device_of(properties.location)
}

fn new_allocation(store: Store, bytes: u64, handle_types: u32, own: bool) -> Answer<u64> {
    let driver = driver::get()?;
    let handle = driver.number();
    let allocation =
        Allocation { store: Arc::new(store), bytes, handle_types, own, handles: AtomicU64::new(1) };
    driver.allocations.insert(handle, Arc::new(allocation));
    Ok(handle)
}

/// An allocation with at least one handle that is not released.
fn of_handle(handle: u64) -> Answer<Arc<Allocation>> {
    let allocation = driver::get()?.allocations.get(handle)?;
    if allocation.handles.load(Ordering::Acquire) == 0 { Err(Code::INVALID_VALUE) } else { Ok(allocation) }
}

/// Forgets an allocation without handles and mappings.
fn forget_unused(handle: u64) -> Answer {
    let driver = driver::get()?;
    let is_it =
        |region: &Region| matches!(region.kind, Kind::Virtual { allocation, .. } if allocation == handle);
    let is_mapped = driver.table.snapshot().values().any(|region| is_it(region));
    let is_held = driver.allocations.get(handle)?.handles.load(Ordering::Acquire) > 0;
    if is_mapped || is_held { Ok(()) } else { driver.allocations.remove(handle).map(drop) }
}

/// The virtual mappings that make up exactly this range.
fn mappings(start: u64, bytes: u64) -> Answer<Vec<Arc<Region>>> {
    let regions = driver::get()?.table.snapshot();
    let end = start.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
    let all: Vec<_> = regions.range(start..end).map(|(_, region)| Arc::clone(region)).collect();
    let mut next = start;
    for region in &all {
        if region.start != next || !matches!(region.kind, Kind::Virtual { .. }) {
            return Err(Code::INVALID_VALUE);
        }
        next = region.start + region.bytes;
    }
    if next == end && !all.is_empty() { Ok(all) } else { Err(Code::INVALID_VALUE) }
}

exports! {
    /// 2 MiB, least and recommended.
    fn cuMemGetAllocationGranularity(place: Out<usize>, properties: In<Properties>, option: u32) {
        check(&properties.get()?)?;
        if option > 1 { Err(Code::INVALID_VALUE) } else { place.put(GRANULARITY as usize) }
    }

    /// Makes an allocation without an address.
    fn cuMemCreate(place: Out<u64>, bytes: usize, properties: In<Properties>, flags: u64) {
        place.check()?;
        let properties = properties.get()?;
        let device = check(&properties)?;
        let bytes = bytes as u64;
        if bytes == 0 || !is_whole(bytes) || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let driver = driver::get()?;
        driver.take(device, bytes)?;
        let store = Store::new(device, bytes).inspect_err(|_| driver.give_back(device, bytes))?;
        place.put(new_allocation(store, bytes, properties.handle_types, true)?)
    }

    /// Releases a handle. The memory goes when it has no mapping either.
    fn cuMemRelease(handle: u64) {
        of_handle(handle)?.handles.fetch_sub(1, Ordering::AcqRel);
        forget_unused(handle)
    }

    /// The properties with which the allocation was made.
    fn cuMemGetAllocationPropertiesFromHandle(place: Out<Properties>, handle: u64) {
        let allocation = of_handle(handle)?;
        place.put(Properties {
            kind: PINNED,
            handle_types: allocation.handle_types,
            location: Location { kind: DEVICE, id: allocation.store.device as c_int },
            win32: 0,
            flags: [0; 8],
        })
    }

    /// The allocation that is mapped at an address. The call adds a handle.
    fn cuMemRetainAllocationHandle(place: Out<u64>, address: u64) {
        place.check()?;
        let driver = driver::get()?;
        let region = driver.table.find(address).ok_or(Code::INVALID_VALUE)?;
        let Kind::Virtual { allocation, .. } = region.kind else { return Err(Code::INVALID_VALUE) };
        driver.allocations.get(allocation)?.handles.fetch_add(1, Ordering::AcqRel);
        place.put(allocation)
    }

    /// Reserves addresses without memory.
    fn cuMemAddressReserve(place: Out<u64>, bytes: usize, alignment: usize, _wish: u64, flags: u64) {
        place.check()?;
        let (bytes, alignment) = (bytes as u64, (alignment as u64).max(GRANULARITY));
        if bytes == 0 || !is_whole(bytes) || !alignment.is_power_of_two() || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let reserved = Mapping::reserved(bytes, alignment)?;
        let start = reserved.start();
        driver::get()?.reservations.insert(start, Arc::new((reserved, bytes)));
        place.put(start)
    }

    /// Frees reserved addresses. Addresses with a mapping are refused.
    fn cuMemAddressFree(start: u64, bytes: usize) {
        let driver = driver::get()?;
        let reservation = driver.reservations.get(start)?;
        if reservation.1 != bytes as u64 || driver.table.overlaps(start, reservation.1) {
            return Err(Code::INVALID_VALUE);
        }
        driver.reservations.remove(start).map(drop)
    }

    /// Maps memory at an address; access is granted by `cuMemSetAccess`.
    fn cuMemMap(start: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        let driver = driver::get()?;
        let allocation = of_handle(handle)?;
        let (bytes, offset) = (bytes as u64, offset as u64);
        let end = start.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
        let holds = |mapping: &(Mapping, u64)| mapping.0.start() <= start && end <= mapping.0.start() + mapping.1;
        let is_inside = driver.reservations.find(holds).is_some();
        let fits = offset.checked_add(bytes).is_some_and(|last| last <= allocation.bytes);
        if bytes == 0 || !is_whole(bytes) || !is_whole(start) || flags != 0 || !is_inside || !fits || offset != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if driver.table.overlaps(start, bytes) {
            return Err(Code::ALREADY_MAPPED);
        }
        driver.table.insert(Region {
            start,
            bytes,
            kind: Kind::Virtual { access: Default::default(), allocation: handle },
            device: allocation.store.device,
            context: 0,
            id: driver.number(),
            place: Place::new(None, Bytes::Stored(Arc::clone(&allocation.store), offset)),
        });
        Ok(())
    }

    /// Unmaps a range that consists of whole mappings.
    fn cuMemUnmap(start: u64, bytes: usize) {
        let driver = driver::get()?;
        for region in mappings(start, bytes as u64)? {
            driver.table.remove(region.start, |_| true);
            if let Kind::Virtual { allocation, .. } = region.kind {
                forget_unused(allocation)?;
            }
        }
        Ok(())
    }

    /// Sets the access of devices to a range.
    fn cuMemSetAccess(start: u64, bytes: usize, accesses: In<Access>, count: usize) {
        let driver = driver::get()?;
        for region in mappings(start, bytes as u64)? {
            let Kind::Virtual { access, allocation } = &region.kind else { continue };
            let mut access = access.clone();
            for index in 0..count {
                let wanted = accesses.at(index)?;
                let device = device_of(wanted.location)?;
                if device != region.device && !super::device::is_reachable(device as c_int, region.device as c_int)? {
                    return Err(Code::INVALID_DEVICE);
                }
                if !matches!(wanted.flags, 0 | 1 | 3) {
                    return Err(Code::INVALID_VALUE);
                }
                access.insert(device, wanted.flags);
            }
            let changed = region.changed(Kind::Virtual { access, allocation: *allocation });
            driver.table.change(|regions| regions.insert(changed.start, Arc::new(changed)));
        }
        Ok(())
    }

    /// The access of a device at an address.
    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: u64) {
        let region = driver::get()?.table.find(address).ok_or(Code::INVALID_VALUE)?;
        let Kind::Virtual { access, .. } = &region.kind else { return Err(Code::INVALID_VALUE) };
        flags.put(u64::from(access.get(&device_of(location.get()?)?).copied().unwrap_or(0)))
    }

    /// A new descriptor, which is the caller's.
    fn cuMemExportToShareableHandle(place: Out<c_int>, handle: u64, kind: u32, flags: u64) {
        place.check()?;
        let allocation = of_handle(handle)?;
        if kind != DESCRIPTOR || flags != 0 || allocation.handle_types & DESCRIPTOR == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let copy = allocation.store.file.try_clone().map_err(|_| Code::OPERATING_SYSTEM)?;
        place.put(copy.into_raw_fd())
    }

    /// The allocation behind a descriptor, which stays the caller's.
    fn cuMemImportFromShareableHandle(place: Out<u64>, descriptor: usize, kind: u32) {
        place.check()?;
        let descriptor = c_int::try_from(descriptor).ok().filter(|number| *number >= 0);
        let (Some(descriptor), DESCRIPTOR) = (descriptor, kind) else { return Err(Code::INVALID_VALUE) };
        // SAFETY: not negative; the caller vouches that it is open while this function runs.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let copy = descriptor.try_clone_to_owned().map_err(|_| Code::INVALID_VALUE)?;
        let store = adopt(copy).ok_or(Code::INVALID_VALUE)?;
        driver::get()?.device(store.device as c_int)?;
        let bytes = store.bytes;
        place.put(new_allocation(store, bytes, DESCRIPTOR, false)?)
    }
}
