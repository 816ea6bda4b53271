//! `collbench bound`: the algorithm bandwidth that no schedule can exceed on a machine, and what limits it.
//!
//! Invariant: the bound is the library's, exact and the same everywhere; only the time that it took is this machine's.
//! Absent: measuring, and sizes at which latency counts.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use consort::planning::bounds::{self, Bound};
use consort::planning::{Collective, Rank, Topology};

use crate::described::{Graph, Reading};
use crate::failure::{Exit, Failure};
use crate::planned;

/// Prints the algorithm bandwidth that no schedule of a collective can exceed on a machine, for long messages, with the
/// argument that proves it and the cut that limits it.
///
/// A bound is exact where a schedule that reaches it is known to exist.
#[derive(Parser, Debug)]
#[command(name = "collbench bound", bin_name = "collbench bound", max_term_width = 110)]
struct Arguments {
    /// all_gather, reduce_scatter, broadcast, reduce, all_reduce or all_to_all
    #[arg(value_parser = planned::collective)]
    collective: Collective,

    /// The machine: a profile such as dgx-h100:2 or torus:4x4, or a file of NCCL, hwloc, nvidia-smi topo -m or this program; also
    /// CONSORT_TOPOLOGY, or NCCL_TOPO_FILE
    #[arg(long, value_name = "NAME|FILE")]
    topology: Option<String>,

    #[command(flatten)]
    reading: Reading,

    /// The root of a broadcast or reduce [default: the one that allows least]
    #[arg(long, value_name = "R")]
    root: Option<u32>,

    /// For all_reduce: every switch may fold values on their way and send one value to many
    #[arg(long)]
    in_network: bool,

    /// Writes the bound as JSON: its cut is a sentence, then names of nodes. - for standard output, where nothing else
    /// is then printed
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the subcommand; its name is the first word.
pub(crate) fn run(words: &[OsString]) -> Result<Exit, Failure> {
    let Some(arguments) = planned::parse::<Arguments>(words)? else { return Ok(Exit::Done) };
    let Graph { topology, lacks } = arguments.reading.topology(arguments.source()?.trim())?;
    let began = Instant::now();
    let mut bound = arguments.bound(&topology)?;
    bound.exact &= lacks.is_empty();
    let seconds = began.elapsed().as_secs_f64();
    let is_out = arguments.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    if !is_out {
        let text = arguments.text(&topology, &bound, seconds);
        let more: String = lacks.iter().map(|lack| format!("  of the graph alone: {lack}\n")).collect();
        planned::write(&(text + &more), None)?;
    }
    if let Some(path) = &arguments.json {
        planned::write(&arguments.json(&topology, &bound, seconds), (!is_out).then_some(path))?;
    }
    Ok(Exit::Done)
}

impl Arguments {
    /// What names the machine.
    fn source(&self) -> Result<String, Failure> {
        let variables = || ["CONSORT_TOPOLOGY", "NCCL_TOPO_FILE"].into_iter().find_map(planned::named);
        let named = self.topology.clone().or_else(variables);
        named.ok_or_else(|| Failure::usage("--topology, CONSORT_TOPOLOGY or NCCL_TOPO_FILE is missing"))
    }

    fn bound(&self, topology: &Topology) -> Result<Bound, Failure> {
        let is_rooted = matches!(self.collective, Collective::Broadcast | Collective::Reduce);
        if self.root.is_some() && !is_rooted {
            return Err(Failure::usage(format!("--root: {} has no root", self.collective)));
        }
        if self.in_network && self.collective != Collective::AllReduce {
            return Err(Failure::usage(format!(
                "--in-network is for all_reduce, not for {}",
                self.collective
            )));
        }
        let options = bounds::Options { root: self.root.map(Rank), in_network: self.in_network };
        bounds::bound(topology, self.collective, &options).map_err(|error| Failure::usage(error.to_string()))
    }

    /// The machine's name, or what was asked for where it has none.
    fn name(&self, topology: &Topology) -> String {
        if topology.name.is_empty() { self.source().unwrap_or_default() } else { topology.name.clone() }
    }

    fn text(&self, topology: &Topology, bound: &Bound, seconds: f64) -> String {
        let way = if self.in_network { ", in the network" } else { "" };
        let mut text =
            format!("{}{way} on {}, {} ranks: ", self.collective, self.name(topology), topology.ranks());
        let exact = if bound.exact { "exact" } else { "at most" };
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "{:.6} GB/s of algorithm bandwidth ({exact}, {})", bound.gb_s(), bound.argument);
        let _ = writeln!(text, "  cut: {}", bound.cut.words);
        if !bound.cut.nodes.is_empty() {
            let _ = writeln!(text, "  its nodes: {}", bound.cut_names(topology).join(" "));
        }
        if let Some(steps) = bound.steps {
            let plural = if steps == 1 { "" } else { "s" };
            // A message that ranks relay passes several hops.
            let _ = writeln!(text, "  at least {steps} hop{plural} between neighbours in a row");
        }
        let _ = writeln!(text, "  found in {seconds:.6} s");
        text
    }

