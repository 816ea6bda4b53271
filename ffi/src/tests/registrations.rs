//! Memory of the caller's own that other ranks map: memory that is refused, reductions in it, and no use of it after
//! it was deregistered.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Barrier;

use super::*;

const PAGE: usize = 4096;
/// Enough elements that buffers are mapped.
const COUNT: usize = 64 << 10;
const BYTES: usize = COUNT * 4;

/// A memory file.
struct File(OwnedFd);

impl File {
    fn new(bytes: usize, seals: c_int) -> Self {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a name that ends with a zero.
        let fd = unsafe { libc::memfd_create(c"registered-test".as_ptr(), flags) };
        assert!(fd >= 0);
        // SAFETY: it is open and belongs to this test alone.
        let file = File(unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: of an own file.
        assert_eq!(unsafe { libc::ftruncate(fd, bytes as i64) }, 0);
        file.seal(seals);
        file
    }

    fn sealed(bytes: usize) -> Self {
        Self::new(bytes, libc::F_SEAL_SHRINK)
    }

    fn seal(&self, seals: c_int) {
        // SAFETY: of an own file.
        assert_eq!(unsafe { libc::fcntl(self.fd(), libc::F_ADD_SEALS, seals) }, 0);
    }

    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// How many times it is mapped into this process.
    fn mappings(&self) -> usize {
        // SAFETY: plain numbers, for which zeros are fine.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the place is writable.
        assert_eq!(unsafe { libc::fstat(self.fd(), &mut status) }, 0);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
        let inode = status.st_ino.to_string();
        let is_it = |line: &&str| {
            line.contains("/memfd:registered-test") && line.split_ascii_whitespace().nth(4) == Some(&inode)
        };
        maps.lines().filter(is_it).count()
    }
}

/// Pages of a file, or of nothing; unmapped on drop.
struct Pages {
    start: *mut c_void,
    bytes: usize,
}

impl Pages {
    fn map(file: Option<&File>, bytes: usize, flags: c_int, access: c_int) -> Self {
        let fd = file.map_or(-1, File::fd);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(null_mut(), bytes, access, flags, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Pages { start, bytes }
    }

    fn shared(file: &File, bytes: usize) -> Self {
        Self::map(Some(file), bytes, libc::MAP_SHARED, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Another file at the same addresses.
    fn replace(&mut self, file: &File) {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: in the place of an own mapping, to which no reference is left.
        let start = unsafe { libc::mmap(self.start, self.bytes, access, flags, file.fd(), 0) };
        assert_eq!(start, self.start);
    }

    fn numbers(&mut self) -> &mut [i32] {
        // SAFETY: that many bytes are mapped, readable and writable, for any bits; other ranks write them during
        // calls only.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes / 4) }
    }

    fn register(&self, file: &File) -> *mut c_void {
        let mut handle = null_mut();
        ok!(consortMemRegisterFd(self.start, self.bytes, file.fd(), 0, &mut handle));
        assert!(!handle.is_null());
        handle
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: an own mapping.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

#[test]
fn what_others_could_not_map_is_refused() {
    let file = File::sealed(4 * PAGE);
    let pages = Pages::shared(&file, 4 * PAGE);
    let mut handle = std::ptr::without_provenance_mut(5);
    let mut try_at = |start: *mut c_void, bytes: usize, fd: RawFd, offset: u64| {
        let status = c!(consortMemRegisterFd(start, bytes, fd, offset, &mut handle));
        assert_eq!(handle.addr(), 5, "nothing is written");
        status
    };
    let (start, fd) = (pages.start, file.fd());
    let within = c!(start.cast::<u8>().add(PAGE).cast());
    refused(try_at(null_mut(), PAGE, fd, 0), "it is nothing");
    refused(try_at(start, 0, fd, 0), "it is nothing");
    refused(try_at(start, PAGE, -1, 0), "descriptor -1 is not open");
    refused(try_at(start, PAGE, 1 << 20, 0), "descriptor 1048576 is not open");
    refused(try_at(start, PAGE, i32::MIN, 0), "is not open");
    refused(try_at(start, PAGE - 1, fd, 0), "whole pages");
    refused(try_at(start, PAGE, fd, 5), "whole pages");
    refused(try_at(c!(start.cast::<u8>().add(64).cast()), PAGE, fd, 0), "whole pages");
    refused(try_at(start, 5 * PAGE, fd, 0), "the file ends before");
    refused(try_at(start, PAGE, fd, 4 * PAGE as u64), "the file ends before");
    refused(try_at(start, PAGE, fd, u64::MAX - 4095), "the file ends before");
    refused(try_at(start, usize::MAX - 4095, fd, 0), "the file ends before");
    refused(try_at(within, PAGE, fd, 0), "another part of the file");
    refused(try_at(std::ptr::without_provenance_mut(PAGE), PAGE, fd, 0), "not all of it is mapped");
    refused(c!(consortMemRegisterFd(start, PAGE, fd, 0, null_mut())), "handle is null");

    let access = libc::PROT_READ | libc::PROT_WRITE;
    let private = Pages::map(Some(&file), PAGE, libc::MAP_PRIVATE, access);
    refused(try_at(private.start, PAGE, fd, 0), "private (MAP_PRIVATE)");
    let read = Pages::map(Some(&file), PAGE, libc::MAP_SHARED, libc::PROT_READ);
    refused(try_at(read.start, PAGE, fd, 0), "not readable and writable");
    let other = Pages::map(None, PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, access);
    refused(try_at(other.start, PAGE, fd, 0), "something else than the file");

    let ordinary = std::fs::File::open("/proc/self/exe").expect("this program");
    refused(try_at(start, PAGE, ordinary.as_raw_fd(), 0), "not of a memory file");
    refused(try_at(start, PAGE, File::new(PAGE, 0).fd(), 0), "could be truncated");
    let finished = File::sealed(PAGE);
    let seen = Pages::shared(&finished, PAGE);
    finished.seal(libc::F_SEAL_FUTURE_WRITE);
    refused(try_at(seen.start, PAGE, finished.fd(), 0), "read and write it");
    let again = std::fs::File::open(format!("/proc/self/fd/{fd}")).expect("the file, to be read");
    refused(try_at(start, PAGE, again.as_raw_fd(), 0), "read and write it");
    for foreign in [1, 5, 0x5_c003 << 44, usize::MAX] {
        refused(
            consortMemDeregister(std::ptr::without_provenance_mut(foreign)),
            "foreign, or was deregistered",
        );
    }
}

#[test]
fn memory_is_registered_once_and_deregistered_once() {
    let file = File::sealed(4 * PAGE);
    let pages = Pages::shared(&file, 4 * PAGE);
    let first = pages.register(&file);
    let mut handle = null_mut();
    let mut again = || c!(consortMemRegisterFd(pages.start, PAGE, file.fd(), 0, &mut handle));
    refused(again(), "a part of it is registered already");
    refused(consortStreamDestroy(first), "the stream is null, destroyed or not");
    assert_eq!(consortMemDeregister(first), OK);
    refused(consortMemDeregister(first), "was deregistered");
    assert_eq!(again(), OK, "{}", last_error());
    assert_ne!(handle, first);
    refused(consortMemDeregister(first), "was deregistered");
    assert_eq!(consortMemDeregister(handle), OK);
    assert_eq!(consortMemDeregister(null_mut()), OK);
    // Memory of ncclMemAlloc is registered already.
    let mut given = null_mut();
    ok!(ncclMemAlloc(&mut given, PAGE));
    refused(c!(consortMemRegisterFd(given, PAGE, file.fd(), 0, &mut handle)), "something else than the file");
    ok!(ncclMemFree(given));
}

#[test]
fn registered_memory_is_reduced_where_it_is() {
    ranks(2, |rank, comm| {
        let file = File::sealed(BYTES);
        let mut pages = Pages::shared(&file, BYTES);
        let handle = pages.register(&file);
        for round in 1..5 {
            pages.numbers().iter_mut().zip(0..).for_each(|(place, at)| *place = at * (rank + 1) + round);
            assert_eq!(reduce(pages.numbers(), SUM, comm, NO_STREAM), OK, "{}", last_error());
            assert!(pages.numbers().iter().zip(0..).all(|(found, at)| *found == 3 * at + 2 * round));
        }
        assert!(file.mappings() >= 2, "no rank has mapped it");
        assert_eq!(consortMemDeregister(handle), OK);
        // From now on it is ordinary memory.
        pages.numbers().fill(rank);
        assert_eq!(reduce(pages.numbers(), SUM, comm, NO_STREAM), OK, "{}", last_error());
        assert!(pages.numbers().iter().all(|found| *found == 1));
    });
}

/// Other memory at the same addresses: no rank may read or write the old memory any more. Both ranks must have it at
/// the same addresses, as the old memory must hold wrong values.
#[test]
fn memory_at_the_same_addresses_is_not_taken_for_what_was_there() {
    let both = Barrier::new(2);
    ranks(2, move |rank, comm| {
        let before = File::sealed(BYTES);
        let mut pages = Pages::shared(&before, BYTES);
        let mut old = Pages::shared(&before, BYTES);
        for round in 0..40 {
            let after = File::sealed(BYTES);
            let handle = pages.register(&before);
            pages.numbers().fill(1);
            assert_eq!(reduce(pages.numbers(), SUM, comm, NO_STREAM), OK, "{}", last_error());
            assert!(pages.numbers().iter().all(|found| *found == 2), "round {round}");
            assert_eq!(consortMemDeregister(handle), OK);
            pages.replace(&after);
            old.numbers().fill(1_000_000);
            pages.numbers().fill(rank + 5 + round);
            // Registered as other memory, or not at all.
            let handle = if round % 2 == 0 { pages.register(&after) } else { null_mut() };
            both.wait();
            assert_eq!(reduce(pages.numbers(), SUM, comm, NO_STREAM), OK, "{}", last_error());
            let wrong = pages.numbers().iter().position(|found| *found != 11 + 2 * round);
            assert_eq!(wrong, None, "round {round}: {:?}", wrong.map(|at| pages.numbers()[at]));
            both.wait();
            assert!(
                old.numbers().iter().all(|found| *found == 1_000_000),
                "a rank wrote there, round {round}"
            );
            assert_eq!(consortMemDeregister(handle), OK);
            pages.replace(&before);
        }
    });
}
