//! The subcommands that ask and teach the planner, started as a user starts them.
//!
//! Tables must hold together whichever algorithm is the fastest: no speed is looked at.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::alone;
use crate::binary::{Outcome, start};

/// A path for a file of this test process.
fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("planner-{}-{name}", std::process::id()))
}

/// Runs the program to its end in an environment of these variables alone.
#[track_caller]
fn run(line: &str, environment: &[(&str, &str)]) -> Outcome {
    start(line, &[], environment).end()
}

fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.out).expect("json")
}

/// The fields of each line, by the names in the head.
fn records(text: &str) -> Vec<HashMap<String, String>> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let head: Vec<&str> = lines.next().expect("a head").split(',').collect();
    let record = |line: &str| {
        head.iter().map(|name| name.to_string()).zip(line.split(',').map(str::to_owned)).collect()
    };
    lines.map(record).collect()
}

#[test]
fn the_environment_acts_as_on_a_communicator() {
    let plan = |environment: &[(&str, &str)]| {
        json(&run("plan allreduce --ranks 4 --cores 2 --size 64K --format json", environment).expect(0))
    };
    let chosen = |plan: &Value| {
        let candidates = plan["explanation"]["candidates"].as_array().expect("candidates").clone();
        let chosen: Vec<Value> = candidates.into_iter().filter(|one| one["chosen"] == true).collect();
        assert_eq!(chosen.len(), 1);
        chosen[0]["algorithm"].as_str().expect("a name").to_owned()
    };
    let free = plan(&[]);
    assert_eq!(free["explanation"]["origin"], "priced");
    assert_eq!(chosen(&plan(&[("CONSORT_ALGO", "tree")])), "tree");
    assert_eq!(chosen(&plan(&[("CONSORT_ALGO", "ring")])), "ring");
    let invariant = plan(&[("CONSORT_DETERMINISM", "invariant")]);
    assert_eq!(invariant["explanation"]["determinism"], "invariant");
    assert!(["direct", "two-shot"].contains(&chosen(&invariant).as_str()));
    let boxes = run("plan broadcast", &[("CONSORT_TOPOLOGY", "dgx-h100:2")]).expect(0);
    assert!(boxes.out.contains("over 16 ranks") && boxes.out.contains("on dgx-h100:2"), "{}", boxes.out);
}

#[test]
fn asking_for_the_impossible_lists_what_is_possible() {
    let plan = |environment: &[(&str, &str)]| run("plan allreduce --ranks 4", environment);
    plan(&[("CONSORT_ALGO", "box-tree")]).refused(&["CONSORT_ALGO", "possible: ring, tree, doubling"]);
    plan(&[("CONSORT_ALGO", "ring"), ("CONSORT_DETERMINISM", "invariant")])
        .refused(&["CONSORT_DETERMINISM is \"invariant\"", "possible: direct, two-shot"]);
    plan(&[("CONSORT_ALGO", "rings")]).refused(&["known: pair, ring"]);
    plan(&[("CONSORT_TOPOLOGY", "nowhere")]).refused(&["there are host:"]);
    plan(&[("CONSORT_TUNING", "nowhere")]).refused(&["nowhere"]);
    run("plan allreduce --ranks 4 --algo spread", &[]).refused(&["possible: ring, tree"]);
    run("plan", &[]).refused(&["Usage: collbench plan"]);
    run("simulate allreduce --ranks 4 --algo spread", &[]).refused(&["possible: ring, tree"]);
    run("tune allreduce", &[("CONSORT_TUNING", "table")]).refused(&["unset it"]);
    run("tune allreduce --check nowhere", &[]).refused(&["nowhere"]);
    run("tune allreduce --ranks 2 -b 8 -e 8", &[("CONSORT_ALGO", "box-tree")]).refused(&["possible: ring"]);
}

#[test]
fn drawings_go_where_they_are_sent() {
    let path = file("drawing");
    for (format, begins) in [("svg", "<svg"), ("dot", "digraph"), ("json", "{\"explanation\"")] {
        let line = format!("plan allgather --ranks 8 --format {format} -o {}", path.display());
        assert_eq!(run(&line, &[]).expect(0).out, "");
        assert!(fs::read_to_string(&path).expect("a drawing").starts_with(begins), "{format}");
    }
    fs::remove_file(&path).expect("removed");
}

