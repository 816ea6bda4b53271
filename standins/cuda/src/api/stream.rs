//! Streams: creation, queries, waits, and in their order memory operations and functions of the host.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use crate::boundary::{In, Out, exports, in_host_function};
use crate::code::{Answer, Code};
use crate::context::{Context, StreamKey, current, stream, working};
use crate::driver;
use crate::memory::Intent;
use crate::queue::Work;
use crate::span::Span;

/// `CUstreamBatchMemOpParams`, as all its members but flushes and barriers lay it out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemoryOperation {
    /// `CUstreamBatchMemOpType`.
    pub operation: u32,
    /// Not used.
    pub unused: u32,
    /// The word.
    pub address: u64,
    /// The value to write or to wait for.
    pub value: u64,
    /// The comparison of a wait, or how a value is written.
    pub flags: u32,
    /// Not used.
    pub rest: [u32; 5],
}

/// What a stream does with a word.
#[derive(Clone, Copy)]
enum Deed {
    Wait(u32),
    Write,
}

const FLUSH: u32 = 1 << 30;
const NO_BARRIER: u32 = 1;

fn is_there(compare: u32, bytes: u64, found: u64, wanted: u64) -> bool {
    match (compare, bytes) {
        // A difference below half of the range, as with sequence numbers.
        (0, 4) => (found as u32).wrapping_sub(wanted as u32) as i32 >= 0,
        (0, _) => found.wrapping_sub(wanted) as i64 >= 0,
        (1, _) => found == wanted,
        (2, _) => found & wanted != 0,
        (_, 4) => !(found as u32 | wanted as u32) != 0,
        _ => !(found | wanted) != 0,
    }
}

fn word_work(context: &Context, deed: Deed, address: u64, value: u64, bytes: u64) -> Answer<Work> {
    let intent = if matches!(deed, Deed::Write) { Intent::Write } else { Intent::Read };
    let span = Span::of(context, address, bytes, intent)?;
    if !span.is_known() || !address.is_multiple_of(bytes) {
        return Err(Code::INVALID_VALUE);
    }
    Ok(Work::InQueue(Box::new(move |context| {
        let load = || if bytes == 4 { u64::from(span.load_32()) } else { span.load_64() };
        match deed {
            Deed::Write if bytes == 4 => span.store_32(value as u32),
            Deed::Write => span.store_64(value),
            Deed::Wait(compare) => {
                let mut turns = 0u64;
                while !is_there(compare, bytes, load(), value) {
                    if context.is_broken() {
                        return Ok(());
                    }
                    turns += 1;
                    std::thread::sleep(Duration::from_micros(turns.clamp(5, 200)));
                }
            }
        }
        Ok(())
    })))
}

fn word(handle: u64, deed: Deed, address: u64, value: u64, bytes: u64) -> Answer {
    let (context, key) = stream(handle)?;
    let work = word_work(&context, deed, address, value, bytes)?;
    context.submit(key, None, work).map(drop)
}

fn wait(handle: u64, address: u64, value: u64, flags: u32, bytes: u64) -> Answer {
    let compare = flags & !FLUSH;
    if compare > 3 {
        Err(Code::INVALID_VALUE)
    } else {
        word(handle, Deed::Wait(compare), address, value, bytes)
    }
}

fn write(handle: u64, address: u64, value: u64, flags: u32, bytes: u64) -> Answer {
    if flags & !NO_BARRIER != 0 {
        Err(Code::INVALID_VALUE)
    } else {
        word(handle, Deed::Write, address, value, bytes)
    }
}

fn create(place: Out<u64>, flags: u32, priority: c_int) -> Answer {
    place.check()?;
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    place.put(working()?.new_stream(flags, priority.clamp(-5, 0))?)
}

/// Flags and priority of a stream.
fn settings(handle: u64) -> Answer<(u32, i32)> {
    if handle <= 2 {
        return stream(handle).map(|_| (0, 0));
    }
    let stream = driver::get()?.streams.get(handle)?;
    Ok((stream.flags, stream.priority))
}

fn all_over(context: &Context, key: StreamKey) -> bool {
    context.last(key).iter().all(|last| last.is_over())
}

/// An address of the caller's that travels to a queue.
struct Theirs(*mut c_void);

// SAFETY: it is only handed back to the caller's own function, which was given for this.
unsafe impl Send for Theirs {}

impl Theirs {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

exports! {
    /// A stream of this thread's context.
    fn cuStreamCreate(place: Out<u64>, flags: u32) {
        create(place, flags, 0)
    }

    /// The priority has no effect.
    fn cuStreamCreateWithPriority(place: Out<u64>, flags: u32, priority: c_int) {
        create(place, flags, priority)
    }

    /// Forgets a stream. Work that was submitted to it goes on.
    fn cuStreamDestroy_v2(handle: u64) {
        let driver = driver::get()?;
        let stream = driver.streams.remove(handle)?;
        driver.captures.forget(stream.context.handle, Some(stream.key.id));
        Ok(())
    } = cuStreamDestroy;

    /// Whether all work submitted to a stream has ended.
    fn cuStreamQuery(handle: u64) {
        let (context, key) = stream(handle)?;
        context.check()?;
        driver::get()?.captures.admit_stream(&context, key)?;
        if all_over(&context, key) { context.check() } else { Err(Code::NOT_READY) }
    }

    /// Waits until all work submitted to a stream has ended.
    fn cuStreamSynchronize(handle: u64) {
        let (context, key) = stream(handle)?;
        context.check()?;
        driver::get()?.captures.admit_stream(&context, key)?;
        context.last(key).iter().for_each(|last| last.wait());
        context.check()
    }

    /// Makes a stream wait for the last record of an event. An event without a record is not waited for.
    fn cuStreamWaitEvent(handle: u64, event: u64, flags: u32) {
        let (context, key) = stream(handle)?;
        let event = driver::get()?.events.get(event)?;
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let (position, captured) = (event.position(), event.captured());
        // An event that was never recorded is no dependency.
        if position.is_some() || captured != 0 {
            driver::get()?.captures.depend(key, captured)?;
        }
        context.submit(key, position, Work::Nothing).map(drop)
    }

    /// Makes a stream wait until the comparison of 32 bits holds.
    fn cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: u32) {
        wait(stream, address, u64::from(value), flags, 4)
    } = cuStreamWaitValue32;

