//! What a peer does that a connection does not survive, by real devices and by the stand-in alike: a key that is not its memory's, memory
//! that is registered no longer, no receives, and a queue pair that is destroyed. The error names both ends and the likely causes.
//!
//! ```text
//! this library ──► Between (keeps receives back, takes memory and queue pairs away) ──► libibverbs, or the stand-in
//! ```

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};

use super::super::library::{self, Functions};
use super::super::sys::{self, Context, Device, Mr, Pd, Qp, QpAttr, QpInitAttr, RecvWr};
use super::*;

/// How long a queue pair may take to find that its peer does not answer: 0.27 s, four times; as long again for a busy machine, and more.
const DEADLINE: Duration = Duration::from_secs(20);
/// How often a peer without a receive is asked again.
const RECEIVER_RETRIES: u8 = 2;
/// Messages of two ends that meet: one of them hears two.
const HELLOS: usize = 2;

type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// What lies between this library and the devices of this thread.
struct Between {
    under: Functions,
    post_recv: Option<PostRecv>,
    /// Receives that queue pairs are given which are made from now on, and those that each has left.
    allowance: Option<usize>,
    left: HashMap<usize, usize>,
    queues: Vec<usize>,
    regions: Vec<usize>,
    /// What was taken away, which is not given back again.
    gone: HashSet<usize>,
}

thread_local! {
    static BETWEEN: RefCell<Option<Between>> = const { RefCell::new(None) };
}

fn between<R>(run: impl FnOnce(&mut Between) -> R) -> R {
    BETWEEN.with(|between| run(between.borrow_mut().as_mut().expect("this thread's devices")))
}

fn under() -> Functions {
    between(|of| of.under)
}

unsafe extern "C" fn open_device(device: *mut Device) -> *mut Context {
    // SAFETY: with what the caller gave.
    let context = unsafe { (under().open_device)(device) };
    // SAFETY: null, or the context that was just opened, which nothing else uses yet.
    if let Some(context) = unsafe { context.as_mut() } {
        between(|of| of.post_recv = context.ops.post_recv);
        context.ops.post_recv = Some(post_recv);
    }
    context
}

unsafe extern "C" fn post_recv(qp: *mut Qp, request: *mut RecvWr, refused: *mut *mut RecvWr) -> c_int {
    let (is_kept_back, post) = between(|of| {
        let left = of.left.get_mut(&(qp as usize));
        let is_kept_back = left.is_some_and(|left| {
            let has_none = *left == 0;
            *left -= usize::from(!has_none);
            has_none
        });
        (is_kept_back, of.post_recv)
    });
    match post {
        // SAFETY: the device's, with what the caller gave.
        Some(post) if !is_kept_back => unsafe { post(qp, request, refused) },
        Some(_) => 0,
        None => libc::ENOSYS,
    }
}

unsafe extern "C" fn reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    // SAFETY: with what the caller gave.
    let mr = unsafe { (under().reg_mr)(pd, addr, length, access) };
    between(|of| of.regions.push(mr as usize));
    mr
}

unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    between(|of| of.regions.retain(|region| *region != mr as usize));
    if between(|of| of.gone.remove(&(mr as usize))) {
        return 0;
    }
    // SAFETY: with what the caller gave.
    unsafe { (under().dereg_mr)(mr) }
}

unsafe extern "C" fn create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: with what the caller gave.
    let qp = unsafe { (under().create_qp)(pd, attr) };
    between(|of| {
        of.queues.push(qp as usize);
        of.left.extend(of.allowance.map(|left| (qp as usize, left)));
    });
    qp
}

unsafe extern "C" fn modify_qp(qp: *mut Qp, attr: *mut QpAttr, what: c_int) -> c_int {
    if what & sys::QP_RNR_RETRY != 0 {
        // SAFETY: what the caller gave, and lets the library write to.
        unsafe { (*attr).rnr_retry = RECEIVER_RETRIES };
    }
    // SAFETY: with what the caller gave.
    unsafe { (under().modify_qp)(qp, attr, what) }
}

unsafe extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    between(|of| {
        of.queues.retain(|queue| *queue != qp as usize);
        of.left.remove(&(qp as usize));
    });
    // SAFETY: with what the caller gave.
    unsafe { (under().destroy_qp)(qp) }
}

