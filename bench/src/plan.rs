//! `collbench plan`: which algorithm a call would take, why, and what it does.
//!
//! Invariant: no rank is started and no byte is moved; what is shown is what a communicator with this
//! environment would do. Absent: times that were measured here (see `tune`).

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use consort::planning::language::{self, Range};
use consort::planning::{
    Algorithm, Collective, Explanation, Origin, Path as DevicePath, Plan, Planning, Schedule, export,
    synthesize,
};

use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::planned::{self, Machine, refused};
use crate::sizes::parse_size;

/// Schedules of more ranks are priced by formulas and too long to be looked at.
const SHOWN_RANKS_MAX: u32 = 1024;
/// Lines of a plan that are printed.
const PLAN_LINES_MAX: usize = 200;

/// How the result is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
    Dot,
    Svg,
    Msccl,
}

/// Why a call runs as it does, and what of the command line has no part in that.
struct Reasons {
    explanation: Explanation,
    notes: Vec<String>,
}

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let notes = self.notes.iter().try_fold((), |(), note| writeln!(f, "note: {note}"));
        notes.and_then(|()| self.explanation.fmt(f))
    }
}

/// Says which algorithm a collective takes on a machine and why, and prints its schedule or one rank's plan.
///
/// The environment (CONSORT_ALGO, CONSORT_TUNING, CONSORT_DETERMINISM, CONSORT_TOPOLOGY and so on) acts as on
/// a communicator. Exit status 6 when nothing is possible, with what would be.
#[derive(Parser, Debug)]
#[command(name = "collbench plan", bin_name = "collbench plan", max_term_width = 110)]
struct Arguments {
    /// all_reduce, reduce, broadcast, all_gather, reduce_scatter, send_receive, all_to_all, gather or scatter
    #[arg(value_parser = planned::collective)]
    collective: Collective,

    #[command(flatten)]
    machine: Machine,

    /// Bytes of a rank's larger buffer; K, M and G are powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    size: u64,

    /// This algorithm, whatever would be chosen; for example tree, bruck(radix=4) or the name of a --schedule
    #[arg(long = "algo", value_name = "NAME")]
    algorithm: Option<String>,

    /// Where every rank has a device and they take this path: fused, kernels, streams or host. Lists what is left out, too
    #[arg(long, value_name = "PATH", value_parser = device_path)]
    device: Option<DevicePath>,

    /// Says only how many connections a rank makes for it, and with how much memory of its own and registered
    #[arg(long, conflicts_with_all = ["rank", "format", "certificate", "device", "algorithm"])]
    links: bool,

    /// The plan of this rank (relative to the root) instead of the schedule
    #[arg(long, value_name = "R")]
    rank: Option<u32>,

    /// text, json, dot, svg or msccl (XML that MSCCL reads); drawings and XML come without the reasons
    #[arg(long, value_enum, default_value = "text")]
    format: Format,

    /// Writes to a file instead of standard output
    #[arg(short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,

    /// Also writes the schedule with its machine, what long calls of it reach there and what no schedule exceeds, as a text that
    /// consort-check accepts or refuses
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
}

fn device_path(text: &str) -> Result<DevicePath, String> {
    let known = DevicePath::ALL.into_iter().find(|path| path.name() == text);
    known.ok_or_else(|| format!("there are {}", DevicePath::ALL.map(DevicePath::name).join(", ")))
}

/// Runs the subcommand; its name is the first word.
pub(crate) fn run(words: &[OsString]) -> Result<Exit, Failure> {
    let Some(arguments) = planned::parse::<Arguments>(words)? else { return Ok(Exit::Done) };
    let planning = arguments.machine.planning()?;
    let text = arguments.text(&planning)?;
    planned::write(&text, arguments.output.as_deref())?;
    Ok(Exit::Done)
}

/// The connections of the rank that has most.
fn links(planning: &Planning, collective: Collective, block_bytes: u64) -> Result<String, Failure> {
    let ranks = planning.ranks();
    Ok(match planning.connections(collective, block_bytes).map_err(refused)? {
        None => format!("{collective} over {ranks} ranks: its schedule is too long to be counted\n"),
        Some(of) => format!(
            "{collective} over {ranks} ranks by {}: at most {} connections a rank, to {} peers, with mailboxes of {} bytes; {} bytes registered a rank\n",
            of.algorithm, of.connections, of.peers, of.mailbox_bytes, of.registered_bytes
        ),
    })
}

