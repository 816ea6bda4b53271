//! Memory of this process that the processes beside it can map: a sealed memory file, found again by its addresses.
//!
//! Invariant: what [`find`] gives is mapped here from that very file, at that very place in it, and stays so while the
//! [`Area`] is not [spent](Area::is_spent). An address is in one area at most. Peers that still have freed memory
//! mapped hold pages of nothing: the file is emptied when its memory is freed. Absent: who maps it, and how its
//! descriptor gets there.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FallocateFlags, FcntlArg, fallocate, fcntl};
use nix::sys::mman::{MRemapFlags, MmapAdvise, madvise, mremap};

use crate::held::{Buffer, sealed};
use crate::{Mapping, MemoryError, Plain, SpanMut, maps};

/// Bytes of a page; areas begin and end with one.
const PAGE: usize = 4096;

/// All areas by their first address.
static AREAS: Mutex<BTreeMap<usize, Arc<Area>>> = Mutex::new(BTreeMap::new());
/// Changes whenever an area comes or goes, so that what [`find`] gave can be kept as long as it does not.
static EPOCH: AtomicU64 = AtomicU64::new(1);

fn areas() -> MutexGuard<'static, BTreeMap<usize, Arc<Area>>> {
    AREAS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that other processes can map.
#[derive(Debug)]
pub struct Area {
    /// Unlike that of any other area that this process has or had.
    key: u64,
    start: usize,
    bytes: usize,
    /// Where in the file it begins.
    file_offset: usize,
    file: OwnedFd,
    spent: AtomicBool,
}

impl Area {
    fn new(start: usize, bytes: usize, file: OwnedFd, file_offset: usize) -> Self {
        static KEYS: AtomicU64 = AtomicU64::new(1);
        // Relaxed: keys only have to differ.
        let key = KEYS.fetch_add(1, Ordering::Relaxed);
        Area { key, start, bytes, file_offset, file, spent: AtomicBool::new(false) }
    }

    /// Its name in this process.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Its first address.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory file that it lies in.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where in the file it begins, in bytes; whole pages.
    pub fn file_offset(&self) -> usize {
        self.file_offset
    }

    /// Whether it is no longer what peers see in its file.
    #[inline]
    pub fn is_spent(&self) -> bool {
        // Relaxed: set by the user of the memory, between two uses of it.
        self.spent.load(Ordering::Relaxed)
    }

    /// Detaches this process's view of `bytes` bytes at `start` from what peers see: a peer that writes late writes to pages
    /// that have no owner. What is there stays. The area is spent afterwards: peers would see other memory. Nothing happens
    /// to memory that was freed.
    ///
    /// Whatever shares the pages of these addresses is detached too. What another thread writes to them during the call
    /// may be lost.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`] when there is no memory for the copy; then peers still see it.
    ///
    /// # Panics
    /// If the addresses are not inside the area.
    pub fn detach(&self, start: usize, bytes: usize) -> Result<(), MemoryError> {
        // While it is held the memory is not freed: the area is taken out first.
        let areas = areas();
        let is_mapped = areas.get(&self.start).is_some_and(|found| found.key == self.key);
        let end = start + bytes;
        assert!(self.start <= start && end <= self.start + self.bytes, "an area parted outside itself");
        if bytes == 0 || !is_mapped {
            return Ok(());
        }
        let first = start / PAGE * PAGE;
        let bytes = end.next_multiple_of(PAGE) - first;
        let copy = Mapping::anonymous(bytes)?;
        self.spent.store(true, Ordering::Relaxed);
        EPOCH.fetch_add(1, Ordering::Release);
        let fixed = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
        let here = NonNull::new(first as *mut std::ffi::c_void).expect("areas are not at address 0");
        let from = NonNull::new(copy.span(0, bytes).as_mut_ptr()).expect("mappings are not null");
        // SAFETY: whole pages of the area (areas are whole pages), which is mapped, readable and writable as long as the
        // lock is held. They are read while peers may write them: what is being written is unspecified either way.
        unsafe { std::ptr::copy_nonoverlapping(here.as_ptr().cast::<u8>(), from.as_ptr(), bytes) };
        // SAFETY: replaces pages by those of the copy, which hold the same bytes, in one step; addresses stay valid.
        let moved = unsafe { mremap(from.cast(), bytes, bytes, fixed, Some(here)) };
        moved.map_err(|error| MemoryError::System { call: "mremap", source: error.into() })?;
        // Its pages are the area's now.
        std::mem::forget(copy);
        Ok(())
    }
}