/// The memory of this key is registered no longer.
fn deregister(key: u32) {
    let mr = between(|of| {
        // SAFETY: regions that are registered.
        let has_key = |mr: &&usize| unsafe { (*(**mr as *mut Mr)).rkey } == key;
        *of.regions.iter().find(has_key).expect("memory of this key")
    });
    // SAFETY: registered, and given back by this alone.
    assert_eq!(unsafe { (under().dereg_mr)(mr as *mut Mr) }, 0, "the device gives it back");
    between(|of| of.gone.insert(mr));
}

/// Destroys the queue pair of this number, which its owner uses no more.
fn destroy(number: u32) {
    let qp = between(|of| {
        // SAFETY: queue pairs that are there.
        let has_number = |qp: &&usize| unsafe { (*(**qp as *mut Qp)).qp_num } == number;
        *of.queues.iter().find(has_number).expect("a queue pair of this number")
    });
    // SAFETY: there, and its owner was forgotten.
    assert_eq!(unsafe { destroy_qp(qp as *mut Qp) }, 0, "the device destroys it");
}

/// Over the first port of these devices, with as many queue pairs; packets that are not answered are given up soon.
fn over(under: Functions, sysfs: &Sysfs, queue_pairs: u16) -> Verbs {
    BETWEEN.with(|between| {
        let nothing = (HashMap::new(), HashSet::new());
        *between.borrow_mut() = Some(Between {
            under,
            post_recv: None,
            allowance: None,
            left: nothing.0,
            queues: Vec::new(),
            regions: Vec::new(),
            gone: nothing.1,
        });
    });
    // So memory is registered by the function that stands between.
    let reg_mr_iova2 = None;
    let functions =
        Functions { open_device, reg_mr, reg_mr_iova2, dereg_mr, create_qp, modify_qp, destroy_qp, ..under };
    let travel = Travel { timeout: Some(16), retries: 3, ..Travel::default() };
    let options = RdmaOptions { queue_pairs, travel, ..RdmaOptions::default() };
    let near = &Near { ranks: 1, ..Near::default() };
    let ports = Search { functions, sysfs, options: &options, near }.ports().expect("ports");
    Verbs::over(&ports[..1], queue_pairs, 1, None).expect("a transport")
}

/// Two endpoints, and where each is.
struct Pair {
    verbs: Verbs,
    endpoints: [Box<dyn Endpoint>; 2],
    places: [Place; 2],
}

/// The second one's queue pairs are given as many receives, or all.
fn endpoints(verbs: Verbs, allowance: Option<usize>) -> Pair {
    let endpoint = |calls| verbs.endpoint(Layout::new(4096).calling(calls)).expect("an endpoint");
    let first = endpoint(true);
    between(|of| of.allowance = allowance);
    let endpoints = [first, endpoint(false)];
    between(|of| of.allowance = None);
    let place = |at: usize| Place::decode(&endpoints[at].address().bytes).expect("a place");
    let places = [place(0), place(1)];
    Pair { verbs, endpoints, places }
}

/// What an error of the first end says: the status, and what the library calls it; and a part of the likely causes.
fn says(error: &TransportError, verbs: &Verbs, [here, there]: &[Place; 2], (status, name, cause): Status) {
    let text = error.to_string();
    let TransportError::Completion { failed, .. } = error else { panic!("{text}") };
    let FailedCompletion { device, port, queue_pair, peer, status: said, causes } = &**failed;
    let own = &verbs.shared.domains[0].port;
    assert_eq!((device, *port), (&own.device, own.number), "{text}");
    let lane = here.queues.iter().position(|queue| queue.number == *queue_pair);
    let other = there.queues[lane.unwrap_or_else(|| panic!("a queue pair of this side: {text}"))].number;
    assert_eq!(*peer, format!("{}, queue pair {other}", there.ports[0].0.gid), "{text}");
    assert!(said.starts_with(&format!("{name} ({status}, vendor's ")), "{text}");
    assert!(causes.contains(cause), "{text}");
    let begins =
        format!("verbs: queue pair {queue_pair} of {device} port {port}, to {peer}, failed: {said}; ");
    assert_eq!(text, format!("{begins}{causes}"));
    println!("{text}");
}

type Status = (u32, &'static str, &'static str);

const ACCESS: Status = (10, "remote access error", "another key or is not there any more");
const FLUSHED: Status = (5, "Work Request Flushed Error", "the peer used a key that this side does not have");
const UNANSWERED: Status = (12, "transport retry counter exceeded", "has not answered");
const NOT_READY: Status = (13, "RNR retry counter exceeded", "had no receive posted");

