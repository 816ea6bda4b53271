//! Contexts: primary contexts, contexts of the program, the current context of a thread, peers.

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

/// The context of a handle. A null handle is the current context of this thread.
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
    /// Retains the primary context. The first call makes it.
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

    /// Releases the primary context. The last release ends it.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let mut primary = primary(device)?;
        primary.retained = primary.retained.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        if primary.retained == 0 { end_primary(&mut primary) } else { Ok(()) }
    } = cuDevicePrimaryCtxRelease;

    /// Ends the primary context, however often it is retained.
    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        end_primary(&mut *primary(device)?)
    } = cuDevicePrimaryCtxReset;

    /// Stores the flags. They have no effect.
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: u32) {
        let mut primary = primary(device)?;
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    } = cuDevicePrimaryCtxSetFlags;

    /// The flags of the primary context, and whether it exists.
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<u32>, active: Out<c_int>) {
        let primary = primary(device)?;
        flags.put(primary.flags)?;
        active.put(c_int::from(primary.context.is_some()))
    }

    /// Makes a context and pushes it on this thread's stack.
    fn cuCtxCreate_v2(place: Out<u64>, flags: u32, device: c_int) {
        create(place, flags, device)
    }

    /// Like `cuCtxCreate_v2`. Affinities are not looked at.
    fn cuCtxCreate_v3(place: Out<u64>, _affinities: In<u64>, _count: c_int, flags: u32, device: c_int) {
        create(place, flags, device)
    }

    /// Like `cuCtxCreate_v2`. Parameters are not looked at.
    fn cuCtxCreate_v4(place: Out<u64>, _parameters: In<u64>, flags: u32, device: c_int) {
        create(place, flags, device)
    }

    /// Ends a context of the program. A primary context is refused.
    fn cuCtxDestroy_v2(context: u64) {
        let context = driver::get()?.contexts.get(context)?;
        if context.is_primary { Err(Code::INVALID_CONTEXT) } else { context.end() }
    } = cuCtxDestroy;

    /// Pushes a context on this thread's stack.
    fn cuCtxPushCurrent_v2(context: u64) {
        push(driver::get()?.contexts.get(context)?);
        Ok(())
    } = cuCtxPushCurrent;

    /// Pops the current context from this thread's stack.
    fn cuCtxPopCurrent_v2(place: Out<u64>) {
        driver::get()?;
        place.put_if_wanted(pop()?.handle);
        Ok(())
    } = cuCtxPopCurrent;

    /// Replaces the current context of this thread. Null leaves it with none.
    fn cuCtxSetCurrent(context: u64) {
        let context = if context == 0 { None } else { Some(driver::get()?.contexts.get(context)?) };
        driver::get()?;
        let _ = pop();
        context.into_iter().for_each(push);
        Ok(())
    }

    /// The current context of this thread, or null.
    fn cuCtxGetCurrent(place: Out<u64>) {
        driver::get()?;
        place.put(current().map_or(0, |context| context.handle))
    }

    /// The device of the current context.
    fn cuCtxGetDevice(device: Out<c_int>) {
        device.put(current()?.device as c_int)
    }

    /// A number that no other context ever has.
    fn cuCtxGetId(context: u64, id: Out<u64>) {
        id.put(of_handle(context)?.handle)
    }

    /// Waits for all work that was submitted in the current context.
    fn cuCtxSynchronize() {
        let context = working()?;
        driver::get()?.captures.admit_context(&context)?;
        context.synchronize()
    }

    /// 3020, the version of every context since CUDA 3.2.
    fn cuCtxGetApiVersion(context: u64, version: Out<u32>) {
        of_handle(context)?;
        version.put(3020)
    }

    /// The flags of the current context.
    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.put(current()?.flags.load(Ordering::Relaxed))
    }

    /// Priorities from 0 to -5. They have no effect.
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        current()?;
        least.put_if_wanted(0);
        greatest.put_if_wanted(-5);
        Ok(())
    }

    /// The driver's default of a limit.
    fn cuCtxGetLimit(value: Out<usize>, number: u32) {
        current()?;
        value.put(limit(number)?)
    }

    /// Takes a limit, without effect.
    fn cuCtxSetLimit(number: u32, _value: usize) {
        current()?;
        limit(number).map(drop)
    }

    /// Gives the current context access to the memory of `peer`.
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

    /// Takes away the access to the memory of `peer`.
    fn cuCtxDisablePeerAccess(peer: u64) {
        let context = working()?;
        let peer = driver::get()?.contexts.get(peer)?;
        let mut peers = context.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.remove(&peer.device) { Ok(()) } else { Err(Code::PEER_ACCESS_NOT_ENABLED) }
    }
}