/// The area that holds all of these addresses, if one does.
pub fn find(start: usize, bytes: usize) -> Option<Arc<Area>> {
    let areas = areas();
    let (_, area) = areas.range(..=start).next_back()?;
    let end = start.checked_add(bytes)?;
    (end <= area.start + area.bytes && !area.is_spent()).then(|| area.clone())
}

/// What [`find`] gave is still right if this has not changed.
#[inline]
pub fn epoch() -> u64 {
    // Acquire: pairs with the Release where it is changed.
    EPOCH.load(Ordering::Acquire)
}

fn insert(area: Area) -> Result<Arc<Area>, Area> {
    let mut areas = areas();
    let before = areas.range(..=area.start).next_back().map(|(_, area)| area);
    let after = areas.range(area.start..).next().map(|(_, area)| area);
    let meets =
        |other: &Arc<Area>| other.start < area.start + area.bytes && area.start < other.start + other.bytes;
    if before.is_some_and(meets) || after.is_some_and(meets) {
        return Err(area);
    }
    let area = Arc::new(area);
    areas.insert(area.start, area.clone());
    EPOCH.fetch_add(1, Ordering::Release);
    Ok(area)
}

fn remove(area: &Arc<Area>) {
    let mut areas = areas();
    if areas.get(&area.start).is_some_and(|found| Arc::ptr_eq(found, area)) {
        areas.remove(&area.start);
    }
    EPOCH.fetch_add(1, Ordering::Release);
}

/// Zeroed memory that the processes beside this one can map: [`SharedBuffer`] without a type.
///
/// A child of `fork` shares it with its parent, as all shared memory; only who made it gives its pages back.
#[derive(Debug)]
pub struct SharedMemory {
    mapping: Mapping,
    area: Arc<Area>,
    /// The process that made it.
    maker: u32,
}

impl SharedMemory {
    /// `bytes` bytes, in large pages where the system gives them to memory files.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`] when the pages cannot all be had now; [`MemoryError::System`].
    pub fn new(bytes: usize) -> Result<Self, MemoryError> {
        let mapping = Mapping::memfd(c"consort-buffer", bytes)?;
        let start = mapping.span(0, bytes).as_mut_ptr();
        let whole = bytes.max(1).next_multiple_of(PAGE);
        // SAFETY: advice about a mapping of our own. Systems without large pages for files refuse it.
        let _ = unsafe {
            madvise(
                NonNull::new(start.cast()).expect("mappings are not null"),
                whole,
                MmapAdvise::MADV_HUGEPAGE,
            )
        };
        let file = mapping.fd().expect("a memory file").try_clone_to_owned();
        let file = file.map_err(|source| MemoryError::System { call: "dup", source })?;
        let area = insert(Area::new(start as usize, whole, file, 0))
            .unwrap_or_else(|area| unreachable!("{area:?} was just mapped, where something else is"));
        Ok(Self { mapping, area, maker: std::process::id() })
    }

    /// All of it.
    pub fn span(&self) -> SpanMut<'_> {
        self.mapping.span(0, self.mapping.bytes())
    }

    /// Whether this process is a fork of the one that made it.
    fn is_inherited(&self) -> bool {
        self.maker != std::process::id()
    }

    /// How it is found again.
    pub fn area(&self) -> &Arc<Area> {
        &self.area
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // A child shares the file with its parent, which goes on using it.
        if self.is_inherited() {
            return;
        }
        remove(&self.area);
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let length = i64::try_from(self.area.bytes).unwrap_or(i64::MAX);
        // What peers have mapped becomes pages of nothing.
        let _ = fallocate(&self.area.file, hole, 0, length);
    }
}

