//! In which order the lanes of a plan go on where nothing keeps them from it.

use std::task::Poll;

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;

use super::super::executor::{Executor, Io, Piece, Progress, Sizes};
use crate::planner::{Planner, Program};

/// Links on which everything is there already.
struct Ready;

impl Io for Ready {
    type Fault = ();

    fn reached(&mut self, _: u32, _: u64) -> Result<bool, ()> {
        Ok(true)
    }

    fn tag(&mut self, _: u32, _: u64) -> u64 {
        0
    }

    fn signal(&mut self, _: u32, _: u64, _: u64) -> Result<Poll<()>, ()> {
        Ok(Poll::Ready(()))
    }

    fn fold(&mut self, _: &[Piece], _: &[Piece], _: usize, _: bool) -> Result<Poll<()>, ()> {
        Ok(Poll::Ready(()))
    }

    fn put(&mut self, _: Piece, _: Piece, _: usize, _: bool, _: &mut usize) -> Result<Poll<()>, ()> {
        Ok(Poll::Ready(()))
    }
}

#[test]
fn no_lane_runs_far_ahead_of_the_others_and_all_come_to_an_end() {
    const SLICES: u32 = 64;
    let algorithm = Algorithm::Direct { first: 0 };
    let program = Program { collective: Collective::ReduceScatter, ranks: 2, algorithm };
    let plan = Planner::default().plan(program, 0, vec![true; 2]).expect("a proved plan").plan;
    assert!(plan.sliced && plan.lanes.len() > 1, "{} lanes", plan.lanes.len());
    let slot_bytes = 16 << 10;
    let elements = SLICES as usize * slot_bytes / 8;
    let sizes = Sizes { extents: plan.partition.extents(elements, 8), slot_bytes, tag: 0 };
    let mut executor = Executor::default();
    executor.start(&plan, &sizes, |_| 0, |_| 0);
    assert_eq!(executor.iterations(), SLICES);
    let (mut turns, mut before) = (0, 0);
    loop {
        let progress = executor.advance(&plan, &sizes, &mut Ready).expect("nothing is amiss");
        turns += 1;
        let done = executor.slices_done();
        assert!(done <= before + 2, "{before} slices were done, and then {done}");
        before = done;
        match progress {
            Progress::Done => break,
            progress => assert_eq!(progress, Progress::Moved),
        }
    }
    assert_eq!(turns, SLICES / 2);
}
