//! Meshes, over ranks of one process that take themselves for ranks of several hosts.

use super::Mesh;
use crate::{Communicator, Options, ReduceOp, Result};
use consort_control::bootstrap::Member;
use consort_settings::options::Settings;

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
