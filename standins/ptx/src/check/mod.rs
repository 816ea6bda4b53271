//! Memory that looks for mistakes: accesses out of bounds or misaligned, reads of bytes never written, data races.
//!
//! # Which rule a race breaks
//!
//! The chapter "Memory Consistency Model" of the PTX ISA, its sections "Morally strong operations", "Conflict and
//! data-races", "Release and acquire patterns" and "Ordering of memory operations". Two accesses that share a byte,
//! and at least one write among them, race unless they are
//! * *morally strong*: of one thread, or both strong, each with a scope that includes the other's thread, and on
//!   exactly the same bytes (an element of a vector is an access of its own); or
//! * ordered by *causality*: by base causality order, or because the first is a write that an operation *observed*
//!   which comes before the second in base causality order.
//!
//! Base causality order is the transitive closure of program order and of what synchronises:
//! * a release pattern (`st.release`, a releasing atomic, or a releasing fence and a later strong write) with an
//!   acquire pattern (`ld.acquire`, an acquiring atomic, or a strong read, not of a `red`, and a later acquiring
//!   fence), when the write precedes the read in observation order and the first operation of the one and the last
//!   of the other reach each other by their scopes;
//! * `bar`/`barrier` with the same barrier; `bar.warp.sync`;
//! * `fence.sc` (`membar` too) with later ones that reach and are reached;
//! * the start of the run with everything in it. Stores of the host are strong, release, at system scope.
//!
//! A read observes a write when it returns one of its bytes and both are morally strong, or through a chain of
//! atomic operations, each reading the one before.
//!
//! Threads of one block reach each other at scope `cta`, of one device ([`crate::Launch::device`]) at `gpu`, all
//! others at `sys` only. `.volatile` is relaxed at system scope. Atomics are one strong access.
//!
//! The model's order is that of this run: another seed may show a race that this one does not. Within a run a race
//! can be missed in these cases: the earlier write was ordered before a third access only by observation and
//! overwritten by it; a later release to the same bytes by another thread hides an older release of the own thread;
//! a weak load of the read-only path (`.nc`) is a weak load. In the other direction, `ld.relaxed` followed by
//! `ld.acquire` of another value is not taken as an acquire pattern of the first.
//!
//! Absent: values that are not those of an interleaving (a stale value is never returned, the race is what is
//! reported); registers and local memory are not checked for what was not written.

mod clock;
mod races;
mod shadow;

use std::collections::HashMap;

use crate::fault::{Near, Problem};
use crate::memory::{Access, Actor, Atomic, Memory, Scope, Semantics, Site, join};
use races::Threads;
use shadow::Shadow;

/// Bytes between allocations, so that an access beyond an end meets no other allocation.
const GAP: u64 = 1 << 16;

struct Allocation {
    name: String,
    address: u64,
    bytes: Vec<u8>,
    shadow: Shadow,
}

/// Checked memory. Allocations stay from run to run; what happened in a run is ordered before the next.
pub struct Checked {
    /// Sorted by address.
    allocations: Vec<Allocation>,
    next: u64,
    /// Shared memory of blocks.
    shared: HashMap<u32, Shadow>,
    threads: Threads,
    last: usize,
}

impl Default for Checked {
    fn default() -> Self {
        Self::new()
    }
}

impl Checked {
    /// Memory without an allocation.
    #[must_use]
    pub fn new() -> Self {
        Self {
            allocations: Vec::new(),
            next: 0x7_0000_0000,
            shared: HashMap::new(),
            threads: Threads::default(),
            last: 0,
        }
    }

    /// Takes in `bytes`, all of them written, and returns their address, a multiple of 256.
    pub fn allocate(&mut self, name: &str, bytes: Vec<u8>) -> u64 {
        let shadow = Shadow::new(bytes.len(), true);
        self.insert(name, bytes, shadow)
    }

