//! `collbench traffic`: bytes from rank to rank in a step of a training job, as a picture and as a table.
//!
//! Invariant: no rank is started and nothing is measured; what is shown follows from the flags alone, by the formulas of
//! `docs/TRAFFIC.md`. Absent: where the ranks are, and how long a step takes.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Parser;
use consort::DataType;
use consort::planning::export::{Heat, HeatCell, HeatGroup, bytes_text, heat_svg};
use consort::planning::workload::{Kind, Traffic, Workload};

use crate::failure::{Exit, Failure};
use crate::planned;

/// Says how many bytes each rank of a training job sends to each other in a step, and how many pairs never talk.
///
/// Ranks are numbered with tensor ranks nearest to each other, then those of context and data (experts are shared by
/// consecutive ones of these), then pipeline stages. Without flags: a decoder of 102 billion parameters on 128 ranks.
#[derive(Parser, Debug)]
#[command(name = "collbench traffic", bin_name = "collbench traffic", max_term_width = 110)]
struct Arguments {
    /// Decoder layers
    #[arg(long, value_name = "N", default_value_t = Workload::default().layers)]
    layers: u32,

    /// Elements of a token's activation
    #[arg(long, value_name = "N", default_value_t = Workload::default().hidden)]
    hidden: u32,

    /// Attention heads
    #[arg(long, value_name = "N", default_value_t = Workload::default().heads)]
    heads: u32,

    /// Tokens of a sequence
    #[arg(long, value_name = "N", default_value_t = Workload::default().sequence)]
    sequence: u32,

    /// Sequences of a micro-batch, for each data rank
    #[arg(long, value_name = "N", default_value_t = Workload::default().micro_batch)]
    micro_batch: u32,

    /// Micro-batches of a step, for each data rank
    #[arg(long, value_name = "N", default_value_t = Workload::default().micro_batches)]
    micro_batches: u32,

    /// Tokens that there are
    #[arg(long, value_name = "N", default_value_t = Workload::default().vocabulary)]
    vocabulary: u32,

    /// Experts of every layer; 0 for a feed-forward layer that all tokens pass
    #[arg(long, value_name = "N", default_value_t = Workload::default().experts)]
    experts: u32,

    /// Experts that a token passes
    #[arg(long, value_name = "N", default_value_t = Workload::default().top_k)]
    top_k: u32,

    /// Of activations, parameters and gradients: bfloat16, half, float, f8e4m3 and so on
    #[arg(long, value_name = "TYPE", default_value = "bfloat16")]
    dtype: DataType,

    /// Tensor parallelism: ranks that share each matrix
    #[arg(long, value_name = "N", default_value_t = Workload::default().tensor)]
    tp: u32,

    /// Pipeline parallelism: stages
    #[arg(long, value_name = "N", default_value_t = Workload::default().pipeline)]
    pp: u32,

    /// Data parallelism: copies of the model
    #[arg(long, value_name = "N", default_value_t = Workload::default().data)]
    dp: u32,

    /// Expert parallelism: ranks that share the experts of a layer; divides cp times dp
    #[arg(long, value_name = "N", default_value_t = Workload::default().expert)]
    ep: u32,

    /// Context parallelism: ranks that share each sequence
    #[arg(long, value_name = "N", default_value_t = Workload::default().context)]
    cp: u32,

    /// Stage of ZeRO, 0 to 3: what data ranks share
    #[arg(long, value_name = "0-3", default_value_t = Workload::default().zero)]
    zero: u32,

    /// Tensor ranks share the tokens between matrices: reduce-scatters and all-gathers instead of all-reduces
    #[arg(long)]
    sequence_parallel: bool,

    /// Refuses a mesh that has not this many ranks
    #[arg(long, value_name = "N")]
    ranks: Option<u32>,

    /// Writes the heat map to a file, as SVG; - for standard output, alone
    #[arg(short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,

