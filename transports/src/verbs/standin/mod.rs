//! A stand-in for libibverbs inside one process, for tests: devices whose writes land in pieces of eight bytes and in any order,
//! and whose completions come late.
//!
//! Nothing about an adapter is shown by it. It does what the interface allows an adapter to do, and as seldom as possible what an
//! adapter happens to do: bytes of a write are in their place no sooner than its completion at the receiver says so.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use consort_testing::Random;

use super::library::Functions;
use super::sys::*;
pub(super) use adapters::{
    Adapter, AdapterPort, deafen, join, raise, refuse_buffers, refuse_loops, refuse_memory, set,
    unacknowledged,
};
pub(super) use control::{
    connected, cut, delay, fill_up, leading_to, object, sends, vanish, was_posted, was_read,
};
use regions::Registered;

mod adapters;
mod control;
mod regions;

/// Everything that the devices of the process know.
struct World {
    random: Random,
    regions: HashMap<u32, Registered>,
    queues: HashMap<u32, QueuePair>,
    /// Completions by the address of their queue: those that can be polled, and those that come later.
    completions: HashMap<usize, VecDeque<(u32, Wc)>>,
    /// The descriptor where the next completion of a queue makes an event, if it does.
    armed: HashMap<usize, Option<c_int>>,
    /// Whose completions were announced through a descriptor, and were not taken.
    announced: HashMap<c_int, VecDeque<usize>>,
    next: u32,
    /// Addresses of ports that carry nothing: what is sent by them fails, and some of it has arrived all the same.
    cut: Vec<Gid>,
    /// Looks that what has come may need at most before it is there.
    delay: usize,
    /// Where bytes were last read by reads.
    reads: VecDeque<u64>,
}

struct QueuePair {
    object: usize,
    pd: usize,
    state: u32,
    peer: u32,
    /// The number of the next packet that it sends, and of the next that it takes: each send is one.
    next: u32,
    expected: u32,
    sends: VecDeque<Send>,
    /// The ids of receives that are posted.
    receives: VecDeque<u64>,
    /// Since when the first send is not answered.
    unanswered: Option<Instant>,
    /// What was changed of it last, by all changes.
    attr: QpAttr,
    /// Whether it takes only the first of what it is given next.
    is_full: bool,
    /// Where the last that it was given to send lies, and how many bytes each.
    posted: VecDeque<(usize, usize)>,
}

impl QueuePair {
    /// Keeps what was changed, for tests that look at it.
    fn keep(&mut self, attr: &QpAttr, what: c_int) {
        let kept = &mut self.attr;
        if what & QP_PKEY_INDEX != 0 {
            kept.pkey_index = attr.pkey_index;
        }
        if what & QP_AV != 0 {
            kept.ah_attr = attr.ah_attr;
        }
        if what & QP_DEST_QPN != 0 {
            kept.dest_qp_num = attr.dest_qp_num;
        }
        if what & QP_PATH_MTU != 0 {
            kept.path_mtu = attr.path_mtu;
        }
        if what & QP_TIMEOUT != 0 {
            kept.timeout = attr.timeout;
        }
        if what & QP_RETRY_CNT != 0 {
            kept.retry_cnt = attr.retry_cnt;
        }
    }
}

#[derive(Clone)]
struct Send {
    id: u64,
    packet: u32,
    source: Source,
    to: u64,
    rkey: u32,
    immediate: Option<u32>,
    is_read: bool,
    is_signalled: bool,
}

/// What is sent: as it was when it was posted, or as it is when it is carried.
#[derive(Clone)]
enum Source {
    Inline(Vec<u8>),
    Memory(Sge),
}

/// What is at a view of registered memory.
fn bytes_at(view: usize, bytes: usize) -> Vec<u8> {
    // SAFETY: registered memory, which stays until the completion of what is sent.
    unsafe { std::slice::from_raw_parts(view as *const u8, bytes) }.to_vec()
}

