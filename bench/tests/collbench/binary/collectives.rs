//! Every collective between processes and between threads, right and with a mistake, under every kind of name.
//!
//! What is expected of each is written here once more, as a table, so that a wrong rule is not its own judge.

use super::run;
use crate::alone;

/// What the table says of a collective.
struct Known {
    /// The names it goes by; the first is the one that is printed.
    names: &'static [&'static str],
    op: &'static str,
    root: &'static str,
    in_place: bool,
    /// Count and size in elements of 1000 bytes of float, on two, three and four ranks.
    counts: [(usize, usize); 3],
}

const fn known(
    names: &'static [&'static str],
    (op, root, in_place): (&'static str, &'static str, bool),
    counts: [(usize, usize); 3],
) -> Known {
    Known { names, op, root, in_place, counts }
}

/// The vector is not cut.
const WHOLE: [(usize, usize); 3] = [(250, 250); 3];
/// Parts of whole 16 bytes.
const PARTS: [(usize, usize); 3] = [(124, 248), (80, 240), (60, 240)];
/// The longest of blocks that differ: the last of 1 + 2, 1 + 2 + 3, 1 + 2 + 3 + 4 shares.
const SHARES: [(usize, usize); 3] = [(167, 250), (125, 250), (100, 250)];

const ALL: [Known; 15] = [
    known(&["all_reduce", "allreduce", "all_reduce_perf"], ("sum", "-1", true), WHOLE),
    known(&["reduce", "reduce_perf"], ("sum", "0", true), WHOLE),
    known(&["broadcast", "BROADCAST"], ("none", "0", true), WHOLE),
    known(&["all_gather", "allgather"], ("none", "-1", true), PARTS),
    known(&["reduce_scatter", "reducescatter"], ("sum", "-1", true), PARTS),
    known(&["sendrecv", "send_recv"], ("none", "-1", false), WHOLE),
    known(&["alltoall", "all_to_all", "alltoall_perf"], ("none", "-1", false), PARTS),
    known(&["gather", "gather_perf"], ("none", "0", true), PARTS),
    known(&["scatter", "scatter_perf"], ("none", "0", true), PARTS),
    known(&["hypercube", "hypercube_perf"], ("none", "-1", true), PARTS),
    known(&["alltoallv", "all_to_all_v", "alltoallv_perf"], ("none", "-1", false), SHARES),
    known(&["all_gather_v", "allgatherv"], ("none", "-1", true), SHARES),
    known(&["reduce_scatter_v", "reducescatterv"], ("sum", "-1", true), SHARES),
    known(&["gather_v", "gatherv"], ("none", "0", false), SHARES),
    known(&["scatter_v", "scatterv"], ("none", "0", false), SHARES),
];

/// The collectives that exist between `ranks` ranks.
fn all(ranks: usize) -> impl Iterator<Item = &'static Known> {
    ALL.iter().filter(move |known| known.names[0] != "hypercube" || ranks.is_power_of_two())
}

/// Sizes that do not divide, of nothing, of less than an element a rank, and past a slot; memory that is not aligned.
fn every_collective(ranks: usize, flags: &str) {
    let _alone = alone();
    let flags = format!("--ranks {ranks} {flags}");
    for Known { names, op, root, in_place, counts } in all(ranks) {
        let title = names[0];
        let checked = if *in_place { "0" } else { "N/A" };
        // Each name in one run at least.
        let name = names[(ranks - 2) % names.len()];
        let outcome = run(&format!("{name} -b 0 -e 1000 -i 1000 -n 2 {flags}")).fine();
        assert!(outcome.out.contains(&format!("# Collective test starting: {title}\n")));
        let rows = outcome.rows();
        assert_eq!(rows.len(), 2, "{}", outcome.out);
        assert_eq!(rows[0][..5], ["0", "0", "float", op, root], "{name}");
        let (count, elements) = counts[ranks - 2];
        let (bytes, count) = ((4 * elements).to_string(), count.to_string());
        assert_eq!(rows[1][..5], [&bytes, &count, "float", op, root], "{name}");
        assert!(rows.iter().all(|row| (row[8], row[12]) == ("0", checked)), "{}", outcome.out);
        let (types, unalign) = if title == "reduce_scatter_v" { ("all", "") } else { ("uint8", "-u 3") };
        let odd =
            run(&format!("{title} -b 1 -e 400003 -f 57 -d {types} {unalign} -r -1 -n 1 {flags}")).fine();
        let lines = 4 * if types == "all" { 12 } else { 1 } * if *root == "0" { ranks } else { 1 };
        assert_eq!(odd.rows().len(), lines, "{}", odd.out);
    }
}

#[test]
fn every_collective_between_two_processes() {
    every_collective(2, "");
}

#[test]
fn every_collective_between_three_processes() {
    every_collective(3, "");
}

#[test]
fn every_collective_between_four_threads() {
    every_collective(4, "--threads");
}

#[test]
fn every_collective_between_three_threads() {
    every_collective(3, "--threads");
}

#[test]
fn one_wrong_element_is_found() {
    let _alone = alone();
    for (flags, ranks) in [("--ranks 2", 2), ("--ranks 3 --threads", 3)] {
        for known in all(ranks) {
            let (name, culprit) = (known.names[0], ranks - 1);
            let root = if known.root == "0" { format!("-r {culprit}") } else { String::new() };
            let outcome =
                run(&format!("{name} --size 64K -n 2 --corrupt {culprit} {root} {flags}")).expect(7);
            let (in_place, checks) = if known.in_place { ("1", 2) } else { ("N/A", 1) };
            let rows = outcome.rows();
            assert_eq!((rows[0][8], rows[0][12]), ("1", in_place), "{}", outcome.out);
            let line = format!("# Out of bounds values : {checks} FAILED\n");
            assert!(outcome.out.contains(&line), "{}", outcome.out);
            let who = format!("rank {culprit}: {name} of ");
            outcome.complains(&[&who, "out of place: 1 wrong elements in the output, first at element "]);
        }
    }
}

#[test]
fn an_algorithm_that_is_named_runs() {
    let _alone = alone();
    for (line, name) in [
        ("allreduce --algo tree", "tree"),
        ("allreduce --algo ring(channels=2)", "ring(channels=2)"),
        ("allgatherv --algo ring", "ring"),
        ("reducescatterv --algo direct --threads", "direct"),
        ("alltoall --algo pairwise", "pairwise"),
        ("gather --algo binomial -r 1", "binomial"),
    ] {
        let outcome = run(&format!("{line} -b 16 -e 64K -f 64 -n 2 --ranks 3")).fine();
        let remarks: Vec<&str> =
            outcome.out.lines().filter(|line| line.starts_with("# algorithm of")).collect();
        assert_eq!(remarks, [format!("# algorithm of the next lines: {name}")], "{line}");
    }
    let messages = run("sendrecv --size 64K -n 2 --ranks 2").fine();
    assert!(!messages.out.contains("# algorithm of"), "{}", messages.out);
    run("allreduce --size 64K --algo bruck --ranks 3").expect(3).complains(&["bruck", "all_reduce"]);
}
