//! Memory of programs and of devices that an adapter uses where it is.
//!
//! ```text
//! cache    which registrations are kept, found by allocation and range
//! device   which way the adapter reaches memory of a device        link   what is sent of it, and exposed
//! flush    of what the adapter has written there, by a read
//! ```
//!
//! Memory of the host is known by its area (`consort_memory::areas`): the library knows when memory of `ncclMemAlloc`, of
//! `consort::alloc` and of `consortMemRegisterFd` goes. Or it is known by the buffer of `ncclCommRegister` that it lies in
//! (`consort_memory::user_buffers`). Other memory of programs is not registered: nothing would say that it was freed.
//!
//! Invariant: memory is looked up by its allocation at each use, and memory of the host is registered for no peer to write. Absent: what is sent from it
//! (`line::lent`).

mod cache;
mod device;
mod flush;
mod link;

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use consort_memory::user_buffers::Follower;
use consort_memory::{Span, areas, user_buffers};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};

use self::cache::{Cache, Limits, Owner, pages};
pub(super) use self::device::Devices;
#[cfg(test)]
pub(super) use self::flush::Flush;
pub(super) use self::link::Staging;
use super::library::Forks;
use super::lock;
use super::port::{Domain, Registration, Written};

/// Bytes below which a fill is copied wherever it lies: looking its registration up, and keeping it, costs as much.
pub(super) const LENT_BYTES_MIN: usize = 1024;
/// Registrations of a transport, at most: the table of keys of an adapter has room for many times as many.
const ENTRIES_MAX: usize = 1024;

/// Registrations of devices' memory that are looked at when another is made, or an endpoint is: each is one question to the driver.
const SWEPT: usize = 16;

/// The memory of programs that one protection domain knows.
pub(super) struct Registrations {
    domain: Arc<Domain>,
    /// What a fork of this process does to memory that the device uses.
    forks: Forks,
    kept: Arc<Kept>,
}

/// What is registered; it follows the program's buffers.
struct Kept(Mutex<State>);

struct State {
    cache: Cache<Registration>,
    /// The state of the process's areas when it was last seen that all entries are of such as are there; 0 before.
    epoch: u64,
}

impl Follower for Kept {
    fn gone(&self, key: u64) {
        let mut state = lock(&self.0);
        // What is in use is given back by a later use.
        if !state.cache.forget(Owner::User(key)) {
            state.epoch = 0;
        }
    }
}

/// A quarter of the machine's memory, and half of what this process may lock: mailboxes need the rest.
fn bytes_max() -> usize {
    let number = |of| sysconf(of).ok().flatten().and_then(|number| usize::try_from(number).ok());
    let pages = number(SysconfVar::_PHYS_PAGES).unwrap_or(0);
    let quarter = pages / 4 * number(SysconfVar::PAGE_SIZE).unwrap_or(4096);
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((limit, _)) if limit != RLIM_INFINITY => quarter.min(usize::try_from(limit / 2).unwrap_or(0)),
        _ => quarter,
    }
}

impl Registrations {
    pub(super) fn new(domain: &Arc<Domain>) -> Self {
        let cache = Cache::new(Limits { entries: ENTRIES_MAX, bytes: bytes_max() });
        let kept = Arc::new(Kept(Mutex::new(State { cache, epoch: 0 })));
        let follower: Arc<dyn Follower> = Arc::clone(&kept) as Arc<dyn Follower>;
        user_buffers::follow(Arc::downgrade(&follower));
        Registrations { domain: Arc::clone(domain), forks: domain.port.functions.forks(), kept }
    }

    /// How this domain's device reads memory of a program; none where that has to be copied.
    pub(super) fn of(&self, source: Span<'_>) -> Option<Arc<Registration>> {
        let (start, bytes) = (source.as_ptr() as usize, source.len());
        let mut state = lock(&self.kept.0);
        state.tidy();
        let (owner, whole) = self.owner(start, bytes)?;
        let asked = start..start + bytes;
        state.cache.registered((owner, Written::Here), &asked, &whole, |range| {
            // SAFETY: no peer may write there, and the kernel keeps the pages of a registration, whatever the program does.
            unsafe { self.domain.register_range(range.start as *mut u8, range.len(), Written::Here) }
        })
    }

    /// Whose these addresses are, and all that is the owner's there; none where the device should not know them.
    fn owner(&self, start: usize, bytes: usize) -> Option<(Owner, Range<usize>)> {
        if self.forks == Forks::Hidden {
            return None;
        }
        if let Some(area) = areas::find(start, bytes) {
            return Some((Owner::Host(area.key()), area.start()..area.start() + area.bytes()));
        }
        let buffer = user_buffers::find(start, bytes).filter(|_| self.forks == Forks::Copied)?;
        let range = buffer.start()..buffer.start() + buffer.bytes();
        Some((Owner::User(buffer.key()), pages(&range)))
    }

    /// How it reaches memory of a device, by its buffer id; none where it does not. Where that is registered anew, some of what is of memory
    /// that was freed is given back.
    fn of_device(
        &self,
        (id, by): (u64, Written),
        (asked, whole): (&Range<usize>, &Range<usize>),
        is_there: impl Fn(u64, usize) -> bool,
        register: impl FnMut(Range<usize>) -> io::Result<Registration>,
    ) -> Option<Arc<Registration>> {
        let cache = &mut lock(&self.kept.0).cache;
        let before = cache.made();
        let found = cache.registered((Owner::Device(id), by), asked, whole, register);
        if cache.made() != before {
            cache.sweep(SWEPT, is_there);
        }
        found
    }

    /// Gives back some of what is of devices' memory that was freed, and is not in use.
    fn sweep(&self, is_there: impl Fn(u64, usize) -> bool) {
        lock(&self.kept.0).cache.sweep(SWEPT, is_there);
    }

    /// Gives back what is of memory that was freed, and is not being read.
    pub(super) fn tidy(&self) {
        lock(&self.kept.0).tidy();
    }

    /// Registrations that are kept, and bytes that they lock.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize) {
        lock(&self.kept.0).cache.held()
    }
}

impl State {
    fn tidy(&mut self) {
        let now = areas::epoch();
        if self.epoch != now && self.cache.keep(is_there) {
            self.epoch = now;
        }
    }
}

/// Whether the allocation is still there that has or had this address.
fn is_there(of: Owner, address: usize) -> bool {
    match of {
        Owner::Host(key) => areas::find(address, 1).is_some_and(|area| area.key() == key),
        Owner::User(key) => user_buffers::is_registered(key),
        // Nothing says that memory of devices was freed: its id is asked for at each use, and at times.
        Owner::Device(_) => true,
    }
}
