//! Meshes, over ranks of one process that take themselves for ranks of several hosts.

use std::sync::Barrier;
use std::time::Instant;

use super::Mesh;
use crate::communicator::tests::waiting::on_hosts;
use crate::{Communicator, Error, Options, ReduceOp, Result};
use consort_control::bootstrap::Member;
use consort_settings::options::Settings;
use consort_types::call::Kind;

/// What each rank makes of its mesh; `per_host` ranks in a row share a host.
fn over_hosts<T: Send>(
    ranks: u32,
    per_host: u32,
    axes: &[(&str, u32)],
    act: impl Fn(&Mesh) -> Result<T> + Sync,
) -> Vec<T> {
    let settings = Settings::resolve(&Options::default()).expect("settings");
    let on = |rank, of| Member { host_key: [(rank / per_host) as u8; 16], ..of };
    let ranks = Communicator::local_as(ranks, settings, &on).expect("ranks");
    let act = &act;
    std::thread::scope(|threads| {
        let run = |comm| move || act(&Communicator::mesh(comm, axes, &[])?);
        let calls: Vec<_> = ranks.iter().map(|comm| threads.spawn(run(comm))).collect();
        calls.into_iter().map(|call| call.join().expect("no panic").expect("a mesh")).collect()
    })
}

#[test]
fn hosts_that_cut_an_axis_are_found() {
    let axes = &[("dp", 3), ("pp", 2), ("tp", 2)];
    // Hosts of 4: dp goes from host to host, the others are within.
    let hosts = over_hosts(12, 4, axes, |mesh| {
        let of = |axes: &[&str]| Ok([mesh.hosts(axes)?, mesh.hosts_max(axes)?]);
        Ok([of(&["dp"])?, of(&["pp"])?, of(&["tp"])?, of(&["tp", "pp"])?, of(&["dp", "tp"])?])
    });
    assert!(hosts.iter().all(|of| *of == [[3, 3], [1, 1], [1, 1], [1, 1], [3, 3]]), "{hosts:?}");
    // Hosts of 5 cut tp where ranks 4 and 5 meet, and 8 to 11, which are on two hosts. All ranks find out.
    let hosts = over_hosts(12, 5, axes, |mesh| {
        Ok((mesh.hosts(&["tp"])?, mesh.hosts_max(&["tp"])?, mesh.hosts(&["pp", "tp"])?))
    });
    let expected: Vec<_> =
        (0..12).map(|rank| (1 + u32::from(rank / 2 == 2), 2, 1 + u32::from(rank >= 4))).collect();
    assert_eq!(hosts, expected);
}

#[test]
fn an_axis_of_one_place_has_no_communicator_before_it_is_asked_for() {
    let made = over_hosts(4, 4, &[("dp", 4), ("pp", 1)], |mesh| {
        let is_made = |at: usize| mesh.parts[at].communicator.get().is_some();
        let before = [is_made(0), is_made(1)];
        let mut value = [7.0f32];
        let alone = mesh.axis("pp")?;
        alone.all_reduce(&mut value, ReduceOp::Sum)?;
        assert_eq!((value, alone.size(), alone.rank()), ([7.0], 1, 0));
        assert!(std::ptr::eq(alone, mesh.axis("pp")?), "it is made once");
        Ok(before)
    });
    assert_eq!(made, [[true, false]; 4]);
}

/// Ranks asked for different meshes, and the communicator is revoked before they say how these differ: on no rank does the call go on by
/// another way, which others would not come to.
#[test]
fn a_mesh_that_is_revoked_between_its_rounds_ends_on_all_ranks() {
    let ranks = Communicator::local(3).expect("ranks");
    let together = Barrier::new(ranks.len());
    std::thread::scope(|threads| {
        for comm in &ranks {
            let together = &together;
            threads.spawn(move || {
                let words = vec![i64::from(comm.rank()); 2];
                let marks = comm.all_say_of_parts(Kind::Mesh, &words[..1]).expect("the first round");
                assert_eq!((marks.by_control_links, &marks.words[..]), (false, &[0, 1, 2][..]));
                together.wait();
                if comm.rank() == 1 {
                    comm.revoke("a rank is not needed any more");
                }
                // Rank 0 begins the second round when it has heard of it, the others may be in it.
                while comm.rank() == 0 && comm.status().is_ok() {
                    std::thread::yield_now();
                }
                let error = comm.say_difference::<()>(words, &marks).expect_err("it is revoked");
                assert!(matches!(error, Error::Revoked { rank: 1, .. }), "{error}");
                // Nothing of it is left: the next mesh is agreed on over the control links.
                let mesh = comm.mesh(&[("dp", 3)], &[]).expect("a mesh after a revoke");
                let mut sum = [comm.rank()];
                mesh.axis("dp").and_then(|dp| dp.all_reduce(&mut sum, ReduceOp::Sum)).expect("it works");
                assert_eq!(sum, [3]);
            });
        }
    });
}

#[test]
#[ignore = "prints how long a mesh and three splits take"]
fn how_long_a_mesh_takes_beside_three_splits() {
    const CALLS: usize = 200;
    for (memory, ranks) in
        [(true, Communicator::local(8).expect("ranks")), (false, on_hosts(8, 1, &Options::default()))]
    {
        let times = std::thread::scope(|threads| {
            let run = |comm: &Communicator| {
                let mut times = [0.0, 0.0];
                for call in 0..2 * CALLS {
                    comm.barrier().expect("all ranks");
                    let began = Instant::now();
                    if call % 2 == 0 {
                        let mesh = comm.mesh(&[("dp", 2), ("pp", 2), ("tp", 2)], &[]).expect("a mesh");
                        times[0] += began.elapsed().as_secs_f64();
                        drop(mesh);
                    } else {
                        let parts =
                            [1, 2, 4].map(|bit| comm.split(Some(comm.rank() & !bit), 0).expect("a part"));
                        times[1] += began.elapsed().as_secs_f64();
                        drop(parts);
                    }
                }
                times.map(|time| 1e6 * time / CALLS as f64)
            };
            let calls: Vec<_> = ranks.iter().map(|comm| threads.spawn(move || run(comm))).collect();
            calls.into_iter().map(|call| call.join().expect("no panic")).next().expect("rank 0")
        });
        let links = if memory { "memory" } else { "sockets" };
        println!("8 ranks over {links}: a mesh {:.0} us, three splits {:.0} us", times[0], times[1]);
    }
}
