//! An adapter that does nothing, for tests: what is posted completes at once, so what is left is this library's own work, which is counted.
//!
//! Invariant: all of a connection is used by one thread; only messages are carried, longer writes are not. Absent: everything that makes an
//! adapter one; see [`super::standin`].

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use super::library::Functions;
use super::message::PLACE_BYTES;
use super::standin;
use super::sys::*;

/// What was asked of the adapter by this thread.
#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    requests: u64,
    doorbells: u64,
    /// Completions of sends and of receives that were given out, and looks.
    sent: u64,
    received: u64,
    registrations: u64,
    /// Bytes that were written from registered memory or with a request.
    bytes: u64,
}

thread_local! {
    static COUNTS: Cell<Counts> = Cell::default();
}

fn count(change: impl FnOnce(&mut Counts)) {
    COUNTS.with(|counts| {
        let mut now = counts.get();
        change(&mut now);
        counts.set(now);
    });
}

/// A queue of completions; what the library sees of it is first.
#[repr(C)]
struct NullCq {
    cq: Cq,
    waiting: VecDeque<Wc>,
}

/// A queue pair; what the library sees of it is first.
#[repr(C)]
struct NullQp {
    qp: Qp,
    peer: u32,
    receives: VecDeque<u64>,
}

/// The queue pairs by their numbers, less one.
static QUEUES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn queue(number: u32) -> *mut NullQp {
    let queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    (number as usize).checked_sub(1).map_or(0, |at| queues[at]) as *mut NullQp
}

fn zeroed<T>() -> T {
    // SAFETY: structures of pointers, options of functions and numbers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

unsafe extern "C" fn open_device(device: *mut Device) -> *mut Context {
    // SAFETY: the stand-in's, with a device of its list.
    let context = unsafe { (standin::functions().open_device)(device) };
    // SAFETY: the context that was just opened, which nothing else uses yet.
    let ops = unsafe { &mut (*context).ops };
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    context
}

unsafe extern "C" fn reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    count(|counts| counts.registrations += 1);
    // SAFETY: the stand-in's, with what the caller gave.
    unsafe { (standin::functions().reg_mr)(pd, addr, length, access) }
}

unsafe extern "C" fn create_cq(
    context: *mut Context,
    cqe: c_int,
    _: *mut c_void,
    channel: *mut CompChannel,
    _: c_int,
) -> *mut Cq {
    let mut cq = NullCq { cq: zeroed(), waiting: VecDeque::with_capacity(512) };
    (cq.cq.context, cq.cq.cqe, cq.cq.channel) = (context, cqe, channel);
    Box::into_raw(Box::new(cq)).cast()
}

unsafe extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    // SAFETY: made above, and given back once.
    drop(unsafe { Box::from_raw(cq.cast::<NullCq>()) });
    0
}

unsafe extern "C" fn create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
    let mut of = NullQp { qp: zeroed(), peer: 0, receives: VecDeque::with_capacity(512) };
    // SAFETY: what the caller gave.
    unsafe {
        (of.qp.context, of.qp.pd) = ((*pd).context, pd);
        (of.qp.send_cq, of.qp.recv_cq) = ((*attr).send_cq, (*attr).recv_cq);
    }
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    of.qp.qp_num = queues.len() as u32 + 1;
    let of = Box::into_raw(Box::new(of));
    queues.push(of as usize);
    of.cast()
}

unsafe extern "C" fn modify_qp(qp: *mut Qp, attr: *mut QpAttr, what: c_int) -> c_int {
    if what & QP_DEST_QPN != 0 {
        // SAFETY: a queue pair of this file, and what the caller gave.
        unsafe { (*qp.cast::<NullQp>()).peer = (*attr).dest_qp_num };
    }
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    // SAFETY: made above, and given back once.
    let of = unsafe { Box::from_raw(qp.cast::<NullQp>()) };
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)[of.qp.qp_num as usize - 1] = 0;
    0
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, room: c_int, out: *mut Wc) -> c_int {
    // SAFETY: a queue of this file, that this thread alone uses.
    let waiting = unsafe { &mut (*cq.cast::<NullCq>()).waiting };
    let given = waiting.len().min(room as usize);
    for (at, wc) in waiting.drain(..given).enumerate() {
        let is_receive = wc.opcode == WC_RECV_RDMA_WITH_IMM;
        count(|counts| if is_receive { counts.received += 1 } else { counts.sent += 1 });
        // SAFETY: the caller has room for as many.
        unsafe { *out.add(at) = wc };
    }
    given as c_int
}

