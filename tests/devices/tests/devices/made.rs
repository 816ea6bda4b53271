//! What is found and made for a machine's links runs on devices: ranks of one process with a device each.

use std::collections::BTreeSet;

use consort_tests::job::alone;
use consort_tests::system::Random;

use crate::ranks::{Way, here};

/// Machines of 8 and of 16 ranks whose links are unlike each other.
const FABRICS: [(u32, &str); 8] = [
    (8, "dgx-a100:1"),
    (8, "dgx-h100:1"),
    (8, "pcie:1"),
    (8, "torus:2x4"),
    (8, "torus:2x2x2"),
    (16, "dgx-a100:2"),
    (16, "pcie:2"),
    (16, "torus:4x4"),
];

#[test]
fn what_is_made_for_a_fabric_runs_on_devices() {
    let mut random = Random::announced("what_is_made_for_a_fabric_runs_on_devices");
    let mut ran = BTreeSet::new();
    for (ranks, fabric) in FABRICS {
        let kernels = Way::of_kernels(ranks);
        if here([kernels]).next().is_none() {
            return;
        }
        let _alone = alone();
        let start = kernels.start("device-made").with("seed", random.draw()).with("fabrics", fabric);
        let mut job = start.go();
        job.all_end_well();
        assert_eq!(job.line(0, "path"), "kernels");
        for (line, _) in job.said(0, "made ") {
            let (fabric, collective) = line.split_once(' ').expect("a machine and a collective");
            let (collective, _) = collective.split_once(':').expect("a schedule");
            ran.insert((fabric.to_owned(), collective.to_owned()));
        }
    }
    for collective in ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"] {
        let of = ran.iter().filter(|(_, known)| known == collective).count();
        assert_eq!(of, FABRICS.len(), "{collective} by what is made ran on {of} machines");
    }
    assert!(ran.iter().any(|(_, collective)| collective == "all_to_all"), "no exchange was made");
}
