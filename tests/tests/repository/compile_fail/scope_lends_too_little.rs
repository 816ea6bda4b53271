//! A buffer lent to a scope must outlive it.
use consort::{Communicator, ReduceOp};

fn main() {
    let ranks = Communicator::local(1).unwrap();
    ranks[0]
        .scope(|scope| {
            let mut buffer = vec![1.0f32; 8];
            scope.all_reduce(&mut buffer, ReduceOp::Sum).map(drop)
        })
        .unwrap();
}
