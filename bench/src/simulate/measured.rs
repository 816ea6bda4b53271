//! Measured times out of files: samples and tables of `tune`, and results of a measurement.
//!
//! Invariant: a file is known by its contents, not by its name; what holds nothing for the collective and the
//! number of ranks is refused, so that no chart lacks what it seems to show.

use std::path::Path;

use consort::planning::{Collective, Tuning};
use serde_json::Value;

use crate::failure::Failure;
use crate::planned;
use crate::samples::{Samples, fields};

/// Times of one algorithm, or of whatever ran.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Curve {
    pub(super) name: String,
    /// Sizes as nccl-tests counts them, in bytes, with microseconds.
    pub(super) points: Vec<(u64, f64)>,
}

/// What results of a measurement are called: the algorithm is not in them.
const WHATEVER_RAN: &str = "collbench";

/// The curves of a file.
pub(super) fn read(path: &Path, collective: Collective, ranks: u32) -> Result<Vec<Curve>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    let curves = text.and_then(|text| curves(&text, collective, ranks));
    curves.map_err(|why| Failure::usage(format!("{}: {why}", path.display())))
}

fn curves(text: &str, collective: Collective, ranks: u32) -> Result<Vec<Curve>, String> {
    let curves = if text.trim_start().starts_with('{') {
        results(text, collective, ranks)?
    } else if Samples::are_in(text) {
        samples(text, collective, ranks)?
    } else if text.starts_with("size,count,") {
        rows(text)?
    } else {
        let table = Tuning::parse(text);
        table_curves(&table.map_err(|error| format!("no file of collbench ({error})"))?, collective, ranks)
    };
    match curves.iter().any(|curve| !curve.points.is_empty()) {
        true => Ok(curves),
        false => Err(format!("it has nothing for {collective} over {ranks} ranks")),
    }
}

/// Adds a point to the curve of that name.
fn add(curves: &mut Vec<Curve>, name: String, point: (u64, f64)) {
    match curves.iter_mut().find(|curve| curve.name == name) {
        Some(curve) => curve.points.push(point),
        None => curves.push(Curve { name, points: vec![point] }),
    }
}

fn samples(text: &str, collective: Collective, ranks: u32) -> Result<Vec<Curve>, String> {
    let mut curves = Vec::new();
    let all = Samples::parse(text)?.all.into_iter();
    for sample in all.filter(|sample| (sample.collective, sample.ranks) == (collective, ranks)) {
        add(&mut curves, sample.algorithm.to_string(), (sample.size, sample.median_us));
    }
    Ok(curves)
}

fn table_curves(table: &Tuning, collective: Collective, ranks: u32) -> Vec<Curve> {
    let mut curves = Vec::new();
    for line in table.lines.iter().filter(|line| (line.collective, line.ranks) == (collective, ranks)) {
        let size = line.bytes * planned::blocks(collective, ranks);
        add(&mut curves, line.algorithm.to_string(), (size, line.nanoseconds as f64 / 1e3));
    }
    curves
}

/// The results of `--json`.
fn results(text: &str, collective: Collective, ranks: u32) -> Result<Vec<Curve>, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if json["config"]["nranks"].as_u64() != Some(ranks.into()) {
        return Ok(Vec::new());
    }
    let results = json["results"].as_array().ok_or("it has no results")?;
    let mut curves = Vec::new();
    for result in results {
        let name = result["experiment_name"].as_str().unwrap_or_default();
        let time = result["out_of_place"]["time"].as_f64();
        if let (true, Some(size), Some(time)) =
            (planned::collective(name) == Ok(collective), result["size"].as_u64(), time)
        {
            add(&mut curves, WHATEVER_RAN.into(), (size, time));
        }
    }
    Ok(curves)
}

/// The rows of `--csv`, which do not say what was measured.
fn rows(text: &str) -> Result<Vec<Curve>, String> {
    let mut lines = text.lines().map(fields);
    let head = lines.next().unwrap_or_default();
    let name = "out_of_place_time_us";
    let column =
        head.iter().position(|field| field == name).ok_or_else(|| format!("there is no column {name}"))?;
    let mut curves = Vec::new();
    for (number, row) in (2..).zip(lines) {
        let size = row.first().and_then(|field| field.parse().ok());
        let time = row.get(column).and_then(|field| field.parse().ok());
        let (Some(size), Some(time)) = (size, time) else {
            return Err(format!("line {number}: no size and time"));
        };
        add(&mut curves, WHATEVER_RAN.into(), (size, time));
    }
    Ok(curves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::tests::of;

    fn read(text: &str) -> Result<Vec<Curve>, String> {
        curves(text, Collective::AllReduce, 4)
    }

    fn curve(name: &str, points: &[(u64, f64)]) -> Curve {
        Curve { name: name.into(), points: points.to_vec() }
    }

    #[test]
    fn every_kind_of_file_is_known_by_its_contents() {
        let all = vec![of("tree", 64, 10.0, true), of("ring", 64, 12.0, false), of("tree", 128, 20.0, true)];
        let samples = Samples { machine: "m".into(), all }.to_string();
        let tree = curve("tree", &[(64, 10.0), (128, 20.0)]);
        assert_eq!(read(&samples), Ok(vec![tree.clone(), curve("ring", &[(64, 12.0)])]));

        let table = "consort-tuning 1\nplanner 2\nmachine m\nall_reduce 4 64 tree 0 0 10000\n";
        let table = table.replace("planner 2", &planner());
        assert_eq!(read(&table), Ok(vec![curve("tree", &[(64, 10.0)])]));

        let json = r#"{"config":{"nranks":4},"results":[
            {"size":64,"experiment_name":"all_reduce","out_of_place":{"time":1.5}},
            {"size":64,"experiment_name":"reduce","out_of_place":{"time":9.5}}]}"#;
        assert_eq!(read(json), Ok(vec![curve("collbench", &[(64, 1.5)])]));

        let csv = "size,count,type,redop,root,out_of_place_time_us\n64,16,float,sum,-1,1.5\n128,32,float,sum,-1,2\n";
        assert_eq!(read(csv), Ok(vec![curve("collbench", &[(64, 1.5), (128, 2.0)])]));
    }

    /// The line of this version's planner.
    fn planner() -> String {
        let table = Tuning { machine: "m".into(), lines: Vec::new() }.to_string();
        table.lines().nth(1).expect("a second line").to_owned()
    }

    #[test]
    fn what_holds_nothing_is_refused() {
        let samples = Samples { machine: String::new(), all: vec![of("tree", 64, 10.0, true)] }.to_string();
        let error = curves(&samples, Collective::AllReduce, 8).expect_err("other ranks");
        assert!(error.contains("nothing for all_reduce over 8 ranks"), "{error}");
        for (text, says) in [
            ("", "no file of collbench"),
            ("{\"config\":{\"nranks\":8},\"results\":[]}", "nothing for"),
            ("size,count,type\n", "no column"),
            ("size,count,out_of_place_time_us\nx,1,2\n", "line 2"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(says), "{error}");
        }
    }
}