/// Memory of the caller, found by its addresses as long as this lives.
#[derive(Debug)]
pub struct Registered {
    area: Arc<Area>,
}

impl Registered {
    /// Tells which file `bytes` bytes at `start` are mapped from, and where in it they begin. The descriptor may be closed
    /// afterwards.
    ///
    /// # Errors
    /// [`MemoryError::NotRegistrable`] for what is no whole pages, is registered already, is not mapped from there, shared,
    /// readable and writable, and for a file that others could not map or that could be made shorter;
    /// [`MemoryError::System`] when the descriptor cannot be kept.
    ///
    /// # Safety
    /// The addresses must stay mapped from there, shared, readable and writable, until this is dropped, and peers may write
    /// to them during collectives that were given a part of them. It must not be dropped while such a collective runs.
    pub unsafe fn new(
        start: *mut u8,
        bytes: usize,
        file: BorrowedFd<'_>,
        file_offset: usize,
    ) -> Result<Self, MemoryError> {
        let start = start as usize;
        let refused = |what, hint| Err(MemoryError::NotRegistrable { start, bytes, what, hint });
        if start == 0 || bytes == 0 {
            return refused("it is nothing", "pass where the file is mapped, and how much of it");
        }
        if [start, bytes, file_offset].iter().any(|place| !place.is_multiple_of(PAGE)) {
            let what = "address, length and offset must be whole pages of 4096 bytes";
            return refused(what, "register the pages that the memory lies in");
        }
        let Ok(seals) = fcntl(file, FcntlArg::F_GET_SEALS) else {
            return refused("the descriptor is not of a memory file", "pass one that memfd_create made");
        };
        if seals & libc::F_SEAL_SHRINK == 0 {
            let hint = "create it with MFD_ALLOW_SEALING and add F_SEAL_SHRINK with fcntl(F_ADD_SEALS)";
            return refused("the file could be truncated", hint);
        }
        let mode = fcntl(file, FcntlArg::F_GETFL).unwrap_or(0);
        let is_writable = mode & libc::O_ACCMODE == libc::O_RDWR;
        if seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0 || !is_writable {
            let hint = "pass a descriptor that was opened for both, of a file without F_SEAL_WRITE and F_SEAL_FUTURE_WRITE";
            return refused("others could not map the file to read and write it", hint);
        }
        let status = nix::sys::stat::fstat(file)
            .map_err(|error| MemoryError::System { call: "fstat", source: error.into() })?;
        let is_inside = file_offset
            .checked_add(bytes)
            .is_some_and(|end| end as u64 <= u64::try_from(status.st_size).unwrap_or(0));
        if !is_inside {
            return refused(
                "the file ends before",
                "pass the offset that was given to mmap, and not more than there is",
            );
        }
        if let Some(what) = maps::difference(start, bytes, &status, file_offset) {
            let hint =
                "map the file with PROT_READ | PROT_WRITE and MAP_SHARED, and pass what was given to mmap";
            return refused(what, hint);
        }
        let file = file.try_clone_to_owned().map_err(|source| MemoryError::System { call: "dup", source })?;
        match insert(Area::new(start, bytes, file, file_offset)) {
            Ok(area) => Ok(Self { area }),
            Err(_) => refused(
                "a part of it is registered already, or the library's own",
                "register memory once, and deregister it before it is registered otherwise",
            ),
        }
    }

    /// How it is found again.
    pub fn area(&self) -> &Arc<Area> {
        &self.area
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        remove(&self.area);
    }
}

/// A buffer of elements in memory that the ranks beside this one can map, so that collectives on it move every byte the
/// fewest times. It is a slice in all other respects.
#[derive(Debug)]
pub struct SharedBuffer<T: Plain> {
    memory: SharedMemory,
    elements: usize,
    life: PhantomData<T>,
}

