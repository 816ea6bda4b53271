//! Knowing that one is a forked child, at the price of one load.
//!
//! Invariant: in every process that descends by fork from the one that made the stamp, it says so. Absent:
//! fork handlers, and anything a child could do beyond dropping.

use std::ptr::NonNull;

use crate::sync::{AtomicU32, Ordering};
use crate::{Mapping, MemoryError};

const PRESENT: u32 = 0x434f_4e53;

/// A page that the kernel clears in forked children.
#[derive(Debug)]
pub struct ForkStamp {
    /// In the page.
    word: NonNull<AtomicU32>,
    _page: Mapping,
    /// The maker's process, where the kernel would not promise to clear the page.
    process: Option<u32>,
}

// SAFETY: the word is an atomic in a page that the value owns.
unsafe impl Send for ForkStamp {}
// SAFETY: as above.
unsafe impl Sync for ForkStamp {}

impl ForkStamp {
    /// A stamp for the present process.
    ///
    /// # Errors
    /// [`MemoryError`] when not even a page can be had.
    pub fn new() -> Result<Self, MemoryError> {
        let page = Mapping::anonymous(4096)?;
        let start = NonNull::new(page.span(0, 4096).as_mut_ptr()).expect("mappings are not null");
        // SAFETY: exactly the private anonymous page that was just mapped and is not referred to.
        let wiped = unsafe { libc::madvise(start.as_ptr().cast(), 4096, libc::MADV_WIPEONFORK) } == 0;
        let stamp = Self { word: start.cast(), _page: page, process: (!wiped).then(std::process::id) };
        // Where the kernel does not clear the page, the word says nothing, and the process is looked at.
        if wiped {
            // Relaxed: read by this process, to which program order or whatever handed the stamp over suffices.
            stamp.word().store(PRESENT, Ordering::Relaxed);
        }
        Ok(stamp)
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page lives as long as `self`, is aligned, and is only ever used as this atomic.
        unsafe { self.word.as_ref() }
    }

    /// Whether this process is a forked descendant of the stamp's maker. One load (a system call only on
    /// kernels before 4.14, which cannot clear pages on fork).
    #[inline]
    pub fn is_forked_child(&self) -> bool {
        // Relaxed: the kernel clears the page before the child runs; nothing else writes it.
        self.word().load(Ordering::Relaxed) != PRESENT && self.is_other_process()
    }

    /// Of a word that is not there.
    #[cold]
    #[inline(never)]
    fn is_other_process(&self) -> bool {
        self.process.is_none_or(|maker| std::process::id() != maker)
    }
}
