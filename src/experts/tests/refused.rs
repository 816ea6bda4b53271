//! Calls that are wrong, ranks that differ, and ranks that are gone.

use super::{WAYS, along, on_all, world};
use crate::experts::{ExpertOptions, Experts, Route};
use crate::{Communicator, Error};

fn text<R>(result: crate::Result<R>) -> String {
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn options_that_make_no_sense_are_refused_on_all_ranks() {
    let world = world(&[0, 0, 0]);
    let good = ExpertOptions::new(6, 4, 2, 8);
    let cases = [
        (ExpertOptions { experts: 7, ..good }, "7 experts on 3 ranks"),
        (ExpertOptions { experts: 0, ..good }, "0 experts on 3 ranks"),
        (ExpertOptions { hidden: 0, ..good }, "rows of 0 elements"),
        (ExpertOptions { tokens_max: 0, ..good }, "0 tokens at most"),
        (ExpertOptions { top_k: 0, ..good }, "0 choices of a token among 6 experts"),
        (ExpertOptions { top_k: 7, ..good }, "7 choices of a token among 6 experts"),
        (ExpertOptions { tokens_max: 1 << 40, ..good }, "dispatch fewer tokens"),
        (ExpertOptions { hidden: usize::MAX / 2, ..good }, "shorter rows"),
    ];
    on_all(&world, |comm| {
        for (options, said) in cases {
            let error = Experts::<f32>::new(comm, options).expect_err(said);
            assert!(
                matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(said),
                "{error}"
            );
        }
        Experts::<f32>::new(comm, good).expect("the communicator is as it was");
    });
}

#[test]
fn ranks_that_disagree_are_named_with_their_values() {
    let world = world(&[0, 0, 0]);
    on_all(&world, |comm| {
        let hidden = if comm.rank() == 1 { 8 } else { 16 };
        let said = text(Experts::<f32>::new(comm, ExpertOptions::new(3, hidden, 2, 8)));
        assert!(said.contains("ranks disagree about hidden: rank 1: 8; ranks 0, 2: 16"), "{said}");
        let options = ExpertOptions::new(3, 8, 2, 8);
        let options = if comm.rank() == 0 { options.route(Route::Direct) } else { options };
        let said = text(Experts::<f32>::new(comm, options));
        assert!(said.contains("ranks disagree about route: ranks 1, 2: 0; rank 0: 1"), "{said}");
        let options = ExpertOptions::new(3, 8, 2, 8);
        let said = match comm.rank() {
            2 => text(Experts::<f64>::new(comm, options)),
            _ => text(Experts::<f32>::new(comm, options)),
        };
        assert!(said.contains("element type: ranks 0, 1: 7; rank 2: 8"), "{said}");
    });
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_sent() {
    let comm = Communicator::local(1).expect("a rank").remove(0);
    let options = ExpertOptions::new(4, 3, 2, 2);
    let mut experts = Experts::<f32>::new(&comm, options).expect("experts");
    let mut rows = Vec::new();
    let mut dispatch = |tokens: usize, indices: &[i32], weights: usize| {
        text(experts.dispatch(&vec![0.0; tokens], indices, &vec![0.0; weights], &mut rows))
    };
    assert!(dispatch(4, &[0, 1], 2).contains("tokens has 4 elements and must have 3"));
    assert!(dispatch(9, &[0; 6], 6).contains("3 tokens, and at most 2 were agreed on"));
    assert!(dispatch(6, &[0; 3], 4).contains("indices has 3 elements and must have 4"));
    assert!(dispatch(6, &[0; 4], 5).contains("weights has 5 elements and must have 4"));
    assert!(dispatch(6, &[0, 1, 2, 4], 4).contains("token 1 chooses expert 4, and there are 4"));
    assert_eq!(dispatch(6, &[0, 1, i32::MIN, 3], 4), "");

    let handle = experts.dispatch(&[1.0; 6], &[0, 1, -1, 3], &[1.0; 4], &mut rows).expect("dispatched");
    let (mut sums, mut others) = ([0.0; 6], Experts::<f32>::new(&comm, options).expect("experts"));
    assert!(
        text(experts.combine(&handle, &rows[1..], &mut sums))
            .contains("rows of experts has 8 elements and must have 9")
    );
    assert!(
        text(experts.combine(&handle, &rows, &mut sums[1..]))
            .contains("rows of tokens has 5 elements and must have 6")
    );
    assert!(text(experts.dispatch_again(&handle, &sums[1..], &mut Vec::new())).contains("must have 6"));
    let mut gradient = |rows: &[f32], tokens: &[f32], weights: usize| {
        text(experts.combine_gradient(&handle, rows, tokens, &mut Vec::new(), &mut vec![0.0; weights]))
    };
    assert!(gradient(&rows[3..], &sums, 4).contains("outputs has 6 elements"));
    assert!(gradient(&rows, &sums[3..], 4).contains("tokens has 3 elements"));
    assert!(gradient(&rows, &sums, 3).contains("of_weights has 3 elements"));
    assert!(text(others.combine(&handle, &rows, &mut sums)).contains("of other experts"));
    assert!(text(others.load(&handle)).contains("of other experts"));
    experts.combine(&handle, &rows, &mut sums).expect("it works");
}

/// Ranks 0 to 2 combine by the second of two dispatches of the same choices, rank 3 by the first.
fn combine_apart(comm: &Communicator, options: ExpertOptions) -> crate::Result<()> {
    let mut experts = Experts::<f32>::new(comm, options)?;
    let mut rows = Vec::new();
    let mut dispatch = || experts.dispatch(&[1.0; 4], &[0, 1, 2, 3, 0, 1, 2, 3], &[1.0; 8], &mut rows);
    let [first, second] = [dispatch()?, dispatch()?];
    let handle = if comm.rank() == 3 { &first } else { &second };
    experts.combine(handle, &rows, &mut [0.0; 4]).map(drop)
}

#[test]
fn handles_of_different_dispatches_end_the_communicator_with_both_named() {
    for way in WAYS {
        let world = world(&[0, 0, 1, 1]);
        let options = along(ExpertOptions::new(4, 2, 4, 2), way);
        // A rank may hear of it when it has not left the dispatch before.
        for error in on_all(&world, |comm| combine_apart(comm, options).expect_err("they differ")) {
            let said = error.to_string();
            assert!(matches!(error, Error::Aborted { .. }), "{said}");
            assert!(
                said.contains("dispatch 1 of experts") && said.contains("dispatch 2 of experts"),
                "{said}"
            );
        }
    }
}

#[test]
fn a_rank_that_is_gone_is_named() {
    let mut world = world(&[0, 0, 1]);
    let leaving = world.remove(2);
    let options = ExpertOptions::new(3, 2, 3, 2).route(Route::Hierarchical);
    std::thread::scope(|threads| {
        threads.spawn(move || drop(Experts::<f32>::new(&leaving, options).expect("experts")));
        let all: Vec<_> = world
            .iter()
            .map(|comm| {
                threads.spawn(move || {
                    let mut experts = Experts::<f32>::new(comm, options).expect("experts");
                    experts
                        .dispatch(&[1.0; 4], &[0, 1, 2, 0, 1, 2], &[1.0; 6], &mut Vec::new())
                        .expect_err("rank 2 left")
                })
            })
            .collect();
        for thread in all {
            let error = thread.join().expect("no panic");
            assert!(matches!(error, Error::PeerLeft { rank: 2, .. }), "{error}");
        }
    });
}
