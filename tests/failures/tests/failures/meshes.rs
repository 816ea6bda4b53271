//! Meshes that ranks ask for differently, whose ranks die, and that are made after a failure.

use std::time::Duration;

use consort::{Communicator, Error, Options, ReduceOp, Result};
use consort_tests::job::{Start, alone};
use consort_tests::{Links, results_of_ranks};
use nix::sys::signal::Signal;

use crate::RANK;

fn options() -> Options {
    Options::default().timeout(Duration::from_secs(30))
}

/// The axes of a mesh, and the sets of them that are asked for.
type Asked<'a> = (&'a [(&'a str, u32)], &'a [&'a [&'a str]]);

/// The error of each of four ranks: rank 2 asks for this, and the communicator goes on.
fn differing((axes, along): Asked<'_>) -> Vec<String> {
    results_of_ranks(4, Links::Local, &options(), |comm| {
        let error = if comm.rank() == 2 {
            comm.mesh(axes, along).expect_err("the others ask for something else")
        } else {
            comm.mesh(&[("dp", 2), ("tp", 2)], &[]).expect_err("rank 2 asks for something else")
        };
        assert!(matches!(error, Error::InvalidArgument { .. }) && !error.is_fatal(), "{error}");
        let mesh = comm.mesh(&[("dp", 2), ("tp", 2)], &[]).expect("nothing happened to the communicator");
        mesh.axis("tp").expect("an axis").barrier().expect("both are here");
        error.to_string()
    })
}

