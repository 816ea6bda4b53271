//! Mappings, stamps and held memory, from outside.

use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use consort_memory::sync::Exclusive;
use consort_memory::{ForkStamp, Held, HeldRead, Lease, Mapping, MemoryError, Span, SpanMut, lend};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

fn bytes_of(span: Span<'_>) -> Vec<u8> {
    let mut copy = vec![0; span.len()];
    SpanMut::of(&mut copy).copy_from(span);
    copy
}

#[test]
fn a_memory_file_is_the_same_memory_on_both_sides() {
    let here = Arc::new(Mapping::memfd(c"test", 10_000).unwrap());
    let there = Arc::new(Mapping::from_fd(here.fd().unwrap(), 10_000).unwrap());
    assert!(there.fd().is_none());
    assert_eq!((here.bytes(), there.bytes()), (10_000, 10_000));
    assert_eq!(bytes_of(there.span(0, 10_000).read()), [0; 10_000]);
    here.span(9_999, 1).copy_from(Span::of(&[5u8]));
    assert_eq!(bytes_of(there.span(9_999, 1).read()), [5]);
    here.counter(128).raise(4, 44);
    assert_eq!((there.counter(128).value(), there.counter(128).tag(4)), (4, 44));
    drop(here);
    assert_eq!(there.counter(128).value(), 4);
}

#[test]
fn nobody_can_truncate_or_grow_it() {
    let mut mapping = Mapping::memfd(c"test", 8192).unwrap();
    let file: OwnedFd = mapping.take_fd().unwrap();
    for length in [0, 4096, 16_384] {
        assert_eq!(ftruncate(&file, length), Err(nix::Error::EPERM));
    }
    let flags = fcntl(&file, FcntlArg::F_GETFD).unwrap();
    assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
}

#[test]
fn files_that_could_fault_are_refused() {
    let refused = |file: &OwnedFd, bytes| {
        matches!(Mapping::from_fd(file.as_fd(), bytes), Err(MemoryError::NotSealed { .. }))
    };
    let unsealed = memfd_create(c"test", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    ftruncate(&unsealed, 8192).unwrap();
    assert!(refused(&unsealed, 8192));
    let other = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    assert!(refused(&other, 4096));
    let good = Mapping::memfd(c"test", 8192).unwrap().take_fd().unwrap();
    assert!(!refused(&good, 8192));
    assert!(refused(&good, 8193));
    assert!(refused(&good, usize::MAX / 2));
}

#[test]
fn what_cannot_be_had_is_a_typed_error() {
    for bytes in [usize::MAX, usize::MAX / 2, 1 << 50, 1 << 42] {
        match Mapping::memfd(c"test", bytes) {
            Err(MemoryError::OutOfMemory { needed_bytes, .. }) => assert_eq!(needed_bytes, bytes),
            other => panic!("{other:?}"),
        }
    }
    for bytes in [usize::MAX, 1 << 50] {
        assert!(matches!(Mapping::anonymous(bytes), Err(MemoryError::OutOfMemory { .. })));
    }
}

#[test]
fn spans_and_counters_stay_inside() {
    let mapping = Arc::new(Mapping::anonymous(130).unwrap());
    for (offset, bytes) in [(0, 131), (131, 0), (130, 1), (usize::MAX, 2)] {
        let mapping = Arc::clone(&mapping);
        assert!(std::panic::catch_unwind(move || mapping.span(offset, bytes).len()).is_err());
    }
    for offset in [1, 63, 128, 192, usize::MAX - 63] {
        let mapping = Arc::clone(&mapping);
        assert!(std::panic::catch_unwind(move || mapping.counter(offset)).is_err(), "{offset}");
    }
    assert_eq!(mapping.counter(64).value(), 0);
}

#[test]
fn a_forked_child_knows() {
    let stamp = ForkStamp::new().unwrap();
    assert!(!stamp.is_forked_child());
    // SAFETY: the children only load, fork, wait and leave.
    let status = unsafe {
        match libc::fork() {
            0 => {
                let child = stamp.is_forked_child();
                let grandchild = match libc::fork() {
                    0 => libc::_exit(i32::from(!stamp.is_forked_child())),
                    process => wait_for(process) == 0,
                };
                libc::_exit(i32::from(!(child && grandchild)));
            }
            process => wait_for(process),
        }
    };
    assert_eq!(status, 0);
    assert!(!stamp.is_forked_child());
}

fn wait_for(process: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for our own child and writes one int.
    unsafe { libc::waitpid(process, &raw mut status, 0) };
    status
}

#[test]
fn a_lease_gives_the_vector_back_when_nobody_uses_it() {
    let lease = Lease::new(vec![1u32, 2, 3]);
    let held = lease.hold();
    held.span().slice(4, 4).copy_from(Span::of(&[9u32]));
    let second = held.clone();
    drop(held);
    let lease = lease.try_take().unwrap_err();
    let reader = HeldRead::from(second);
    let lease = lease.try_take().unwrap_err();
    drop(reader);
    assert_eq!(lease.try_take().unwrap(), [1, 9, 3]);
    assert_eq!(Lease::new(Vec::<u8>::new()).try_take().unwrap(), []);
}

#[test]
fn a_forgotten_lease_keeps_its_memory() {
    let lease = Lease::new(vec![7u8; 4096]);
    let held = lease.hold();
    std::mem::forget(lease);
    held.span().slice(0, 1).copy_from(Span::of(&[1u8]));
    assert_eq!(bytes_of(held.read())[..2], [1, 7]);
    let lease = Lease::new(vec![7u8; 4096]);
    let held = lease.hold();
    drop(lease);
    assert_eq!(bytes_of(held.read()), [7; 4096]);
}

#[test]
fn lend_waits_for_what_it_lent() {
    let (give, take) = mpsc::channel::<(Held, HeldRead)>();
    let user = std::thread::spawn(move || {
        let (held, read) = take.recv().unwrap();
        std::thread::sleep(Duration::from_millis(30));
        held.span().copy_from(read.read());
    });
    let from = [1u8, 2, 3];
    let mut to = [0u8; 3];
    let answer = lend(|lender| {
        give.send((lender.share_mut(&mut to), lender.share(&from))).unwrap();
        5
    });
    assert_eq!((answer, to), (5, from));
    user.join().unwrap();
}

#[test]
fn lend_waits_also_when_it_unwinds() {
    let (give, take) = mpsc::channel::<Held>();
    let user = std::thread::spawn(move || {
        let held = take.recv().unwrap();
        std::thread::sleep(Duration::from_millis(30));
        held.span().copy_from(Span::of(&[4u8]));
    });
    let mut to = [0u8];
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        lend(|lender| {
            give.send(lender.share_mut(&mut to)).unwrap();
            panic!("on purpose");
        })
    }));
    assert!(outcome.is_err());
    assert_eq!(to, [4]);
    user.join().unwrap();
}

#[test]
fn an_exclusive_is_given_back_also_by_a_panic() {
    let shared = Exclusive::new(1);
    {
        let mut value = shared.try_acquire().unwrap();
        assert!(shared.try_acquire().is_none());
        *value += 1;
    }
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _value = shared.try_acquire().unwrap();
        panic!("on purpose");
    }));
    assert!(outcome.is_err());
    assert_eq!(shared.try_acquire().map(|value| *value), Some(2));
    assert_eq!(shared.into_inner(), 2);
}