// SAFETY: it owns its memory, as a vector does; peers write it only during calls that were given the slice.
unsafe impl<T: Plain> Send for SharedBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for SharedBuffer<T> {}

impl<T: Plain> SharedBuffer<T> {
    /// `elements` elements, all bytes zero.
    ///
    /// # Errors
    /// As [`SharedMemory::new`].
    pub fn new(elements: usize) -> Result<Self, MemoryError> {
        let bytes = elements.checked_mul(size_of::<T>()).ok_or(MemoryError::OutOfMemory {
            needed_bytes: usize::MAX,
            what: "a shared buffer",
            source: std::io::Error::from_raw_os_error(libc::ENOMEM),
        })?;
        const { assert!(align_of::<T>() <= PAGE) };
        Ok(Self { memory: SharedMemory::new(bytes)?, elements, life: PhantomData })
    }
}

impl<T: Plain> sealed::Sealed for SharedBuffer<T> {}
impl<T: Plain> Buffer for SharedBuffer<T> {
    type Element = T;
    /// It has no reference to its elements.
    type Kept = Self;

    fn keep(self) -> (Self, NonNull<u8>, usize) {
        let start = NonNull::new(self.memory.span().as_mut_ptr()).expect("mappings are not null");
        let bytes = self.elements * size_of::<T>();
        (self, start, bytes)
    }

    fn back(kept: Self) -> Self {
        kept
    }

    fn none() -> Self {
        SharedBuffer::new(0).expect("a page of memory")
    }
}

impl<T: Plain> Deref for SharedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds that many elements, aligned to a page; any bits are elements; nothing writes them
        // while the slice is borrowed: peers do so only during a call that borrows it exclusively, and a call that
        // fails parts the memory from peers that may not have stopped.
        unsafe { std::slice::from_raw_parts(self.memory.span().as_mut_ptr().cast(), self.elements) }
    }
}

