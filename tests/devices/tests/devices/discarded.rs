//! Memory that operations on devices leave behind: which thread frees it.

use crate::ranks::{Way, here};

#[test]
fn no_rank_frees_memory_of_anothers_device() {
    here([Way::of_kernels(2)]).for_each(|way| way.passes(way.start("device-discarded")));
}
