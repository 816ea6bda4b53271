//! One rank of a test as a process of its own, whose allocations are counted. Each package of tests builds it under
//! its own name: cargo gives a test the paths of its own package's programs, and of no others.

use consort_tests::counting::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    consort_tests::rank::main();
}
