//! `collbench traffic`, started as a user starts it.

use std::fs;
use std::path::PathBuf;

use crate::binary::{Outcome, start};

/// A path for a file of this test process.
fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("traffic-{}-{name}", std::process::id()))
}

#[track_caller]
fn run(line: &str) -> Outcome {
    start(&format!("traffic {line}"), &[], &[]).end()
}

#[test]
fn the_default_is_summed_drawn_and_written() {
    let [svg, csv] = ["default.svg", "default.csv"].map(file);
    let outcome = run(&format!("-o {} --csv {}", svg.display(), csv.display())).expect(0);
    for text in [
        "decoder of 102.0 billion parameters: 80 layers, hidden 10240",
        "# 128 ranks: tensor 8, context 1, data 4, expert 1, pipeline 4; ZeRO-1; 32 micro-batches of 1\n",
        "# 7,744 of 8,128 pairs never talk (95.3 %)\n",
    ] {
        assert!(outcome.out.contains(text), "{text}\n{}", outcome.out);
    }
    let table = fs::read_to_string(&csv).expect("a table");
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("from,to,bytes,tensor,context,expert,data,pipeline,embedding"));
    let bytes =
        |line: &str| line.split(',').nth(2).and_then(|bytes| bytes.parse::<u64>().ok()).expect("bytes");
    let sum: u64 = lines.map(bytes).sum();
    let all = outcome.out.lines().find(|line| line.starts_with("all ")).expect("a sum");
    assert_eq!(all.split_whitespace().nth(1).map(|all| all.replace(',', "")), Some(sum.to_string()));
    let picture = fs::read_to_string(&svg).expect("a picture");
    assert!(picture.starts_with("<svg ") && picture.contains("7,744 of 8,128 pairs never talk"));
    assert!(picture.contains("stage 3") && picture.contains("rank 0 to rank 1: 381 GB, most of it tensor"));
    for path in [svg, csv] {
        fs::remove_file(path).expect("removed");
    }
}

#[test]
fn standard_output_takes_one_of_them_alone() {
    let table = run("--csv - --tp 2 --pp 1 --dp 1 --ranks 2").expect(0).out;
    assert!(table.starts_with("from,to,bytes,") && table.lines().count() == 3, "{table}");
    assert!(run("-o -").expect(0).out.starts_with("<svg "));
    run("-o - --csv -").refused(&["standard output takes one of them"]);
}

#[test]
fn impossible_meshes_are_refused_with_the_flags_to_change() {
    run("--tp 12").refused(&["--heads 80 is no multiple of --tp 12: take --tp 10 or 16"]);
    run("--ranks 64")
        .refused(&["--tp 8 times --cp 1 times --dp 4 times --pp 4 are 128 ranks: change one of these"]);
    run("--experts 8 --ep 8").refused(&["--ep 8 does not divide the 4 ranks of --cp 1 times --dp 4"]);
    run("--dtype int3").refused(&["--dtype"]);
}
