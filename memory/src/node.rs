//! On which memory node the pages of a mapping are to lie.
//!
//! Invariant: a preference, never a demand: where the kernel refuses, or the node is full, the pages lie elsewhere and
//! everything works. Absent: which node is wanted, and moving pages that are there already.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::errno::Errno;

/// Nodes that a mask has room for; the kernel has 1024 at most.
const NODES_MAX: u32 = 1024;
/// Bits of one word of a mask.
const WORD_BITS: u32 = c_ulong::BITS;
const WORDS: usize = (NODES_MAX / WORD_BITS) as usize;

/// A mask of nodes as the kernel takes it: words, lowest node first.
type Mask = [c_ulong; WORDS];

/// How many bits the kernel is given: it takes one for granted, and would otherwise ignore the last node.
const MASK_BITS: c_ulong = NODES_MAX as c_ulong + 1;

/// The mask of one node; none for a number that no node has.
fn mask(node: u32) -> Option<Mask> {
    let mut mask = [0; WORDS];
    *mask.get_mut((node / WORD_BITS) as usize)? = 1 << (node % WORD_BITS);
    Some(mask)
}

/// Pages of this range that are not there yet are to come from `node`.
///
/// # Safety
/// The range must be mapped, as whole pages, for as long as the call lasts, and its owner must be the caller.
pub(crate) unsafe fn prefer(start: NonNull<u8>, bytes: NonZeroUsize, node: u32) -> nix::Result<()> {
    let mask = mask(node).ok_or(Errno::EINVAL)?;
    let (address, mode, flags): (*mut c_void, c_int, c_int) =
        (start.as_ptr().cast(), libc::MPOL_PREFERRED, 0);
    // SAFETY: of the caller's mapping only the policy changes by which pages are found for it: neither what is in it nor
    // whether it can be reached. The kernel reads `MASK_BITS - 1` bits of the mask, which are all that it has.
    let done: c_long = unsafe {
        libc::syscall(libc::SYS_mbind, address, bytes.get(), mode, mask.as_ptr(), MASK_BITS, flags)
    };
    Errno::result(done).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, Span, SpanMut};

    #[test]
    fn a_mask_has_the_bit_of_its_node() {
        let bits = |node| {
            let words = mask(node)?;
            let set = |bit: u32| words[(bit / WORD_BITS) as usize] >> (bit % WORD_BITS) & 1 == 1;
            Some((0..NODES_MAX).filter(|bit| set(*bit)).collect::<Vec<_>>())
        };
        for node in [0, 1, 7, 63, 64, 65, 1023] {
            assert_eq!(bits(node), Some(vec![node]));
        }
        assert_eq!(mask(0).map(|mask| mask[0]), Some(1));
        assert_eq!([1024, u32::MAX].map(mask), [None; 2]);
        assert_eq!(size_of::<Mask>() * 8, MASK_BITS as usize - 1);
    }

    /// Policy and nodes of an address, as the kernel has them.
    fn policy(address: *mut u8) -> nix::Result<(c_int, Mask)> {
        let (mut mode, mut mask): (c_int, Mask) = (0, [0; WORDS]);
        // SAFETY: the kernel writes a number, and as many bits as the mask has.
        let done = unsafe {
            const OF_ADDRESS: c_ulong = 2;
            libc::syscall(
                libc::SYS_get_mempolicy,
                &mut mode,
                mask.as_mut_ptr(),
                MASK_BITS,
                address,
                OF_ADDRESS,
            )
        };
        Errno::result(done).map(|_| (mode, mask))
    }

    /// Whether this machine can be asked at all: containers forbid it.
    fn is_possible() -> bool {
        let mut page = Mapping::anonymous(4096).expect("memory");
        let possible = page.prefer_node(0).and_then(|()| policy(page.span(0, 1).as_mut_ptr())).is_ok();
        if !possible {
            eprintln!("SKIP: this process may not place memory");
        }
        possible
    }

    #[test]
    fn the_kernel_takes_what_it_is_told_and_the_memory_is_as_good_as_any() {
        let whole = [7u64; 1024];
        for mapping in [Mapping::anonymous_on(8192, Some(0)), Mapping::memfd_on(c"test", 8192, Some(0))] {
            let mapping = mapping.expect("memory");
            if is_possible() {
                let (mode, nodes) = policy(mapping.span(4096, 1).as_mut_ptr()).expect("it was possible");
                assert_eq!((mode, nodes), (libc::MPOL_PREFERRED, mask(0).expect("node 0")));
            }
            mapping.span(0, 8192).copy_from(Span::of(&whole));
            let mut seen = [0u64; 1024];
            SpanMut::of(&mut seen).copy_from(mapping.span(0, 8192).read());
            assert_eq!(seen, whole);
        }
    }

    #[test]
    fn without_a_node_the_kernel_is_not_asked() {
        if !is_possible() {
            return;
        }
        for mapping in [Mapping::anonymous_on(4096, None), Mapping::memfd_on(c"test", 4096, None)] {
            let (mode, _) =
                policy(mapping.expect("memory").span(0, 1).as_mut_ptr()).expect("it was possible");
            assert_eq!(mode, libc::MPOL_DEFAULT);
        }
    }

    #[test]
    fn a_node_that_is_not_there_is_refused_and_changes_nothing() {
        let mut mapping = Mapping::anonymous(4096).expect("memory");
        for node in [1023, 1024, u32::MAX] {
            assert!(mapping.prefer_node(node).is_err());
        }
        for mapping in [Mapping::anonymous_on(4096, Some(1023)), Mapping::memfd_on(c"test", 4096, Some(1023))]
        {
            let mapping = mapping.expect("memory all the same");
            mapping.span(0, 8).copy_from(Span::of(&[1u64]));
        }
    }
}