#[test]
fn a_table_is_measured_used_and_checked() {
    let _alone = alone();
    let [table, samples] = ["table", "samples"].map(file);
    let sizes = "-b 16 -e 4K -f 16 --repeats 3";
    let line = format!(
        "tune allreduce broadcast allgather --ranks 2,3 --any-bits {sizes} -o {} --samples {}",
        table.display(),
        samples.display()
    );
    let outcome = run(&line, &[]).expect(0);
    assert!(
        outcome.out.contains("# 2 ranks: as asked for") && outcome.out.contains("# 3 ranks: as asked for"),
        "{}",
        outcome.out
    );
    let text = fs::read_to_string(&table).expect("a table");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).skip(3).collect();
    // An all-gather of 16 bytes has no block of as many.
    assert_eq!(lines.len(), 2 * (3 + 3 + 2), "{text}");
    let records = records(&fs::read_to_string(&samples).expect("samples"));
    for line in &lines {
        let words: Vec<&str> = line.split(' ').collect();
        let of = |record: &&HashMap<String, String>| {
            [&record["collective"], &record["ranks"], &record["bytes"]] == [words[0], words[1], words[2]]
        };
        let times: Vec<(f64, bool)> = (records.iter().filter(of))
            .map(|record| (record["median_us"].parse().expect("a time"), record["algorithm"] == words[3]))
            .collect();
        let least = times.iter().map(|time| time.0).fold(f64::MAX, f64::min);
        let ours = times.iter().find(|time| time.1).expect("a candidate").0;
        assert!(times.len() > 1 && ours <= least * 1.021, "{line}: {times:?}");
    }

    let environment = [("CONSORT_TUNING", table.to_str().expect("a name"))];
    let planned = json(&run("plan allreduce --ranks 3 --size 4K --format json", &environment).expect(0));
    assert_eq!(planned["explanation"]["origin"], "tuned", "{planned}");
    let line = lines.iter().find(|line| line.starts_with("all_reduce 3 4096 ")).expect("a line");
    let name = format!("\"algorithm\":\"{}\",\"chosen\":true", line.split(' ').nth(3).expect("a name"));
    assert!(planned["explanation"]["candidates"].as_array().expect("candidates").iter().any(|candidate| {
        candidate["chosen"] == true
            && name.contains(candidate["algorithm"].as_str().expect("a name"))
            && candidate["measured_s"].is_f64()
    }));

    let check = format!("tune allreduce --ranks 3 {sizes} --check {}", table.display());
    let checked = run(&check, &[]).expect(0);
    assert!(checked.out.contains(" of 3 choices are slower than 1.15 times"), "{}", checked.out);
    let named = checked.out.lines().find(|line| line.contains("4 KiB")).expect("a line");
    assert!(named.contains(line.split(' ').nth(3).expect("a name")), "{named}");
    fs::write(&table, text.replace("hosts=1", "hosts=7")).expect("written");
    run(&check, &[]).refused(&["hosts=7"]);

    let chart = file("chart.svg");
    let line =
        format!("simulate allreduce --ranks 3 -e 4K --measured {} -o {}", samples.display(), chart.display());
    run(&line, &[]).expect(0);
    assert!(fs::read_to_string(&chart).expect("a chart").contains("tree, measured"));
    for path in [table, samples, chart] {
        fs::remove_file(path).expect("removed");
    }
}

#[test]
fn a_table_on_standard_output_can_be_read_as_it_is() {
    let _alone = alone();
    let outcome = run("tune broadcast --ranks 2 -b 64 -e 64 --repeats 2 --threads", &[]).expect(0);
    let table = file("printed");
    fs::write(&table, outcome.out).expect("written");
    let environment = [("CONSORT_TUNING", table.to_str().expect("a name"))];
    let planned = json(&run("plan broadcast --ranks 2 --size 64 --format json", &environment).expect(0));
    assert_eq!(planned["explanation"]["origin"], "tuned", "{planned}");
    fs::remove_file(table).expect("removed");
}

#[test]
fn bits_are_kept_if_that_is_asked_for() {
    let _alone = alone();
    let samples = file("kept");
    let line =
        format!("tune allreduce --ranks 5 -b 1K -e 2K --repeats 2 --threads --samples {}", samples.display());
    let folds = |line: &str| {
        run(line, &[]).expect(0);
        let records = records(&fs::read_to_string(&samples).expect("samples"));
        let of = |bytes: &str| -> Vec<String> {
            records
                .iter()
                .filter(|record| record["bytes"] == bytes)
                .map(|record| record["fold"].clone())
                .collect()
        };
        ["1024", "2048"].map(of)
    };
    for folds in folds(&format!("{line} --any-bits")) {
        assert!(folds.iter().any(|fold| *fold != folds[0]), "{folds:?}");
    }
    for folds in folds(&line) {
        assert!(!folds.is_empty() && folds.iter().all(|fold| *fold == folds[0]), "{folds:?}");
    }
    fs::remove_file(samples).expect("removed");
}

#[test]
fn what_does_not_fit_into_the_time_is_left_out_aloud() {
    let _alone = alone();
    let outcome = run("tune reduce --ranks 2 --budget 0 -b 8 -e 64", &[]).expect(0);
    assert!(outcome.out.contains("the last 4 of 4 sizes are left out"), "{}", outcome.out);
}

#[test]
fn results_of_a_measurement_are_drawn() {
    let _alone = alone();
    let [results, chart] = ["results.json", "results.svg"].map(file);
    let line = format!("allreduce --ranks 2 --threads -b 1K -e 4K -f 2 -n 2 -J {}", results.display());
    run(&line, &[]).expect(0);
    let line = format!(
        "simulate allreduce --ranks 2 -b 1K -e 4K --measured {} -o {}",
        results.display(),
        chart.display()
    );
    let outcome = run(&line, &[]).expect(0);
    assert_eq!(outcome.out.lines().filter(|line| !line.starts_with('#')).count(), 3, "{}", outcome.out);
    assert!(fs::read_to_string(&chart).expect("a chart").contains("collbench, measured"));
    let line = format!("simulate allreduce --ranks 3 --measured {}", results.display());
    run(&line, &[]).refused(&["nothing for all_reduce over 3 ranks"]);
    for path in [results, chart] {
        fs::remove_file(path).expect("removed");
    }
}
