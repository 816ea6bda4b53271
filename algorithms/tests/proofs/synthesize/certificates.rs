//! Certificates of the library's schedules are accepted, and the same with one change are refused.

use consort_algorithms::Collective;
use consort_algorithms::catalogue::{Algorithm, Shape, candidates};
use consort_algorithms::synthesize::certificate;
use consort_algorithms::topology::profile;
use consort_checker::check;

/// Machines that differ in what limits them.
const MACHINES: [&str; 6] = ["host:4", "dgx-a100:1", "dgx-a100:2", "dgx-h100:2", "torus:3x3", "tcp:3x2"];

fn schedules(machine: &str, collective: Collective) -> Vec<Algorithm> {
    let topology = profile(machine).expect("a profile");
    let per_box = topology.boxes()[0].len() as u32;
    let shape = Shape { per_box, channels: 2, bidirectional: true, all_pairs: true };
    candidates(collective, topology.ranks(), &shape)
}

const BOUNDED: [Collective; 6] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllReduce,
    Collective::AllToAll,
];

#[test]
fn certificates_of_the_catalogue_are_accepted() {
    let mut accepted = 0;
    for machine in MACHINES {
        let topology = profile(machine).expect("a profile");
        for collective in BOUNDED {
            for algorithm in schedules(machine, collective) {
                let schedule = algorithm.schedule(collective, topology.ranks());
                let text = certificate(&schedule, &topology).expect("a certificate");
                match check(&text) {
                    Ok(found) => {
                        println!("{algorithm}: {found}");
                        accepted += 1;
                    }
                    Err(refused) => panic!("{algorithm} of {collective} on {machine}: {refused}"),
                }
            }
        }
    }
    println!("{accepted} accepted");
    assert!(accepted > 100);
}
