//! The command line.
//!
//! Invariant: every option does what its help says; there is none for what does not exist.

use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{Parser, ValueEnum};

use crate::error::{Error, Result};
use crate::mesh::Degrees;
use crate::model::{Experts, Shape};
use crate::optimizer::{AdamW, Schedule};
use crate::parallel::pipeline::Order;
use crate::parallel::zero::Zero;
use crate::products::Products;
use crate::ranks::Overlap;
use crate::train::Run;
use crate::vocabulary::Vocabulary;

/// The numbers that a model computes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Precision {
    /// 32 bits.
    F32,
    /// 32 bits; linear layers multiply numbers that are rounded to bfloat16.
    Bf16,
    /// 64 bits: for comparisons, at less than half the speed.
    F64,
}

/// The orders in which a pipeline works.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Pipelining {
    /// All micro-batches forward, then all backward: the activations of all are kept.
    Gpipe,
    /// One forward and one backward in turn: of as many as there are stages behind, activations are kept.
    #[value(name = "1f1b")]
    OneForwardOneBackward,
    /// The same with several stages on each rank: a shorter bubble, and more messages.
    Interleaved,
}

/// Numbers that no sum or product of them exceeds what a length can be.
fn up_to(bound: u64) -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u64).range(..=bound).map(|number| number as usize)
}

/// Trains a small language model on a text, byte by byte or by pairs of bytes (--bpe), on one rank or several.
///
/// Without --text it trains on a text of its own. It prints the loss, draws it as SVG, and writes a sample. Ranks share the
/// sequences of each step (--dp), each matrix (--tp), each sequence (--cp), the blocks (--pp), or several of them; those of --dp and --cp may share moments, gradients and
/// weights, too (--zero). Under torchrun, Open MPI, MPICH or Slurm it is one rank of their job, if that has several.
#[derive(Parser, Clone, Debug)]
#[command(name = "consort-trainer", version, args_override_self = true, max_term_width = 110)]
pub struct Arguments {
    /// Options from a TOML file: `steps = 100`; the command line takes the place of what it says
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The text: any file without bytes that are 0 [default: the bundled text]
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,

    /// Tokens that are bytes which often stand together: a file of ranks as tiktoken writes them [default: a token is a byte]
    ///
    /// It needs a program that was built with the feature bpe. The text is not split into words before pairs are merged.
    #[arg(long, value_name = "FILE")]
    pub bpe: Option<PathBuf>,

    /// Ranks, each a process of this host
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ranks: u32,

    /// Steps to take
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub steps: usize,