    fn json(&self, topology: &Topology, bound: &Bound, seconds: f64) -> String {
        let names = bound.cut_names(topology);
        let cut: Vec<&str> = std::iter::once(bound.cut.words.as_str()).chain(names).collect();
        let value = serde_json::json!({
            "collective": self.collective.name(),
            "topology": self.name(topology),
            "algbw_gb_s": bound.gb_s(),
            "exact": bound.exact,
            "argument": bound.argument.name(),
            "cut": cut,
            "seconds": seconds,
        });
        format!("{value}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn parsed(line: &str) -> Result<Arguments, Failure> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        planned::parse::<Arguments>(&words).map(|arguments| arguments.expect("no help"))
    }

    fn found(line: &str) -> Result<(String, Value), Failure> {
        let arguments = parsed(line)?;
        let topology = arguments.reading.topology(&arguments.source()?)?.topology;
        let bound = arguments.bound(&topology)?;
        let json = serde_json::from_str(&arguments.json(&topology, &bound, 0.5)).expect("json");
        Ok((arguments.text(&topology, &bound, 0.5), json))
    }

    #[test]
    fn flags_for_files_are_refused_for_profiles() {
        for flag in ["--boxes 4", "--assume dgx-a100", "--rates nccl", "--wires fastest", "--network flat"] {
            let message =
                found(&format!("bound all_gather --topology dgx-h100:1 {flag}")).expect_err(flag).message;
            assert!(message.contains("leave them out"), "{message}");
        }
    }

    #[test]
    fn a_bound_is_said_in_words_and_as_json() {
        let (text, json) = found("bound allreduce --topology dgx-h100:16").expect("a bound");
        assert!(text.starts_with("all_reduce on dgx-h100:16, 128 ranks: 213.333333 GB/s"), "{text}");
        assert!(text.contains("(exact, counting)") && text.contains("found in 0.500000 s"), "{text}");
        let keys: Vec<&String> = json.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["algbw_gb_s", "argument", "collective", "cut", "exact", "seconds", "topology"]);
        assert_eq!(json["collective"], "all_reduce");
        assert_eq!(json["topology"], "dgx-h100:16");
        assert_eq!((&json["exact"], &json["argument"]), (&true.into(), &"counting".into()));
        let (text, json) = found("bound all_gather_perf --topology dgx-h100:16").expect("a bound");
        assert!(text.contains("cut: 120 ranks into box 0 over 8 adapters of 50 GB/s"), "{text}");
        let names: Vec<&str> =
            json["cut"].as_array().expect("names").iter().filter_map(Value::as_str).collect();
        assert_eq!(names[..3], ["120 ranks into box 0 over 8 adapters of 50 GB/s", "r0", "r1"]);
        assert!(names.contains(&"nvswitch0") && !names.contains(&"r8"), "{names:?}");
        let near = json["algbw_gb_s"].as_f64().expect("a number") - 128.0 * 50.0 / 15.0;
        assert!(near.abs() < 1e-9, "{json}");
    }

    #[test]
    fn flags_belong_to_their_collectives() {
        let rate = |line: &str| found(line).expect(line).1["algbw_gb_s"].as_f64().expect("a number");
        assert_eq!(rate("bound all_reduce --in-network --topology dgx-h100:2"), 400.0);
        assert_eq!(rate("bound broadcast --root 3 --topology dgx-h100:1"), 450.0);
        for (line, says) in [
            ("bound all_gather --in-network --topology dgx-h100:2", "--in-network is for all_reduce"),
            ("bound all_gather --root 1 --topology dgx-h100:2", "all_gather has no root"),
            ("bound reduce --root 16 --topology dgx-h100:2", "no root r16: the machine has 16 ranks"),
            ("bound gather --topology dgx-h100:2", "there is no bound for gather"),
            ("bound all_gather --topology host:1", "needs at least 2"),
            ("bound all_gather --topology nowhere", "there are host:"),
            ("bound all_gather", "--topology"),
        ] {
            let failure = found(line).map(|found| found.0).expect_err(line);
            assert_eq!(failure.exit, Exit::Usage, "{line}");
            assert!(failure.message.contains(says), "{line}: {failure}");
        }
    }
}
