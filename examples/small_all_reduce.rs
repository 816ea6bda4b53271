//! Two ranks in one process that do nothing but 8-byte all-reduces, for counting instructions:
//!
//! `valgrind --tool=callgrind --fair-sched=yes target/release/examples/small_all_reduce 10000`

use consort::{Communicator, ReduceOp};

fn main() -> consort::Result<()> {
    let calls: u32 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1000);
    let ranks = Communicator::local(2)?;
    std::thread::scope(|threads| {
        let ranks = &ranks;
        let run = move |comm: &Communicator| {
            let mut buffer = [comm.rank() as f32, 1.0];
            (0..calls).try_for_each(|_| comm.all_reduce(&mut buffer, ReduceOp::Max))
        };
        let other = threads.spawn(move || run(&ranks[1]));
        run(&ranks[0])?;
        other.join().expect("the other rank's thread")
    })
}
