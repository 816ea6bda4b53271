//! Contexts: primary ones, own ones, whose turn it is on a thread, peers.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::boundary::{In, Out, exports};
use crate::code::{Answer, Code};
use crate::context::{Context, current, pop, push, working};
use crate::driver::{self, Primary};

fn primary(device: c_int) -> Answer<std::sync::MutexGuard<'static, Primary>> {
    Ok(driver::get()?.device(device)?.primary.lock().unwrap_or_else(PoisonError::into_inner))
}

fn end_primary(primary: &mut Primary) -> Answer {
    primary.retained = 0;
    primary.context.take().map_or(Ok(()), |context| context.end())
}

fn create(place: Out<u64>, flags: u32, device: c_int) -> Answer {
    place.check()?;
    driver::get()?.device(device)?;
    let context = Context::new(device as u32, flags, false)?;
    push(Arc::clone(&context));
    place.put(context.handle)
}

/// The context of a handle; null is this thread's.
fn of_handle(handle: u64) -> Answer<Arc<Context>> {
    if handle == 0 { current() } else { driver::get()?.contexts.get(handle) }
}

fn limit(number: u32) -> Answer<usize> {
    match number {
        0 => Ok(1 << 10),
        1 => Ok(1 << 20),
        2 => Ok(8 << 20),
        3 => Ok(2),
        4 => Ok(2048),
        5 => Ok(128),
        6 => Ok(0),
        _ => Err(Code::UNSUPPORTED_LIMIT),
    }
}

exports! {
    /// Makes it, the first time.
    fn cuDevicePrimaryCtxRetain(place: Out<u64>, device: c_int) {
        place.check()?;
        let mut primary = primary(device)?;
        let context = match &primary.context {
            Some(context) => Arc::clone(context),
            None => Context::new(device as u32, primary.flags, true)?,
        };
        primary.context = Some(Arc::clone(&context));
        primary.retained += 1;
        place.put(context.handle)
    }

    /// The last ends it.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let mut primary = primary(device)?;
        primary.retained = primary.retained.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        if primary.retained == 0 { end_primary(&mut primary) } else { Ok(()) }
    } = cuDevicePrimaryCtxRelease;

    /// Ends it, whoever has it.
    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        end_primary(&mut *primary(device)?)
    } = cuDevicePrimaryCtxReset;

    /// Kept, and without effect.
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: u32) {
        let mut primary = primary(device)?;
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    } = cuDevicePrimaryCtxSetFlags;

    /// Flags, and whether it is there.
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<u32>, active: Out<c_int>) {
        let primary = primary(device)?;
        flags.put(primary.flags)?;
        active.put(c_int::from(primary.context.is_some()))
    }

    /// A context of one's own, which becomes this thread's.
    fn cuCtxCreate_v2(place: Out<u64>, flags: u32, device: c_int) {
        create(place, flags, device)
    }

    /// As before; affinities are not looked at.
    fn cuCtxCreate_v3(place: Out<u64>, _affinities: In<u64>, _count: c_int, flags: u32, device: c_int) {
        create(place, flags, device)
    }

    /// As before; parameters are not looked at.
    fn cuCtxCreate_v4(place: Out<u64>, _parameters: In<u64>, flags: u32, device: c_int) {
        create(place, flags, device)
    }

    /// Not for primary ones.
    fn cuCtxDestroy_v2(context: u64) {
        let context = driver::get()?.contexts.get(context)?;
        if context.is_primary { Err(Code::INVALID_CONTEXT) } else { context.end() }
    } = cuCtxDestroy;

    /// Makes it this thread's, over the one before.
    fn cuCtxPushCurrent_v2(context: u64) {
        push(driver::get()?.contexts.get(context)?);
        Ok(())
    } = cuCtxPushCurrent;

    /// Takes this thread's from it.
    fn cuCtxPopCurrent_v2(place: Out<u64>) {
        driver::get()?;
        place.put_if_wanted(pop()?.handle);
        Ok(())
    } = cuCtxPopCurrent;

    /// In the place of this thread's; null for none.
    fn cuCtxSetCurrent(context: u64) {
        let context = if context == 0 { None } else { Some(driver::get()?.contexts.get(context)?) };
        driver::get()?;
        let _ = pop();
        context.into_iter().for_each(push);
        Ok(())
    }

    /// This thread's, or null.
    fn cuCtxGetCurrent(place: Out<u64>) {
        driver::get()?;
        place.put(current().map_or(0, |context| context.handle))
    }

    /// The device of this thread's.
    fn cuCtxGetDevice(device: Out<c_int>) {
        device.put(current()?.device as c_int)
    }

    /// A number that no other context ever has.
    fn cuCtxGetId(context: u64, id: Out<u64>) {
        id.put(of_handle(context)?.handle)
    }

    /// Waits for all that was submitted.
    fn cuCtxSynchronize() {
        let context = working()?;
        driver::get()?.captures.admit_context(&context)?;
        context.synchronize()
    }

    /// 3020, as every context has had since.
    fn cuCtxGetApiVersion(context: u64, version: Out<u32>) {
        of_handle(context)?;
        version.put(3020)
    }

    /// Its flags.
    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.put(current()?.flags.load(Ordering::Relaxed))
    }

    /// From 0 to -5, without effect.
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        current()?;
        least.put_if_wanted(0);
        greatest.put_if_wanted(-5);
        Ok(())
    }

    /// What a device has at first.
    fn cuCtxGetLimit(value: Out<usize>, number: u32) {
        current()?;
        value.put(limit(number)?)
    }

    /// Taken, and without effect.
    fn cuCtxSetLimit(number: u32, _value: usize) {
        current()?;
        limit(number).map(drop)
    }

    /// This thread's context reaches that one's memory.
    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) {
        let context = working()?;
        let peer = driver::get()?.contexts.get(peer)?;
        if flags != 0 || peer.handle == context.handle {
            return Err(if flags == 0 { Code::INVALID_CONTEXT } else { Code::INVALID_VALUE });
        }
        if peer.device != context.device
            && !super::device::is_reachable(context.device as c_int, peer.device as c_int)?
        {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        let mut peers = context.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.insert(peer.device) { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    }

    /// It no longer does.
    fn cuCtxDisablePeerAccess(peer: u64) {
        let context = working()?;
        let peer = driver::get()?.contexts.get(peer)?;
        let mut peers = context.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.remove(&peer.device) { Ok(()) } else { Err(Code::PEER_ACCESS_NOT_ENABLED) }
    }
}