/// How many places of what was sent a queue pair remembers.
const POSTED: usize = 64;
/// How long a send may be unanswered.
const PATIENCE: Duration = Duration::from_millis(700);

static WORLD: Mutex<Option<World>> = Mutex::new(None);

fn locked() -> MutexGuard<'static, Option<World>> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<R>(run: impl FnOnce(&mut World) -> R) -> R {
    run(locked().get_or_insert_with(|| {
        // Devices go on by themselves.
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_micros(200));
                with(World::step);
            }
        });
        World {
            random: Random::new(1),
            regions: HashMap::new(),
            queues: HashMap::new(),
            completions: HashMap::new(),
            armed: HashMap::new(),
            announced: HashMap::new(),
            next: 100,
            cut: Vec::new(),
            delay: 3,
            reads: VecDeque::new(),
        }
    }))
}

impl World {
    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn complete(&mut self, cq: usize, wc: Wc) {
        let delay = if wc.opcode == WC_RECV_RDMA_WITH_IMM { self.delay } else { 3 };
        let late = self.random.below(delay) as u32;
        self.completions.entry(cq).or_default().push_back((late, wc));
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

    /// Lets one queue pair go on, whichever.
    fn step(&mut self) {
        let mut ready: Vec<u32> = self
            .queues
            .iter()
            .filter(|(_, of)| of.state == QPS_RTS && !of.sends.is_empty())
            .map(|(number, _)| *number)
            .collect();
        ready.sort_unstable();
        if ready.is_empty() {
            return;
        }
        let number = ready[self.random.below(ready.len())];
        let (Some(send), peer) = (self.queues[&number].sends.front().cloned(), self.queues[&number].peer)
        else {
            return;
        };
        let outcome = if self.is_cut(number, peer) {
            // Its answer may be what was lost.
            if self.random.below(2) == 0 {
                self.carry(number, peer, &send);
            }
            Some(super::status::RETRY_EXCEEDED)
        } else {
            self.carry(number, peer, &send)
        };
        let Some(of) = self.queues.get_mut(&number) else { return };
        let status = match outcome {
            Some(status) => status,
            None => {
                if of.unanswered.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                    return;
                }
                super::status::RETRY_EXCEEDED
            }
        };
        of.unanswered = None;
        of.sends.pop_front();
        let object = of.object as *mut Qp;
        // SAFETY: a queue pair of this stand-in, that is there until it is destroyed.
        let cq = unsafe { (*object).send_cq } as usize;
        if status != 0 {
            self.complete(cq, Wc { wr_id: send.id, status, qp_num: number, ..Wc::default() });
            self.fail(number);
        } else if send.is_signalled {
            self.complete(cq, Wc { wr_id: send.id, qp_num: number, ..Wc::default() });
        }
    }

    /// Whether what two queue pairs send each other passes a port that carries nothing.
    fn is_cut(&self, from: u32, to: u32) -> bool {
        let leads = |number: &u32| self.queues.get(number).map(|of| of.attr.ah_attr.grh.dgid);
        [from, to].iter().filter_map(leads).any(|gid| self.cut.contains(&gid))
    }

    /// A queue pair fails: what was posted is flushed.
    fn fail(&mut self, number: u32) {
        let Some(of) = self.queues.get_mut(&number) else { return };
        of.state = QPS_ERR;
        let sends: Vec<u64> = of.sends.drain(..).map(|send| send.id).collect();
        let receives = std::mem::take(&mut of.receives);
        let object = of.object as *mut Qp;
        // SAFETY: a queue pair of this stand-in, that is there until it is destroyed.
        let (send_cq, recv_cq) = unsafe { ((*object).send_cq as usize, (*object).recv_cq as usize) };
        let flushed = |wr_id| Wc { wr_id, status: super::status::FLUSHED, qp_num: number, ..Wc::default() };
        sends.into_iter().for_each(|id| self.complete(send_cq, flushed(id)));
        receives.into_iter().for_each(|id| self.complete(recv_cq, flushed(id)));
    }