    /// An allocation of `length` bytes that count as never written. They hold `0xa5`.
    pub fn uninitialised(&mut self, name: &str, length: usize) -> u64 {
        self.insert(name, vec![0xa5; length], Shadow::new(length, false))
    }

    fn insert(&mut self, name: &str, bytes: Vec<u8>, shadow: Shadow) -> u64 {
        let address = self.next;
        self.next = (self.next + bytes.len() as u64 + GAP).next_multiple_of(GAP);
        self.allocations.push(Allocation { name: name.to_owned(), address, bytes, shadow });
        address
    }

    /// The bytes of the allocation at `address`.
    ///
    /// # Panics
    /// When no allocation starts there.
    #[must_use]
    pub fn bytes(&self, address: u64) -> &[u8] {
        let found = self.allocations.iter().find(|allocation| allocation.address == address);
        &found.expect("an allocation").bytes
    }

    /// Writes `bytes` at `address`, between runs.
    ///
    /// # Panics
    /// When they are not inside one allocation.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let at = self.find(address, bytes.len() as u64).expect("an allocation");
        let allocation = &mut self.allocations[at];
        let offset = (address - allocation.address) as usize;
        allocation.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        allocation.shadow.written(offset, bytes.len());
    }

    fn find(&mut self, address: u64, bytes: u64) -> Option<usize> {
        let holds = |allocation: &Allocation| {
            address >= allocation.address
                && address
                    .checked_add(bytes)
                    .is_some_and(|end| end <= allocation.address + allocation.bytes.len() as u64)
        };
        if self.allocations.get(self.last).is_some_and(holds) {
            return Some(self.last);
        }
        let at =
            self.allocations.partition_point(|allocation| allocation.address <= address).checked_sub(1)?;
        holds(&self.allocations[at]).then(|| {
            self.last = at;
            at
        })
    }

    fn near(&self, address: u64) -> Option<Near> {
        let after = self.allocations.partition_point(|allocation| allocation.address <= address);
        let before = after.checked_sub(1).map(|at| &self.allocations[at]);
        // Just below an allocation is nearer to it than to what ends far before.
        let below = self.allocations.get(after).filter(|allocation| allocation.address - address <= GAP / 4);
        let found = match before {
            Some(allocation) if address < allocation.address + allocation.bytes.len() as u64 + GAP / 2 => {
                Some(allocation)
            }
            _ => below,
        }?;
        Some(Near {
            name: found.name.clone(),
            offset: address.wrapping_sub(found.address) as i64,
            bytes: found.bytes.len() as u64,
        })
    }

    fn locate(&mut self, access: &Access) -> Result<usize, Problem> {
        self.find(access.address, access.bytes.into()).ok_or_else(|| Problem::OutOfBounds {
            address: access.address,
            bytes: access.bytes,
            near: self.near(access.address),
        })
    }

    /// Looks at an access to the allocation `at`.
    fn look(&mut self, site: &Site, access: &Access, at: usize, effect: Effect) -> Result<usize, Problem> {
        let allocation = &mut self.allocations[at];
        let offset = (access.address - allocation.address) as usize;
        let done = look(&mut self.threads, &mut allocation.shadow, site, access, offset, effect);
        match done {
            Ok(()) => Ok(offset),
            Err(problem) => Err(self.named(problem)),
        }
    }

    /// Adds the allocation's name.
    fn named(&self, problem: Problem) -> Problem {
        match problem {
            Problem::Race { address, mine, other, .. } => {
                Problem::Race { address, near: self.near(address), mine, other }
            }
            Problem::Uninitialised { address, bytes, .. } => {
                Problem::Uninitialised { address, bytes, near: self.near(address) }
            }
            other => other,
        }
    }
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Effect {
    read: bool,
    write: bool,
    /// Whether the value read goes to a register.
    returns: bool,
}

