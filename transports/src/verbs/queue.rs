//! A reliable queue pair and its two completion queues, which announce through one descriptor what has come, and what was sent where that is
//! waited for.
//!
//! Invariant: work requests are posted from memory that stays until their completion; a receive completes once, whatever the device hands
//! out; never blocks. Absent: what is sent, and what a completion means.

mod read;

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::Arc;

use super::NAME;
use super::port::{Domain, Port, Reach};
use super::sys::{
    self, AhAttr, CompChannel, Cq, GlobalRoute, Qp, QpAttr, QpCap, QpInitAttr, RecvWr, SEND_INLINE, SendWr,
    Sge, Wc,
};
use crate::TransportError;

/// Work requests that may be under way, and receives that are posted.
pub(super) const SENDS: u32 = 256;
pub(super) const RECEIVES: u32 = 64;
/// Writes that are posted together, at most.
pub(super) const WRITES_MAX: usize = 2;
/// Bytes that go with a work request, where the device takes them so.
const INLINE: u32 = 128;
/// Completions of one look.
pub(super) const BATCH: usize = 16;
/// As long as the peer has no receive posted, which it always has: for ever, which its end and the call's deadline bound.
const RECEIVER_RETRIES: u8 = 7;
/// The peer's pause before that, as the interface counts it: 0.64 ms.
const RECEIVER_TIMER: u8 = 12;

/// Its queues of completions.
const RECEIVED: usize = 0;
const SENT: usize = 1;

/// A queue pair.
pub(super) struct Queue {
    pub(super) domain: Arc<Domain>,
    channel: *mut CompChannel,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    qp: *mut Qp,
    inline_max: u32,
    /// Whether the next completion makes the descriptor readable: of a receive, and of what was sent.
    is_armed: [bool; 2],
    /// Whether the event of something that was found is still to be taken, of each.
    is_due: [bool; 2],
    /// Receives that were ever posted, whose ids count up, and which of the last [`RECEIVES`] have not completed: the bit of an id.
    posted: u64,
    uncompleted: u64,
    /// Whether it was said that a receive has completed twice.
    has_doubled: bool,
    /// The id of the last write that the device has taken.
    accepted: u64,
}

// SAFETY: used by one thread at a time (`&mut`), and the library's objects belong to no thread.
unsafe impl Send for Queue {}

/// What is written to the peer.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Write {
    /// Where it is here, and by which key.
    pub(super) from: u64,
    pub(super) lkey: u32,
    pub(super) bytes: u32,
    /// Where it goes, and by which key.
    pub(super) to: u64,
    pub(super) rkey: u32,
    /// What the peer's completion says; without one it has none.
    pub(super) immediate: Option<u32>,
    /// Whether there is a completion here.
    pub(super) is_signalled: bool,
    pub(super) id: u64,
    /// Whether only the device can read it.
    pub(super) is_direct: bool,
}

/// Where a peer's queue pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Peer {
    pub(super) reach: Reach,
    pub(super) number: u32,
    /// The number of the first packet that it sends.
    pub(super) first_packet: u32,
}

/// Which of as many receives as are posted one is, by its id.
fn bit(id: u64) -> u64 {
    const { assert!(RECEIVES == u64::BITS, "a bit for each") };
    1 << (id % u64::from(RECEIVES))
}

fn failed(call: &'static str) -> TransportError {
    TransportError::system(NAME, call, io::Error::last_os_error())
}

