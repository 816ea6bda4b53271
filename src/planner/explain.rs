//! Why a call runs as it does, for people and as data.
//!
//! Invariant: everything that was considered is in it, with its price, whether it could be chosen, and the hash
//! of the order in which it folds. Absent: choosing.

use std::fmt::{self, Write};

use consort_algorithms::catalogue::Algorithm;
use consort_algorithms::{Collective, Cost};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::carriers::{Carrier, Path};
use consort_settings::options::Determinism;

/// The origin of a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The lowest price on the model of the machine.
    Priced,
    /// The tuning table.
    Tuned,
    /// The call names it.
    Named,
}

/// One algorithm that was considered.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Candidate {
    /// The carrier of its messages.
    #[serde(serialize_with = "carrier", skip_serializing_if = "is_host")]
    pub carrier: Carrier,
    /// The algorithm of its plans.
    #[serde(serialize_with = "text")]
    pub algorithm: Algorithm,
    /// Whether it is the one that runs.
    pub chosen: bool,
    /// The reason for which it cannot be chosen, if it cannot: a restriction, the determinism, or a proof that would take too
    /// long.
    #[serde(flatten, serialize_with = "exclusion")]
    pub excluded: Option<String>,
    /// Its price, in seconds.
    pub predicted_s: f64,
    /// The bound through the price: 1 is the least time that is possible, 0.5 is twice that; 1 also where the price, which is a
    /// model's, is below the bound. None where the explanation has no bound, and for what takes other wires.
    pub bound_share: Option<f64>,
    /// Its time in the tuning table, in seconds.
    pub measured_s: Option<f64>,
    /// Bytes of its slots; 0 on devices, where the launch says.
    pub slot_bytes: usize,
    /// The hash of the order in which it folds: plans of one collective with equal hashes give equal bits.
    #[serde(serialize_with = "hash")]
    pub fold_hash: Option<u64>,
    /// The cost of its schedule, for numbers of ranks whose schedules are built.
    #[serde(flatten, serialize_with = "cost")]
    pub cost: Option<Cost>,
}

impl Explanation {
    /// The candidate of an algorithm, by its name, on the links of the host or on the path that the devices take.
    pub fn candidate(&self, algorithm: &str) -> Option<&Candidate> {
        let is_on_path = |of: &&Candidate| self.path.is_none_or(|path| of.carrier == path.carrier());
        self.candidates.iter().filter(is_on_path).find(|of| of.algorithm.to_string() == algorithm)
    }
}

impl Candidate {
    /// `ring`; on devices with the carrier, `kernels/ring`.
    pub fn name(&self) -> String {
        match self.carrier {
            Carrier::Host => self.algorithm.to_string(),
            carrier => format!("{}/{}", carrier.name(), self.algorithm),
        }
    }
}

/// The least time in which a call is possible, whatever its schedule, by the bandwidth of the wires alone.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ProvableBound {
    /// The time, in seconds, of blocks as long as the size class.
    pub seconds: f64,
    /// The most bytes of the whole vector a second.
    pub bytes_s: f64,
    /// Whether a schedule of this rate is known to exist.
    pub exact: bool,
    /// Why no schedule is faster, in a word: [`Argument::name`](consort_algorithms::bounds::Argument::name).
    pub argument: &'static str,
    /// The cut of the machine that limits it, in a sentence.
    pub cut: String,
}

/// A choice with everything that was considered. [`Display`](fmt::Display) is a table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Explanation {
    /// The collective of the call.
    #[serde(serialize_with = "text")]
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: u32,
    /// Bytes of a block: of the caller's count of elements.
    pub block_bytes: u64,
    /// The size class that the choice was made for: blocks of at most this many bytes.
    pub class_bytes: u64,
    /// The machine that it was priced on.
    pub topology: String,
    /// The hash of the machine's graph, the same on all ranks.
    #[serde(serialize_with = "graph")]
    pub graph_hash: u64,
    /// The path that devices take, where the call is on devices.
    #[serde(serialize_with = "path", skip_serializing_if = "Option::is_none")]
    pub path: Option<Path>,
    /// How many ranks are nearer to each other than to the rest: those of a host of several, or of a cache or memory node
    /// of the only one; 1 where there is no such level.
    pub per_box: u32,
    /// The origin of the choice.
    pub origin: Origin,
    /// The determinism: what the bits may depend on.
    #[serde(serialize_with = "determinism")]
    pub determinism: Determinism,
    /// The variable that restricts the choice, and its text.
    #[serde(serialize_with = "restriction")]
    pub restriction: Option<(String, String)>,
    /// Bytes of a slot of the chosen plan; 0 on devices.
    pub slot_bytes: usize,
    /// What no schedule can exceed on the wires as they are known, rooted at rank 0: on a machine that a setting names, on wires that
    /// ranks measured between their hosts, and on devices of one rank each whose links are known; of 64 ranks at most.
    pub bound: Option<ProvableBound>,
    /// In the order that settles ties.
    pub candidates: Vec<Candidate>,
}

