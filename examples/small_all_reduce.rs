//! Two ranks in one process that do nothing but 8-byte all-reduces, for counting instructions:
//!
//! `valgrind --tool=callgrind --fair-sched=yes target/release/examples/small_all_reduce 10000`
//!
//! With `late` as a second argument rank 0, on the main thread, naps before each call, so that the other rank's
//! message has arrived and it does not wait. With `--separate-threads=yes` its thread's count is then that of the
//! calls, after the count of a run with `nap`, where it only naps, is subtracted.

use std::time::Duration;

use consort::{Communicator, ReduceOp};

fn main() -> consort::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let calls: u32 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1000);
    let how = arguments.next().unwrap_or_default();
    let (naps, is_called) = (how == "late" || how == "nap", how != "nap");
    let ranks = Communicator::local(2)?;
    std::thread::scope(|threads| {
        let ranks = &ranks;
        let run = move |comm: &Communicator, naps: bool| {
            let (input, mut output) = ([comm.rank() as f32, 1.0], [0.0; 2]);
            (0..calls).try_for_each(|_| {
                if naps {
                    std::thread::sleep(Duration::from_millis(5));
                }
                if is_called { comm.all_reduce_into(&input, &mut output, ReduceOp::Sum) } else { Ok(()) }
            })
        };
        let other = threads.spawn(move || run(&ranks[1], false));
        run(&ranks[0], naps)?;
        other.join().expect("the other rank's thread")
    })
}
