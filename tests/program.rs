//! One rank of a test as a process of its own, whose allocations are counted. Each package of tests builds it, under a name
//! of its own: cargo tells a test where the programs of its own package are, and no others.

use consort_tests::counting::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    consort_tests::rank::main();
}