    /// Sequences of a step, over all ranks
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = up_to(1 << 20))]
    pub batch: usize,

    /// Ranks that share the sequences of a step [default: all that the other axes leave]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub dp: Option<u32>,

    /// Ranks that share each matrix and the heads (tensor parallel)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub tp: u32,

    /// Of what the ranks of --dp and --cp keep their share alone (ZeRO)
    #[arg(long, value_enum, value_name = "STAGE", default_value = "0")]
    pub zero: Zero,

    /// Tensor ranks share the tokens between half blocks (sequence parallel)
    #[arg(long)]
    pub sp: bool,

    /// Ranks that share each sequence (context parallel)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub cp: u32,

    /// Ranks that have some of the blocks each (pipeline parallel)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub pp: u32,

    /// In which order micro-batches go through a pipeline
    #[arg(long, value_enum, default_value = "1f1b")]
    pub schedule: Pipelining,

    /// Stages of each rank of a pipeline, with --schedule interleaved [default: 2]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 12))]
    pub chunks: Option<usize>,

    /// How many of the ranks of --dp have some of the experts each (expert parallel)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024),
          requires = "experts")]
    pub ep: u32,

    /// Experts in the place of each block's gated unit [default: none]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 12))]
    pub experts: Option<usize>,

    /// Experts that a token goes to [default: 2, or the one that there is]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 12), requires = "experts")]
    pub top_k: Option<usize>,

    /// What a step adds to the logit by which an expert is chosen that had less than the mean load, and takes from one that had
    /// more; 0 leaves the load as it is
    #[arg(long, value_name = "RATE", default_value_t = 1e-3, requires = "experts")]
    pub balance: f64,

    /// Equal parts of a rank's sequences that go through the model, or its pipeline, one after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(1 << 20))]
    pub micro_batches: usize,

    /// Tokens of a sequence
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = up_to(1 << 20))]
    pub sequence: usize,

    /// Elements of a token between layers
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = up_to(1 << 16))]
    pub width: usize,

    /// Blocks of attention and gated unit
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = up_to(1 << 12))]
    pub layers: usize,

    /// Heads of queries
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = up_to(1 << 12))]
    pub heads: usize,

    /// Heads of keys and values [default: as many as of queries]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 12))]
    pub kv_heads: Option<usize>,

    /// Elements of a token inside the gated unit [default: 8/3 of the width, in multiples of 32]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 20))]
    pub hidden: Option<usize>,

    /// The embedding is the last layer's matrix, too
    #[arg(long)]
    pub tied: bool,

    /// What the model computes in; bf16 has the numbers of mixed precision, and was no faster than f32 where it was measured
    #[arg(long, value_enum, default_value = "f32")]
    pub precision: Precision,

    /// The highest rate of learning
    #[arg(long, value_name = "RATE", default_value_t = 3e-3)]
    pub rate: f64,

    /// The rate towards which it falls, as a share of the highest: a step after the last would have it
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub least: f64,

    /// Steps in which the rate rises
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub warmup: usize,

    /// AdamW's decay of matrices, times the rate
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub weight_decay: f64,

    /// The largest norm of a gradient; 0 is no bound
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    pub clip: f64,

    /// KiB at which a bucket of gradients is closed and its exchange begins; the end of a block closes it, too
    #[arg(long, value_name = "KIB", default_value_t = 1024, value_parser = up_to(1 << 22))]
    pub bucket_kib: usize,

    /// For measuring: what ranks exchange waits for what they compute, and this for the exchange, with the same bits
    ///
    /// Turned off are: sums of gradients during backward (--dp, --cp, --zero 1 begin them when it is over, --zero 2 and 3 wait for
    /// each bucket where it is complete); weights of --zero that come while others are changed or computed with; sums of --tp
    /// beside the gradients of matrices; keys of --cp that travel beside scores. Rows of experts go on beside nothing in any case, and
    /// messages of --pp beside computation in any case.
    #[arg(long)]
    pub no_overlap: bool,

    /// Beginning and order follow from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Saves what has been learned in a directory that all ranks reach, while training goes on, and after the last step
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,

    /// Steps from one checkpoint to the next
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive, requires = "checkpoint")]
    pub every: usize,

    /// Checkpoints that are kept: the newest
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = positive, requires = "checkpoint")]
    pub keep: usize,

    /// Goes on from the newest checkpoint, on as many ranks and any mesh; begins where there is none
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,

    /// Goes on without ranks that are lost: with the state of those that are left where each has all of it (--dp and --cp without --zero), and otherwise
    /// with the newest checkpoint, or from the beginning where there is none. A killed rank is known at once, one that does not answer
    /// after CONSORT_TIMEOUT [default: 1800 s]. Launchers that end all ranks with one, as torchrun does, leave none to go on
    #[arg(long)]
    pub elastic: bool,

    /// Processes that are started in the place of killed ones, at most, with --ranks: they are taken in between two steps
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = up_to(1 << 20), requires = "elastic")]
    pub restart: usize,

    /// A socket of this host at which new ranks ask to be taken in, of any launcher [default with --restart: one of its own]
    #[arg(long, value_name = "PATH", requires = "elastic")]
    pub door: Option<PathBuf>,

    /// This process is a new rank of the run at --door, whose other options it is given too, but for --ranks and --dp
    #[arg(long, requires = "door")]
    pub join: bool,

    /// Fewer ranks take no step: they wait for new ones
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), requires = "elastic")]
    pub least_ranks: u32,

    /// Where the loss of each step goes, one a line
    #[arg(long, value_name = "FILE")]
    pub losses: Option<PathBuf>,

    /// Where the picture of the losses goes
    #[arg(long, value_name = "FILE", default_value = "loss.svg")]
    pub chart: PathBuf,

    /// Where the picture of what each rank did in the last step goes
    #[arg(long, value_name = "FILE", default_value = "timeline.svg")]
    pub timeline: PathBuf,

    /// Tokens of the sample; 0 writes none
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub sample: usize,

    /// What the sample begins with
    #[arg(long, value_name = "TEXT", default_value = "A rank ")]
    pub prompt: String,

    /// How freely the sample is drawn; towards 0 the likeliest token is always taken
    #[arg(long, value_name = "T", default_value_t = 0.7)]
    pub temperature: f64,

    /// The process that started this rank
    #[arg(long, hide = true)]
    pub started_by: Option<i32>,
}