impl Explanation {
    /// The candidate that runs.
    pub fn chosen(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.chosen)
    }

    /// The explanation as JSON.
    pub fn to_json(&self) -> String {
        // Strings, numbers and keys that are strings always have a form.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A value as its text.
fn text<T: fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn carrier<S: Serializer>(carrier: &Carrier, serializer: S) -> Result<S::Ok, S::Error> {
    carrier.name().serialize(serializer)
}

fn is_host(carrier: &Carrier) -> bool {
    *carrier == Carrier::Host
}

fn path<S: Serializer>(path: &Option<Path>, serializer: S) -> Result<S::Ok, S::Error> {
    path.map(Path::name).serialize(serializer)
}

fn determinism<S: Serializer>(determinism: &Determinism, serializer: S) -> Result<S::Ok, S::Error> {
    determinism.name().serialize(serializer)
}

/// The same of a hash that is there always.
fn graph<S: Serializer>(hash: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    format!("{hash:016x}").serialize(serializer)
}

/// A hash as sixteen digits, as in the table.
fn hash<S: Serializer>(hash: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    hash.map(|hash| format!("{hash:016x}")).serialize(serializer)
}

fn restriction<S: Serializer>(
    restriction: &Option<(String, String)>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Restriction<'a> {
        variable: &'a str,
        text: &'a str,
    }
    let restriction = restriction.as_ref();
    restriction.map(|(variable, text)| Restriction { variable, text }).serialize(serializer)
}

fn exclusion<S: Serializer>(excluded: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry("allowed", &excluded.is_none())?;
    map.serialize_entry("excluded", excluded)?;
    map.end()
}

fn cost<S: Serializer>(cost: &Option<Cost>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(3))?;
    map.serialize_entry("rounds", &cost.map(|cost| cost.rounds))?;
    map.serialize_entry("depth", &cost.map(|cost| cost.depth))?;
    map.serialize_entry("messages", &cost.map(|cost| cost.messages))?;
    map.end()
}

/// `12.3us`, with three digits that mean something.
fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if !s.is_finite() => return "?".into(),
        s if s < 1e-3 => (s * 1e6, "us"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$}{unit}")
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation { collective, ranks, block_bytes, class_bytes, topology, slot_bytes, .. } = self;
        let mut head = format!(
            "{collective} over {ranks} ranks, blocks of {block_bytes} bytes (class: up to {class_bytes}), on {topology} \
             [graph {:016x}]",
            self.graph_hash
        );
        if self.per_box > 1 {
            write!(head, " (in groups of {})", self.per_box)?;
        }
        if let Some(path) = self.path {
            write!(head, ", on devices by the {path} path")?;
        }
        if let Some((variable, text)) = &self.restriction {
            write!(head, "; {variable}={text}")?;
        }
        if self.determinism == Determinism::Invariant {
            head.push_str("; bits invariant");
        }
        writeln!(f, "{head}")?;
        if let Some(chosen) = self.chosen() {
            let excluded = self.candidates.iter().filter(|candidate| candidate.excluded.is_some()).count();
            let among = match excluded {
                0 => String::new(),
                _ => format!(" of the {} that are not excluded", self.candidates.len() - excluded),
            };
            let origin = match self.origin {
                Origin::Priced => format!("has the lowest price{among}"),
                Origin::Tuned => format!("was the fastest{among} when it was measured"),
                Origin::Named => "was asked for".into(),
            };
            let fold = chosen.fold_hash.map_or_else(String::new, |hash| format!(", fold {hash:016x}"));
            let slots =
                if *slot_bytes > 0 { format!(", slots of {slot_bytes} bytes") } else { String::new() };
            writeln!(f, "chosen: {}{slots}{fold}: it {origin}", chosen.name())?;
        }
        if let Some(ProvableBound { seconds, bytes_s, exact, argument, cut }) = &self.bound {
            let gb_s = bytes_s / 1e9;
            let least = if *exact { "at least, and reachable" } else { "at least" };
            writeln!(f, "bound: {} {least} ({gb_s:.1} GB/s, {argument}: {cut})", time(*seconds))?;
        }
        let widest = self.candidates.iter().map(|c| c.name().len()).max().unwrap_or(0).max(9);
        writeln!(
            f,
            "  {:widest$} {:>10} {:>6} {:>10} {:>7} {:>6} {:>9} {:>8}  {:16}",
            "algorithm", "predicted", "bound", "measured", "rounds", "depth", "messages", "slot", "fold"
        )?;
        for candidate in &self.candidates {
            let mark = if candidate.chosen { '*' } else { ' ' };
            let cost = |of: fn(&Cost) -> usize| {
                candidate.cost.as_ref().map_or_else(|| "?".into(), |cost| of(cost).to_string())
            };
            writeln!(
                f,
                "{mark} {:widest$} {:>10} {:>6} {:>10} {:>7} {:>6} {:>9} {:>8}  {:16}{}",
                candidate.name(),
                time(candidate.predicted_s),
                candidate.bound_share.map_or_else(|| "-".into(), |share| format!("{:.0}%", share * 100.0)),
                candidate.measured_s.map_or_else(|| "-".into(), time),
                cost(|cost| cost.rounds as usize),
                cost(|cost| cost.depth as usize),
                cost(|cost| cost.messages),
                if candidate.slot_bytes > 0 { candidate.slot_bytes.to_string() } else { "-".into() },
                candidate
                    .fold_hash
                    .map_or_else(|| unknown_fold(candidate.algorithm), |hash| format!("{hash:016x}")),
                candidate
                    .excluded
                    .as_ref()
                    .map_or_else(String::new, |reason| format!("  (excluded: {reason})")),
            )?;
        }
        Ok(())
    }
}

/// What stands for the hash of a fold: why there is none.
fn unknown_fold(algorithm: Algorithm) -> String {
    if algorithm.is_switched() { "unordered" } else { "?" }.into()
}