    /// The bytes of a piece of memory, by its key.
    fn read(&self, pd: usize, sge: &Sge) -> Option<Vec<u8>> {
        let region = self.regions.get(&sge.lkey).filter(|region| region.pd == pd)?;
        region.view_of(sge.addr, sge.length as usize).map(|view| bytes_at(view, sge.length as usize))
    }

    /// Carries out a read of memory of a domain into memory of the same; its status.
    fn read_back(&mut self, pd: usize, send: &Send) -> u32 {
        let Source::Memory(sge) = &send.source else { return 1 };
        let bytes = sge.length as usize;
        let region = |key| self.regions.get(key).filter(|region| region.pd == pd);
        let from = region(&send.rkey).filter(|of| of.is_readable).and_then(|of| of.view_of(send.to, bytes));
        let into = region(&sge.lkey).and_then(|of| of.view_of(sge.addr, bytes));
        let (Some(from), Some(into)) = (from, into) else { return 10 };
        // SAFETY: inside of regions that are registered, as was seen, and so mapped.
        unsafe { std::ptr::copy(from as *const u8, into as *mut u8, bytes) };
        self.reads.push_back(send.to);
        self.reads.drain(..self.reads.len().saturating_sub(POSTED));
        0
    }

    /// Carries out a send; its status, or none where the peer does not answer.
    fn carry(&mut self, from: u32, to: u32, send: &Send) -> Option<u32> {
        let peer = self
            .queues
            .get(&to)
            .filter(|peer| peer.peer == from && [QPS_RTR, QPS_RTS].contains(&peer.state))?;
        if send.immediate.is_some() && peer.receives.is_empty() {
            return None;
        }
        // As far behind the next one: it has come before, or one before it has not.
        match send.packet.wrapping_sub(peer.expected) & 0xff_ffff {
            0 => {}
            0x80_0000.. => return Some(0),
            _ => return None,
        }
        let (object, pd) = (peer.object as *mut Qp, peer.pd);
        if send.is_read {
            let status = self.read_back(pd, send);
            self.queues.get_mut(&to)?.expected += 1;
            return Some(status);
        }
        let bytes = match &send.source {
            Source::Inline(bytes) => bytes.clone(),
            Source::Memory(sge) => match self.read(self.queues[&from].pd, sge) {
                Some(bytes) => bytes,
                None => return Some(4),
            },
        };
        let region = self.regions.get(&send.rkey).filter(|of| of.pd == pd && of.is_writable);
        let view = match region.and_then(|region| region.view_of(send.to, bytes.len())) {
            Some(view) => view,
            None if bytes.is_empty() => 0,
            None => return Some(10),
        };
        // In pieces, in any order.
        let mut pieces: Vec<usize> = (0..bytes.len()).step_by(8).collect();
        for at in (1..pieces.len().min(64)).rev() {
            pieces.swap(at, self.random.below(at + 1));
        }
        for at in pieces {
            let piece = &bytes[at..(at + 8).min(bytes.len())];
            // SAFETY: inside of a region that is registered, as was seen, and so mapped.
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), (view + at) as *mut u8, piece.len()) };
        }
        self.queues.get_mut(&to)?.expected += 1;
        if let Some(imm_data) = send.immediate {
            let wr_id = self.queues.get_mut(&to)?.receives.pop_front()?;
            // SAFETY: the peer's queue pair is there, as was seen.
            let cq = unsafe { (*object).recv_cq } as usize;
            let wc = Wc { wr_id, opcode: WC_RECV_RDMA_WITH_IMM, imm_data, qp_num: to, ..Wc::default() };
            self.complete(cq, wc);
        }
        Some(0)
    }
}

