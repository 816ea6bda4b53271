//! Memory of other processes, by handle. Events are not handed over.

use std::ffi::c_int;
use std::sync::Arc;

use crate::boundary::{Out, exports};
use crate::code::Code;
use crate::context::working;
use crate::driver;
use crate::memory::{Bytes, Handle, Kind, Mapping, Place, Region, export, open};

/// `CUipcMemHandle`, and `CUipcEventHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcHandle(pub Handle);

const LAZY_ENABLE_PEER_ACCESS: u32 = 1;

exports! {
    /// The handle of memory of `cuMemAlloc`.
    fn cuIpcGetMemHandle(handle: Out<IpcHandle>, address: u64) {
        handle.check()?;
        working()?;
        let region = driver::get()?.table.find(address).ok_or(Code::INVALID_VALUE)?;
        match (&region.kind, region.store()) {
            (Kind::Device, Some(store)) => handle.put(IpcHandle(export(store))),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Opens the memory of another process's handle. A second open of a handle gives the same address.
    fn cuIpcOpenMemHandle_v2(place: Out<u64>, handle: IpcHandle, flags: u32) {
        place.check()?;
        let context = working()?;
        let driver = driver::get()?;
        if flags & !LAZY_ENABLE_PEER_ACCESS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let again = |region: &Region| {
            let times = match &region.kind {
                Kind::Opened { times, by, handle: known } if **known == handle.0 && *by == context.device => times + 1,
                _ => return None,
            };
            let kind = Kind::Opened { times, by: context.device, handle: Box::new(handle.0) };
            Some(region.changed(kind))
        };
        let opened = driver.table.change(|regions| {
            let region = regions.values().find_map(|region| again(region))?;
            let start = region.start;
            regions.insert(start, Arc::new(region));
            Some(start)
        });
        if let Some(start) = opened {
            return place.put(start);
        }
        let store = open(&handle.0)?;
        let (device, bytes) = (store.device, store.bytes);
        driver.device(device as c_int)?;
        let here = context.device as c_int;
        if device != context.device && !super::device::is_reachable(here, device as c_int)? {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        if device != context.device && flags & LAZY_ENABLE_PEER_ACCESS == 0 && !context.has_peer(device) {
            return Err(Code::PEER_ACCESS_NOT_ENABLED);
        }
        let reserved = Mapping::reserved(bytes, 4096)?;
        let start = reserved.start();
        driver.table.insert(Region {
            start,
            bytes,
            kind: Kind::Opened { times: 1, by: context.device, handle: Box::new(handle.0) },
            device,
            context: context.handle,
            id: driver.number(),
            place: Place::new(Some(reserved), Bytes::Stored(Arc::new(store), 0)),
        });
        place.put(start)
    } = cuIpcOpenMemHandle;

    /// Closes memory once. It goes when it was closed as often as it was opened.
    fn cuIpcCloseMemHandle(address: u64) {
        let context = working()?;
        let driver = driver::get()?;
        let region = driver.table.find(address).filter(|region| region.start == address);
        let region = region.filter(|region| matches!(region.kind, Kind::Opened { .. })).ok_or(Code::INVALID_VALUE)?;
        if matches!(region.kind, Kind::Opened { times: 1, .. }) {
            context.synchronize()?;
        }
        let closed = driver.table.change(|regions| {
            let region = regions.remove(&address)?;
            if let Kind::Opened { times, by, handle } = &region.kind
                && *times > 1
            {
                let kind = Kind::Opened { times: times - 1, by: *by, handle: handle.clone() };
                regions.insert(address, Arc::new(region.changed(kind)));
            }
            Some(())
        });
        closed.ok_or(Code::INVALID_VALUE)
    }

    /// Refused.
    fn cuIpcGetEventHandle(_handle: Out<IpcHandle>, _event: u64) {
        working()?;
        Err(Code::NOT_SUPPORTED)
    }

    /// Refused.
    fn cuIpcOpenEventHandle(_event: Out<u64>, _handle: IpcHandle) {
        working()?;
        Err(Code::NOT_SUPPORTED)
    }
}
