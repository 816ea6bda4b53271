//! Counts of a whole process: allocations, descriptors, threads, memory. Each test has a process of its own.

mod allocations;
mod leaks;

use consort_tests::counting::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