fn positive(text: &str) -> std::result::Result<usize, String> {
    let number: usize = text.parse().map_err(|error| format!("{error}"))?;
    if number > 0 { Ok(number) } else { Err("give 1 or more".into()) }
}

impl Arguments {
    /// The mesh that they ask for, of `ranks` ranks.
    fn degrees(&self, ranks: u32) -> Degrees {
        let (pipeline, context, tensor) = (self.pp as usize, self.cp as usize, self.tp as usize);
        let data =
            self.dp.map_or((ranks as usize / (pipeline * context * tensor)).max(1), |data| data as usize);
        Degrees { pipeline, data, expert: self.ep as usize, context, tensor, shares_tokens: self.sp }
    }

    /// The order of the pipeline that they ask for.
    fn order(&self) -> Result<Order> {
        let order = match (self.schedule, self.chunks) {
            (Pipelining::Interleaved, chunks) => Order::Interleaved { chunks: chunks.unwrap_or(2) },
            (_, Some(chunks)) if chunks != 1 => {
                return Err(Error::configuration(
                    format!("--chunks is {chunks}, and only interleaved ranks have other than one stage"),
                    "give --schedule interleaved, or leave --chunks out",
                ));
            }
            (Pipelining::Gpipe, _) => Order::GPipe,
            (Pipelining::OneForwardOneBackward, _) => Order::OneForwardOneBackward,
        };
        Ok(order)
    }

    /// What a token is.
    ///
    /// # Errors
    /// As [`Vocabulary::read`].
    pub fn vocabulary(&self) -> Result<Vocabulary> {
        self.bpe.as_deref().map_or(Ok(Vocabulary::Bytes), Vocabulary::read)
    }

    /// The run that they ask for, of `ranks` ranks, with a vocabulary of this size.
    ///
    /// # Errors
    /// [`Error::Configuration`] for numbers that make no sense, or do not fit each other.
    pub fn run(&self, ranks: u32, vocabulary: usize) -> Result<Run> {
        let run = self.asked(ranks, vocabulary)?;
        run.check(ranks)?;
        Ok(run)
    }

