//! Contexts, their streams and events, and the order of submitted work.
//!
//! Invariant: an entry waits for the one before it in its stream, and by the rules of the legacy default stream for
//! entries of others. It waits only for entries that were submitted before it. A context in which work failed stays
//! failed. Work submitted to a captured stream is dropped. Absent: graphs.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::code::{Answer, Code};
use crate::driver;
use crate::queue::{Completion, Entry, Queue, Task, Work};

/// A stream's place in the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamKey {
    pub(crate) id: u64,
    queue: usize,
    /// Whether this stream and the legacy default stream wait for each other.
    pub(crate) is_blocking: bool,
}

/// Of the legacy default stream of every context.
pub(crate) const LEGACY: u64 = 1;

/// A stream that a program made.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: Arc<Context>,
    pub(crate) key: StreamKey,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    pub(crate) flags: u32,
    /// The end of the work behind which the event was last recorded.
    pub(crate) position: Mutex<Option<Arc<Completion>>>,
    /// The capture in which the event was last recorded. 0 is none.
    pub(crate) captured: AtomicU64,
}

#[derive(Debug, Default)]
struct Order {
    /// The last entry of each stream.
    last: BTreeMap<u64, (Arc<Completion>, bool)>,
    /// The per-thread default streams.
    of_threads: BTreeMap<u64, StreamKey>,
}

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: u64,
    pub(crate) device: u32,
    pub(crate) is_primary: bool,
    pub(crate) flags: AtomicU32,
    /// The devices whose memory this context reaches.
    pub(crate) peers: Mutex<BTreeSet<u32>>,
    failure: AtomicU32,
    is_over: AtomicBool,
    order: Mutex<Order>,
    queues: Vec<Arc<Queue>>,
    next_queue: AtomicUsize,
}

impl Context {
    pub(crate) fn new(device: u32, flags: u32, is_primary: bool) -> Answer<Arc<Self>> {
        let driver = driver::get()?;
        let context = Arc::new(Context {
            handle: driver.number(),
            device,
            is_primary,
            flags: AtomicU32::new(flags),
            peers: Mutex::default(),
            failure: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
            order: Mutex::default(),
            queues: (0..driver.settings.connections).map(|_| Arc::default()).collect(),
            next_queue: AtomicUsize::new(1),
        });
        driver.contexts.insert(context.handle, Arc::clone(&context));
        Ok(context)
    }