impl Queue {
    /// A new one, with receives posted, that takes no packet yet.
    ///
    /// # Errors
    /// The system's where it has no more of something.
    pub(super) fn new(domain: &Arc<Domain>) -> Result<Self, TransportError> {
        let functions = domain.port.functions;
        // What is null is not given back.
        let mut queue = Queue {
            channel: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            qp: null_mut(),
            inline_max: 0,
            is_armed: [false; 2],
            is_due: [false; 2],
            posted: 0,
            uncompleted: 0,
            has_doubled: false,
            accepted: 0,
            domain: Arc::clone(domain),
        };
        let context = queue.port().context;
        // SAFETY: an open context.
        queue.channel = unsafe { (functions.create_comp_channel)(context) };
        if queue.channel.is_null() {
            return Err(failed("ibv_create_comp_channel"));
        }
        // SAFETY: a channel, whose descriptor is open.
        let set = unsafe { libc::fcntl((*queue.channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
        if set < 0 {
            return Err(failed("fcntl of a completion channel"));
        }
        let entries = SENDS as i32;
        // SAFETY: an open context and its channel.
        queue.send_cq = unsafe { (functions.create_cq)(context, entries, null_mut(), queue.channel, 0) };
        // SAFETY: an open context and its channel.
        queue.recv_cq =
            unsafe { (functions.create_cq)(context, RECEIVES as i32, null_mut(), queue.channel, 0) };
        if queue.send_cq.is_null() || queue.recv_cq.is_null() {
            return Err(failed("ibv_create_cq"));
        }
        let mut cap = QpCap {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE,
        };
        queue.qp = queue.make(&mut cap);
        if queue.qp.is_null() {
            cap.max_inline_data = 0;
            queue.qp = queue.make(&mut cap);
        }
        if queue.qp.is_null() {
            return Err(failed("ibv_create_qp"));
        }
        queue.inline_max = cap.max_inline_data;
        queue.begin()?;
        Ok(queue)
    }

    pub(super) fn port(&self) -> &Port {
        &self.domain.port
    }

    fn make(&self, cap: &mut QpCap) -> *mut Qp {
        let mut attr = QpInitAttr {
            qp_context: null_mut(),
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            srq: null_mut(),
            cap: *cap,
            qp_type: sys::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the port's protection domain and the queues above.
        let qp = unsafe { (self.port().functions.create_qp)(self.domain.pd, &raw mut attr) };
        *cap = attr.cap;
        qp
    }

    fn modify(&self, mut attr: QpAttr, what: i32, call: &'static str) -> Result<(), TransportError> {
        // SAFETY: a queue pair, and what is to be changed of it.
        match unsafe { (self.port().functions.modify_qp)(self.qp, &raw mut attr, what) } {
            0 => Ok(()),
            code => Err(TransportError::system(NAME, call, io::Error::from_raw_os_error(code))),
        }
    }

    /// Takes nothing more, and sends nothing more: what has come can be heard to its end.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn stop(&mut self) -> Result<(), TransportError> {
        let stopped = QpAttr { qp_state: sys::QPS_ERR, ..QpAttr::default() };
        self.modify(stopped, sys::QP_STATE, "ibv_modify_qp to ERR")
    }

    /// Whether everything that had come before it was stopped has been given out: each receive has completed.
    pub(super) fn is_drained(&self) -> bool {
        self.uncompleted == 0
    }

    /// From the beginning, after it was stopped and is drained.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn begin_again(&mut self) -> Result<(), TransportError> {
        let reset = QpAttr { qp_state: sys::QPS_RESET, ..QpAttr::default() };
        self.modify(reset, sys::QP_STATE, "ibv_modify_qp to RESET")?;
        // The event of what was flushed may still be there, and the queue armed or not.
        self.is_due = self.is_armed;
        self.begin()
    }

    fn begin(&mut self) -> Result<(), TransportError> {
        let init = QpAttr {
            qp_state: sys::QPS_INIT,
            port_num: self.port().number,
            pkey_index: self.port().travel.partition,
            qp_access_flags: sys::ACCESS_REMOTE_WRITE as u32,
            ..QpAttr::default()
        };
        let what = sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS;
        self.modify(init, what, "ibv_modify_qp to INIT")?;
        (0..RECEIVES).try_for_each(|_| self.post_receive())
    }

    /// The number by which a peer addresses it.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: a queue pair, until it is dropped.
        unsafe { (*self.qp).qp_num }
    }

    /// Takes packets of this peer from now on, and sends to it, from this packet number on; alone in its connection, or beside others.
    ///
    /// # Errors
    /// The device's, such as a peer in another subnet.
    pub(super) fn connect(
        &mut self,
        peer: &Peer,
        next_packet: u32,
        is_alone: bool,
    ) -> Result<(), TransportError> {
        let here = self.port().reach;
        let is_elsewhere = here.gid.0[..8] != peer.reach.gid.0[..8];
        let is_global = here.is_ethernet || here.is_routed || is_elsewhere;
        let route = GlobalRoute {
            dgid: peer.reach.gid,
            sgid_index: here.gid_index,
            hop_limit: 64,
            traffic_class: self.port().travel.traffic_class,
            ..GlobalRoute::default()
        };
        let way = AhAttr {
            grh: route,
            dlid: peer.reach.lid,
            sl: self.port().travel.service_level,
            is_global: u8::from(is_global),
            port_num: self.port().number,
            ..AhAttr::default()
        };
        let receive = QpAttr {
            qp_state: sys::QPS_RTR,
            path_mtu: here.mtu.min(peer.reach.mtu).into(),
            dest_qp_num: peer.number,
            rq_psn: peer.first_packet,
            max_dest_rd_atomic: 1,
            min_rnr_timer: RECEIVER_TIMER,
            ah_attr: way,
            ..QpAttr::default()
        };
        let what = sys::QP_STATE
            | sys::QP_AV
            | sys::QP_PATH_MTU
            | sys::QP_DEST_QPN
            | sys::QP_RQ_PSN
            | sys::QP_MAX_DEST_RD_ATOMIC
            | sys::QP_MIN_RNR_TIMER;
        self.modify(receive, what, "ibv_modify_qp to RTR (is there a way from this port to the peer's?)")?;
        let send = QpAttr {
            qp_state: sys::QPS_RTS,
            sq_psn: next_packet,
            timeout: self.port().travel.timeout(is_alone),
            retry_cnt: self.port().travel.retries,
            rnr_retry: RECEIVER_RETRIES,
            max_rd_atomic: 1,
            ..QpAttr::default()
        };
        let what = sys::QP_STATE
            | sys::QP_SQ_PSN
            | sys::QP_TIMEOUT
            | sys::QP_RETRY_CNT
            | sys::QP_RNR_RETRY
            | sys::QP_MAX_QP_RD_ATOMIC;
        self.modify(send, what, "ibv_modify_qp to RTS")
    }

    /// Posts up to [`WRITES_MAX`] writes, in this order, with one doorbell.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn post(&mut self, writes: &[Write]) -> Result<(), TransportError> {
        debug_assert!(writes.len() <= WRITES_MAX, "one doorbell's");
        let mut sges: [[Sge; 1]; WRITES_MAX] = std::array::from_fn(|at| {
            writes
                .get(at)
                .map_or([Sge::default()], |of| [Sge { addr: of.from, length: of.bytes, lkey: of.lkey }])
        });
        let mut requests = sges.each_mut().map(|sge| SendWr::write(0, sge, 0, 0));
        for (write, request) in writes.iter().zip(&mut requests) {
            (request.wr_id, request.remote_addr, request.rkey) = (write.id, write.to, write.rkey);
            if write.bytes == 0 {
                request.num_sge = 0;
            }
            if let Some(immediate) = write.immediate {
                request.opcode = sys::WR_RDMA_WRITE_WITH_IMM;
                request.imm_data = immediate.to_be();
            }
            let flag = |on: bool, flag: u32| if on { flag } else { 0 };
            request.send_flags = flag(write.is_signalled, sys::SEND_SIGNALED)
                | flag(!write.is_direct && write.bytes > 0 && write.bytes <= self.inline_max, SEND_INLINE);
        }
        for at in (1..writes.len()).rev() {
            requests[at - 1].next = &raw mut requests[at];
        }
        if writes.is_empty() {
            return Ok(());
        }
        let mut refused = null_mut();
        let post = self.ops().post_send.ok_or_else(|| Self::lacks("post_send"))?;
        // SAFETY: a chain of requests that live during the call, of memory that stays until they complete.
        let code = unsafe { post(self.qp, &raw mut requests[0], &raw mut refused) };
        // SAFETY: null, or one of the chain.
        let refused = unsafe { refused.as_ref() }.map_or(writes[0].id, |of| of.wr_id);
        self.accepted = if code == 0 { writes[writes.len() - 1].id } else { refused - 1 };
        match code {
            0 => Ok(()),
            code => Err(TransportError::system(NAME, "ibv_post_send", io::Error::from_raw_os_error(code))),
        }
    }