fn zeroed<T>() -> Box<T> {
    // SAFETY: structures of pointers, options of functions and numbers, for which zero is a value.
    unsafe { Box::new(std::mem::zeroed()) }
}

unsafe extern "C" fn alloc_pd(context: *mut Context) -> *mut Pd {
    Box::into_raw(Box::new(Pd { context, handle: 0 }))
}

unsafe extern "C" fn dealloc_pd(pd: *mut Pd) -> c_int {
    // SAFETY: made above, and given back once.
    drop(unsafe { Box::from_raw(pd) });
    0
}

unsafe extern "C" fn create_comp_channel(context: *mut Context) -> *mut CompChannel {
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
    Box::into_raw(Box::new(CompChannel { context, fd, refcnt: 0 }))
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    // SAFETY: made above, and given back once.
    let channel = unsafe { Box::from_raw(channel) };
    with(|world| world.announced.remove(&channel.fd));
    // SAFETY: its descriptor, which nothing uses any more.
    unsafe { libc::close(channel.fd) }
}

unsafe extern "C" fn create_cq(
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

unsafe extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    with(|world| {
        world.completions.remove(&(cq as usize));
        world.armed.remove(&(cq as usize));
    });
    // SAFETY: made above, and given back once.
    drop(unsafe { Box::from_raw(cq) });
    0
}

unsafe extern "C" fn get_cq_event(channel: *mut CompChannel, cq: *mut *mut Cq, _: *mut *mut c_void) -> c_int {
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

unsafe extern "C" fn ack_cq_events(_: *mut Cq, _: u32) {}

unsafe extern "C" fn create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
    let mut qp = zeroed::<Qp>();
    // SAFETY: what the caller gave.
    unsafe {
        (qp.context, qp.pd) = ((*pd).context, pd);
        (qp.send_cq, qp.recv_cq) = ((*attr).send_cq, (*attr).recv_cq);
    }
    with(|world| {
        qp.qp_num = world.fresh();
        let number = qp.qp_num;
        let object = Box::into_raw(qp);
        let state = QueuePair {
            object: object as usize,
            pd: pd as usize,
            state: QPS_RESET,
            peer: 0,
            next: 0,
            expected: 0,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            unanswered: None,
            attr: QpAttr::default(),
            posted: VecDeque::new(),
            is_full: false,
        };
        world.queues.insert(number, state);
        object
    })
}

unsafe extern "C" fn modify_qp(qp: *mut Qp, attr: *mut QpAttr, what: c_int) -> c_int {
    // SAFETY: a queue pair of this stand-in, and what the caller gave.
    let (number, attr, context) = unsafe { ((*qp).qp_num, *attr, (*qp).context) };
    if what & QP_DEST_QPN != 0 && attr.dest_qp_num == number && adapters::refuses_loops(context) {
        return libc::EINVAL;
    }
    with(|world| {
        let Some(of) = world.queues.get_mut(&number) else { return libc::EINVAL };
        if attr.qp_state == QPS_ERR {
            world.fail(number);
            return 0;
        }
        of.state = attr.qp_state;
        of.keep(&attr, what);
        if what & QP_DEST_QPN != 0 {
            (of.peer, of.expected) = (attr.dest_qp_num, attr.rq_psn);
        }
        if what & QP_SQ_PSN != 0 {
            of.next = attr.sq_psn;
        }
        if attr.qp_state == QPS_RESET {
            of.sends.clear();
            of.receives.clear();
            of.unanswered = None;
        }
        0
    })
}

unsafe extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    // SAFETY: made above, and given back once.
    let qp = unsafe { Box::from_raw(qp) };
    with(|world| world.queues.remove(&qp.qp_num));
    0
}

