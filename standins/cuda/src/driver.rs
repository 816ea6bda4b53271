//! The driver of this process, made by `cuInit`, and its handles.
//!
//! Invariant: the driver is made once, stays until the process ends, and does not exist in a forked child. Handles
//! are numbers, never addresses, and no two objects ever have the same. Absent: contexts, streams and memory
//! themselves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::capture::Captures;
use crate::code::{Answer, Code};
use crate::context::{Context, Event, Stream};
use crate::gate::Gate;
use crate::memory::{Mapping, Store, Table};
use crate::module::{Function, Module};
use crate::settings::Settings;

/// Objects that programs name by number.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    objects: RwLock<HashMap<u64, Arc<T>>>,
    missing: Code,
}

impl<T> Handles<T> {
    fn new(missing: Code) -> Self {
        Handles { objects: RwLock::default(), missing }
    }

    pub(crate) fn insert(&self, handle: u64, object: Arc<T>) {
        self.objects.write().unwrap_or_else(PoisonError::into_inner).insert(handle, object);
    }

    pub(crate) fn get(&self, handle: u64) -> Answer<Arc<T>> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(&handle).cloned().ok_or(self.missing)
    }

    pub(crate) fn remove(&self, handle: u64) -> Answer<Arc<T>> {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.remove(&handle).ok_or(self.missing)
    }

    pub(crate) fn retain(&self, keep: impl Fn(&T) -> bool) {
        self.objects.write().unwrap_or_else(PoisonError::into_inner).retain(|_, object| keep(object));
    }

    pub(crate) fn find(&self, wanted: impl Fn(&T) -> bool) -> Option<u64> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.iter().find(|(_, object)| wanted(object)).map(|(handle, _)| *handle)
    }
}

/// Memory of `cuMemCreate`.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) store: Arc<Store>,
    pub(crate) bytes: u64,
    /// `CUmemAllocationHandleType`s that it may be exported as.
    pub(crate) handle_types: u32,
    /// Whether this process made the memory, which then counts as used.
    pub(crate) own: bool,
    /// `cuMemCreate` and `cuMemRetainAllocationHandle` less `cuMemRelease`; the memory itself also lives while mapped.
    pub(crate) handles: AtomicU64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let (true, Ok(driver)) = (self.own, get()) {
            driver.give_back(self.store.device, self.bytes);
        }
    }
}

/// The primary context of a device.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    pub(crate) retained: u32,
    pub(crate) context: Option<Arc<Context>>,
    pub(crate) flags: u32,
}

/// A pretend device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) primary: Mutex<Primary>,
    /// Bytes of the device that this process uses.
    pub(crate) used: AtomicU64,
    pub(crate) gate: Gate,
}

/// The driver of this process.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) settings: Settings,
    process: u32,
    pub(crate) devices: Vec<Device>,
    pub(crate) table: Table,
    pub(crate) contexts: Handles<Context>,
    pub(crate) streams: Handles<Stream>,
    pub(crate) events: Handles<Event>,
    pub(crate) modules: Handles<Module>,
    pub(crate) functions: Handles<Function>,
    pub(crate) allocations: Handles<Allocation>,
    pub(crate) reservations: Handles<(Mapping, u64)>,
    pub(crate) captures: Captures,
    next: AtomicU64,
}

static DRIVER: OnceLock<Answer<Driver>> = OnceLock::new();

/// Starts the driver. Later calls do nothing.
pub(crate) fn init() -> Answer {
    let first = DRIVER.get().is_none();
    let driver = DRIVER.get_or_init(Driver::new).as_ref().map_err(|code| *code)?;
    if first && !driver.settings.quiet {
        let count = driver.settings.devices;
        eprintln!("consort's stand-in for the CUDA driver: {count} pretend devices in host memory, no GPU");
    }
    if driver.settings.devices == 0 { Err(Code::NO_DEVICE) } else { Ok(()) }
}

/// The driver, after `cuInit`.
pub(crate) fn get() -> Answer<&'static Driver> {
    match DRIVER.get() {
        Some(Ok(driver)) => Ok(driver),
        Some(Err(code)) => Err(*code),
        None => Err(Code::NOT_INITIALIZED),
    }
}

/// Whether this process was forked from one that had called `cuInit`.
pub(crate) fn is_forked_child() -> bool {
    matches!(DRIVER.get(), Some(Ok(driver)) if driver.process != std::process::id())
}

impl Driver {
    fn new() -> Answer<Self> {
        let settings = Settings::from_environment();
        let device = |ordinal| {
            Ok(Device {
                primary: Mutex::default(),
                used: AtomicU64::new(0),
                gate: Gate::of_device(ordinal, settings.blocks_max)?,
            })
        };
        let devices = (0..settings.devices).map(device).collect::<Answer<_>>()?;
        Ok(Driver {
            settings,
            process: std::process::id(),
            devices,
            table: Table::default(),
            contexts: Handles::new(Code::INVALID_CONTEXT),
            streams: Handles::new(Code::INVALID_HANDLE),
            events: Handles::new(Code::INVALID_HANDLE),
            modules: Handles::new(Code::INVALID_HANDLE),
            functions: Handles::new(Code::INVALID_HANDLE),
            allocations: Handles::new(Code::INVALID_VALUE),
            reservations: Handles::new(Code::INVALID_VALUE),
            captures: Captures::default(),
            next: AtomicU64::new(0x1000),
        })
    }

    /// A number that no other object has.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(16, Ordering::Relaxed)
    }

    pub(crate) fn device(&self, ordinal: i32) -> Answer<&Device> {
        usize::try_from(ordinal).ok().and_then(|at| self.devices.get(at)).ok_or(Code::INVALID_DEVICE)
    }

    /// Counts memory as used.
    pub(crate) fn take(&self, device: u32, bytes: u64) -> Answer {
        let place = &self.device(device as i32)?.used;
        let taken = place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|used| *used <= self.settings.memory)
        });
        taken.map(drop).map_err(|_| Code::OUT_OF_MEMORY)
    }

    /// Counts memory as free again.
    pub(crate) fn give_back(&self, device: u32, bytes: u64) {
        if let Ok(device) = self.device(device as i32) {
            device.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}