    /// Whether the context was destroyed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Whether work that runs in the context should stop.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_over() || self.failure.load(Ordering::Acquire) != 0
    }

    /// The failure of the context, or that it was destroyed.
    pub(crate) fn check(&self) -> Answer {
        if self.is_over() {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        match self.failure.load(Ordering::Acquire) {
            0 => Ok(()),
            number => Err(Code(number)),
        }
    }

    /// Records a failure, unless the context has failed before.
    pub(crate) fn fail(&self, code: Code) {
        let _ = self.failure.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Ends the context: running work stops, waiting work is let go, and its streams and events are forgotten.
    pub(crate) fn end(self: &Arc<Self>) -> Answer {
        let driver = driver::get()?;
        self.is_over.store(true, Ordering::Release);
        for queue in &self.queues {
            queue.wake();
        }
        driver.contexts.remove(self.handle)?;
        driver.streams.retain(|stream| !Arc::ptr_eq(&stream.context, self));
        driver.events.retain(|event| !Arc::ptr_eq(&event.context, self));
        driver.modules.retain(|module| !Arc::ptr_eq(&module.context, self));
        driver.functions.retain(|function| !Arc::ptr_eq(&function.context, self));
        crate::api::memory::forget(self.handle);
        driver.captures.forget(self.handle, None);
        CURRENT.with_borrow_mut(|current| current.retain(|context| context.handle != self.handle));
        Ok(())
    }

    /// Whether code in the context reaches memory of `device`.
    pub(crate) fn has_peer(&self, device: u32) -> bool {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).contains(&device)
    }

    fn new_key(&self, is_blocking: bool) -> Answer<StreamKey> {
        let queue = self.next_queue.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        Ok(StreamKey { id: driver::get()?.number(), queue, is_blocking })
    }

    pub(crate) fn new_stream(self: &Arc<Self>, flags: u32, priority: i32) -> Answer<u64> {
        let key = self.new_key(flags & 1 == 0)?;
        let stream = Stream { context: Arc::clone(self), key, flags, priority };
        let driver = driver::get()?;
        driver.streams.insert(key.id, Arc::new(stream));
        Ok(key.id)
    }

    pub(crate) fn legacy_stream(&self) -> StreamKey {
        StreamKey { id: LEGACY, queue: 0, is_blocking: true }
    }

    fn stream_of_thread(&self) -> Answer<StreamKey> {
        let thread = THREAD.with(|thread| *thread);
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = order.of_threads.get(&thread) {
            return Ok(*key);
        }
        let key = self.new_key(true)?;
        order.of_threads.insert(thread, key);
        Ok(key)
    }

    /// Submits work to a stream. The work also waits for `after`.
    pub(crate) fn submit(
        self: &Arc<Self>,
        stream: StreamKey,
        after: Option<Arc<Completion>>,
        work: Work,
    ) -> Answer<Arc<Completion>> {
        self.check()?;
        if driver::get()?.captures.taking(self, stream)?.is_some() {
            let dropped = Completion::default();
            dropped.end();
            return Ok(Arc::new(dropped));
        }
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = after.into_iter().collect();
        all.extend(order.last.get(&stream.id).map(|(last, _)| Arc::clone(last)));
        if stream.id == LEGACY {
            order.last.retain(|_, (last, _)| !last.is_over());
            all.extend(
                order.last.values().filter(|(_, blocking)| *blocking).map(|(last, _)| Arc::clone(last)),
            );
        } else if stream.is_blocking {
            all.extend(order.last.get(&LEGACY).map(|(last, _)| Arc::clone(last)));
        }
        all.retain(|earlier| !earlier.is_over());
        let completion = Arc::new(Completion::default());
        order.last.insert(stream.id, (Arc::clone(&completion), stream.is_blocking));
        let entry = Entry { after: all, work, completion: Arc::clone(&completion) };
        self.queues[stream.queue].push(self, entry);
        Ok(completion)
    }

    /// The last entry of a stream. For the legacy default stream, all entries for which it would wait.
    pub(crate) fn last(&self, stream: StreamKey) -> Vec<Arc<Completion>> {
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = |id: u64, blocking: bool| id == stream.id || stream.id == LEGACY && blocking;
        let all = order.last.iter().filter(|(id, (_, blocking))| wanted(**id, *blocking));
        all.map(|(_, (last, _))| Arc::clone(last)).collect()
    }

    /// Waits for all submitted work.
    pub(crate) fn synchronize(&self) -> Answer {
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<_> = order.last.values().map(|(last, _)| Arc::clone(last)).collect();
        drop(order);
        all.iter().for_each(|last| last.wait());
        self.check()
    }

    /// Runs a task, unless the context is broken; a failure or a panic breaks it.
    pub(crate) fn run(self: &Arc<Self>, task: Task) {
        if self.is_broken() {
            return;
        }
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task(self))) {
            Ok(Ok(())) => {}
            Ok(Err(code)) => self.fail(code),
            Err(_) => self.fail(Code::LAUNCH_FAILED),
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
    /// A number of this thread.
    static THREAD: u64 = driver::get().map(|driver| driver.number()).unwrap_or_default();
}

/// The context of this thread.
pub(crate) fn current() -> Answer<Arc<Context>> {
    driver::get()?;
    let current = CURRENT.with_borrow(|all| all.last().cloned()).ok_or(Code::INVALID_CONTEXT)?;
    if current.is_over() { Err(Code::CONTEXT_IS_DESTROYED) } else { Ok(current) }
}

/// The context of this thread, in which nothing has failed.
pub(crate) fn working() -> Answer<Arc<Context>> {
    let current = current()?;
    current.check()?;
    Ok(current)
}

/// Makes a context this thread's, over the one before.
pub(crate) fn push(context: Arc<Context>) {
    CURRENT.with_borrow_mut(|all| all.push(context));
}

/// Takes this thread's context from it.
pub(crate) fn pop() -> Answer<Arc<Context>> {
    CURRENT.with_borrow_mut(Vec::pop).ok_or(Code::INVALID_CONTEXT)
}

/// A stream by its handle: a program's, or one of the two default streams of this thread's context.
pub(crate) fn stream(handle: u64) -> Answer<(Arc<Context>, StreamKey)> {
    match handle {
        0 | 1 => current().map(|context| (Arc::clone(&context), context.legacy_stream())),
        2 => current().and_then(|context| context.stream_of_thread().map(|key| (context, key))),
        _ => driver::get()?.streams.get(handle).map(|stream| (Arc::clone(&stream.context), stream.key)),
    }
}
