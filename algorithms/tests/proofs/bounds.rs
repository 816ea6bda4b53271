//! Bounds: the fabrics whose optimum is known, properties on random graphs, and damaged machines.

use consort_algorithms::bounds::{Bound, Options, bound};
use consort_algorithms::topology::{Topology, parse, profile};
use consort_algorithms::{Collective, Rank};

/// A fabric of `algorithms/fabrics`, or a profile.
pub(crate) fn fabric(name: &str) -> Topology {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fabrics/{name}.topology"));
    match std::fs::read_to_string(&file) {
        Ok(text) => parse(&text).unwrap_or_else(|fault| panic!("{name}: {fault}")),
        Err(_) => profile(name).unwrap_or_else(|fault| panic!("{fault}")),
    }
}

#[test]
fn print_all() {
    for name in [
        "dgx-1",
        "amd-hive-ring",
        "ndv2-x2",
        "dgx-a100-x1",
        "dgx-a100-x2",
        "dgx-a100-x4",
        "dgx-h100-x1",
        "dgx-h100-x2",
        "dgx-h100-x16",
        "dgx-h100-flat:128",
        "dgx-h100:2",
        "dgx-h100:32",
        "dgx-h100:128",
        "mi250",
        "mi300x",
        "torus-4x4",
        "torus-4x4x4",
        "hypercube-3",
        "hypercube-4",
        "pcie-dual-root",
        "domains:2x4",
        "pcie:2",
        "tcp:4x2",
    ] {
        let topology = fabric(name);
        println!("== {name} {}", topology.ranks());
        for collective in [
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::AllToAll,
            Collective::AllReduce,
            Collective::Broadcast,
        ] {
            let began = std::time::Instant::now();
            let b = bound(&topology, collective, &Options::default()).expect("a bound");
            println!(
                "{collective:>14} {:10.4} exact {:5} {:12} steps {:?} {} [{:.4} s]",
                b.gb_s(),
                b.exact,
                b.argument.name(),
                b.steps,
                b.cut.words,
                began.elapsed().as_secs_f64()
            );
        }
    }
    let _ = Rank(0);
    let _: Option<Bound> = None;
}
