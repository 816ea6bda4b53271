//! Ranges of addresses that the driver knows, and where their bytes are.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use super::mapping::Mapping;
use super::store::Store;
use crate::code::{Answer, Code};

/// What kind of memory it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocAsync`.
    Pool,
    /// `cuIpcOpenMemHandle`: how often it was opened, and from which device.
    Opened { times: u32, by: u32, handle: Box<[u8; 64]> },
    /// `cuMemMap`: the access of each device, and the number of the allocation.
    Virtual { access: BTreeMap<u32, u32>, allocation: u64 },
    /// `cuMemHostAlloc`, with its flags.
    Pinned { flags: u32 },
    /// `cuMemHostRegister`, with its flags.
    Registered { flags: u32 },
    /// `cuMemAllocManaged`.
    Managed,
    /// Variables of a module.
    Module,
}

/// Where the bytes are.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// In a file, from this offset.
    Stored(Arc<Store>, u64),
    /// The host's, at the same address.
    ///
    /// Registered memory stays its owner's. All other memory is freed with the region.
    Host(#[expect(dead_code, reason = "only held")] Option<Mapping>),
}

/// A range of addresses that the driver knows.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    /// The device that the memory is on, or whose context made the region.
    pub(crate) device: u32,
    /// The context that made the region.
    pub(crate) context: u64,
    /// The number of the region, unlike all others in this process.
    pub(crate) id: u64,
    pub(crate) place: Arc<Place>,
}

/// The addresses and bytes of a region, which stay when its description changes.
#[derive(Debug)]
pub(crate) struct Place {
    /// Addresses without bytes; none for memory of the host and for mappings into a reservation.
    _reserved: Option<Mapping>,
    pub(crate) bytes: Bytes,
    /// Whether copies were asked to wait, which they always do.
    pub(crate) is_synchronous: AtomicBool,
    /// A copy for each device that is said to reach the region but does not.
    copies: Mutex<BTreeMap<u32, Mapping>>,
}

impl Place {
    pub(crate) fn new(reserved: Option<Mapping>, bytes: Bytes) -> Arc<Self> {
        Arc::new(Place {
            _reserved: reserved,
            bytes,
            is_synchronous: AtomicBool::new(false),
            copies: Mutex::default(),
        })
    }
}

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    Read,
    Write,
}

impl Region {
    /// Whether the bytes are on a device.
    pub(crate) fn is_device(&self) -> bool {
        matches!(self.place.bytes, Bytes::Stored(..))
    }

    /// The store of the bytes, if they are in a file.
    pub(crate) fn store(&self) -> Option<&Arc<Store>> {
        self.stored().map(|(store, _)| store)
    }

    /// The same, and where in the file they begin.
    pub(crate) fn stored(&self) -> Option<(&Arc<Store>, u64)> {
        match &self.place.bytes {
            Bytes::Stored(store, offset) => Some((store, *offset)),
            Bytes::Host(_) => None,
        }
    }

    /// Whether code on `device` may access the region. `has_peer` says whether its context reaches another device's
    /// memory.
    pub(crate) fn allows(&self, device: u32, intent: Intent, has_peer: impl Fn(u32) -> bool) -> bool {
        match &self.kind {
            Kind::Device | Kind::Pool | Kind::Module => self.device == device || has_peer(self.device),
            Kind::Opened { by, .. } => self.device == device || *by == device || has_peer(self.device),
            Kind::Virtual { access, .. } => {
                let flags = access.get(&device).copied().unwrap_or(0);
                flags & if intent == Intent::Read { 1 } else { 2 } != 0
            }
            Kind::Pinned { .. } | Kind::Managed => true,
            Kind::Registered { flags } => intent == Intent::Read || flags & 8 == 0,
        }
    }

    /// The place in this process of the byte at `address` as `device` sees it. The address is in the region.
    pub(crate) fn view(&self, address: u64, device: u32, lie: bool) -> Answer<*mut u8> {
        let at = address - self.start;
        let store = match &self.place.bytes {
            Bytes::Host(_) => return Ok(address as *mut u8),
            Bytes::Stored(store, offset) => store.view.start() + offset,
        };
        if !lie || device == self.device {
            return Ok((store + at) as *mut u8);
        }
        let mut copies = self.place.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = match copies.entry(device) {
            Entry::Occupied(found) => found.get().start(),
            Entry::Vacant(place) => {
                let copy = Mapping::anonymous(self.bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
                let (from, to, bytes) = (store as *const u8, copy.start() as *mut u8, self.bytes as usize);
                // SAFETY: both are as long as the region, and mapped while it is held. A race with the owner is like
                // a copy at some moment.
                unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
                place.insert(copy).start()
            }
        };
        Ok((copy + at) as *mut u8)
    }
}

impl Region {
    /// The region with another description of the same bytes.
    pub(crate) fn changed(&self, kind: Kind) -> Self {
        Region { kind, place: Arc::clone(&self.place), ..*self }
    }
}
