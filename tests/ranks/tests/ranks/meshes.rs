//! Meshes: who is in which of their communicators, and calls on several of them at once.

use std::time::Duration;

use consort::{Communicator, Error, Mesh, Options, Rank, ReduceOp, Result, TransportChoice};
use consort_tests::system::Random;
use consort_tests::{Links, on_ranks};

fn options() -> Options {
    Options::default().timeout(Duration::from_secs(60))
}

/// The ranks of the whole communicator along some axes, by a gather.
fn ranks_along(comm: &Communicator, mesh: &Mesh, axes: &[&str]) -> Result<Vec<Rank>> {
    let along = mesh.along(axes)?;
    let mut ranks = vec![0; along.size() as usize];
    along.all_gather(&[comm.rank()], &mut ranks)?;
    Ok(ranks)
}

/// Which ranks there should be, by the places alone: those of all ranks that have this one's on all other axes.
fn expected(size: u32, axes: &[(&str, u32)], rank: Rank, along: &[&str]) -> Vec<Rank> {
    let places = |mut rank: Rank| {
        let mut places = vec![0; axes.len()];
        for (at, (_, size)) in axes.iter().enumerate().rev() {
            (places[at], rank) = (rank % size, rank / size);
        }
        places
    };
    let (own, is_free) = (places(rank), |at: usize| along.contains(&axes[at].0));
    let fits =
        |other: &Rank| places(*other).iter().enumerate().all(|(at, place)| is_free(at) || *place == own[at]);
    (0..size).filter(fits).collect()
}

/// Makes the mesh and looks at every communicator of it.
fn check(comm: &Communicator, axes: &[(&str, u32)], along: &[&[&str]]) -> Result<()> {
    let mesh = comm.mesh(axes, along)?;
    assert_eq!(mesh.axes().collect::<Vec<_>>(), axes);
    let singles: Vec<[&str; 1]> = axes.iter().map(|(name, _)| [*name]).collect();
    for names in singles.iter().map(<[&str; 1]>::as_slice).chain(along.iter().copied()) {
        let there = ranks_along(comm, &mesh, names)?;
        assert_eq!(there, expected(comm.size(), axes, comm.rank(), names), "along {names:?}");
    }
    for (name, size) in axes {
        let of_axis = mesh.axis(name)?;
        assert_eq!((mesh.size(name)?, of_axis.size()), (*size, *size));
        assert_eq!(mesh.coordinate(name)?, of_axis.rank());
        let next = (mesh.coordinate(name)? + 1) % size;
        let there = ranks_along(comm, &mesh, &[name])?;
        assert_eq!(mesh.rank_at(&[(name, next)])?, there[next as usize]);
    }
    Ok(())
}

#[test]
fn every_communicator_of_a_mesh_has_its_ranks_in_order() {
    let axes = &[("dp", 2), ("pp", 2), ("tp", 2)];
    let along: &[&[&str]] = &[&["tp", "dp"], &["pp", "tp"], &["dp", "pp", "tp"]];
    on_ranks(8, Links::Local, &options(), |comm| check(comm, axes, along));
    let tcp = options().transport(TransportChoice::Tcp);
    on_ranks(8, Links::Joined, &tcp, |comm| check(comm, axes, along));
}

#[test]
fn sizes_are_no_powers_of_two_and_may_be_one() {
    on_ranks(30, Links::Local, &options(), |comm| {
        check(comm, &[("dp", 5), ("one", 1), ("cp", 2), ("tp", 3)], &[&["dp", "cp"], &["one", "tp"]])
    });
    on_ranks(1, Links::Local, &options(), |comm| check(comm, &[("dp", 1)], &[]));
    on_ranks(3, Links::Local, &options(), |comm| {
        check(comm, &[("a", 1), ("b", 3), ("c", 1)], &[&["a", "c"]])
    });
}

#[test]
fn names_that_a_mesh_does_not_have_are_answered_by_those_that_it_has() {
    on_ranks(4, Links::Local, &options(), |comm| {
        let mesh = comm.mesh(&[("dp", 2), ("pp", 1), ("tp", 2)], &[&["tp", "pp"]])?;
        let refused = |result: Result<&Communicator>| {
            let error = result.expect_err("it is not there");
            assert!(matches!(error, Error::InvalidArgument { .. }) && !error.is_fatal(), "{error}");
            error.to_string()
        };
        let text = refused(mesh.axis("ep"));
        assert!(text.contains("no axis \"ep\"; it has dp, pp, tp"), "{text}");
        let text = refused(mesh.along(&["tp", "dp"]));
        assert!(
            text.contains("along dp+tp") && text.contains("it has those along dp, pp, tp, pp+tp"),
            "{text}"
        );
        let text = refused(mesh.along(&["dp", "dp"]));
        assert!(text.contains("dp is named twice in dp+dp"), "{text}");
        assert!(refused(mesh.along(&[])).contains("no axes"));
        assert!(mesh.size("ep").is_err() && mesh.coordinate("").is_err() && mesh.hosts(&["ep"]).is_err());
        assert_eq!(mesh.hosts_max(&["dp", "pp", "tp"])?, 1);
        assert!(std::ptr::eq(mesh.along(&["pp", "tp"])?, mesh.along(&["tp", "pp"])?));
        Ok(())
    });
}