impl Arguments {
    fn text(&self, planning: &Planning) -> Result<String, Failure> {
        let collective = self.collective;
        let ranks = if collective == Collective::SendReceive { 2 } else { planning.ranks() };
        if let Some(rank) = self.rank.filter(|rank| *rank >= ranks) {
            return Err(Failure::usage(format!(
                "--rank {rank}: there is no such rank; the last is {}",
                ranks - 1
            )));
        }
        let block_bytes = planned::block_bytes(collective, self.size, ranks);
        if self.links {
            return links(planning, collective, block_bytes);
        }
        // A schedule has its name only since it was read.
        let named = self.algorithm.as_deref().map(str::parse::<Algorithm>).transpose();
        let named = named.map_err(|error| Failure::usage(format!("--algo: {error}")))?;
        let explanation = match (named, self.device) {
            (named, Some(path)) => planning.explain_on_devices(named, path, collective, block_bytes),
            (Some(algorithm), None) => planning.explain_by(algorithm, collective, block_bytes),
            (None, None) => planning.explain(collective, block_bytes),
        }
        .map_err(refused)?;
        let notes = self.notes(named, &explanation, ranks)?;
        let reasons = Reasons { explanation, notes };
        let chosen = reasons.explanation.chosen().map(|candidate| candidate.algorithm);
        let Some(algorithm) = chosen else {
            return Err(Failure::internal("the planner's choice is none of its candidates"));
        };
        if let Some(path) = self.certificate.as_deref().filter(|_| ranks <= SHOWN_RANKS_MAX) {
            let schedule = algorithm.schedule(collective, ranks);
            let certified = synthesize::certificate(&schedule, planning.topology());
            let text = certified.map_err(|error| Failure::usage(format!("--certificate: {error}")))?;
            planned::write(&text, Some(path))?;
        }
        if ranks > SHOWN_RANKS_MAX {
            let note = format!("schedules of more than {SHOWN_RANKS_MAX} ranks are not drawn or printed");
            let plain = self.format == Format::Text && self.rank.is_none() && self.certificate.is_none();
            return if plain { Ok(format!("{reasons}\n{note}\n")) } else { Err(Failure::usage(note)) };
        }
        match self.rank {
            Some(rank) => {
                let plan = planning.plans(algorithm, collective).map_err(refused)?.swap_remove(rank as usize);
                self.of_plan(&reasons, &plan)
            }
            None => self.of_schedule(&reasons, &algorithm.schedule(collective, ranks)),
        }
    }

    /// What was named and is not taken, and which schedules of files are no candidates, with the reasons.
    fn notes(
        &self,
        named: Option<Algorithm>,
        explanation: &Explanation,
        ranks: u32,
    ) -> Result<Vec<String>, Failure> {
        let path = explanation.path.map_or_else(|| "host".into(), |path| format!("{path} path"));
        let mut notes = Vec::new();
        if let Some(named) = named.filter(|_| explanation.origin != Origin::Named) {
            let row = explanation.candidate(&named.to_string());
            let why = row.and_then(|of| of.excluded.clone()).unwrap_or_default();
            notes.push(format!("{named} is not taken on the {path}: {why}"));
        }
        for Schedule { name, collective, ranks: size, .. } in self.machine.schedules()? {
            if (collective, size) != (self.collective, ranks) {
                notes.push(format!("{name} is no candidate: it is of {collective} over {size} ranks"));
            } else if explanation.candidate(&name).is_none() {
                notes.push(format!("{name} is no candidate: the {path} has no such program"));
            }
        }
        Ok(notes)
    }

    fn of_schedule(&self, reasons: &Reasons, schedule: &Schedule) -> Result<String, Failure> {
        Ok(match self.format {
            Format::Text => {
                let Schedule { name, collective, ranks, partition, rounds, .. } = schedule;
                format!(
                    "{reasons}\nschedule {name}: {collective} over {ranks} ranks, {} parts, {} rounds, {} messages\n{}",
                    partition.parts,
                    rounds.len(),
                    schedule.messages(),
                    export::schedule_table(schedule)
                )
            }
            Format::Json => with_reasons(reasons, "schedule", &export::schedule_json(schedule)),
            Format::Dot => export::schedule_dot(schedule),
            Format::Svg => export::schedule_svg(schedule),
            Format::Msccl => language::msccl::write(schedule, Range::ALL).ok_or_else(|| {
                let what = if schedule.switches > 0 { "folds in switches" } else { "messages of two ranks" };
                Failure::usage(format!("--format msccl: MSCCL has no {what}"))
            })?,
        })
    }

