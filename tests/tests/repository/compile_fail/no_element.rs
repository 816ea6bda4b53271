//! Only element types travel.
use consort::{Communicator, ReduceOp};

fn main() {
    let ranks = Communicator::local(1).unwrap();
    ranks[0].all_reduce(&mut [true, false], ReduceOp::Max).unwrap();
}