#[test]
fn meshes_of_the_same_axes_know_nothing_of_each_other_and_outlive_their_communicator() {
    let world = Communicator::local_with(4, &options()).expect("ranks");
    let meshes: Vec<[Mesh; 2]> = std::thread::scope(|threads| {
        let make = |comm: Communicator| {
            move || [(); 2].map(|()| comm.mesh(&[("dp", 2), ("tp", 2)], &[]).expect("a mesh"))
        };
        let ranks: Vec<_> = world.into_iter().map(|comm| threads.spawn(make(comm))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    std::thread::scope(|threads| {
        for (rank, [first, second]) in meshes.iter().enumerate() {
            threads.spawn(move || {
                if rank == 0 {
                    first.abort("of no use");
                }
                if rank != 3 {
                    // Rank 0 is on an axis of each of these, and of none of rank 3.
                    let axis = if rank == 2 { "dp" } else { "tp" };
                    let error = loop {
                        if let Err(error) = first.axis(axis).expect("an axis").barrier() {
                            break error;
                        }
                    };
                    let text =
                        format!("of no use (in {axis} at {}=0)", if axis == "dp" { "tp" } else { "dp" });
                    assert!(matches!(error, Error::Aborted { rank: 0, .. }), "{error}");
                    assert!(error.to_string().contains(&text), "{error}");
                }
                for axis in ["dp", "tp"] {
                    let comm = second.axis(axis).expect("an axis");
                    let mut sum = [1u32];
                    comm.all_reduce(&mut sum, ReduceOp::Sum).expect("nothing happened to it");
                    assert_eq!(sum, [2]);
                }
            });
        }
    });
}

#[test]
fn a_mesh_within_a_mesh_says_where_it_is() {
    on_ranks(8, Links::Local, &options(), |comm| {
        let mesh = comm.mesh(&[("dp", 4), ("tp", 2)], &[])?;
        let inner = mesh.axis("dp")?.mesh(&[("outer", 2), ("inner", 2)], &[])?;
        let place = format!("inner at outer={}, in dp at tp={}", comm.rank() / 4, comm.rank() % 2);
        assert!(format!("{:?}", inner.axis("inner")?).contains(&place), "{:?}", inner.axis("inner")?);
        let mut ranks = [0; 2];
        inner.axis("inner")?.all_gather(&[comm.rank()], &mut ranks)?;
        let first = comm.rank() / 4 * 4 + comm.rank() % 2;
        assert_eq!(ranks, [first, first + 2]);
        Ok(())
    });
}

/// Started all-reduces on `dp` go on while others run on `tp` and along both, in an order that differs between ranks where
/// that is allowed: between communicators.
#[test]
fn calls_on_several_communicators_of_a_mesh_go_on_side_by_side() {
    let seed = Random::announced("calls_on_several_communicators_of_a_mesh_go_on_side_by_side").draw();
    let body = |comm: &Communicator| -> Result<()> {
        let mesh = comm.mesh(&[("dp", 2), ("pp", 2), ("tp", 2)], &[&["dp", "pp"]])?;
        let mut random = Random::new(seed ^ u64::from(comm.rank()));
        let counts = [1, 3000, 100_000];
        for turn in 0..6 {
            let count = counts[turn % 3];
            let value = |axis: u64| vec![u64::from(comm.rank()) + axis; count];
            let mut started = Vec::new();
            // Two on each of these, in the same order on each communicator.
            let mut left = [2, 2];
            while left != [0, 0] {
                let which = if left[0] == 0 {
                    1
                } else if left[1] == 0 {
                    0
                } else {
                    random.below(2)
                };
                left[which] -= 1;
                let along = mesh.along([&["dp"][..], &["dp", "pp"]][which])?;
                let work = along.start_all_reduce(value(which as u64), ReduceOp::Sum)?;
                started.push((which, along.size(), work));
            }
            for axis in ["tp", "pp", "tp"] {
                let mut buffer = value(9);
                mesh.axis(axis)?.all_reduce(&mut buffer, ReduceOp::Sum)?;
                let ranks = expected(8, &[("dp", 2), ("pp", 2), ("tp", 2)], comm.rank(), &[axis]);
                let sum: u64 = ranks.iter().map(|rank| u64::from(*rank) + 9).sum();
                assert!(buffer.iter().all(|value| *value == sum));
            }
            random.shuffle(&mut started);
            for (which, size, work) in started {
                let names = [&["dp"][..], &["dp", "pp"]][which];
                let ranks = expected(8, &[("dp", 2), ("pp", 2), ("tp", 2)], comm.rank(), names);
                let sum: u64 = ranks.iter().map(|rank| u64::from(*rank) + which as u64).sum();
                assert_eq!(ranks.len() as u32, size);
                assert!(work.wait()?.iter().all(|value| *value == sum));
            }
            comm.barrier()?;
        }
        Ok(())
    };
    on_ranks(8, Links::Local, &options(), body);
    on_ranks(8, Links::Joined, &options().transport(TransportChoice::Tcp), body);
}

/// A communicator may be used while another thread is in calls of the one that it came from.
#[test]
fn threads_of_a_rank_have_an_axis_each() {
    on_ranks(4, Links::Local, &options(), |comm| {
        let mesh = comm.mesh(&[("dp", 2), ("tp", 2)], &[])?;
        let many = |comm: &Communicator| -> Result<()> {
            for _ in 0..50 {
                let mut sum = vec![1u32; 1000];
                comm.all_reduce(&mut sum, ReduceOp::Sum)?;
                assert!(sum.iter().all(|sum| *sum == comm.size()));
            }
            Ok(())
        };
        std::thread::scope(|threads| {
            let of_axes = ["dp", "tp"].map(|axis| {
                let along = mesh.axis(axis);
                threads.spawn(move || many(along?))
            });
            many(comm)?;
            of_axes.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })
    });
}
