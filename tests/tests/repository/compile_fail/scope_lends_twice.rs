//! A buffer lent to a scope is not the caller's before the scope ends.
use consort::{Communicator, ReduceOp};

fn main() {
    let ranks = Communicator::local(1).unwrap();
    let mut buffer = vec![1.0f32; 8];
    ranks[0]
        .scope(|scope| {
            let work = scope.all_reduce(&mut buffer, ReduceOp::Sum)?;
            work.wait()?;
            buffer[0] = 2.0;
            Ok(())
        })
        .unwrap();
}
