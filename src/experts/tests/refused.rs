//! Calls that are wrong, ranks that differ, and ranks that are gone.

use std::sync::Barrier;

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
    assert!(gradient(&rows, &sums[3..], 4).contains("gradients has 3 elements"));
    assert!(gradient(&rows, &sums, 3).contains("of_weights has 3 elements"));
    assert!(text(others.combine(&handle, &rows, &mut sums)).contains("of other experts"));
    assert!(text(others.load(&handle)).contains("of other experts"));
    experts.combine(&handle, &rows, &mut sums).expect("it works");
}

/// One dispatch of four tokens a rank to all of four experts, and its combine: whether each token comes back as the sum of its copies.
fn goes_on(rank: u32, experts: &mut Experts<f32>) {
    let mut rows = Vec::new();
    let tokens: Vec<f32> = (0..8).map(|at| (at + 8 * rank) as f32).collect();
    let indices = [0, 1, 2, 3].repeat(4);
    let handle = experts.dispatch(&tokens, &indices, &[0.25; 16], &mut rows).expect("all arguments fit");
    assert_eq!(handle.counts(), [16]);
    let mut sums = [0.0; 8];
    experts.combine(&handle, &rows, &mut sums).expect("all arguments fit");
    assert_eq!(sums[..], tokens);
}

/// Arguments of a dispatch that do not fit, what their rank says of them, and what the others say.
type Wrong = (&'static [f32], &'static [i32], &'static [f32], &'static str, &'static str);

#[test]
fn what_one_rank_refuses_all_ranks_name_and_the_communicator_goes_on() {
    let dispatches: [Wrong; 5] = [
        (
            &[1.0; 3],
            &[],
            &[],
            "tokens has 3 elements and must have 2",
            "tokens has 3 elements, which are no whole rows",
        ),
        (
            &[1.0; 10],
            &[0; 20],
            &[0.0; 20],
            "5 tokens, and at most 4",
            "5 tokens, and at most 4 were agreed on",
        ),
        (&[1.0; 4], &[0; 7], &[0.0; 8], "indices has 7 elements and must have 8", "indices has 7 elements"),
        (&[1.0; 4], &[0; 8], &[0.0; 9], "weights has 9 elements and must have 8", "weights has 9 elements"),
        (
            &[1.0; 2],
            &[0, -5, 3, 99],
            &[0.0; 4],
            "token 0 chooses expert 99",
            "a token chooses expert 99, and there are 4",
        ),
    ];
    for way in WAYS {
        for host_of in [[0, 0, 1, 1], [0, 1, 1, 1], [0, 1, 2, 2]] {
            let world = world(&host_of);
            let options = along(ExpertOptions::new(4, 2, 4, 4), way);
            on_all(&world, |comm| {
                let mut experts = Experts::<f32>::new(comm, options).expect("experts");
                for (refusing, (tokens, indices, weights, own, heard)) in
                    [&[2][..], &[0], &[3, 1], &[1], &[0, 1, 2, 3]].into_iter().zip(dispatches)
                {
                    let mut rows = Vec::new();
                    let (said, refused) = if refusing.contains(&comm.rank()) {
                        (experts.dispatch(tokens, indices, weights, &mut rows), own.to_owned())
                    } else {
                        let named = refusing.iter().min().expect("a rank");
                        let heard = format!("dispatch: rank {named} refused its arguments: {heard}");
                        (experts.dispatch(&[1.0; 2], &[0, 1, 2, 3], &[1.0; 4], &mut rows), heard)
                    };
                    let error = said.expect_err("a rank refused");
                    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
                    assert!(error.to_string().contains(&refused), "{error} in place of {refused}, {way:?}");
                    goes_on(comm.rank(), &mut experts);
                }
            });
        }
    }
}

#[test]
fn a_load_of_the_handle_of_other_experts_is_refused_on_all_ranks() {
    let world = world(&[0, 0, 1]);
    on_all(&world, |comm| {
        let options = ExpertOptions::new(3, 2, 1, 2);
        let [mut one, mut other] = [(); 2].map(|()| Experts::<f32>::new(comm, options).expect("experts"));
        let dispatch = |experts: &mut Experts<f32>| {
            experts.dispatch(&[1.0; 2], &[1], &[1.0], &mut Vec::new()).expect("dispatched")
        };
        let (of_one, of_other) = (dispatch(&mut one), dispatch(&mut other));
        let said = text(one.load(if comm.rank() == 1 { &of_other } else { &of_one }));
        let expected = if comm.rank() == 1 {
            "invalid argument: the handle"
        } else {
            "rank 1 refused its arguments: the handle"
        };
        assert!(said.contains(expected), "{said}");
        assert_eq!(one.load(&of_one).expect("all handles are its own").rows, [0, 3, 0]);
    });
}

#[test]
fn what_does_not_fit_along_a_handle_is_heard_by_all_ranks() {
    for way in WAYS {
        for call in ["combine", "dispatch_gradient", "dispatch_again", "combine_gradient"] {
            let world = world(&[0, 0, 1, 1]);
            let options = along(ExpertOptions::new(4, 2, 4, 4), way);
            let dispatched = Barrier::new(4);
            on_all(&world, |comm| {
                let mut experts = Experts::<f32>::new(comm, options).expect("experts");
                // Ranks 0 and 2 exchange nothing with rank 1.
                let (indices, rows) = match comm.rank() {
                    0 | 2 => ([0, 2, -1, -1], &mut Vec::new()),
                    _ => ([1, 3, -1, -1], &mut Vec::new()),
                };
                let handle = experts.dispatch(&[1.0; 2], &indices, &[1.0; 4], rows).expect("dispatched");
                // A rank may hear of it when it has not left the dispatch before, so all have left it.
                dispatched.wait();
                let (wrong, mut tokens) = (comm.rank() == 1, [1.0; 2]);
                if wrong {
                    rows.push(0.0);
                }
                let error = match call {
                    "combine" => experts.combine(&handle, rows, &mut tokens).err(),
                    "dispatch_gradient" => experts.dispatch_gradient(&handle, rows, &mut tokens).err(),
                    "dispatch_again" => {
                        experts.dispatch_again(&handle, &tokens[usize::from(wrong)..], &mut Vec::new()).err()
                    }
                    _ => {
                        let (mut of_rows, mut of_weights) = (Vec::new(), [0.0; 4]);
                        experts.combine_gradient(&handle, rows, &tokens, &mut of_rows, &mut of_weights).err()
                    }
                };
                // Who exchanges nothing with that rank may be through, and hears of it in its next call.
                let error = error.unwrap_or_else(|| comm.barrier().expect_err("rank 1 has ended it"));
                let said = error.to_string();
                match wrong {
                    true => assert!(matches!(error, Error::InvalidArgument { .. }), "{said}"),
                    false => assert!(matches!(error, Error::Aborted { rank: 1, .. }), "{said}"),
                }
                assert!(said.contains(call) && said.contains("elements and must have"), "{said}");
            });
        }
    }
}

#[test]
fn experts_of_a_view_keep_the_communicator() {
    let options = ExpertOptions::new(4, 2, 4, 4);
    let world = world(&[0, 0, 1, 1]);
    std::thread::scope(|threads| {
        for comm in world {
            threads.spawn(move || {
                let limit = std::time::Duration::from_secs(50);
                let mut experts = Experts::<f32>::new(&comm.with_timeout(limit), options).expect("experts");
                assert_eq!(experts.comm.timeout(), limit);
                let rank = comm.rank();
                drop(comm);
                goes_on(rank, &mut experts);
            });
        }
    });
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