    /// The id of the last write that the device has taken; ids count up.
    pub(super) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Room for one more immediate of the peer's.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn post_receive(&mut self) -> Result<(), TransportError> {
        let mut request = RecvWr { wr_id: self.posted, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        let mut refused = null_mut();
        let post = self.ops().post_recv.ok_or_else(|| Self::lacks("post_recv"))?;
        // SAFETY: a request without memory, that lives during the call.
        match unsafe { post(self.qp, &raw mut request, &raw mut refused) } {
            0 => {
                self.uncompleted |= bit(self.posted);
                self.posted += 1;
                Ok(())
            }
            code => Err(TransportError::system(NAME, "ibv_post_recv", io::Error::from_raw_os_error(code))),
        }
    }

    fn ops(&self) -> &sys::ContextOps {
        // SAFETY: the context of an open device, whose table its driver has filled before it gave the context out.
        unsafe { &(*self.port().context).ops }
    }

    fn lacks(function: &'static str) -> TransportError {
        TransportError::system(NAME, function, io::Error::from(io::ErrorKind::Unsupported))
    }

    fn polled(&self, cq: *mut Cq, completions: &mut [Wc]) -> Result<usize, TransportError> {
        let poll = self.ops().poll_cq.ok_or_else(|| Self::lacks("poll_cq"))?;
        // SAFETY: a queue of this context, and room for as many completions as is said.
        let count = unsafe { poll(cq, completions.len() as i32, completions.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| failed("ibv_poll_cq"))
    }

    /// What of this side's writes has completed; how many completions there are.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn sent(&mut self, completions: &mut [Wc]) -> Result<usize, TransportError> {
        let count = self.polled(self.send_cq, completions)?;
        self.found(SENT, count);
        Ok(count)
    }

