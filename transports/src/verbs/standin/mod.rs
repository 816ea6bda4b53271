//! A stand-in for libibverbs inside one process, for tests: devices whose writes land in pieces of eight bytes and in any order,
//! and whose completions come late.
//!
//! Nothing about an adapter is shown by it. It does what the interface allows an adapter to do, and as seldom as possible what an
//! adapter happens to do: bytes of a write are in their place no sooner than its completion at the receiver says so.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use consort_testing::Random;

use super::status::{FLUSHED, RECEIVER_NOT_READY, REFUSED, RETRY_EXCEEDED};
use super::sys::*;
pub(super) use adapters::{
    Adapter, AdapterPort, deafen, join, raise, refuse_buffers, refuse_loops, refuse_memory, set,
    unacknowledged,
};
use completions::Doubled;
pub(super) use control::{
    connected, cut, delay, double, doubled, fill_up, is_relaxed, leading_to, object, sends, vanish,
    was_posted, was_read,
};
use regions::Registered;

pub(super) use table::{functions, hiding, older, parting};

mod adapters;
mod completions;
mod control;
#[cfg(feature = "conformance")]
mod outside;
mod regions;
mod table;

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
    /// How long a send may be unanswered.
    patience: Duration,
    /// Where bytes were last read by reads.
    reads: VecDeque<u64>,
    doubled: Doubled,
    /// What has come to a queue pair for memory where it may be late.
    late: HashMap<u32, Vec<Late>>,
}

/// Bytes that are on their way over the bus: the key of where they go, the address, and they themselves.
type Late = (u32, u64, Vec<u8>);

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
    /// Since when the first send is not answered, and how often its peer had no receive for it.
    unanswered: Option<Instant>,
    refused: u8,
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
        if what & QP_RNR_RETRY != 0 {
            kept.rnr_retry = attr.rnr_retry;
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
    /// Whether a part of it is where it belongs.
    has_begun: bool,
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
/// No status: the peer is there, and more turns are needed.
const UNDER_WAY: u32 = u32::MAX;
/// How long a send may be unanswered, unless a test says otherwise.
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
            patience: PATIENCE,
            reads: VecDeque::new(),
            doubled: Doubled::default(),
            late: HashMap::new(),
        }
    }))
}

impl World {
    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
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
        let patience = self.patience;
        let outcome = if self.is_cut(number, peer) {
            // Its answer may be what was lost.
            if self.random.below(2) == 0 {
                self.carry(number, peer, &send);
            }
            Some(RETRY_EXCEEDED)
        } else {
            self.carry(number, peer, &send)
        };
        let Some(of) = self.queues.get_mut(&number) else { return };
        let status = match outcome {
            // For ever, where that is asked for.
            Some(RECEIVER_NOT_READY) if of.attr.rnr_retry == 7 || of.refused < of.attr.rnr_retry => {
                (of.unanswered, of.refused) = (None, of.refused.saturating_add(1));
                return;
            }
            Some(UNDER_WAY) => {
                of.unanswered = None;
                return;
            }
            Some(status) => status,
            None => {
                if of.unanswered.get_or_insert_with(Instant::now).elapsed() < patience {
                    return;
                }
                RETRY_EXCEEDED
            }
        };
        (of.unanswered, of.refused) = (None, 0);
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
        self.land(number);
        let Some(of) = self.queues.get_mut(&number) else { return };
        of.state = QPS_ERR;
        let sends: Vec<u64> = of.sends.drain(..).map(|send| send.id).collect();
        let receives = std::mem::take(&mut of.receives);
        let object = of.object as *mut Qp;
        // SAFETY: a queue pair of this stand-in, that is there until it is destroyed.
        let (send_cq, recv_cq) = unsafe { ((*object).send_cq as usize, (*object).recv_cq as usize) };
        let flushed = |wr_id| Wc { wr_id, status: FLUSHED, qp_num: number, ..Wc::default() };
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
        let (Some(from), Some(into)) = (from, into) else { return REFUSED };
        // SAFETY: inside of regions that are registered, as was seen, and so mapped.
        unsafe { std::ptr::copy(from as *const u8, into as *mut u8, bytes) };
        self.reads.push_back(send.to);
        self.reads.drain(..self.reads.len().saturating_sub(POSTED));
        0
    }

    /// Puts bytes in their place, in pieces, in any order. Whether only some of them are there, and seen, before the others are, which
    /// `may_be_part` allows.
    fn put(&mut self, view: usize, bytes: &[u8], may_be_part: bool) -> bool {
        let mut pieces: Vec<usize> = (0..bytes.len()).step_by(8).collect();
        for at in (1..pieces.len().min(64)).rev() {
            pieces.swap(at, self.random.below(at + 1));
        }
        let is_part = may_be_part && self.random.below(4) == 0;
        if is_part {
            pieces.truncate(self.random.below(pieces.len() + 1));
        }
        for at in pieces {
            let piece = &bytes[at..(at + 8).min(bytes.len())];
            // SAFETY: inside of a region that is registered, as the caller has seen, and so mapped.
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), (view + at) as *mut u8, piece.len()) };
        }
        is_part
    }

    /// What is on its way to a queue pair is in its place: of several, the last may come first.
    fn land(&mut self, number: u32) {
        let mut late = self.late.remove(&number).unwrap_or_default();
        while !late.is_empty() {
            let (key, to, bytes) = late.swap_remove(self.random.below(late.len()));
            let view = self.regions.get(&key).and_then(|region| region.view_of(to, bytes.len()));
            if let Some(view) = view {
                self.put(view, &bytes, false);
            }
        }
    }

    /// Carries out a send; its status, or none where the peer does not answer.
    fn carry(&mut self, from: u32, to: u32, send: &Send) -> Option<u32> {
        let peer = self
            .queues
            .get(&to)
            .filter(|peer| peer.peer == from && [QPS_RTR, QPS_RTS].contains(&peer.state))?;
        // As far behind the next one: it has come before, or one before it has not.
        match send.packet.wrapping_sub(peer.expected) & 0xff_ffff {
            0 => {}
            0x80_0000.. => return Some(0),
            _ => return None,
        }
        if send.immediate.is_some() && peer.receives.is_empty() {
            return Some(RECEIVER_NOT_READY);
        }
        let (object, pd) = (peer.object as *mut Qp, peer.pd);
        if send.is_read {
            // It takes as many turns as it takes.
            if self.random.below(2) == 0 {
                return Some(UNDER_WAY);
            }
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
            None => {
                // Its adapter ends the peer's too.
                self.fail(to);
                return Some(REFUSED);
            }
        };
        if region.is_some_and(|region| region.is_relaxed) {
            self.late.entry(to).or_default().push((send.rkey, send.to, bytes));
        } else if self.put(view, &bytes, !send.has_begun) {
            self.queues.get_mut(&from)?.sends.front_mut()?.has_begun = true;
            return Some(UNDER_WAY);
        }
        self.queues.get_mut(&to)?.expected += 1;
        if let Some(imm_data) = send.immediate {
            self.land(to);
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
            refused: 0,
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
        if attr.qp_state == QPS_ERR {
            world.fail(number);
            return 0;
        }
        if attr.qp_state == QPS_RESET {
            world.land(number);
        }
        let Some(of) = world.queues.get_mut(&number) else { return libc::EINVAL };
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
    with(|world| {
        world.land(qp.qp_num);
        world.queues.remove(&qp.qp_num)
    });
    0
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
                let (wr_id, status) = (of.wr_id, FLUSHED);
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
                has_begun: false,
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
