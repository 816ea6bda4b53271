//! Events.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::boundary::{Out, exports};
use crate::code::{Answer, Code};
use crate::context::{Event, stream, working};
use crate::driver;
use crate::queue::{Completion, Work};

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

impl Event {
    /// The end of the work behind which the event was last recorded.
    pub(crate) fn position(&self) -> Option<Arc<Completion>> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The capture in which the event was last recorded. 0 is none.
    pub(crate) fn captured(&self) -> u64 {
        self.captured.load(Ordering::Acquire)
    }
}

fn record(event: u64, handle: u64, flags: u32) -> Answer {
    let event = driver::get()?.events.get(event)?;
    let (context, key) = stream(handle)?;
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    if !Arc::ptr_eq(&context, &event.context) {
        return Err(Code::INVALID_HANDLE);
    }
    // Both are set under the lock, so that a query meanwhile finds the record before or this one.
    let mut position = event.position.lock().unwrap_or_else(PoisonError::into_inner);
    let captured = driver::get()?.captures.taking(&context, key)?;
    let end = context.submit(key, None, Work::Nothing)?;
    *position = captured.is_none().then_some(end);
    event.captured.store(captured.unwrap_or(0), Ordering::Release);
    Ok(())
}

exports! {
    /// Makes an event. Before its first record it is complete.
    fn cuEventCreate(place: Out<u64>, flags: u32) {
        place.check()?;
        if flags & !7 != 0 || flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (context, driver) = (working()?, driver::get()?);
        let handle = driver.number();
        driver.events.insert(handle, Arc::new(Event { context, flags, position: Mutex::default(), captured: AtomicU64::new(0) }));
        place.put(handle)
    }

    /// Forgets an event. Work that waits for it goes on waiting.
    fn cuEventDestroy_v2(event: u64) {
        driver::get()?.events.remove(event).map(drop)
    } = cuEventDestroy;

    /// Records an event behind all work in a stream.
    fn cuEventRecord(event: u64, stream: u64) {
        record(event, stream, 0)
    }

    /// Records an event behind all work in a stream.
    fn cuEventRecordWithFlags(event: u64, stream: u64, flags: u32) {
        record(event, stream, flags)
    }

    /// Whether the work before the event's record has ended.
    fn cuEventQuery(event: u64) {
        let event = driver::get()?.events.get(event)?;
        event.context.check()?;
        driver::get()?.captures.admit_event(event.captured())?;
        if event.position().is_none_or(|end| end.is_over()) { event.context.check() } else { Err(Code::NOT_READY) }
    }

    /// Waits until the work before the event's record has ended.
    fn cuEventSynchronize(event: u64) {
        let event = driver::get()?.events.get(event)?;
        event.context.check()?;
        driver::get()?.captures.admit_event(event.captured())?;
        event.position().into_iter().for_each(|end| end.wait());
        event.context.check()
    }

    /// Milliseconds between two events that are complete.
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        let events = &driver::get()?.events;
        let (start, end) = (events.get(start)?, events.get(end)?);
        if (start.flags | end.flags) & DISABLE_TIMING != 0 {
            return Err(Code::INVALID_HANDLE);
        }
        let (Some(first), Some(last)) = (start.position(), end.position()) else {
            return Err(Code::INVALID_HANDLE);
        };
        let (Some(first), Some(last)) = (first.at(), last.at()) else { return Err(Code::NOT_READY) };
        let forward = last.saturating_duration_since(first).as_secs_f32();
        milliseconds.put((forward - first.saturating_duration_since(last).as_secs_f32()) * 1e3)
    } = cuEventElapsedTime_v2;
}