    /// What has come; how many completions there are, each of another receive.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn received(&mut self, completions: &mut [Wc]) -> Result<usize, TransportError> {
        loop {
            let count = self.polled(self.recv_cq, completions)?;
            self.found(RECEIVED, count);
            let first = self.complete(&mut completions[..count]);
            if first > 0 || count == 0 {
                return Ok(first);
            }
        }
    }

    /// Moves the completions of receives that had not completed to the front; how many they are. Another one of the same receive says
    /// nothing that its first has not said, so it is left out: by its immediate alone it could pass for that of the message that has the same
    /// place next, which may not be there.
    fn complete(&mut self, completions: &mut [Wc]) -> usize {
        let mut first = 0;
        for at in 0..completions.len() {
            let id = completions[at].wr_id;
            let is_recent = (1..=u64::from(RECEIVES)).contains(&self.posted.wrapping_sub(id));
            if is_recent && self.uncompleted & bit(id) != 0 {
                self.uncompleted &= !bit(id);
                completions.swap(first, at);
                first += 1;
            } else if !std::mem::replace(&mut self.has_doubled, true) {
                let (device, port, queue_pair) = (&self.port().device, self.port().number, self.number());
                tracing::warn!(
                    device,
                    port,
                    queue_pair,
                    "the adapter hands a completion out twice; the second one is ignored: look for a newer driver or firmware"
                );
            }
        }
        first
    }

    /// The next completion of a receive makes the descriptor readable, and of what was sent where that is waited for; one that is there
    /// already does not.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn arm(&mut self, awaits_sent: bool) -> Result<(), TransportError> {
        self.arm_one(RECEIVED, self.recv_cq)?;
        if awaits_sent { self.arm_one(SENT, self.send_cq) } else { Ok(()) }
    }

    fn arm_one(&mut self, which: usize, cq: *mut Cq) -> Result<(), TransportError> {
        if self.is_armed[which] {
            return Ok(());
        }
        let arm = self.ops().req_notify_cq.ok_or_else(|| Self::lacks("req_notify_cq"))?;
        // SAFETY: a queue of this context.
        match unsafe { arm(cq, 0) } {
            0 => self.is_armed[which] = true,
            code => {
                let source = io::Error::from_raw_os_error(code);
                return Err(TransportError::system(NAME, "ibv_req_notify_cq", source));
            }
        }
        Ok(())
    }

    /// A look at one of the queues has brought as many completions: their event is taken, so that the descriptor is readable no longer.
    fn found(&mut self, which: usize, count: usize) {
        self.is_due[which] |= count > 0 && self.is_armed[which];
        // The other's may come first.
        while self.is_due[which] {
            let (mut cq, mut of) = (null_mut(), null_mut());
            // SAFETY: a channel whose descriptor does not block; what it gives is written there.
            if unsafe { (self.port().functions.get_cq_event)(self.channel, &raw mut cq, &raw mut of) } != 0 {
                break;
            }
            // SAFETY: the event that was just taken, of a queue of this side.
            unsafe { (self.port().functions.ack_cq_events)(cq, 1) };
            let of = if cq == self.send_cq { SENT } else { RECEIVED };
            (self.is_armed[of], self.is_due[of]) = (false, false);
        }
    }

    /// The addresses by which its device's events name it.
    pub(super) fn objects(&self) -> [usize; 3] {
        [self.qp as usize, self.send_cq as usize, self.recv_cq as usize]
    }

    /// Whether the next completion still is to be announced: of a receive, and of what was sent where that is waited for.
    pub(super) fn is_armed(&self, awaits_sent: bool) -> bool {
        self.is_armed[RECEIVED] && (self.is_armed[SENT] || !awaits_sent)
    }

    /// Becomes readable when something comes after [`Queue::arm`].
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's descriptor is open until this is dropped.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.port().stamp.is_forked_child() {
            return;
        }
        let functions = self.port().functions;
        // SAFETY: each was made by the library and is given back once, those first that use others; null ones were not made.
        unsafe {
            if !self.qp.is_null() {
                (functions.destroy_qp)(self.qp);
            }
            for cq in [self.send_cq, self.recv_cq].into_iter().filter(|cq| !cq.is_null()) {
                (functions.destroy_cq)(cq);
            }
            if !self.channel.is_null() {
                (functions.destroy_comp_channel)(self.channel);
            }
        }
        self.port().forget(self.objects());
    }
}
