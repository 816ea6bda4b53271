//! The interface between a launch and the memory behind global addresses.
//!
//! Shared, local, parameter and constant memory live inside the interpreter; global and generic addresses are
//! given to a [`Memory`]. Invariant: an access is 1, 2, 4, 8 or 16 bytes, 16 only for vectors.
//! Absent: memory itself. [`Plain`] here serves tests, [`crate::check`] serves tests that look for races, and the
//! stand-in of the driver brings real memory.

use std::collections::BTreeMap;

use crate::fault::Problem;

/// The semantics of an access, as the PTX ISA names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Semantics {
    /// `.weak`: promises nothing to other threads.
    Weak,
    /// `.volatile`: treated as relaxed at system scope.
    Volatile,
    /// `.relaxed`.
    Relaxed,
    /// `.acquire`.
    Acquire,
    /// `.release`.
    Release,
    /// `.acq_rel`.
    AcquireRelease,
    /// `fence.sc` and `membar`.
    Sequential,
}

impl Semantics {
    /// Whether an access of this kind is strong.
    #[must_use]
    pub fn strong(self) -> bool {
        self != Self::Weak
    }
    /// Whether it acquires.
    #[must_use]
    pub fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::AcquireRelease | Self::Sequential)
    }
    /// Whether it releases.
    #[must_use]
    pub fn releases(self) -> bool {
        matches!(self, Self::Release | Self::AcquireRelease | Self::Sequential)
    }
}

/// Which threads a strong access reaches. Weak accesses have [`Scope::Cta`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The thread's block.
    Cta,
    /// The thread's device.
    Gpu,
    /// Every thread, the host's too.
    Sys,
}

/// How an address is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// First byte.
    pub address: u64,
    /// Bytes of the whole access: 1, 2, 4, 8 or 16.
    pub bytes: u8,
    /// Bytes of an element of a vector; `bytes` where there is none. A vector is a set of accesses of this size.
    pub element: u8,
    /// The semantics.
    pub semantics: Semantics,
    /// The threads that the access reaches.
    pub scope: Scope,
}

/// The kind of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AtomicOp {
    Add,
    AddF32,
    AddF64,
    Exchange,
    CompareExchange,
    And,
    Or,
    Xor,
    MinUnsigned,
    MaxUnsigned,
    MinSigned,
    MaxSigned,
    Increment,
    Decrement,
}

/// An atomic operation with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// The kind.
    pub op: AtomicOp,
    /// The operand, zero-extended. The new value of an exchange or compare-and-exchange.
    pub operand: u64,
    /// The value with which a compare-and-exchange compares.
    pub compare: u64,
    /// Whether the value before goes to a register; not so for `red`.
    pub returns: bool,
}

impl Atomic {
    /// The value to store where `old` of `bytes` bytes was.
    #[must_use]
    pub fn apply(&self, bytes: u8, old: u64) -> u64 {
        let bits = u32::from(bytes) * 8;
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        let signed = |v: u64| ((v << (64 - bits)) as i64) >> (64 - bits);
        let b = self.operand;
        let new = match self.op {
            AtomicOp::Add => old.wrapping_add(b),
            AtomicOp::AddF32 => {
                u64::from(crate::value::canonical32(f32::from_bits(old as u32) + f32::from_bits(b as u32)))
            }
            AtomicOp::AddF64 => crate::value::canonical64(f64::from_bits(old) + f64::from_bits(b)),
            AtomicOp::Exchange => b,
            AtomicOp::CompareExchange => {
                if old == self.compare & mask {
                    b
                } else {
                    old
                }
            }
            AtomicOp::And => old & b,
            AtomicOp::Or => old | b,
            AtomicOp::Xor => old ^ b,
            AtomicOp::MinUnsigned => old.min(b),
            AtomicOp::MaxUnsigned => old.max(b),
            AtomicOp::MinSigned => signed(old).min(signed(b)) as u64,
            AtomicOp::MaxSigned => signed(old).max(signed(b)) as u64,
            AtomicOp::Increment => {
                if old >= b {
                    0
                } else {
                    old + 1
                }
            }
            AtomicOp::Decrement => {
                if old == 0 || old > b {
                    b
                } else {
                    old - 1
                }
            }
        };
        new & mask
    }
}

/// The thread of an access and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Number of the thread among all threads of the run.
    pub actor: u32,
    /// Number of the launch in the run.
    pub launch: u32,
    /// Number of the block among all blocks of the run.
    pub block: u32,
    /// Line of the PTX text.
    pub line: u32,
}

/// A thread of a run, as a checker knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Number of the launch.
    pub launch: u32,
    /// Number of the block among all blocks of the run.
    pub block: u32,
    /// The device that the launch was declared to run on.
    pub device: u32,
}