/// What one end's error is, within the deadline; the other end looks as well where it is there.
fn fails(one: &mut dyn Connection, mut other: Option<&mut dyn Connection>) -> TransportError {
    let begun = Instant::now();
    let _ = one.fill(0, Span::of(&[7u64; 100]), (1, 0), &mut 0).expect("it goes out");
    loop {
        assert!(begun.elapsed() < DEADLINE, "no error within {DEADLINE:?}");
        if let Err(error) = one.progress() {
            return error;
        }
        if let Some(other) = &mut other {
            let _ = other.progress();
        }
    }
}

/// A key that is not the memory's: the two never meet, and the side that greets says why.
fn another_key_is_refused(verbs: Verbs) {
    let Pair { verbs, endpoints: [one, other], places } = endpoints(verbs, None);
    let mut wrong = places[1].clone();
    wrong.ports.iter_mut().for_each(|(_, key)| *key ^= 1);
    let wrong = Address { transport: NAME.into(), bytes: wrong.encode() };
    let address = one.address().clone();
    let begun = Instant::now();
    let mut one = one.connect(&wrong).expect("connecting");
    let mut other = other.connect(&address).expect("connecting");
    let error = loop {
        assert!(begun.elapsed() < DEADLINE, "no error within {DEADLINE:?}");
        let _ = other.poll();
        match one.poll() {
            Ok(poll) => assert!(poll.is_pending(), "its hello cannot have arrived"),
            Err(error) => break error,
        }
    };
    says(&error, &verbs, &places, ACCESS);
}

fn memory_that_is_gone_is_refused(verbs: Verbs) {
    let Pair { verbs, endpoints, places } = endpoints(verbs, None);
    let [mut one, mut other] = meet(endpoints, Duration::ZERO);
    arrives(&mut *one, &mut *other, 1);
    deregister(places[1].ports[0].1);
    let error = fails(&mut *one, None);
    says(&error, &verbs, &places, ACCESS);
    // Its device has ended the other's queue pair, and flushes what was posted to it.
    let error = crate::conformance::eventually("the other end fails", || other.progress().err());
    says(&error, &verbs, &[places[1].clone(), places[0].clone()], FLUSHED);
}

fn a_peer_without_receives_is_named(verbs: Verbs) {
    let Pair { verbs, endpoints, places } = endpoints(verbs, Some(HELLOS));
    let [mut one, mut other] = meet(endpoints, Duration::ZERO);
    let error = fails(&mut *one, Some(&mut *other));
    says(&error, &verbs, &places, NOT_READY);
}

fn a_destroyed_queue_pair_is_named(verbs: Verbs) {
    let Pair { verbs, endpoints, places } = endpoints(verbs, None);
    let [mut one, mut other] = meet(endpoints, Duration::ZERO);
    arrives(&mut *one, &mut *other, 1);
    // As the system ends a process: nothing is said, and nothing else is given back.
    std::mem::forget(other);
    places[1].queues.iter().for_each(|queue| destroy(queue.number));
    let error = fails(&mut *one, None);
    says(&error, &verbs, &places, UNANSWERED);
}

/// Provokes one and looks at the error.
type Fault = fn(Verbs);

/// Each fault, of connections of one queue pair and of two.
fn all(under: Functions, sysfs: &Sysfs) {
    let faults: [(&str, Fault); 4] = [
        ("another key", another_key_is_refused),
        ("memory that is gone", memory_that_is_gone_is_refused),
        ("no receives", a_peer_without_receives_is_named),
        ("a destroyed queue pair", a_destroyed_queue_pair_is_named),
    ];
    for (name, fault) in faults {
        for queue_pairs in [1, 2] {
            let begun = Instant::now();
            fault(over(under, sysfs, queue_pairs));
            println!("{name}, queue pairs {queue_pairs}: {:?}", begun.elapsed());
        }
    }
}

#[test]
fn over_the_standin_faults_of_the_peer_are_named() {
    all(standin::functions(), &nothing());
}

#[test]
fn over_the_devices_faults_of_the_peer_are_named() {
    match Verbs::new() {
        Ok(_) => all(library::functions().expect("a library"), &Sysfs::system()),
        Err(error) => println!("SKIP: {error}"),
    }
}
