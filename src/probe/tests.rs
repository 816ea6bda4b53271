use super::*;

fn in_threads<T: Send>(size: u32, run: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    let world = Communicator::local(size).expect("ranks");
    std::thread::scope(|threads| {
        let run = &run;
        let all: Vec<_> = world.iter().map(|comm| threads.spawn(move || run(comm))).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn quick() -> Options {
    Options::default().budget(Duration::from_millis(60)).deadline(Duration::from_secs(60))
}

#[test]
fn every_rank_has_the_same_measurements_of_all_pairs() {
    for size in [1, 2, 3, 4] {
        let all = in_threads(size, |comm| comm.probe(&quick()).expect("they probe"));
        let first = &all[0];
        assert!(all.iter().all(|probe| probe == first), "{all:?}");
        let expected: Vec<(u32, u32)> =
            (0..size).flat_map(|one| (one + 1..size).map(move |other| (one, other))).collect();
        let found: Vec<(u32, u32)> = first.pairs.iter().map(|pair| (pair.one, pair.other)).collect();
        assert_eq!((found, first.left_out), (expected, 0));
        for pair in &first.pairs {
            assert!(
                pair.latency_ns > 0
                    && pair.there_bytes_s > 1
                    && pair.back_bytes_s > 1
                    && pair.both_bytes_s > 1,
                "{pair:?}"
            );
        }
        let graph = first.topology();
        assert!(graph.measured && graph.ranks() == size, "{graph}");
        assert_eq!(topology::parse(&graph.to_string()), Ok(graph));
    }
}

#[test]
fn a_rank_that_does_not_probe_is_named_by_the_deadline() {
    let options = quick().deadline(Duration::from_millis(300));
    let ends = in_threads(3, |comm| if comm.rank() == 1 { Ok(()) } else { comm.probe(&options).map(|_| ()) });
    for end in [&ends[0], &ends[2]] {
        let error = end.as_ref().expect_err("one rank is missing");
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
}

#[test]
fn other_bytes_than_were_sent_end_the_communicator_with_both_ranks_named() {
    // Ranks of different seeds expect other data of each other.
    let ends =
        in_threads(2, |comm| comm.probe(&quick().seed(u64::from(comm.rank()))).expect_err("wrong bytes"));
    for error in ends {
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("rank 1 received other bytes than rank 0 sent")
                || text.contains("rank 0 received other bytes"),
            "{text}"
        );
    }
}

#[test]
fn a_rank_that_leaves_is_named() {
    let mut world = Communicator::local(3).expect("ranks");
    let leaving = world.remove(2);
    std::thread::scope(|threads| {
        let world = &world;
        let all: Vec<_> = world
            .iter()
            .map(|comm| threads.spawn(move || comm.probe(&quick()).expect_err("rank 2 left")))
            .collect();
        drop(leaving);
        for thread in all {
            let error = thread.join().expect("no panic");
            assert!(error.to_string().contains("rank 2"), "{error}");
        }
    });
}

#[test]
fn the_longest_times_have_an_end_on_the_clock() {
    let (hour, options) = (Duration::from_secs(3600), Options::default());
    assert_eq!(options.lasts(hour), Duration::from_secs(230));
    assert_eq!(options.budget(hour).lasts(hour), hour);
    for longest in [options.budget(Duration::MAX), options.deadline(Duration::MAX)] {
        assert!(Instant::now().checked_add(longest.lasts(Duration::MAX)).is_some(), "{longest:?}");
    }
}