impl<T: Plain> DerefMut for SharedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.memory.span().as_mut_ptr().cast(), self.elements) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::Span;

    /// Held by every test here: areas and their epoch are the process's.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn memory_is_found_by_any_of_its_addresses_until_it_is_freed() {
        let _alone = alone();
        let mut buffer = SharedBuffer::<u32>::new(3000).expect("memory");
        buffer[2999] = 7;
        let start = buffer.as_ptr() as usize;
        let before = epoch();
        let area = find(start + 4, 11_996).expect("it is inside");
        assert_eq!((area.start(), area.bytes(), area.file_offset()), (start, 12_288, 0));
        assert!(find(start + 4, 12_288).is_none() && find(start - 1, 4).is_none());
        let peer = Mapping::from_fd(area.file(), area.bytes()).expect("it is sealed");
        let mut seen = [0u32];
        SpanMut::of(&mut seen).copy_from(peer.span(2999 * 4, 4).read());
        assert_eq!(seen, [7]);
        assert_eq!(epoch(), before);
        drop(buffer);
        assert!(epoch() != before && find(start, 4).is_none());
        SpanMut::of(&mut seen).copy_from(peer.span(2999 * 4, 4).read());
        assert_eq!(seen, [0], "what peers still have mapped is nothing");
    }

    #[test]
    fn detached_memory_keeps_its_bytes_and_is_no_longer_the_peers() {
        let _alone = alone();
        let mut buffer = SharedBuffer::<u8>::new(5 * PAGE).expect("memory");
        buffer.fill(3);
        let area = find(buffer.as_ptr() as usize, buffer.len()).expect("an area");
        let peer = Mapping::from_fd(area.file(), area.bytes()).expect("it is sealed");
        area.detach(buffer.as_ptr() as usize + PAGE + 10, PAGE).expect("it is detached");
        assert!(area.is_spent() && find(buffer.as_ptr() as usize, 1).is_none());
        peer.span(0, 5 * PAGE).copy_from(Span::of(&[9u8; 5 * PAGE]));
        assert!(buffer[..PAGE].iter().all(|byte| *byte == 9));
        assert!(buffer[PAGE..3 * PAGE].iter().all(|byte| *byte == 3));
        assert!(buffer[3 * PAGE..].iter().all(|byte| *byte == 9));
        buffer.fill(4);
    }

    /// Why a registration is refused.
    fn why(registered: Result<Registered, MemoryError>) -> &'static str {
        match registered {
            Err(MemoryError::NotRegistrable { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn memory_of_others_is_registered_once_and_only_if_it_cannot_shrink() {
        let _alone = alone();
        let mapping = Mapping::memfd(c"test", 4 * PAGE).expect("memory");
        let start = mapping.span(0, 4 * PAGE).as_mut_ptr();
        let file = mapping.fd().expect("a file");
        // SAFETY: mapped from there, and so until the test is over.
        let register = |bytes: usize, offset: usize| unsafe { Registered::new(start, bytes, file, offset) };
        assert!(
            why(register(PAGE + 1, 0)).contains("whole pages") && why(register(0, 0)).contains("nothing")
        );
        assert!(why(register(PAGE, 7)).contains("whole pages"));
        assert_eq!(why(register(8 * PAGE, 0)), "the file ends before");
        assert_eq!(why(register(PAGE, usize::MAX - PAGE + 1)), "the file ends before");
        assert_eq!(why(register(PAGE, PAGE)), "the mapping is of another part of the file");
        let first = register(2 * PAGE, 0).expect("it is sealed");
        assert!(why(register(PAGE, 0)).contains("registered already"));
        assert_eq!(find(start as usize + 5, 7).map(|area| area.key()), Some(first.area().key()));
        drop(first);
        assert!(find(start as usize, 1).is_none());
        let open =
            nix::sys::memfd::memfd_create(c"open", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).expect("a file");
        // SAFETY: refused before anything is used.
        let refused = |file| why(unsafe { Registered::new(start, PAGE, file, 0) });
        assert_eq!(refused(open.as_fd()), "the file could be truncated");
        let none = std::fs::File::open("/proc/self/maps").expect("procfs");
        assert_eq!(refused(none.as_fd()), "the descriptor is not of a memory file");
        let other = Mapping::memfd(c"other", 4 * PAGE).expect("memory");
        let other = other.fd().expect("a file");
        assert_eq!(refused(other), "something else than the file is mapped there");
        let read =
            std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("the file again");
        assert_eq!(refused(read.as_fd()), "others could not map the file to read and write it");
    }

    #[test]
    fn memory_registered_again_has_another_name() {
        let _alone = alone();
        let mapping = Mapping::memfd(c"test", PAGE).expect("memory");
        let start = mapping.span(0, PAGE).as_mut_ptr();
        // SAFETY: mapped from there, and so until the test is over.
        let register = || unsafe { Registered::new(start, PAGE, mapping.fd().expect("a file"), 0) };
        let (first, before) = (register().expect("it is sealed"), epoch());
        let key = first.area().key();
        drop(first);
        assert_ne!(epoch(), before, "who keeps what was found asks again");
        let between = epoch();
        let again = register().expect("it is not registered any more");
        assert!(again.area().key() != key && epoch() != between);
    }

    #[test]
    fn a_forked_child_gives_no_pages_back() {
        let _alone = alone();
        let shared = SharedMemory::new(8192).expect("memory");
        shared.span().copy_from(Span::of(&[7u8; 8192]));
        // SAFETY: the child does nothing but free and end.
        match unsafe { nix::unistd::fork() }.expect("fork") {
            nix::unistd::ForkResult::Child => {
                drop(shared);
                // SAFETY: ends the child without what the parent's threads registered.
                unsafe { libc::_exit(0) }
            }
            nix::unistd::ForkResult::Parent { child } => {
                nix::sys::wait::waitpid(child, None).expect("the child ends");
                let mut found = [0u8; 8192];
                SpanMut::of(&mut found).copy_from(shared.span().read());
                assert_eq!(found, [7u8; 8192]);
            }
        }
    }
}