    /// The same, which another number of ranks may share.
    ///
    /// # Errors
    /// [`Error::Configuration`] for numbers that make no sense.
    pub fn asked(&self, ranks: u32, vocabulary: usize) -> Result<Run> {
        let positive = [("--rate", self.rate), ("--temperature", self.temperature)];
        let shares = [("--least", self.least), ("--weight-decay", self.weight_decay)];
        let fault = if let Some((name, value)) =
            positive.into_iter().find(|(_, value)| !(*value > 0.0 && value.is_finite()))
        {
            Some((format!("{name} is {value}"), "give a number above 0"))
        } else if let Some((name, value)) = shares.into_iter().find(|(_, value)| !(0.0..=1.0).contains(value))
        {
            Some((format!("{name} is {value}"), "give a number from 0 to 1"))
        } else if let Some((name, value)) = [("--clip", self.clip), ("--balance", self.balance)]
            .into_iter()
            .find(|(_, value)| !(*value >= 0.0 && value.is_finite()))
        {
            Some((format!("{name} is {value}"), "give a number of 0 or more"))
        } else if self.steps == 0 {
            Some(("--steps is 0".into(), "give 1 or more"))
        } else {
            None
        };
        if let Some((what, hint)) = fault {
            return Err(Error::configuration(what, hint));
        }
        let shape = Shape {
            vocabulary,
            width: self.width,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads.unwrap_or(self.heads),
            hidden: self.hidden.unwrap_or((self.width * 8 / 3).next_multiple_of(32)),
            sequence: self.sequence,
            experts: self.experts.map(|count| Experts { count, top_k: self.top_k.unwrap_or(count.min(2)) }),
            tied: self.tied,
            rope_base: 10_000.0,
            norm_epsilon: 1e-5,
        };
        shape.check()?;
        Ok(Run {
            shape,
            products: if self.precision == Precision::Bf16 { Products::Bf16 } else { Products::Exact },
            degrees: self.degrees(ranks),
            zero: self.zero,
            batch: self.batch,
            micro_batches: self.micro_batches,
            order: self.order()?,
            bucket_bytes: self.bucket_kib << 10,
            overlap: if self.no_overlap { Overlap::Apart } else { Overlap::Beside },
            adamw: AdamW { weight_decay: self.weight_decay, ..AdamW::default() },
            schedule: Schedule {
                rate: self.rate,
                least: self.least * self.rate,
                warmup: self.warmup,
                steps: self.steps,
            },
            balance: self.balance,
            clip: self.clip,
            seed: self.seed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::VOCABULARY;

    fn run(line: &str) -> Result<Run> {
        Arguments::try_parse_from(line.split(' ')).expect("arguments").run(4, VOCABULARY)
    }

    #[test]
    fn defaults_fit_each_other() {
        let run = run("trainer --zero 3").unwrap();
        assert_eq!(run.zero, Zero::Weights);
        assert_eq!((run.shape.hidden, run.shape.kv_heads, run.degrees), (352, 4, Degrees::data(4)));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "--rate 0",
            "--rate NaN",
            "--clip -1",
            "--steps 0",
            "--least 2",
            "--width 100 --heads 3",
            "--layers 0",
            "--tp 3",
            "--dp 2",
            "--batch 3",
            "--micro-batches 3",
            "--tp 4 --kv-heads 2",
            "--tp 4 --sp --sequence 30",
            "--cp 2 --sequence 30",
            "--sp",
            "--tp 4 --zero 1",
            "--ep 3 --experts 6",
            "--ep 2 --experts 3",
            "--experts 4 --top-k 5",
            "--experts 4 --top-k 0",
            "--experts 4 --balance -1",
            "--experts 4 --tp 2",
            "--pp 3",
            "--pp 4 --layers 3",
            "--pp 2 --tied --zero 1",
            "--pp 2 --chunks 2",
            "--pp 2 --schedule gpipe --chunks 2",
            "--pp 2 --schedule interleaved",
            "--pp 2 --schedule interleaved --micro-batches 2 --chunks 3",
            "--pp 2 --schedule interleaved --micro-batches 2 --chunks 0",
            "--schedule interleaved",
        ] {
            let line = format!("trainer {}", line.replace(" -1", "=-1"));
            assert!(matches!(run(&line), Err(Error::Configuration { .. })), "{line}");
        }
        for line in [
            "--tp 0",
            "--ep 2",
            "--top-k 1",
            "--balance 0.1",
            "--pp 0",
            "--resume",
            "--every 2",
            "--restart 2",
            "--elastic --join",
            "--elastic --least-ranks 0",
            "--checkpoint d --every 0",
            "--checkpoint d --keep 0",
        ] {
            let line = format!("trainer {line}");
            assert!(Arguments::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn a_pipeline_leaves_the_other_ranks_to_the_sequences() {
        let run = run("trainer --pp 2 --schedule interleaved --micro-batches 4").unwrap();
        assert_eq!(run.degrees, Degrees { pipeline: 2, data: 2, ..Degrees::default() });
        assert_eq!(run.order, Order::Interleaved { chunks: 2 });
    }
}
