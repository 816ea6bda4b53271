//! Memory of devices and of the host that devices reach: allocated, registered, given back.

use std::ffi::c_int;
use std::sync::{Arc, PoisonError};

use crate::boundary::{Out, exports};
use crate::code::{Answer, Code};
use crate::context::{Context, stream, working};
use crate::driver;
use crate::memory::{Bytes, Kind, Mapping, Place, Region, Store, is_mapped};
use crate::queue::Work;

/// Addresses of device memory are multiples of this; the system's pages.
const ALIGNMENT: u64 = 4096;

/// New memory of the context's device.
fn allocate(context: &Context, bytes: usize, kind: Kind) -> Answer<u64> {
    let bytes = u64::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or(Code::INVALID_VALUE)?;
    let driver = driver::get()?;
    driver.take(context.device, bytes)?;
    let new = || {
        let store = Store::new(context.device, bytes)?;
        Ok((Mapping::reserved(bytes, ALIGNMENT)?, Arc::new(store)))
    };
    let (reserved, store) = new().inspect_err(|_: &Code| driver.give_back(context.device, bytes))?;
    let start = reserved.start();
    let place = Place::new(Some(reserved), Bytes::Stored(store, 0));
    add(context, start, bytes, kind, place)?;
    Ok(start)
}

/// Puts a region in the table.
fn add(context: &Context, start: u64, bytes: u64, kind: Kind, place: Arc<Place>) -> Answer {
    let driver = driver::get()?;
    let (device, id) = (context.device, driver.number());
    driver.table.insert(Region { start, bytes, kind, device, context: context.handle, id, place });
    Ok(())
}

fn allocate_host(bytes: usize, kind: Kind) -> Answer<u64> {
    let context = working()?;
    let mapping = Mapping::anonymous(bytes as u64)?;
    let start = mapping.start();
    add(&context, start, bytes as u64, kind, Place::new(None, Bytes::Host(Some(mapping))))?;
    Ok(start)
}

/// Waits for all contexts of a device, as giving back memory does.
fn settle(device: u32) -> Answer {
    let driver = driver::get()?;
    let primary = &driver.device(device as c_int)?.primary;
    let context = primary.lock().unwrap_or_else(PoisonError::into_inner).context.clone();
    let here = working()?;
    if let Some(context) = context.filter(|context| context.handle != here.handle) {
        let _ = context.synchronize();
    }
    here.synchronize()
}

fn free(region: &Region) -> Answer {
    let driver = driver::get()?;
    if matches!(region.kind, Kind::Device | Kind::Pool) {
        driver.give_back(region.device, region.bytes);
    }
    Ok(())
}

/// Forgets the memory of a context that is over; virtual mappings belong to no context.
pub(crate) fn forget(context: u64) {
    let Ok(driver) = driver::get() else { return };
    let of_it = |region: &Region| region.context == context && !matches!(region.kind, Kind::Virtual { .. });
    let all: Vec<_> = driver.table.snapshot().values().filter(|region| of_it(region)).cloned().collect();
    for region in all {
        if driver.table.remove(region.start, of_it).is_some() {
            let _ = free(&region);
        }
    }
}

/// Waits for all work of the context, then removes the region that `wanted` accepts.
fn free_host(start: u64, wanted: fn(&Region) -> bool, missing: Code) -> Answer {
    let context = working()?;
    let driver = driver::get()?;
    driver.table.find(start).filter(|region| region.start == start && wanted(region)).ok_or(missing)?;
    context.synchronize()?;
    driver.table.remove(start, wanted).map(drop).ok_or(missing)
}

