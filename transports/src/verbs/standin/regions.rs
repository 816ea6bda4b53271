//! The stand-in's registered memory: of this process, and of other devices by DMA buffers or by a module that finds it.

use std::ffi::{c_int, c_uint, c_void};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};

use super::super::sys::*;
use super::{adapters, with};

/// Bytes of a page.
const PAGE: usize = 4096;

/// What a key stands for: addresses, and where in this process their bytes are.
#[derive(Clone, Copy)]
pub(super) struct Registered {
    pub(super) pd: usize,
    pub(super) start: usize,
    pub(super) bytes: usize,
    pub(super) view: usize,
    /// What was mapped for it alone, and its length.
    mapped: Option<(usize, usize)>,
    pub(super) is_writable: bool,
    pub(super) is_readable: bool,
    /// Whether writes to it may come late, up to the next completion behind them.
    pub(super) is_relaxed: bool,
}

impl Registered {
    /// Where the bytes of this range are, if it is inside.
    pub(super) fn view_of(&self, start: u64, bytes: usize) -> Option<usize> {
        let end = start.checked_add(bytes as u64)?;
        let is_inside = start >= self.start as u64 && end <= (self.start + self.bytes) as u64;
        is_inside.then(|| self.view + (start as usize - self.start))
    }
}

/// The pages of a range, at a place where they stay whatever becomes of the range: what a device does with memory that it knows. The place
/// of the range, and what was mapped. None for memory that no other place can have, which is read where it is.
fn pin(start: usize, bytes: usize) -> Option<(usize, (usize, usize))> {
    let first = start / PAGE * PAGE;
    let length = (start + bytes).next_multiple_of(PAGE) - first;
    // SAFETY: maps the pages of a shared mapping once more, wherever there is room, and leaves them; refused for private ones.
    let pages = unsafe { libc::mremap(first as *mut c_void, 0, length, libc::MREMAP_MAYMOVE) };
    (pages != libc::MAP_FAILED).then(|| (pages as usize + (start - first), (pages as usize, length)))
}

/// Registers memory whose bytes are at a view, which was mapped for this where a length is given.
fn register(
    pd: *mut Pd,
    (start, bytes): (usize, usize),
    (view, mapped): (usize, Option<(usize, usize)>),
    access: c_int,
) -> *mut Mr {
    with(|world| {
        let key = world.fresh();
        let is_writable = access & ACCESS_REMOTE_WRITE != 0;
        let is_readable = access & ACCESS_REMOTE_READ != 0;
        let pd_of = pd as usize;
        let is_relaxed = access & ACCESS_RELAXED_ORDERING != 0;
        let registered =
            Registered { pd: pd_of, start, bytes, view, mapped, is_writable, is_readable, is_relaxed };
        world.regions.insert(key, registered);
        // SAFETY: a domain of this stand-in.
        let context = unsafe { (*pd).context };
        let addr = start as *mut c_void;
        Box::into_raw(Box::new(Mr { context, pd, addr, length: bytes, handle: 0, lkey: key, rkey: key }))
    })
}

fn refused(error: c_int) -> *mut Mr {
    adapters::fails(error);
    std::ptr::null_mut()
}

/// Maps memory of another device, for as long as it is registered.
fn view(buffer: BorrowedFd<'_>, bytes: usize, offset: u64) -> Option<usize> {
    let (length, protection) = (NonZeroUsize::new(bytes)?, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    // SAFETY: a new mapping, wherever there is room.
    let mapped = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, buffer, offset as i64) };
    mapped.ok().map(|start| start.as_ptr() as usize)
}

/// Whether a byte of this process can be read.
fn is_readable(address: usize) -> bool {
    let mut byte = [0u8];
    let from = [RemoteIoVec { base: address, len: 1 }];
    let into = &mut [std::io::IoSliceMut::new(&mut byte)];
    process_vm_readv(nix::unistd::Pid::this(), into, &from).is_ok()
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    // SAFETY: a domain of this stand-in.
    let context = unsafe { (*pd).context };
    if let Some(error) = adapters::refusal(context) {
        return refused(error);
    }
    let start = addr as usize;
    if is_readable(start) {
        let (view, mapped) = pin(start, length).map_or((start, None), |(view, mapped)| (view, Some(mapped)));
        return register(pd, (start, length), (view, mapped), access);
    }
    let found = adapters::peer_memory(context).and_then(|find| find(start as u64, length));
    match found.and_then(|buffer| view(buffer.as_fd(), length, 0)) {
        Some(view) => register(pd, (start, length), (view, Some((view, length))), access),
        None => refused(libc::EFAULT),
    }
}

pub(super) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    assert_eq!(iova, addr as u64, "the stand-in has no other addresses");
    // SAFETY: as the caller says.
    unsafe { reg_mr(pd, addr, length, access as c_int) }
}

pub(super) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut Pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut Mr {
    // SAFETY: a domain of this stand-in.
    if let Some(error) = adapters::refusal_of_buffers(unsafe { (*pd).context }) {
        return refused(error);
    }
    // SAFETY: open during the call, as the caller says.
    match view(unsafe { BorrowedFd::borrow_raw(fd) }, length, offset) {
        Some(view) => register(pd, (iova as usize, length), (view, Some((view, length))), access),
        None => refused(libc::EINVAL),
    }
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: made above, and given back once.
    let mr = unsafe { Box::from_raw(mr) };
    let gone = with(|world| world.regions.remove(&mr.rkey));
    if let Some((start, bytes)) = gone.and_then(|of| of.mapped)
        && let Some(start) = NonNull::new(start as *mut c_void)
    {
        // SAFETY: mapped for this registration alone.
        let _ = unsafe { munmap(start, bytes) };
    }
    0
}