    fn of_plan(&self, reasons: &Reasons, plan: &Plan) -> Result<String, Failure> {
        match self.format {
            Format::Text => Ok(format!("{reasons}\n{}", cut(&export::plan_text(plan)))),
            Format::Json => Ok(with_reasons(reasons, "plan", &export::plan_json(plan))),
            Format::Dot => Ok(export::plan_dot(plan)),
            Format::Svg => Err(Failure::usage("--format svg: a plan is drawn as dot only")),
            Format::Msccl => Err(Failure::usage("--format msccl: a file is of all ranks; leave out --rank")),
        }
    }
}

fn with_reasons(Reasons { explanation, notes }: &Reasons, what: &str, json: &str) -> String {
    let notes = if notes.is_empty() { String::new() } else { format!("\"notes\":{},\n", json!(notes)) };
    format!("{{\"explanation\":{},\n{notes}\"{what}\":{}}}\n", explanation.to_json(), json.trim_end())
}

/// The first lines, and how many there are.
fn cut(text: &str) -> String {
    let lines = text.lines().count();
    if lines <= PLAN_LINES_MAX {
        return text.to_owned();
    }
    let shown: Vec<&str> = text.lines().take(PLAN_LINES_MAX).collect();
    format!("{}\nthe first {PLAN_LINES_MAX} of {lines} lines; --format json has all\n", shown.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use consort::planning::LowerOptions;
    use serde_json::Value;

    fn text(line: &str) -> Result<String, Failure> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let arguments = planned::parse::<Arguments>(&words)?.expect("no help");
        arguments.text(&arguments.machine.planning()?)
    }

    #[test]
    fn every_collective_is_planned_and_explained() {
        for collective in Collective::ALL {
            let text = text(&format!("plan {collective} --ranks 6 --size 64K --cores 2")).expect("a plan");
            assert!(text.contains("schedule ") && text.contains("chosen: "), "{text}");
            assert!(text.contains(&format!("{collective} over ")), "{text}");
        }
    }

    #[test]
    fn the_size_is_of_the_larger_buffer() {
        let block = |line: &str| {
            let json: Value = serde_json::from_str(&text(line).expect("a plan")).expect("json");
            json["explanation"]["block_bytes"].as_u64()
        };
        assert_eq!(block("plan allreduce --ranks 8 --size 64K --format json"), Some(64 << 10));
        assert_eq!(block("plan alltoall --ranks 8 --size 64K --format json"), Some(8 << 10));
    }

    #[test]
    fn an_algorithm_can_be_named_and_is_listed_even_if_no_candidate() {
        let json = text("plan alltoall --ranks 9 --algo bruck(radix=3) --format json").expect("a plan");
        let json: Value = serde_json::from_str(&json).expect("json");
        assert_eq!(json["explanation"]["origin"], "named");
        let candidates = json["explanation"]["candidates"].as_array().expect("candidates");
        let chosen: Vec<&Value> = candidates.iter().filter(|one| one["chosen"] == true).collect();
        assert_eq!(chosen.len(), 1);
        assert_eq!(chosen[0]["algorithm"], "bruck(radix=3)");
        assert!(chosen[0]["predicted_s"].as_f64().expect("a price") > 0.0);
        assert_eq!(json["schedule"]["ranks"], 9);
        let failure = text("plan allreduce --ranks 9 --algo spread").expect_err("not defined");
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains("possible: ring, tree"), "{failure}");
    }

    #[test]
    fn the_plan_of_one_rank() {
        let text_of = text("plan allreduce --ranks 4 --rank 3 --algo ring").expect("a plan");
        assert!(text_of.contains("rank r3 of 4") && text_of.contains("lane 0 (processor)"), "{text_of}");
        let json: Value =
            serde_json::from_str(&text("plan reduce --ranks 4 --rank 2 --format json").expect("a plan"))
                .expect("json");
        assert_eq!(json["plan"]["rank"], 2);
        assert!(text("plan reduce --ranks 4 --rank 2 --format dot").expect("dot").starts_with("digraph"));
        let failure = text("plan allreduce --ranks 4 --rank 4").expect_err("no such rank");
        assert!(failure.message.contains("the last is 3"), "{failure}");
        let failure = text("plan allreduce --ranks 4 --rank 0 --format svg").expect_err("no picture");
        assert_eq!(failure.exit, Exit::Usage);
    }

    #[test]
    fn schedules_are_written_as_msccl_reads_them() {
        for line in
            ["allreduce --ranks 5 --algo ring", "alltoall --ranks 4", "broadcast --topology dgx-a100:1"]
        {
            let xml = text(&format!("plan {line} --size 1M --format msccl")).expect(line);
            let read = language::read(xml.as_bytes(), &LowerOptions { slots: 4 })
                .expect("it is proved when it is read");
            let json: Value =
                serde_json::from_str(&text(&format!("plan {line} --size 1M --format json")).expect(line))
                    .expect("JSON");
            let Schedule { collective, ranks, .. } = read.schedule;
            assert_eq!(json["schedule"]["ranks"], ranks, "{line}");
            assert_eq!(json["schedule"]["collective"], collective.name(), "{line}");
        }
        for (line, says) in
            [("send_receive --ranks 2", "two ranks"), ("allreduce --ranks 4 --rank 1", "all ranks")]
        {
            let failure = text(&format!("plan {line} --format msccl")).expect_err(line);
            assert!(failure.exit == Exit::Usage && failure.message.contains(says), "{failure}");
        }
    }

    #[test]
    fn machines_by_name() {
        let text_of = text("plan allreduce --topology dgx-h100:2 --size 1M").expect("a plan");
        assert!(text_of.contains("over 16 ranks") && text_of.contains("on dgx-h100:2"), "{text_of}");
        assert!(
            text_of.contains("hierarchical(") && text_of.contains("the first 12 of 16 ranks"),
            "{text_of}"
        );
        assert!(text("plan allreduce --ranks 8 --format svg").expect("svg").contains("<svg"));
        for (line, says) in [
            ("plan allreduce", "--ranks or --topology"),
            ("plan allreduce --ranks 4 --topology dgx-h100:1", "has 8"),
            ("plan allreduce --topology nowhere", "there are host:"),
            ("plan allsum --ranks 2", "known: all_reduce"),
        ] {
            let failure = text(line).expect_err(line);
            assert_eq!(failure.exit, Exit::Usage, "{line}");
            assert!(failure.message.contains(says), "{failure}");
        }
        let large = text("plan gather --ranks 1025").expect("a plan");
        assert!(large.contains("more than 1024 ranks are not drawn"), "{large}");
    }

    #[test]
    fn what_is_shown_can_be_certified() {
        let name = format!("collbench-certificate-{}.txt", std::process::id());
        let file = std::env::temp_dir().join(name);
        let line = format!("--certificate {}", file.display());
        let shown =
            text(&format!("plan allgather --topology dgx-a100:2 --algo ring {line}")).expect("a plan");
        assert!(shown.contains("schedule ring"), "{shown}");
        let written = std::fs::read_to_string(&file).expect("it was written");
        let lines = [
            "consort-certificate 1",
            "machine dgx-a100:2",
            "collective all_gather",
            "ranks 16",
            "schedule ring",
        ];
        for line in lines {
            assert!(written.lines().any(|written| written == line), "{line}: {written}");
        }
        let transfers = written.lines().filter(|line| line.starts_with("move ")).count();
        assert!(transfers >= 16 * 15 && written.ends_with("end\n"), "{transfers} transfers");
        let accepted = consort_checker::check(&written).expect("it is right").to_string();
        assert!(accepted.starts_with("accepted: all_gather on dgx-a100:2, "), "{accepted}");
        std::fs::remove_file(&file).expect("removed");
        let failure = text(&format!("plan gather --ranks 4 {line}")).expect_err("it has no bound");
        assert!(failure.message.contains("--certificate: there is no bound for gather"), "{failure}");
        let failure = text(&format!("plan allreduce --ranks 1025 {line}")).expect_err("too many");
        assert!(failure.message.contains("more than 1024 ranks"), "{failure}");
        assert!(!file.exists());
    }

    #[test]
    fn devices_are_candidates_with_their_paths_and_reasons() {
        let plan = |line: &str| text(line).expect("a plan");
        let of = plan("plan allreduce --ranks 4 --size 64K --device kernels");
        assert!(
            of.contains("on devices by the kernels path") && of.contains("chosen: kernels/doubling"),
            "{of}"
        );
        for row in
            ["packets hold 32768 bytes at most", "fused/direct", "host/", "(excluded: the path is kernels)"]
        {
            assert!(of.contains(row), "{row}: {of}");
        }
        assert!(
            plan("plan allreduce --ranks 4 --size 1K --device kernels").contains("chosen: packets/direct")
        );
        assert!(plan("plan sendrecv --ranks 4 --device streams").contains("chosen: streams/pair"));
        let json = plan("plan allreduce --topology dgx-h100:1 --size 1M --device kernels --format json");
        let json: Value = serde_json::from_str(&json).expect("json");
        assert_eq!(json["explanation"]["path"], "kernels");
        let candidates = json["explanation"]["candidates"].as_array().expect("candidates");
        let chosen = candidates.iter().find(|one| one["chosen"] == true).expect("one");
        assert_eq!((&chosen["carrier"], &chosen["algorithm"]), (&"kernels".into(), &"doubling".into()));
        let failure = text("plan allreduce --ranks 4 --device cuda").expect_err("no path");
        assert!(failure.message.contains("there are fused, kernels, streams, host"), "{failure}");
    }

    #[test]
    fn a_schedule_of_a_file_is_a_candidate_with_proof_and_price() {
        let name = format!("collbench-schedule-{}.json", std::process::id());
        let file = std::env::temp_dir().join(name);
        let ours =
            Schedule { name: "ours.tree".into(), ..Algorithm::Tree.schedule(Collective::AllReduce, 4) };
        std::fs::write(&file, export::schedule_json(&ours)).expect("written");
        let line = format!("plan allreduce --ranks 4 --format json --schedule {}", file.display());
        let json: Value = serde_json::from_str(&text(&line).expect("a plan")).expect("json");
        let candidates = json["explanation"]["candidates"].as_array().expect("candidates");
        let of = |name: &str| candidates.iter().find(|one| one["algorithm"] == name).expect("it is listed");
        assert_eq!(of("ours.tree")["fold_hash"], of("tree")["fold_hash"]);
        assert_eq!(of("ours.tree")["predicted_s"], of("tree")["predicted_s"]);
        let named = text(&format!("{line} --algo ours.tree")).expect("a plan");
        assert!(named.contains("\"origin\":\"named\""), "{named}");
        let device = line.replace("--format json", "--size 1M --device kernels");
        assert!(text(&device).expect("a plan").contains("kernels/ours.tree"));
        let note = |line: &str| {
            let text = text(&line.replace("--format json", "")).expect("a plan");
            text.lines().find_map(|line| line.strip_prefix("note: ")).unwrap_or_default().to_owned()
        };
        assert_eq!(note(&line), "");
        let elsewhere = "ours.tree is no candidate: it is of all_reduce over 4 ranks";
        assert_eq!(note(&line.replace("--ranks 4", "--ranks 8")), elsewhere);
        assert_eq!(note(&line.replace("allreduce", "broadcast")), elsewhere);
        let json: Value =
            serde_json::from_str(&text(&line.replace("allreduce", "broadcast")).expect("a plan"))
                .expect("json");
        assert_eq!(json["notes"][0], elsewhere);
        let fused = "ours.tree is no candidate: the fused path has no such program";
        assert_eq!(note(&format!("{line} --device fused")), fused);
        let named = "tree is not taken on the streams path: its plans have up to 4 lanes, 1 at most run here";
        assert_eq!(note("plan allreduce --ranks 4 --device streams --algo tree"), named);
        // A row of another path has the same name.
        let lanes = note("plan allreduce --ranks 4 --size 1M --device streams --algo two-shot");
        assert!(
            lanes.starts_with("two-shot is not taken on the streams path: its plans have up to"),
            "{lanes}"
        );
        let mut wrong = Schedule { name: "ours.wrong".into(), ..ours };
        wrong.rounds.pop();
        std::fs::write(&file, export::schedule_json(&wrong)).expect("written");
        let failure = text(&line).expect_err("it is wrong");
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains("the schedule \"ours.wrong\" is refused"), "{failure}");
        std::fs::remove_file(&file).expect("removed");
        assert!(text(&line).expect_err("no file").message.contains("cannot be read"));
    }

    #[test]
    fn long_plans_are_cut_with_a_note() {
        let long = "step\n".repeat(PLAN_LINES_MAX + 1);
        assert!(cut(&long).ends_with("the first 200 of 201 lines; --format json has all\n"));
        let short = "step\n".repeat(PLAN_LINES_MAX);
        assert_eq!(cut(&short), short);
    }
}
