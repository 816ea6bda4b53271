//! Ordinary memory that a program has registered, which the device reads where it is.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use consort_memory::UserBuffer;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::sys::wait::{WaitStatus, waitpid};

use super::memory::{BYTES, Pair, arrived, fill_from, is_free_soon, pair};
use super::*;

/// Memory of a program that has no area: pages at a place that can be freed, and mapped anew.
struct Pages {
    start: NonNull<u8>,
    flags: MapFlags,
}

impl Pages {
    fn map(place: usize, flags: MapFlags) -> NonNull<u8> {
        let bytes = NonZeroUsize::new(BYTES).expect("some");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: wherever there is room, or where the pages of this test were.
        let start = unsafe { mmap_anonymous(NonZeroUsize::new(place), bytes, protection, flags) };
        start.expect("memory").cast()
    }

    fn private() -> Self {
        Pages { start: Self::map(0, MapFlags::MAP_PRIVATE), flags: MapFlags::MAP_PRIVATE }
    }

    /// Such as the stand-in can keep when they are freed.
    fn shared() -> Self {
        Pages { start: Self::map(0, MapFlags::MAP_SHARED), flags: MapFlags::MAP_SHARED }
    }

    fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Other pages at the same place.
    fn replace(&mut self) {
        self.start = Self::map(self.address(), self.flags | MapFlags::MAP_FIXED);
    }

    fn fill(&mut self, value: u8) {
        // SAFETY: mapped, and nothing reads them by a reference.
        unsafe { self.start.as_ptr().write_bytes(value, BYTES) };
    }

    fn registered(&self, offset: usize, bytes: usize) -> UserBuffer {
        UserBuffer::new(self.address() + offset, bytes).expect("a buffer")
    }