    /// Writes a line for each pair of ranks that talks to a file; - for standard output, alone
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Runs the subcommand; its name is the first word.
pub(crate) fn run(words: &[OsString]) -> Result<Exit, Failure> {
    let Some(arguments) = planned::parse::<Arguments>(words)? else { return Ok(Exit::Done) };
    let workload = arguments.workload()?;
    let is_standard = |path: &Option<PathBuf>| path.as_deref() == Some(Path::new("-"));
    if is_standard(&arguments.output) && is_standard(&arguments.csv) {
        return Err(Failure::usage("-o - and --csv -: standard output takes one of them"));
    }
    let traffic = workload.traffic();
    if !is_standard(&arguments.output) && !is_standard(&arguments.csv) {
        planned::write(&summary(&workload, &traffic), None)?;
    }
    let place = |path: &Path| (path != Path::new("-")).then(|| path.to_owned());
    if let Some(path) = &arguments.csv {
        planned::write(&traffic.csv(), place(path).as_deref())?;
    }
    if let Some(path) = &arguments.output {
        planned::write(&heat_svg(&heat(&workload, &traffic)), place(path).as_deref())?;
    }
    Ok(Exit::Done)
}

impl Arguments {
    fn workload(&self) -> Result<Workload, Failure> {
        let workload = Workload {
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads,
            sequence: self.sequence,
            vocabulary: self.vocabulary,
            experts: self.experts,
            top_k: self.top_k,
            micro_batch: self.micro_batch,
            micro_batches: self.micro_batches,
            element_bytes: self.dtype.size() as u32,
            tensor: self.tp,
            pipeline: self.pp,
            data: self.dp,
            expert: self.ep,
            context: self.cp,
            zero: self.zero,
            sequence_parallel: self.sequence_parallel,
        };
        workload.check().map_err(|fault| Failure::usage(fault.to_string()))?;
        if let Some(ranks) = self.ranks.filter(|ranks| *ranks != workload.ranks()) {
            return Err(Failure::usage(format!(
                "--ranks {ranks}: --tp {} times --cp {} times --dp {} times --pp {} are {} ranks: change one of these \
                 (--ep takes its ranks from cp and dp)",
                self.tp,
                self.cp,
                self.dp,
                self.pp,
                workload.ranks()
            )));
        }
        Ok(workload)
    }
}

/// `102.0 billion`.
fn billions(parameters: u64) -> String {
    match parameters {
        0..1_000_000_000 => format!("{:.1} million", parameters as f64 / 1e6),
        _ => format!("{:.1} billion", parameters as f64 / 1e9),
    }
}

/// The digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

/// The model in one line.
fn model(workload: &Workload) -> String {
    let Workload { layers, hidden, heads, sequence, vocabulary, experts, top_k, .. } = workload;
    let experts = match experts {
        0 => String::new(),
        _ => format!(", {top_k} of {experts} experts"),
    };
    let parameters = billions(workload.parameters().total());
    format!(
        "decoder of {parameters} parameters: {layers} layers, hidden {hidden}, {heads} heads, sequence {sequence}, \
         vocabulary {vocabulary}{experts}"
    )
}

/// The mesh in one line.
fn mesh(workload: &Workload) -> String {
    let Workload { tensor, context, data, expert, pipeline, zero, .. } = workload;
    let sequence = if workload.sequence_parallel { ", sequence-parallel" } else { "" };
    format!(
        "{} ranks: tensor {tensor}{sequence}, context {context}, data {data}, expert {expert}, pipeline {pipeline}; ZeRO-{zero}; \
         {} micro-batches of {}",
        workload.ranks(),
        workload.micro_batches,
        workload.micro_batch
    )
}

/// How many pairs never talk, in one line.
fn silence(traffic: &Traffic) -> String {
    let (talking, all) = traffic.talking();
    let silent = all - talking;
    // Nearly all are not all.
    let most = if silent < all { 99.9 } else { 100.0 };
    let part = share(silent, all).min(most);
    format!("{} of {} pairs never talk ({part:.1} %)", grouped(silent), grouped(all))
}

fn summary(workload: &Workload, traffic: &Traffic) -> String {
    let parameters = workload.parameters();
    let all: u64 = Kind::ALL.iter().map(|kind| traffic.total(*kind)).sum();
    // Writing to a String cannot fail.
    let mut text = String::new();
    let _ = writeln!(text, "# {}", model(workload));
    let _ = writeln!(text, "# parameters: {}", grouped(parameters.total()));
    let _ = writeln!(text, "# {}", mesh(workload));
    let _ = writeln!(
        text,
        "# rank = tensor + {} * (context + {} * (data + {} * stage)); expert groups: {} consecutive of context and data",
        workload.tensor, workload.context, workload.data, workload.expert
    );
    let _ = writeln!(text, "{:<10}{:>24}{:>12}{:>9}", "kind", "bytes a step", "", "share");
    for kind in Kind::ALL {
        let bytes = traffic.total(kind);
        let _ = writeln!(
            text,
            "{:<10}{:>24}{:>12}{:>7.1} %",
            kind.name(),
            grouped(bytes),
            bytes_text(bytes),
            share(bytes, all)
        );
    }
    let _ =
        writeln!(text, "{:<10}{:>24}{:>12}{:>7.1} %", "all", grouped(all), bytes_text(all), share(all, all));
    let (sent, received) = traffic.of_ranks();
    for (what, bytes) in [("sends", sent), ("receives", received)] {
        let most = bytes.iter().copied().max().unwrap_or(0);
        let rank = bytes.iter().position(|bytes| *bytes == most).unwrap_or(0);
        let _ = writeln!(text, "# rank {rank} {what} the most: {}", bytes_text(most));
    }
    let _ = writeln!(text, "# {}", silence(traffic));
    text
}

/// Colours that differ also where they are pale: light blue, the sixth, is near to blue.
fn color(kind: Kind) -> usize {
    if kind == Kind::Embedding { 7 } else { kind as usize }
}

fn heat(workload: &Workload, traffic: &Traffic) -> Heat {
    let all: u64 = Kind::ALL.iter().map(|kind| traffic.total(*kind)).sum();
    let cell = |((from, to), bytes): ((consort::planning::Rank, consort::planning::Rank), &[u64; 6])| {
        HeatCell { from: from.0, to: to.0, bytes: bytes.to_vec() }
    };
    let copy = workload.tensor * workload.context;
    let mut groups = vec![HeatGroup { ranks: workload.tensor, name: "tensor group".into() }];
    let larger = [(copy, "copy"), (copy * workload.data, "stage")];
    for (ranks, name) in larger {
        if ranks > groups[groups.len() - 1].ranks && ranks <= workload.ranks() {
            groups.push(HeatGroup { ranks, name: name.into() });
        }
    }
    // What is all of the ranks divides nothing.
    groups.retain(|group| group.ranks > 1 && group.ranks < workload.ranks());
    Heat {
        title: format!(
            "{} in a step among {} ranks: {}",
            bytes_text(all),
            workload.ranks(),
            silence(traffic)
        ),
        notes: vec![model(workload), mesh(workload)],
        ranks: workload.ranks(),
        series: Kind::ALL.map(|kind| (kind.name().to_owned(), color(kind))).to_vec(),
        cells: traffic.pairs().map(cell).collect(),
        groups,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_legible() {
        let texts = [0, 999, 1000, 1_048_576, u64::MAX].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "1,048,576", "18,446,744,073,709,551,615"]);
        assert_eq!(billions(102_031_001_600), "102.0 billion");
        assert_eq!(billions(1_500_000), "1.5 million");
    }

    #[test]
    fn the_default_has_102_billion_parameters() {
        let text = summary(&Workload::default(), &Workload::default().traffic());
        assert!(text.contains("decoder of 102.0 billion parameters"), "{text}");
        assert!(text.contains("# 7,744 of 8,128 pairs never talk (95.3 %)"), "{text}");
    }
}