#[test]
fn ranks_that_ask_for_different_meshes_are_named_on_all_ranks() {
    let cases: [(Asked<'_>, &str); 4] = [
        ((&[("dp", 4), ("tp", 1)], &[]), "rank 2: dp=4, tp=1; ranks 0, 1, 3: dp=2, tp=2"),
        ((&[("tp", 2), ("dp", 2)], &[]), "rank 2: tp=2, dp=2; ranks"),
        ((&[("dp", 2), ("cp", 2)], &[]), "rank 2: dp=2, cp=2; ranks"),
        ((&[("dp", 2), ("tp", 2)], &[&["dp", "tp"]]), "rank 2: dp=2, tp=2 along dp+tp; ranks"),
    ];
    for (asked, said) in cases {
        for error in differing(asked) {
            assert!(error.contains(said), "{error}");
        }
    }
}

#[test]
fn a_rank_whose_mesh_cannot_be_is_named_to_the_others_which_do_not_wait_for_it() {
    let cases: [(Asked<'_>, &str, &str); 6] = [
        ((&[("dp", 2), ("tp", 3)], &[]), "6 places, and the communicator has 4 ranks", "rank 2: dp=2, tp=3;"),
        ((&[("dp", 2), ("dp", 2)], &[]), "two axes with the name dp", "rank 2: dp=2, dp=2;"),
        ((&[("dp", 2), ("tp", 2), ("", 0)], &[]), "has the name \"\"", "rank 2: dp=2, tp=2, \"\"=0;"),
        ((&[], &[]), "0 axes", "rank 2: ;"),
        ((&[("dp", 2), ("tp", 2)], &[&["dp", "ep"]]), "no axis \"ep\"", "along dp+ep;"),
        ((&[("dp", 2), ("tp", 2)], &[&["tp"]]), "along tp is asked for twice", "along tp;"),
    ];
    for (asked, own, said) in cases {
        for (rank, error) in differing(asked).into_iter().enumerate() {
            assert!(error.contains(if rank == 2 { own } else { said }), "rank {rank}: {error}");
        }
    }
    // Much more than ranks say to each other of it.
    let names: Vec<String> = (0..100).map(|axis| format!("axis-{axis}")).collect();
    let axes: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    for (rank, error) in differing((&axes, &[])).into_iter().enumerate() {
        let said = ["rank 2: axis-0=1, axis-1=1", "... ("];
        assert!(rank == 2 || said.iter().all(|said| error.contains(said)), "rank {rank}: {error}");
    }
}

#[test]
fn a_mesh_and_a_split_at_the_same_time_are_a_mismatch() {
    let results = results_of_ranks(3, Links::Local, &options(), |comm| match comm.rank() {
        1 => comm.split(Some(0), 0).map(drop),
        _ => comm.mesh(&[("dp", 3)], &[]).map(drop),
    });
    for result in results {
        let Err(Error::Mismatch { difference, .. }) = &result else { panic!("{result:?}") };
        assert!(
            difference.contains("rank 1: split") && difference.contains("ranks 0, 2: mesh"),
            "{difference}"
        );
    }
}

#[test]
fn a_rank_that_makes_no_mesh_is_named_when_the_time_is_over() {
    let ranks = Communicator::local_with(2, &options()).expect("ranks");
    let hurried = ranks[0].with_timeout(Duration::from_millis(300));
    let error = hurried.mesh(&[("dp", 2)], &[]).expect_err("rank 1 does not make it");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("mesh #1") && error.to_string().contains("rank 1"), "{error}");
}

#[test]
fn a_rank_that_keeps_an_axis_waiting_is_named_with_the_axis() {
    let (done, over) = (&std::sync::Barrier::new(4), Options::default().timeout(Duration::from_millis(500)));
    let errors = results_of_ranks(4, Links::Local, &over, |comm| -> Result<Option<Error>> {
        let mesh = comm.mesh(&[("dp", 2), ("tp", 2)], &[])?;
        // Rank 3 is rank 1 of its axis, and stays away until the others have their errors.
        let error = (comm.rank() == 2).then(|| {
            let error = mesh.axis("tp").and_then(Communicator::barrier).expect_err("rank 3 is away");
            let report = mesh.axis("tp").ok().and_then(|tp| tp.last_report()).expect("a report");
            assert!(report.verdict.ends_with("(in tp at dp=1)"), "{report}");
            error
        });
        done.wait();
        Ok(error)
    });
    let error = errors.into_iter().find_map(|result| result.expect("a mesh")).expect("the error of rank 2");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 1 (") && text.matches("(in tp at dp=1)").count() == 1, "{text}");
}

#[test]
fn a_revoked_communicator_can_be_made_a_mesh_of() {
    let out = &std::sync::Barrier::new(4);
    let results = results_of_ranks(4, Links::Local, &options(), |comm| -> Result<String> {
        comm.barrier()?;
        // A rank may leave the barrier before the others do.
        out.wait();
        if comm.rank() == 1 {
            comm.revoke("start over");
        }
        let other = if comm.rank() == 3 { [("dp", 1), ("tp", 4)] } else { [("dp", 2), ("tp", 2)] };
        let error = loop {
            // Where the news has not come yet, the call is the collective, and it ends with the news.
            match comm.mesh(&other, &[]) {
                Err(Error::Revoked { .. }) => {}
                result => break result.expect_err("rank 3 asks for something else"),
            }
        };
        let mesh = comm.mesh(&[("dp", 2), ("tp", 2)], &[])?;
        let mut sum = [comm.rank()];
        mesh.axis("dp")?.all_reduce(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum[0], 2 * (comm.rank() % 2) + 2);
        Ok(error.to_string())
    });
    for result in results {
        let text = result.expect("a mesh");
        assert!(text.contains("rank 3: dp=1, tp=4; ranks 0-2: dp=2, tp=2"), "{text}");
    }
}

#[test]
fn axes_without_a_killed_rank_go_on_and_the_others_name_it() {
    let _alone = alone();
    for transport in ["shm", "tcp"] {
        let start = Start::new(RANK, "mesh", 4).env("CONSORT_TRANSPORT", transport);
        let mut job = start.env("CONSORT_TIMEOUT", 20).go();
        (0..4).for_each(|rank| drop(job.line(rank, "idle")));
        job.signal(3, Signal::SIGKILL);
        for (rank, place) in [(1, "(in dp at tp=1)"), (2, "(in tp at dp=1)")] {
            let text = job.failure(rank, "PeerLost");
            assert!(text.contains("rank 1 (") && text.contains("rank 3 of the job"), "{text}");
            assert!(text.contains(place), "{text}");
        }
        for rank in 0..3 {
            assert_eq!(job.line(rank, "left "), format!("{rank} of 3"), "{}", job.output());
            assert!(job.end(rank).success(), "{}", job.output());
        }
    }
}
