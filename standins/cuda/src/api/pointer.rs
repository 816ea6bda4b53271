//! What the driver knows of an address.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::boundary::{In, Out, exports};
use crate::code::{Answer, Code};
use crate::driver;
use crate::memory::{Kind, Region};

/// Writes an attribute. Without a region, the value says that the driver does not know the address.
fn attribute(place: Out<u64>, number: u32, region: Option<&Region>, address: u64) -> Answer {
    let kind = region.map(|region| &region.kind);
    let is_device = region.is_some_and(Region::is_device);
    let is_managed = kind == Some(&Kind::Managed);
    let word = |value: u64| place.put(value);
    let half = |value: u32| place.cast().put(value);
    let flag = |value: bool| place.cast().put(u8::from(value));
    match number {
        1 => word(region.map_or(0, |region| region.context)),
        2 => half(match region {
            None => 0,
            Some(_) if is_device || is_managed => 2,
            Some(_) => 1,
        }),
        3 => word(if region.is_some() { address } else { 0 }),
        4 => word(if region.is_some() && !is_device { address } else { 0 }),
        // Relaxed: a flag that nothing else depends on.
        6 => flag(region.is_some_and(|region| region.place.is_synchronous.load(Ordering::Relaxed))),
        7 => word(region.map_or(0, |region| region.id)),
        8 => flag(is_managed),
        9 => place.cast().put(region.map_or(-2i32, |region| region.device as i32)),
        10 => flag(matches!(kind, Some(Kind::Device))),
        11 => word(region.map_or(0, |region| region.start)),
        12 => word(region.map_or(0, |region| region.bytes)),
        13 => flag(region.is_some()),
        14 => {
            let types = match kind {
                Some(Kind::Virtual { allocation, .. }) => {
                    driver::get()?.allocations.get(*allocation).map_or(0, |found| found.handle_types)
                }
                _ => 0,
            };
            word(u64::from(types))
        }
        15 => flag(is_device),
        16 => half(match kind {
            None => 0,
            Some(Kind::Virtual { access, .. }) => access.values().copied().max().unwrap_or(0),
            Some(_) => 3,
        }),
        17 => word(0),
        18 | 19 => match region {
            Some(region) => word(if number == 18 { region.bytes } else { region.start }),
            None => word(0),
        },
        20 => word(region.map_or(0, |region| region.id)),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn find(address: u64) -> Answer<Option<Arc<Region>>> {
    Ok(driver::get()?.table.find(address))
}

exports! {
    /// One attribute of an address. `CUDA_ERROR_INVALID_VALUE` for memory that the driver does not know.
    fn cuPointerGetAttribute(place: Out<u64>, number: u32, address: u64) {
        place.check()?;
        let region = find(address)?.ok_or(Code::INVALID_VALUE)?;
        attribute(place, number, Some(&region), address)
    }

    /// Several attributes of an address. They are zero for memory that the driver does not know.
    fn cuPointerGetAttributes(count: u32, numbers: In<u32>, places: In<Out<u64>>, address: u64) {
        let region = find(address)?;
        (0..count as usize).try_for_each(|index| {
            attribute(places.at(index)?, numbers.at(index)?, region.as_deref(), address)
        })
    }

    /// Sets whether copies wait, which they always do.
    fn cuPointerSetAttribute(value: In<u8>, number: u32, address: u64) {
        let value = value.get()?;
        let region = find(address)?.ok_or(Code::INVALID_VALUE)?;
        if number != 6 {
            return Err(Code::INVALID_VALUE);
        }
        // Relaxed: as above.
        region.place.is_synchronous.store(value != 0, Ordering::Relaxed);
        Ok(())
    }

    /// Where the allocation begins and how long it is.
    fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<usize>, address: u64) {
        let region = find(address)?.ok_or(Code::NOT_FOUND)?;
        start.put_if_wanted(region.start);
        bytes.put_if_wanted(region.bytes as usize);
        Ok(())
    }

    /// Puts an entry without effect into the stream: managed memory is the host's here.
    fn cuMemPrefetchAsync(address: u64, _bytes: usize, device: c_int, handle: u64) {
        let (context, key) = crate::context::stream(handle)?;
        let region = find(address)?.ok_or(Code::INVALID_VALUE)?;
        if device >= 0 {
            driver::get()?.device(device)?;
        }
        if region.kind != Kind::Managed {
            return Err(Code::INVALID_VALUE);
        }
        context.submit(key, None, crate::queue::Work::Nothing).map(drop)
    }
}