/// Memory behind global and generic addresses, and other input of a run from outside.
///
/// Errors are [`Problem`]s; the interpreter adds the place and stops the run.
pub trait Memory {
    /// A run begins. `actors` has an entry for each thread.
    fn begin(&mut self, actors: &[Actor]) {
        let _ = actors;
    }

    /// The bytes at `access.address`, little-endian, zero-extended.
    ///
    /// # Errors
    /// The fault of the access.
    fn load(&mut self, site: &Site, access: &Access) -> Result<u128, Problem>;

    /// Stores the low `access.bytes` bytes of `value`. Returns whether the memory changed, where that is known (it
    /// feeds the search for deadlocks), and otherwise `true`.
    ///
    /// # Errors
    /// The fault of the access.
    fn store(&mut self, site: &Site, access: &Access, value: u128) -> Result<bool, Problem>;

    /// Does `atomic` on 2, 4 or 8 bytes at once and returns the value before.
    ///
    /// # Errors
    /// The fault of the access.
    fn atomic(&mut self, site: &Site, access: &Access, atomic: &Atomic) -> Result<u64, Problem>;

    /// A fence of the thread.
    fn fence(&mut self, site: &Site, semantics: Semantics, scope: Scope) {
        let _ = (site, semantics, scope);
    }

    /// Whether [`Memory::shared`] is to be called.
    fn watches_shared(&self) -> bool {
        false
    }

    /// An access to shared memory that is within bounds; `write` is set for stores, both for atomics.
    ///
    /// # Errors
    /// A race, or a read of bytes that were never written.
    fn shared(&mut self, site: &Site, access: &Access, read: bool, write: bool) -> Result<(), Problem> {
        let _ = (site, access, read, write);
        Ok(())
    }

    /// The threads `came` have arrived at a barrier of their block or warp. The threads `waited`, some or all of
    /// them, go on after it. Called only where [`Memory::watches_shared`] is true.
    fn barrier(&mut self, came: &[u32], waited: &[u32]) {
        let _ = (came, waited);
    }

    /// Asked before a block becomes resident; `false` puts it off. Asked again later, in [`Memory::idle`]'s rhythm.
    fn admit(&mut self) -> bool {
        true
    }

    /// A resident block has ended.
    fn block_ended(&mut self) {}

    /// Every resident thread polls, in fast mode: others must go on first. Called again and again.
    ///
    /// # Errors
    /// [`Problem::Stopped`] ends the run.
    fn idle(&mut self, turns: u64) -> Result<(), Problem> {
        if turns > 64 {
            std::thread::sleep(std::time::Duration::from_micros(50));
        } else {
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Allocations in ordinary memory, without any check but bounds. Addresses are invented.
#[derive(Debug, Default)]
pub struct Plain {
    allocations: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

impl Plain {
    /// Memory without an allocation.
    #[must_use]
    pub fn new() -> Self {
        Self { allocations: BTreeMap::new(), next: 0x10_0000 }
    }

    /// Takes in `bytes`, and returns their address, a multiple of 256.
    pub fn allocate(&mut self, bytes: Vec<u8>) -> u64 {
        let address = self.next;
        self.next += (bytes.len() as u64 + 511) / 256 * 256;
        self.allocations.insert(address, bytes);
        address
    }

    /// The bytes of the allocation at `address`.
    ///
    /// # Panics
    /// When no allocation starts there.
    #[must_use]
    pub fn bytes(&self, address: u64) -> &[u8] {
        &self.allocations[&address]
    }

    fn at(&mut self, access: &Access) -> Result<&mut [u8], Problem> {
        let found = self.allocations.range_mut(..=access.address).next_back().and_then(|(start, bytes)| {
            let offset = (access.address - start) as usize;
            bytes.get_mut(offset..offset + usize::from(access.bytes))
        });
        found.ok_or_else(|| Problem::outside(access))
    }
}

/// The value of up to 16 little-endian bytes.
pub(crate) fn join(bytes: &[u8]) -> u128 {
    let mut wide = [0; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(wide)
}

impl Memory for Plain {
    fn load(&mut self, _: &Site, access: &Access) -> Result<u128, Problem> {
        Ok(join(self.at(access)?))
    }

    fn store(&mut self, _: &Site, access: &Access, value: u128) -> Result<bool, Problem> {
        let place = self.at(access)?;
        let changed = join(place) != value;
        let count = place.len();
        place.copy_from_slice(&value.to_le_bytes()[..count]);
        Ok(changed)
    }

    fn atomic(&mut self, _: &Site, access: &Access, atomic: &Atomic) -> Result<u64, Problem> {
        let place = self.at(access)?;
        let old = join(place) as u64;
        let count = place.len();
        place.copy_from_slice(&atomic.apply(access.bytes, old).to_le_bytes()[..count]);
        Ok(old)
    }
}