    /// Makes a stream wait until the comparison of 64 bits holds.
    fn cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: u32) {
        wait(stream, address, value, flags, 8)
    } = cuStreamWaitValue64;

    /// Writes 32 bits after all earlier work of the stream.
    fn cuStreamWriteValue32_v2(stream: u64, address: u64, value: u32, flags: u32) {
        write(stream, address, u64::from(value), flags, 4)
    } = cuStreamWriteValue32;

    /// Writes 64 bits after all earlier work of the stream.
    fn cuStreamWriteValue64_v2(stream: u64, address: u64, value: u64, flags: u32) {
        write(stream, address, value, flags, 8)
    } = cuStreamWriteValue64;

    /// Does several operations in order. All are checked first.
    fn cuStreamBatchMemOp_v2(handle: u64, count: u32, operations: In<MemoryOperation>, _flags: u32) {
        let (context, key) = stream(handle)?;
        if count > 256 {
            return Err(Code::INVALID_VALUE);
        }
        let work = |index| {
            let MemoryOperation { operation, address, value, flags, .. } = operations.at(index)?;
            let low = value & u64::from(u32::MAX);
            match operation {
                1 => word_work(&context, Deed::Wait(flags & 3), address, low, 4),
                2 => word_work(&context, Deed::Write, address, low, 4),
                4 => word_work(&context, Deed::Wait(flags & 3), address, value, 8),
                5 => word_work(&context, Deed::Write, address, value, 8),
                3 | 6 => Ok(Work::Nothing),
                _ => Err(Code::INVALID_VALUE),
            }
        };
        let all = (0..count as usize).map(work).collect::<Answer<Vec<_>>>()?;
        all.into_iter().try_for_each(|work| context.submit(key, None, work).map(drop))
    } = cuStreamBatchMemOp;

    /// The context of a stream.
    fn cuStreamGetCtx(handle: u64, place: Out<u64>) {
        place.put(stream(handle)?.0.handle)
    }

    /// The device of a stream.
    fn cuStreamGetDevice(handle: u64, place: Out<c_int>) {
        place.put(stream(handle)?.0.device as c_int)
    }

    /// The flags with which the stream was created.
    fn cuStreamGetFlags(handle: u64, place: Out<u32>) {
        place.put(settings(handle)?.0)
    }

    /// The priority with which the stream was created.
    fn cuStreamGetPriority(handle: u64, place: Out<c_int>) {
        place.put(settings(handle)?.1)
    }

    /// A number that no other stream has.
    fn cuStreamGetId(handle: u64, place: Out<u64>) {
        place.put(stream(handle)?.1.id)
    }

    /// Calls a function with the stream, a result and an argument, in the order of the stream.
    fn cuStreamAddCallback(
        handle: u64,
        function: Option<unsafe extern "C" fn(stream: u64, status: u32, data: *mut c_void)>,
        data: *mut c_void,
        _flags: u32,
    ) {
        let (context, key) = stream(handle)?;
        let (function, data) = (function.ok_or(Code::INVALID_VALUE)?, Theirs(data));
        let task = move |context: &Arc<Context>| {
            let status = context.check().err().map_or(0, |code| code.0);
            // SAFETY: given for this; the argument is the caller's own.
            in_host_function(|| unsafe { function(handle, status, data.get()) });
            Ok(())
        };
        context.submit(key, None, Work::InQueue(Box::new(task))).map(drop)
    }

    /// Calls a function with an argument, in the order of the stream.
    fn cuLaunchHostFunc(handle: u64, function: Option<unsafe extern "C" fn(data: *mut c_void)>, data: *mut c_void) {
        let (context, key) = stream(handle)?;
        let (function, data) = (function.ok_or(Code::INVALID_VALUE)?, Theirs(data));
        let task = move |_: &Arc<Context>| {
            // SAFETY: given for this; the argument is the caller's own.
            in_host_function(|| unsafe { function(data.get()) });
            Ok(())
        };
        context.submit(key, None, Work::InQueue(Box::new(task))).map(drop)
    }

    /// Checks its arguments only: managed memory belongs to no stream here.
    fn cuStreamAttachMemAsync(handle: u64, address: u64, _bytes: usize, _flags: u32) {
        stream(handle)?;
        current()?;
        driver::get()?.table.find(address).map(drop).ok_or(Code::INVALID_VALUE)
    }
}
