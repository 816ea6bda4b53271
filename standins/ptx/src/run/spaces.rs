//! Loads and stores of a thread in every space.
//!
//! Invariant: every access is a multiple of its size, in every space, or a [`Problem::Misaligned`].

use crate::fault::Problem;
use crate::memory::{Access, Atomic, Memory, Site, join};
use crate::program::{How, Space, window};

/// The memory that a thread sees.
pub(super) struct View<'v, M> {
    pub(super) memory: &'v mut M,
    pub(super) shared: &'v mut [u8],
    pub(super) local: &'v mut [u8],
    pub(super) constants: &'v [u8],
    pub(super) parameters: &'v [u8],
    /// Whether the memory checks shared accesses.
    pub(super) watch: bool,
}

/// What an access does, for the memory that checks it.
#[derive(Clone, Copy)]
struct Effect {
    read: bool,
    write: bool,
}

impl<M: Memory> View<'_, M> {
    /// The space that an address really is in, and the address there.
    fn resolve(space: Space, address: u64) -> (Space, u64) {
        if space != Space::Generic {
            return (space, address);
        }
        let within = address & !window::MASK;
        match address & window::MASK {
            window::SHARED => (Space::Shared, within),
            window::LOCAL => (Space::Local, within),
            window::CONSTANT => (Space::Constant, within),
            window::PARAMETER => (Space::Parameter, within),
            _ => (Space::Global, address),
        }
    }

    fn aligned(access: &Access) -> Result<(), Problem> {
        if access.address & u64::from(access.bytes - 1) == 0 {
            return Ok(());
        }
        Err(Problem::Misaligned { address: access.address, bytes: access.bytes })
    }

    /// The bytes of a space inside the interpreter.
    fn inside(&mut self, space: Space, access: &Access) -> Result<&[u8], Problem> {
        let bytes: &[u8] = match space {
            Space::Shared => self.shared,
            Space::Local => self.local,
            Space::Constant => self.constants,
            _ => self.parameters,
        };
        let end = access.address.checked_add(access.bytes.into());
        let range = access.address as usize..end.unwrap_or(u64::MAX) as usize;
        bytes.get(range).ok_or_else(|| Problem::outside(access))
    }

    fn inside_mut(&mut self, space: Space, access: &Access) -> Result<&mut [u8], Problem> {
        let out = || Problem::outside(access);
        let bytes: &mut [u8] = match space {
            Space::Shared => self.shared,
            Space::Local => self.local,
            _ => return Err(out()),
        };
        let end = access.address.checked_add(access.bytes.into());
        bytes.get_mut(access.address as usize..end.unwrap_or(u64::MAX) as usize).ok_or_else(out)
    }

    fn watch(&mut self, site: &Site, space: Space, access: &Access, effect: Effect) -> Result<(), Problem> {
        if self.watch && space == Space::Shared {
            self.memory.shared(site, access, effect.read, effect.write)?;
        }
        Ok(())
    }

    /// Loads; `access.address` is in `how.space`.
    pub(super) fn load(&mut self, site: &Site, how: &How, mut access: Access) -> Result<u128, Problem> {
        let (space, address) = Self::resolve(how.space, access.address);
        access.address = address;
        Self::aligned(&access)?;
        if space == Space::Global {
            return self.memory.load(site, &access);
        }
        let value = join(self.inside(space, &access)?);
        self.watch(site, space, &access, Effect { read: true, write: false })?;
        Ok(value)
    }

    /// Stores, and returns whether the memory changed.
    pub(super) fn store(
        &mut self,
        site: &Site,
        how: &How,
        mut access: Access,
        value: u128,
    ) -> Result<bool, Problem> {
        let (space, address) = Self::resolve(how.space, access.address);
        access.address = address;
        Self::aligned(&access)?;
        if space == Space::Global {
            return self.memory.store(site, &access, value);
        }
        let place = self.inside_mut(space, &access)?;
        let changed = join(place) != value;
        let count = place.len();
        place.copy_from_slice(&value.to_le_bytes()[..count]);
        self.watch(site, space, &access, Effect { read: false, write: true })?;
        Ok(changed && space == Space::Shared)
    }

    /// Does an atomic operation, and returns the value before.
    pub(super) fn atomic(
        &mut self,
        site: &Site,
        how: &How,
        mut access: Access,
        atomic: &Atomic,
    ) -> Result<u64, Problem> {
        let (space, address) = Self::resolve(how.space, access.address);
        access.address = address;
        Self::aligned(&access)?;
        if space == Space::Global {
            return self.memory.atomic(site, &access, atomic);
        }
        let place = self.inside_mut(space, &access)?;
        let old = join(place) as u64;
        let count = place.len();
        place.copy_from_slice(&atomic.apply(access.bytes, old).to_le_bytes()[..count]);
        self.watch(site, space, &access, Effect { read: true, write: true })?;
        Ok(old)
    }
}