unsafe extern "C" fn req_notify_cq(_: *mut Cq, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn post_send(qp: *mut Qp, mut request: *mut SendWr, _: *mut *mut SendWr) -> c_int {
    // SAFETY: a queue pair of this file, that this thread alone uses.
    let of = unsafe { &mut *qp.cast::<NullQp>() };
    let peer = queue(of.peer);
    count(|counts| counts.doorbells += 1);
    while !request.is_null() {
        // SAFETY: a chain of requests that the caller keeps during the call.
        let wr = unsafe { &*request };
        count(|counts| counts.requests += 1);
        if wr.num_sge == 1 {
            // SAFETY: the one piece that is said.
            let sge = unsafe { *wr.sg_list };
            count(|counts| counts.bytes += u64::from(sge.length));
            if sge.length as usize <= PLACE_BYTES && !peer.is_null() {
                // SAFETY: memory that is registered on both sides, of connections of this process.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        sge.addr as *const u8,
                        wr.remote_addr as *mut u8,
                        sge.length as usize,
                    );
                }
            }
        }
        // SAFETY: the peer's queue pair, which is there or null.
        if let (true, Some(peer)) = (wr.opcode == WR_RDMA_WRITE_WITH_IMM, unsafe { peer.as_mut() }) {
            let wr_id = peer.receives.pop_front().expect("a receive is posted");
            let (opcode, imm_data, qp_num) = (WC_RECV_RDMA_WITH_IMM, wr.imm_data, peer.qp.qp_num);
            // SAFETY: the peer's queue of completions, which lives as long as its queue pair.
            let waiting = unsafe { &mut (*peer.qp.recv_cq.cast::<NullCq>()).waiting };
            waiting.push_back(Wc { wr_id, opcode, imm_data, qp_num, ..Wc::default() });
        }
        if wr.send_flags & SEND_SIGNALED != 0 {
            // SAFETY: this side's queue of completions, which lives as long as its queue pair.
            let waiting = unsafe { &mut (*of.qp.send_cq.cast::<NullCq>()).waiting };
            waiting.push_back(Wc { wr_id: wr.wr_id, qp_num: of.qp.qp_num, ..Wc::default() });
        }
        request = wr.next;
    }
    0
}

unsafe extern "C" fn post_recv(qp: *mut Qp, request: *mut RecvWr, _: *mut *mut RecvWr) -> c_int {
    // SAFETY: a queue pair of this file, that this thread alone uses, and one request that the caller keeps during the call.
    unsafe { (*qp.cast::<NullQp>()).receives.push_back((*request).wr_id) };
    0
}

/// The stand-in's devices with queue pairs that do nothing.
fn functions() -> Functions {
    Functions {
        open_device,
        reg_mr,
        reg_mr_iova2: None,
        create_cq,
        destroy_cq,
        create_qp,
        modify_qp,
        destroy_qp,
        ..standin::functions()
    }
}

mod tests {
    use std::task::Poll;
    use std::time::{Duration, Instant};

    use consort_memory::{SharedBuffer, Span, lend};

    use super::super::choice::Near;
    use super::super::search::Search;
    use super::super::standin::{Adapter, AdapterPort};
    use super::super::sysfs::Sysfs;
    use super::super::tests::meet;
    use super::super::{RdmaOptions, Verbs};
    use super::*;
    use crate::{Connection, CounterKind, Layout, Transport};

