//! The buffer belongs to the operation until it is waited for.
use consort::{Communicator, ReduceOp};

fn main() {
    let ranks = Communicator::local(1).unwrap();
    let buffer = vec![1.0f32; 8];
    let work = ranks[0].start_all_reduce(buffer, ReduceOp::Sum).unwrap();
    println!("{}", buffer[0]);
    work.wait().unwrap();
}