exports! {
    /// Allocates memory. It is not zeroed.
    fn cuMemAlloc_v2(place: Out<u64>, bytes: usize) {
        place.check()?;
        place.put(allocate(&*working()?, bytes, Kind::Device)?)
    }

    /// Frees memory after all submitted work has ended, as the driver does in effect.
    fn cuMemFree_v2(address: u64) {
        let driver = driver::get()?;
        if address == 0 {
            return Ok(());
        }
        working()?;
        let wanted = |region: &Region| matches!(region.kind, Kind::Device | Kind::Pool | Kind::Managed);
        let region = driver.table.find(address).filter(|region| region.start == address && wanted(region));
        settle(region.ok_or(Code::INVALID_VALUE)?.device)?;
        free(&*driver.table.remove(address, wanted).ok_or(Code::INVALID_VALUE)?)
    }

    /// Allocates memory at once, usable in the order of the stream.
    fn cuMemAllocAsync(place: Out<u64>, bytes: usize, handle: u64) {
        place.check()?;
        let (context, key) = stream(handle)?;
        let address = allocate(&context, bytes, Kind::Pool)?;
        context.submit(key, None, Work::Nothing)?;
        place.put(address)
    }

    /// Frees memory in the order of the stream.
    fn cuMemFreeAsync(address: u64, handle: u64) {
        let (context, key) = stream(handle)?;
        let wanted = |region: &Region| matches!(region.kind, Kind::Device | Kind::Pool);
        let driver = driver::get()?;
        let region = driver.table.find(address).filter(|region| region.start == address && wanted(region));
        region.ok_or(Code::INVALID_VALUE)?;
        let task = move |_: &Arc<Context>| match driver::get()?.table.remove(address, wanted) {
            Some(region) => free(&region),
            None => Ok(()),
        };
        context.submit(key, None, Work::InQueue(Box::new(task))).map(drop)
    }

    /// Allocates memory that the host and all devices may access.
    fn cuMemAllocManaged(place: Out<u64>, bytes: usize, flags: u32) {
        place.check()?;
        if !matches!(flags, 1 | 2) {
            return Err(Code::INVALID_VALUE);
        }
        place.put(allocate_host(bytes, Kind::Managed)?)
    }

    /// Allocates pinned memory of the host. Every device reaches it.
    fn cuMemHostAlloc(place: Out<u64>, bytes: usize, flags: u32) {
        place.check()?;
        if flags & !7 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        place.put(allocate_host(bytes, Kind::Pinned { flags })?)
    }

    /// Allocates pinned memory of the host.
    fn cuMemAllocHost_v2(place: Out<u64>, bytes: usize) {
        place.check()?;
        place.put(allocate_host(bytes, Kind::Pinned { flags: 0 })?)
    }

    /// Frees pinned memory after all work submitted in the context has ended.
    fn cuMemFreeHost(address: u64) {
        free_host(address, |region| matches!(region.kind, Kind::Pinned { .. }), Code::INVALID_VALUE)
    }

    /// The device's address of pinned memory, which is the host's address.
    fn cuMemHostGetDevicePointer_v2(place: Out<u64>, address: u64, flags: u32) {
        working()?;
        let region = driver::get()?.table.find(address);
        let is_host = |region: &Region| matches!(region.kind, Kind::Pinned { .. } | Kind::Registered { .. });
        if flags != 0 || !region.is_some_and(|region| is_host(&region)) {
            return Err(Code::INVALID_VALUE);
        }
        place.put(address)
    }

    /// The flags with which the memory was allocated or registered.
    fn cuMemHostGetFlags(place: Out<u32>, address: u64) {
        working()?;
        match driver::get()?.table.find(address).ok_or(Code::INVALID_VALUE)?.kind {
            Kind::Pinned { flags } | Kind::Registered { flags } => place.put(flags),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Registers memory of the host, so that devices reach it.
    fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: u32) {
        let context = working()?;
        let driver = driver::get()?;
        if address == 0 || bytes == 0 || flags & !15 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if driver.table.overlaps(address, bytes as u64) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        if !is_mapped(address, bytes as u64) {
            return Err(Code::INVALID_VALUE);
        }
        add(&context, address, bytes as u64, Kind::Registered { flags }, Place::new(None, Bytes::Host(None)))
    }

    /// Ends the registration of memory of the host.
    fn cuMemHostUnregister(address: u64) {
        let wanted: fn(&Region) -> bool = |region| matches!(region.kind, Kind::Registered { .. });
        free_host(address, wanted, Code::HOST_MEMORY_NOT_REGISTERED)
    }
}