const READ: Effect = Effect { read: true, write: false, returns: true };
const WRITE: Effect = Effect { read: false, write: true, returns: false };
const BOTH: Effect = Effect { read: true, write: true, returns: true };

/// Looks at each element of an access, `offset` bytes into what `shadow` shadows.
fn look(
    threads: &mut Threads,
    shadow: &mut Shadow,
    site: &Site,
    access: &Access,
    offset: usize,
    effect: Effect,
) -> Result<(), Problem> {
    if effect.read && !shadow.all_written(offset, access.bytes.into()) {
        return Err(Problem::Uninitialised { address: access.address, bytes: access.bytes, near: None });
    }
    for element in (0..access.bytes).step_by(access.element.into()) {
        let offset = offset + usize::from(element);
        let granule = shadow.granule(offset);
        let first = offset % shadow::GRANULE;
        let mask = (((1u32 << access.element) - 1) << first) as u16;
        threads.access(granule, site, access, mask, effect).map_err(|(mine, other)| Problem::Race {
            address: access.address + u64::from(element),
            near: None,
            mine: Box::new(mine),
            other: Box::new(other),
        })?;
    }
    if effect.write {
        shadow.written(offset, access.bytes.into());
    }
    Ok(())
}

impl Memory for Checked {
    fn begin(&mut self, actors: &[Actor]) {
        for allocation in &mut self.allocations {
            allocation.shadow.forget();
        }
        self.shared.clear();
        self.threads = Threads::new(actors);
    }

    fn load(&mut self, site: &Site, access: &Access) -> Result<u128, Problem> {
        let at = self.locate(access)?;
        let offset = self.look(site, access, at, READ)?;
        Ok(join(&self.allocations[at].bytes[offset..offset + usize::from(access.bytes)]))
    }

    fn store(&mut self, site: &Site, access: &Access, value: u128) -> Result<bool, Problem> {
        let at = self.locate(access)?;
        let offset = self.look(site, access, at, WRITE)?;
        let place = &mut self.allocations[at].bytes[offset..offset + usize::from(access.bytes)];
        let changed = join(place) != value;
        place.copy_from_slice(&value.to_le_bytes()[..usize::from(access.bytes)]);
        Ok(changed)
    }

    fn atomic(&mut self, site: &Site, access: &Access, atomic: &Atomic) -> Result<u64, Problem> {
        let at = self.locate(access)?;
        let offset = self.look(site, access, at, Effect { returns: atomic.returns, ..BOTH })?;
        let place = &mut self.allocations[at].bytes[offset..offset + usize::from(access.bytes)];
        let old = join(place) as u64;
        place.copy_from_slice(&atomic.apply(access.bytes, old).to_le_bytes()[..usize::from(access.bytes)]);
        Ok(old)
    }

    fn fence(&mut self, site: &Site, semantics: Semantics, scope: Scope) {
        self.threads.fence(site.actor, semantics, scope);
    }

    fn watches_shared(&self) -> bool {
        true
    }

    fn shared(&mut self, site: &Site, access: &Access, read: bool, write: bool) -> Result<(), Problem> {
        let shadow = self.shared.entry(site.block).or_insert_with(|| Shadow::new(0, false));
        let offset = access.address as usize;
        shadow.reach(offset + usize::from(access.bytes));
        let effect = Effect { read, write, returns: read };
        let done = look(&mut self.threads, shadow, site, access, offset, effect);
        let near =
            || Some(Near { name: "shared memory".to_owned(), offset: offset as i64, bytes: shadow.bytes() });
        done.map_err(|problem| match problem {
            Problem::Race { address, mine, other, .. } => {
                Problem::Race { address, near: near(), mine, other }
            }
            Problem::Uninitialised { address, bytes, .. } => {
                Problem::Uninitialised { address, bytes, near: near() }
            }
            other => other,
        })
    }

    fn barrier(&mut self, came: &[u32], waited: &[u32]) {
        self.threads.barrier(came, waited);
    }
}