    fn source(&self, offset: usize, bytes: usize) -> Span<'_> {
        // SAFETY: the pages are mapped, and changed only between fills.
        unsafe { Span::from_raw(self.start.as_ptr().add(offset), bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped above.
        let _ = unsafe { munmap(self.start.cast(), BYTES) };
    }
}

impl Pair {
    /// Fills from a part of the pages, and waits until it has arrived; whether it was written from where it is.
    fn sends(&mut self, pages: &Pages, offset: usize, bytes: usize, (value, byte): (u64, u8)) -> bool {
        let number = fill_from(&mut self.sides, pages.source(offset, bytes), value);
        is_free_soon(&mut self.sides, number);
        assert!(arrived(&mut self.sides, value, bytes) == vec![byte; bytes], "fill {value} of {byte}");
        number > 0
    }
}

#[test]
fn registered_memory_is_written_from_where_it_is_until_it_is_deregistered() {
    let (mut pair, mut pages) = (pair(over_standin), Pages::private());
    pages.fill(1);
    assert!(!pair.sends(&pages, 5000, 9000, (1, 1)), "not registered yet");
    let buffer = pages.registered(5000, 9000);
    for (value, (offset, bytes)) in (2..).zip([(5000, 9000), (5001, 1024), (12_976, 1024)]) {
        assert!(pair.sends(&pages, offset, bytes, (value, 1)), "{bytes} at {offset}");
        assert!(standin::was_posted(pair.queues[0], pages.address() + offset, bytes));
    }
    assert_eq!(pair.held()[0], (1, 3 * 4096), "the pages that it lies in, once");
    for (value, (offset, bytes)) in (5..).zip([(4999, 2000), (13_000, 1024)]) {
        assert!(!pair.sends(&pages, offset, bytes, (value, 1)), "a part of it is not registered");
    }
    drop(buffer);
    assert_eq!(pair.held()[0], (0, 0), "given back at once");
    assert!(!pair.sends(&pages, 5000, 9000, (7, 1)));
}

#[test]
fn memory_that_was_freed_and_registered_anew_is_what_is_there_now() {
    let (mut pair, mut pages) = (pair(over_standin), Pages::shared());
    pages.fill(1);
    let first = pages.registered(0, BYTES);
    assert!(pair.sends(&pages, 0, BYTES, (1, 1)));
    // The program breaks its promise, and then gives another, before it takes the first back or after.
    pages.replace();
    pages.fill(2);
    let second = pages.registered(0, BYTES);
    assert!(pair.sends(&pages, 0, BYTES, (2, 2)));
    assert_eq!(pair.held()[0].0, 2);
    drop((first, second));
    assert_eq!(pair.held()[0], (0, 0));
    pages.replace();
    pages.fill(3);
    let _third = pages.registered(0, BYTES);
    assert!(pair.sends(&pages, 0, BYTES, (3, 3)));
    // What the device keeps of pages that were replaced without a word: what the program is warned of.
    pages.replace();
    pages.fill(4);
    assert!(pair.sends(&pages, 0, BYTES, (4, 3)), "the stand-in keeps pages as a device does");
}

#[test]
fn buffers_may_overlap_and_each_is_given_back_alone() {
    let (mut pair, mut pages) = (pair(over_standin), Pages::private());
    pages.fill(6);
    let [whole, part, again] =
        [(0, BYTES), (4096, 8192), (0, BYTES)].map(|(at, of)| pages.registered(at, of));
    let mut value = 0;
    let mut sends = |pair: &mut Pair, offset, bytes| {
        value += 1;
        pair.sends(&pages, offset, bytes, (value, 6))
    };
    assert!(sends(&mut pair, 4096, 8192) && pair.held()[0] == (1, BYTES), "the last that holds it");
    drop(again);
    assert!(pair.held()[0] == (0, 0) && sends(&mut pair, 4096, 8192) && pair.held()[0] == (1, 8192));
    assert!(sends(&mut pair, 4000, 8192) && pair.held()[0] == (2, BYTES + 8192));
    drop(whole);
    assert!(pair.held()[0] == (1, 8192) && sends(&mut pair, 4096, 8192) && !sends(&mut pair, 4000, 8192));
    drop(part);
    assert!(pair.held()[0] == (0, 0) && !sends(&mut pair, 4096, 8192));
}

#[test]
fn a_buffer_that_is_deregistered_while_it_is_read_is_given_back_afterwards() {
    let (mut pair, mut pages) = (pair(over_standin), Pages::private());
    pages.fill(9);
    let buffer = pages.registered(0, BYTES);
    let mut done = 0;
    let number = match pair.sides[0].fill_from(0, pages.source(0, BYTES), (1, 0), &mut done) {
        Ok(Poll::Ready(number)) => number,
        other => panic!("{other:?}"),
    };
    // The number is free only after a look, whatever the device has done by now.
    drop(buffer);
    assert_eq!(pair.held()[0], (1, BYTES), "the device may be reading");
    is_free_soon(&mut pair.sides, number);
    assert!(arrived(&mut pair.sides, 1, BYTES) == [9; BYTES]);
    let private = Pages::private();
    fill_from(&mut pair.sides, private.source(0, BYTES), 2);
    assert_eq!(pair.held()[0], (0, 0), "the next use gives it back");
}

#[test]
fn memory_that_may_not_be_locked_is_copied() {
    let (mut pair, mut pages) = (pair(over_standin), Pages::private());
    pages.fill(3);
    let _buffer = pages.registered(0, BYTES);
    standin::refuse_memory(pair.near.shared.domains[0].port.context, libc::ENOMEM);
    assert!(!pair.sends(&pages, 0, BYTES, (1, 3)));
}

fn hiding() -> Option<Verbs> {
    over_functions(standin::hiding())
}

fn parting() -> Option<Verbs> {
    over_functions(standin::parting())
}

fn silent() -> Option<Verbs> {
    over_functions(standin::older())
}

/// Over another stand-in.
fn over_functions(functions: library::Functions) -> Option<Verbs> {
    let (options, near, sysfs) = (&RdmaOptions::default(), &Near::default(), &nothing());
    let ports = Search { functions, sysfs, options, near }.ports().expect("ports");
    Some(Verbs::over(&ports, 1, 1, None).expect("a transport"))
}

#[test]
fn what_a_fork_would_harm_is_copied() {
    let mut shared = consort_memory::SharedBuffer::<u8>::new(BYTES).expect("memory");
    shared.fill(5);
    // With each kernel and library: whether memory of an area is read where it is, and ordinary memory.
    for (transport, expected) in [
        (over_standin as fn() -> Option<Verbs>, [true, true]),
        (parting, [true, false]),
        (hiding, [false, false]),
        (silent, [false, false]),
    ] {
        let (mut pair, mut pages) = (pair(transport), Pages::private());
        pages.fill(4);
        let _buffer = pages.registered(0, BYTES);
        let number = fill_from(&mut pair.sides, Span::of(&shared[..]), 1);
        is_free_soon(&mut pair.sides, number);
        assert_eq!([number > 0, pair.sends(&pages, 0, BYTES, (2, 4))], expected);
    }
}

/// A fork while memory is registered: the parent's later bytes are sent, and the child has its own.
fn fork(transport: fn() -> Option<Verbs>) {
    let (mut pair, mut pages) = (pair(transport), Pages::private());
    pages.fill(1);
    let _buffer = pages.registered(0, BYTES);
    let is_direct = pair.sends(&pages, 0, BYTES, (1, 1));
    println!("memory that was registered is {} here", if is_direct { "read where it is" } else { "copied" });
    let (until, end) = nix::unistd::pipe().expect("a pipe");
    // SAFETY: the child reads, and ends without what the parent's threads registered.
    match unsafe { nix::unistd::fork() }.expect("a fork") {
        nix::unistd::ForkResult::Child => {
            // The parent has an end of its own.
            drop(end);
            // It lives, and shares what it shares, until the parent has sent.
            let _ = nix::unistd::read(&until, &mut [0]);
            // SAFETY: its own copy of the pages.
            let is_old = (0..BYTES).all(|at| unsafe { pages.start.as_ptr().add(at).read() } == 1);
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!is_old)) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            drop(until);
            pages.fill(2);
            assert_eq!(pair.sends(&pages, 0, BYTES, (2, 2)), is_direct);
            drop(end);
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)), "what the child sees");
        }
    }
}

#[test]
fn after_a_fork_the_parents_bytes_are_sent_and_the_child_has_its_own() {
    fork(over_standin);
}

/// The same by a device, whose kernel decides.
pub(super) fn fork_over_a_device(transport: fn() -> Option<Verbs>) {
    fork(transport);
}