    const LONG_BYTES: usize = 64 << 10;
    /// Fills under way: as many as a mailbox has slots.
    const BATCH: u64 = 4;

    /// What is filled: bytes that are copied, or memory that is read where it is, which is waited for before or after the other end says that
    /// it has emptied a slot.
    #[derive(Clone, Copy)]
    enum What<'a> {
        Copied(&'a [u8]),
        Lent(Span<'a>, bool),
    }

    impl What<'_> {
        fn bytes(self) -> usize {
            match self {
                What::Copied(bytes) => bytes.len(),
                What::Lent(source, _) => source.len(),
            }
        }

        /// Bytes of a fill that are not copied.
        fn lent_bytes(self) -> usize {
            if let What::Lent(source, _) = self { source.len() } else { 0 }
        }

        /// Fills a slot; the number of the source.
        fn fill(self, end: &mut dyn Connection, slot: usize, value: u64) -> u64 {
            let filled = match self {
                What::Copied(bytes) => {
                    end.fill(slot, Span::of(bytes), (value, value), &mut 0).map(|poll| poll.map(|()| 0))
                }
                What::Lent(source, _) => end.fill_from(slot, source, (value, value), &mut 0),
            };
            match filled.expect("it is sent") {
                Poll::Ready(number) => number,
                Poll::Pending => panic!("there is room for {BATCH}"),
            }
        }
    }

    fn wait_for_source(ends: &mut [Box<dyn Connection>; 2], number: u64) {
        while !ends[0].is_free(number) {
            ends.iter_mut().for_each(|end| assert!(end.progress().is_ok(), "it goes on"));
        }
    }

    /// What was counted for each fill of these bytes, and the nanoseconds of a fill and of a message that is heard.
    fn of_fills(ends: &mut [Box<dyn Connection>; 2], what: What<'_>, rounds: u64) -> ([f64; 6], [f64; 2]) {
        let bytes = what.bytes();
        let first = ends[1].counter(CounterKind::Ready).value();
        let (before, mut times) = (COUNTS.with(Cell::get), [Duration::ZERO; 2]);
        for round in 0..rounds {
            let base = first + round * BATCH;
            let (began, mut number) = (Instant::now(), 0);
            let [from, to] = ends;
            for value in base + 1..=base + BATCH {
                number = what.fill(&mut **from, (value % BATCH) as usize * bytes, value);
            }
            let filled = Instant::now();
            while to.counter(CounterKind::Ready).value() < base + BATCH {
                let _ = to.progress().expect("it goes on");
            }
            times[0] += filled - began;
            times[1] += filled.elapsed();
            if matches!(what, What::Lent(_, true)) {
                wait_for_source(ends, number);
            }
            let [from, to] = ends;
            // The other end says that it has emptied them, which makes room.
            assert!(to.signal(CounterKind::Credit, base + BATCH, 0).expect("it is sent").is_ready());
            to.flush_credits();
            while from.counter(CounterKind::Credit).value() < base + BATCH {
                let _ = from.progress().expect("it goes on");
                let _ = to.progress().expect("it goes on");
            }
            wait_for_source(ends, number);
        }
        let (after, fills) = (COUNTS.with(Cell::get), (rounds * BATCH) as f64);
        let each = |of: fn(&Counts) -> u64| (of(&after) - of(&before)) as f64 / fills;
        let counts = [
            each(|of| of.requests),
            each(|of| of.doorbells),
            each(|of| of.sent),
            each(|of| of.received),
            each(|of| of.registrations),
            each(|of| of.bytes) - what.lent_bytes() as f64,
        ];
        (counts, times.map(|time| time.as_nanos() as f64 / fills))
    }

    /// One line of what was counted, for as many fills as `times`.
    fn print(what: &str, times: f64, (counts, [filled, heard]): ([f64; 6], [f64; 2])) {
        let [requests, doorbells, sent, received, registrations, bytes] = counts.map(|of| of * times);
        println!(
            "{what}: {requests:.2} work requests, {doorbells:.2} doorbells, {sent:.2} send completions, {received:.2} receive completions, \
             {registrations:.2} registrations, {bytes:.0} bytes copied; {filled:.1} ns a fill, {heard:.1} ns a message that is heard",
        );
    }

