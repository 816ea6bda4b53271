//! The stand-in's completion queues: what has completed comes late, announces itself where that was asked for, and comes twice where a
//! test has a device do that.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};

use super::super::status::{FLUSHED, RECEIVER_NOT_READY, REFUSED, RETRY_EXCEEDED};
use super::super::sys::*;
use super::{World, with, zeroed};

/// What devices hand out twice: one completion in [`ONE_IN`], by the address of its queue, behind as many others.
#[derive(Default)]
pub(super) struct Doubled {
    held: HashMap<usize, Vec<(usize, Wc)>>,
    /// How many of each such device were handed out, by the address of its context.
    counts: HashMap<usize, u64>,
}

const ONE_IN: usize = 8;

impl World {
    /// Has a device hand out completions twice.
    pub(super) fn double(&mut self, context: *mut Context) {
        self.doubled.counts.insert(context as usize, 0);
    }

    /// How many completions of a device were handed out for a second time.
    pub(super) fn doubled(&self, context: *mut Context) -> u64 {
        self.doubled.counts.get(&(context as usize)).copied().unwrap_or(0)
    }

    /// What follows a completion on a device that hands out some twice: others, of before or this one.
    fn again(&mut self, cq: usize, wc: Wc) {
        // SAFETY: a queue of this stand-in, of a queue pair that is there.
        let context = unsafe { (*(cq as *mut Cq)).context } as usize;
        let Some(count) = self.doubled.counts.get_mut(&context) else { return };
        let held = self.doubled.held.entry(cq).or_default();
        if self.random.below(ONE_IN) == 0 {
            // At once, or about where the same place of a tray is written again, or much later.
            let behind = [1, 1 + self.random.below(4), 62 + self.random.below(4), 1 + self.random.below(300)];
            held.push((behind[self.random.below(behind.len())], wc));
        }
        let late = &mut self.random;
        let waiting = self.completions.entry(cq).or_default();
        held.retain_mut(|(behind, wc)| {
            *behind -= 1;
            if *behind == 0 {
                waiting.push_back((late.below(3) as u32, *wc));
                *count += 1;
            }
            *behind > 0
        });
    }

    pub(super) fn complete(&mut self, cq: usize, wc: Wc) {
        let delay = if wc.opcode == WC_RECV_RDMA_WITH_IMM { self.delay } else { 3 };
        let late = self.random.below(delay) as u32;
        self.completions.entry(cq).or_default().push_back((late, wc));
        self.again(cq, wc);
        if let Some(Some(descriptor)) = self.armed.insert(cq, None) {
            self.announce(cq, descriptor);
        }
    }

    /// Says through a descriptor that something has come into a queue.
    fn announce(&mut self, cq: usize, descriptor: c_int) {
        self.announced.entry(descriptor).or_default().push_back(cq);
        let one = 1u64;
        // SAFETY: eight bytes that live during the call; the descriptor is one of this stand-in's.
        unsafe { libc::write(descriptor, (&raw const one).cast(), 8) };
    }
}

pub(super) unsafe extern "C" fn create_comp_channel(context: *mut Context) -> *mut CompChannel {
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
    Box::into_raw(Box::new(CompChannel { context, fd, refcnt: 0 }))
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    // SAFETY: made above, and given back once.
    let channel = unsafe { Box::from_raw(channel) };
    with(|world| world.announced.remove(&channel.fd));
    // SAFETY: its descriptor, which nothing uses any more.
    unsafe { libc::close(channel.fd) }
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut Context,
    cqe: c_int,
    _: *mut c_void,
    channel: *mut CompChannel,
    _: c_int,
) -> *mut Cq {
    let mut cq = zeroed::<Cq>();
    (cq.context, cq.cqe, cq.channel) = (context, cqe, channel);
    Box::into_raw(cq)
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    with(|world| {
        world.completions.remove(&(cq as usize));
        world.doubled.held.remove(&(cq as usize));
        world.armed.remove(&(cq as usize));
    });
    // SAFETY: made above, and given back once.
    drop(unsafe { Box::from_raw(cq) });
    0
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut CompChannel,
    cq: *mut *mut Cq,
    _: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel of this stand-in.
    let descriptor = unsafe { (*channel).fd };
    with(|world| {
        let mut count = 0u64;
        // SAFETY: eight bytes that live during the call, and a descriptor of this stand-in.
        let got = unsafe { libc::read(descriptor, (&raw mut count).cast(), 8) };
        let Some(of) = world.announced.get_mut(&descriptor).and_then(VecDeque::pop_front) else { return -1 };
        // SAFETY: the caller's room for an address.
        unsafe { *cq = of as *mut Cq };
        if got == 8 { 0 } else { -1 }
    })
}

pub(super) unsafe extern "C" fn ack_cq_events(_: *mut Cq, _: u32) {}

pub(super) unsafe extern "C" fn wc_status_str(status: c_int) -> *const c_char {
    // As the library calls them.
    match status as u32 {
        FLUSHED => c"Work Request Flushed Error",
        REFUSED => c"remote access error",
        RETRY_EXCEEDED => c"transport retry counter exceeded",
        RECEIVER_NOT_READY => c"RNR retry counter exceeded",
        _ => c"unknown",
    }
    .as_ptr()
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut Cq, room: c_int, out: *mut Wc) -> c_int {
    with(|world| {
        (0..2).for_each(|_| world.step());
        let Some(waiting) = world.completions.get_mut(&(cq as usize)) else { return 0 };
        let mut count = 0;
        while count < room as usize {
            match waiting.front_mut() {
                Some((late, _)) if *late > 0 => {
                    *late -= 1;
                    break;
                }
                Some(_) => {}
                None => break,
            }
            let Some((_, wc)) = waiting.pop_front() else { break };
            // SAFETY: the caller has room for as many.
            unsafe { *out.add(count) = wc };
            count += 1;
        }
        count as c_int
    })
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut Cq, _: c_int) -> c_int {
    // SAFETY: a queue of this stand-in.
    let channel = unsafe { (*cq).channel };
    if channel.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: its channel, that is there as long as the queue.
    let descriptor = unsafe { (*channel).fd };
    with(|world| {
        world.armed.insert(cq as usize, Some(descriptor));
        // What is on its way already counts as coming later.
        if world.completions.get(&(cq as usize)).is_some_and(|waiting| !waiting.is_empty()) {
            world.armed.insert(cq as usize, None);
            world.announce(cq as usize, descriptor);
        }
        0
    })
}