unsafe extern "C" fn wc_status_str(_: c_int) -> *const c_char {
    c"as the stand-in says".as_ptr()
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, room: c_int, out: *mut Wc) -> c_int {
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

unsafe extern "C" fn req_notify_cq(cq: *mut Cq, _: c_int) -> c_int {
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

unsafe extern "C" fn post_send(qp: *mut Qp, mut request: *mut SendWr, refused: *mut *mut SendWr) -> c_int {
    // SAFETY: a queue pair of this stand-in.
    let number = unsafe { (*qp).qp_num };
    with(|world| {
        while !request.is_null() {
            // SAFETY: a chain of requests that the caller keeps during the call.
            let of = unsafe { &*request };
            // SAFETY: the one piece that is said.
            let sge = if of.num_sge == 1 { Some(unsafe { *of.sg_list }) } else { None };
            let source = match sge {
                // The program may change them when this returns, and they need no key.
                Some(sge) if of.send_flags & SEND_INLINE != 0 => {
                    Source::Inline(bytes_at(sge.addr as usize, sge.length as usize))
                }
                Some(sge) => Source::Memory(sge),
                None => Source::Inline(Vec::new()),
            };
            let Some(queue) = world.queues.get_mut(&number) else { return libc::EINVAL };
            request = of.next;
            if queue.state == QPS_ERR {
                // SAFETY: a queue pair of this stand-in.
                let cq = unsafe { (*qp).send_cq } as usize;
                let (wr_id, status) = (of.wr_id, super::status::FLUSHED);
                world.complete(cq, Wc { wr_id, status, qp_num: number, ..Wc::default() });
                continue;
            }
            let send = Send {
                id: of.wr_id,
                packet: queue.next,
                source,
                to: of.remote_addr,
                rkey: of.rkey,
                immediate: (of.opcode == WR_RDMA_WRITE_WITH_IMM).then_some(of.imm_data),
                is_read: of.opcode == WR_RDMA_READ,
                is_signalled: of.send_flags & SEND_SIGNALED != 0,
            };
            queue.next += 1;
            queue.sends.push_back(send);
            queue.posted.extend(sge.map(|sge| (sge.addr as usize, sge.length as usize)));
            queue.posted.drain(..queue.posted.len().saturating_sub(POSTED));
            if std::mem::take(&mut queue.is_full) {
                // SAFETY: the caller's room for an address.
                unsafe { *refused = request };
                return libc::ENOMEM;
            }
        }
        0
    })
}

unsafe extern "C" fn post_recv(qp: *mut Qp, request: *mut RecvWr, _: *mut *mut RecvWr) -> c_int {
    // SAFETY: a queue pair of this stand-in, and one request that the caller keeps during the call.
    let (number, id) = unsafe { ((*qp).qp_num, (*request).wr_id) };
    with(|world| {
        let Some(queue) = world.queues.get_mut(&number) else { return libc::EINVAL };
        queue.receives.push_back(id);
        0
    })
}

/// The stand-in's functions.
pub(super) fn functions() -> Functions {
    Functions {
        get_device_list: adapters::get_device_list,
        free_device_list: adapters::free_device_list,
        open_device: adapters::open_device,
        close_device: adapters::close_device,
        query_port: adapters::query_port,
        query_gid: adapters::query_gid,
        alloc_pd,
        dealloc_pd,
        reg_mr: regions::reg_mr,
        dereg_mr: regions::dereg_mr,
        create_comp_channel,
        destroy_comp_channel,
        create_cq,
        destroy_cq,
        get_cq_event,
        ack_cq_events,
        create_qp,
        modify_qp,
        destroy_qp,
        get_async_event: adapters::get_async_event,
        ack_async_event: adapters::ack_async_event,
        wc_status_str,
        query_gid_ex: Some(adapters::query_gid_ex),
        reg_dmabuf_mr: Some(regions::reg_dmabuf_mr),
    }
}

/// The same of an older library, which does not say of what version an address is, and knows no DMA buffers.
pub(super) fn older() -> Functions {
    Functions { query_gid_ex: None, reg_dmabuf_mr: None, ..functions() }
}