    /// The two ends of a connection by as many adapters, each with a queue pair.
    fn ends(adapters: u8) -> [Box<dyn Connection>; 2] {
        const NAMES: [&str; 2] = ["null0", "null1"];
        let adapter =
            |at: u8| Adapter::new(NAMES[usize::from(at)], vec![AdapterPort::ethernet([10, 0, 7, at + 1])]);
        standin::set((0..adapters).map(adapter).collect());
        let (options, near) = (RdmaOptions::default(), Near::default());
        let sysfs = Sysfs::below("/nonexistent", None);
        let search = Search { functions: functions(), sysfs: &sysfs, options: &options, near: &near };
        let verbs = Verbs::over(&search.ports().expect("ports"), 1, 1, None).expect("a transport");
        let layout = |calls| Layout::new(BATCH as usize * LONG_BYTES).calling(calls);
        meet([true, false].map(|calls| verbs.endpoint(layout(calls)).expect("an endpoint")), Duration::ZERO)
    }

    /// Prints what docs/measurements/benches.md has, and holds what no speed changes.
    #[test]
    fn what_a_fill_asks_of_an_adapter_is_counted() {
        for adapters in [1, 2] {
            let mut memory = SharedBuffer::<u8>::new(LONG_BYTES).expect("memory");
            let before = COUNTS.with(Cell::get).registrations;
            let mut ends = ends(adapters);
            let registered = (COUNTS.with(Cell::get).registrations - before) as f64 / 2.0;
            println!("{adapters} queue pairs; registrations of a connection, each side: {registered}");
            let short = of_fills(&mut ends, What::Copied(&[7; 8]), 20_000);
            print("a fill of 8 bytes", 1.0, short);
            let long = of_fills(&mut ends, What::Copied(&[7; LONG_BYTES]), 200);
            print("a MiB of fills of 64 KiB", 16.0, long);
            // Each fill is cut for two lanes. With what carries credits and what was heard: less than half a message a fill.
            let parts = f64::from(adapters);
            assert!((1.0..1.5).contains(&short.0[0]) && short.0[1] <= short.0[0], "{short:?}");
            assert!((2.0 * parts..2.5 * parts).contains(&long.0[0]), "{long:?}");
            assert!((1.0 * parts..1.5 * parts).contains(&long.0[1]), "{long:?}");
            assert!(short.0[2] < 0.5 && (1.0..1.5).contains(&short.0[3]), "{short:?}");
            assert_eq!((short.0[4], long.0[4]), (0.0, 0.0), "registered while sending");
            lend(|lender| {
                let held = lender.share_mut(&mut memory[..]);
                let source = held.read();
                // Each port learns of the memory.
                let first = of_fills(&mut ends, What::Lent(source, false), 1);
                assert!((first.0[4] * BATCH as f64 - parts).abs() < 0.01, "{first:?}");
                let lent = of_fills(&mut ends, What::Lent(source, false), 200);
                print("the same from memory of the program", 16.0, lent);
                let waited = of_fills(&mut ends, What::Lent(source, true), 200);
                print("the same where each four fills are waited for", 16.0, waited);
                assert!(lent.0[0] <= long.0[0] + 0.01 && lent.0[4] == 0.0, "{lent:?}");
                // What is copied are messages.
                assert!(lent.0[5] < lent.0[0] * PLACE_BYTES as f64, "{lent:?}");
                // Of several queue pairs the peer's word is waited for too: one for all four, and fewer that say what was heard.
                let words = (waited.0[0] - lent.0[0]) * BATCH as f64;
                let expected = if adapters == 1 { -0.01..0.01 } else { 0.5..1.01 };
                assert!(expected.contains(&words), "{words}: {waited:?}");
            });
        }
    }
}
