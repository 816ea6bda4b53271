//! What a run needs of memory, before any of it is taken, and what there is.
//!
//! Invariant: nothing here takes memory or overflows, whatever the lengths: bytes are counted in floating point. Parameters, gradients
//! and moments are as they will lie; activations are within some percent, as rows of experts depend on what tokens choose. Absent: what
//! the library takes for connections, and the text.

use std::ops::Range;
use std::path::Path;

use crate::error::{Error, Result};
use crate::mesh::Degrees;
use crate::model::Lengths;
use crate::parallel::pipeline::Order;
use crate::parallel::zero::Zero;
use crate::train::Run;

/// The bytes that ranks need.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Demand {
    /// Of the weights.
    pub weights: f64,
    /// Of the gradients.
    pub gradients: f64,
    /// Of both moments.
    pub moments: f64,
    /// Of what forward keeps for backward, and of room for both.
    pub activations: f64,
    /// At the end of the run: of all weights, for the sample and the loss of what is held out, or of a copy that is saved.
    pub copies: f64,
}

/// The elements that a rank has: of all its parameters, of experts among them, of the largest unit, and of the largest matrix.
fn elements(run: &Run, rank: u32) -> [f64; 4] {
    let (shape, cut) = (&run.shape, run.cut(rank));
    let lengths = Lengths::new(shape, &cut);
    let [width, hidden, queries, keys, vocabulary] =
        [lengths.width, lengths.hidden, lengths.query_width(), lengths.key_width(), lengths.vocabulary]
            .map(|length| length as f64);
    let unit = 3.0 * width * hidden;
    // The experts themselves, and what is in the place of a gated unit beside them: router and biases, or the gated unit.
    let [experts, second] = shape.experts.map_or([0.0, unit], |experts| {
        let count = experts.count as f64;
        [count / cut.experts as f64 * unit, count * width + count]
    });
    let block = 2.0 * width * (queries + keys) + experts + second + 2.0 * width;
    let layers: usize = cut.stages.iter().map(Range::len).sum();
    let table = vocabulary * width;
    let embedding = if cut.stages.iter().any(|stage| stage.start == 0) { table } else { 0.0 };
    let has_end = cut.stages.iter().any(|stage| stage.end == shape.layers);
    // Where the two ends are on different ranks, the last has a copy.
    let head = if cut.is_tied(shape) { 0.0 } else { table };
    let end = if has_end { head + width } else { 0.0 };
    let layers = layers as f64;
    [layers * block + embedding + end, layers * experts, block.max(table), table.max(width * hidden)]
}

/// The elements of activations, and of room to compute them, of some sequences at once on a rank.
fn activations(run: &Run, rank: u32, sequences: f64, in_flight: f64) -> f64 {
    let (shape, cut) = (&run.shape, run.cut(rank));
    let lengths = Lengths::new(shape, &cut);
    let [width, hidden, queries, keys, heads, sequence, sharers] = [
        lengths.width,
        lengths.hidden,
        lengths.query_width(),
        lengths.key_width(),
        lengths.heads,
        lengths.sequence,
        lengths.sharers,
    ]
    .map(|length| length as f64);
    let tokens = sequences * sequence;
    let own = width / sharers;
    let joint = if sharers > 1.0 { own + width } else { width };
    let attend = 2.0 * (queries + keys) + joint;
    let [kept, pending] = match shape.experts {
        None => [3.0 * hidden + joint; 2],
        Some(experts) => {
            let (count, top_k) = (experts.count as f64, experts.top_k as f64);
            [top_k * (2.0 * width + 3.0 * hidden) + width + count + 2.0 * top_k; 2]
        }
    };
    let layers: usize = cut.stages.iter().map(Range::len).sum();
    let chunks = cut.stages.len() as f64;
    let blocks = layers as f64 / chunks * (attend + heads + kept + 2.0 * own) + own;
    let has_end = cut.stages.iter().any(|stage| stage.end == shape.layers);
    let end = if has_end { joint + lengths.vocabulary as f64 + 2.0 } else { 0.0 };
    let ring = if cut.contexts > 1 { 10.0 * keys } else { 0.0 };
    let room = 5.0 * joint + attend + pending + ring;
    let scores = 2.0 * 64.0 * sequence + shape.sequence as f64 * lengths.head as f64;
    tokens * (in_flight * blocks + in_flight / chunks * end + room) + scores
}

/// How many activations of a stage a rank keeps at once.
fn in_flight(run: &Run, rank: usize) -> f64 {
    let (ranks, parts) = (run.degrees.pipeline as f64, run.micro_batches as f64);
    let behind = ranks - rank as f64;
    match run.order {
        Order::GPipe => parts,
        Order::OneForwardOneBackward => behind.min(parts),
        Order::Interleaved { chunks } => {
            let chunks = chunks as f64;
            ((chunks - 1.0) * ranks + 2.0 * (behind - 1.0) + 1.0).min(parts * chunks)
        }
    }
}

impl Demand {
    /// What rank `rank` of a run that was [checked](Run::check) needs, in numbers of `number` bytes; `saves` is with checkpoints.
    pub fn of(run: &Run, rank: u32, number: usize, saves: bool) -> Self {
        let number = number as f64;
        let [all, experts, unit, matrix] = elements(run, rank);
        let sharers = run.degrees.data * run.degrees.context;
        let zero = if sharers > 1 { run.zero } else { Zero::Nothing };
        // Experts are on fewer ranks, which share them.
        let share = (all - experts) / sharers as f64 + experts / (sharers / run.degrees.expert) as f64;
        let bucket = unit.min(matrix + run.bucket_bytes as f64 / number);
        let sequences = run.batch.div_ceil(run.degrees.data) as f64 / run.micro_batches as f64;
        let in_flight = in_flight(run, run.degrees.place(rank).pipeline);
        // Rank 0 has all weights once more at the end, and every rank its own where it has shares alone.
        let one = Run { degrees: Degrees::default(), order: Order::GPipe, ..*run };
        let whole = if rank == 0 { elements(&one, 0)[0] + activations(&one, 0, 1.0, 1.0) } else { 0.0 };
        let gathered = if zero == Zero::Nothing { 0.0 } else { all };
        let saved = if saves { 3.0 * share } else { 0.0 };
        Demand {
            weights: number * if zero == Zero::Weights { share + 2.0 * unit } else { all },
            gradients: number * if zero >= Zero::Gradients { share + 3.0 * bucket } else { all },
            moments: number * 2.0 * if zero == Zero::Nothing { all } else { share },
            activations: number * activations(run, rank, sequences, in_flight),
            copies: number * (whole + gathered).max(saved),
        }
    }

    /// Of ranks together.
    pub fn and(self, other: Demand) -> Self {
        Demand {
            weights: self.weights + other.weights,
            gradients: self.gradients + other.gradients,
            moments: self.moments + other.moments,
            activations: self.activations + other.activations,
            copies: self.copies + other.copies,
        }
    }

    /// All bytes.
    pub fn bytes(&self) -> f64 {
        self.parts().iter().map(|(_, bytes, _)| bytes).sum()
    }

    /// What is needed, by name, and what makes it less.
    fn parts(&self) -> [(&'static str, f64, &'static str); 5] {
        let model = "choose a smaller --width or --layers, or share matrices or blocks with ranks of other hosts by --tp or --pp";
        [
            ("weights", self.weights, model),
            ("gradients", self.gradients, model),
            (
                "moments",
                self.moments,
                "give --zero 1 or more with --dp, or choose a smaller --width or --layers",
            ),
            (
                "activations",
                self.activations,
                "give more --micro-batches, or a smaller --batch or --sequence, or share sequences with ranks of other hosts by --dp or --cp",
            ),
            ("copies at the end", self.copies, model),
        ]
    }

    /// Whether `available` holds what `ranks` ranks need.
    ///
    /// # Errors
    /// [`Error::Demand`] with both, and with what makes the largest part less.
    pub fn check(&self, ranks: usize, available: Available) -> Result<()> {
        if self.bytes() <= available.bytes {
            return Ok(());
        }
        let mut parts = self.parts();
        parts.sort_by(|(_, a, _), (_, b, _)| b.total_cmp(a));
        let named: Vec<String> =
            parts.iter().map(|(name, bytes, _)| format!("{} of {name}", shown(*bytes))).collect();
        let who = if ranks == 1 {
            "the rank needs".to_owned()
        } else {
            format!("the {ranks} ranks of this host need")
        };
        Err(Error::Demand {
            needed: format!("{who} about {} ({})", shown(self.bytes()), named.join(", ")),
            available: format!("{} {}", shown(available.bytes), available.whose),
            hint: parts[0].2,
        })
    }
}

/// The memory that processes may take.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Available {
    /// Bytes.
    pub bytes: f64,
    /// Who says so.
    pub whose: &'static str,
}

impl Available {
    /// What the machine has, or the control groups of this process allow, whichever is less; all that there could be where neither is
    /// known.
    pub fn now() -> Self {
        let read = |path: &Path| std::fs::read_to_string(path).ok();
        let machine = read(Path::new("/proc/meminfo")).and_then(|table| available(&table));
        let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
        let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).map(Path::new);
        let limits = group.into_iter().flat_map(Path::ancestors);
        let limits =
            limits.filter_map(|group| read(&Path::new("/sys/fs/cgroup").join(group).join("memory.max")));
        Self::least(machine, limits.filter_map(|limit| limit.trim().parse().ok()))
    }

    fn least(machine: Option<f64>, limits: impl Iterator<Item = f64>) -> Self {
        let machine =
            Available { bytes: machine.unwrap_or(f64::INFINITY), whose: "are available on this machine" };
        let limits = limits.map(|bytes| Available { bytes, whose: "are the limit of the control group" });
        limits.fold(machine, |least, limit| if limit.bytes < least.bytes { limit } else { least })
    }
}

/// What `/proc/meminfo` says is available, in bytes.
fn available(table: &str) -> Option<f64> {
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(1024.0 * line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()?)
}

/// Bytes for people.
fn shown(bytes: f64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1.0).log2() / 10.0).floor().clamp(1.0, units.len() as f64);
    format!("{:.1} {}", bytes / 1024f64.powf(power), units[power as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use crate::model::Model;
    use crate::text::VOCABULARY;
    use clap::Parser;

    fn run(line: &str) -> (Run, u32) {
        let arguments = Arguments::try_parse_from(line.split(' ')).expect("arguments");
        (arguments.run(arguments.ranks, VOCABULARY).expect("a run"), arguments.ranks)
    }

    #[test]
    fn parameters_are_counted_as_they_are_laid_out() {
        for options in [
            "--ranks 1",
            "--ranks 2 --tp 2 --tied --kv-heads 2",
            "--ranks 4 --pp 2 --tp 2 --sp",
            "--ranks 2 --pp 2 --schedule interleaved --micro-batches 2",
            "--ranks 2 --ep 2 --experts 4 --hidden 64",
        ] {
            let (run, ranks) = run(&format!("trainer {options}"));
            for rank in 0..ranks {
                let model = Model::<f32>::cut(run.shape, 1 << 18, run.cut(rank)).expect("a model");
                let found = elements(&run, rank)[0];
                assert_eq!(found, model.layout().elements() as f64, "{options}, rank {rank}");
            }
        }
    }

    #[test]
    fn what_shares_a_part_makes_it_less() {
        let of = |options: &str| {
            let (run, ranks) = run(&format!("trainer --micro-batches 2 {options}"));
            Demand::of(&run, ranks - 1, 4, false)
        };
        let all = of("--ranks 4");
        let [one, two, three] = ["1", "2", "3"].map(|stage| of(&format!("--ranks 4 --zero {stage}")));
        assert_eq!([one.moments, two.moments, three.moments].map(|bytes| bytes / all.moments), [0.25; 3]);
        assert!(one.gradients == all.gradients && two.gradients < all.gradients);
        assert!(two.weights == all.weights && three.weights < all.weights);
        let alone = of("--ranks 1").activations;
        for options in ["--ranks 4 --dp 4", "--ranks 4 --tp 4", "--ranks 4 --pp 4", "--ranks 4 --cp 4"] {
            let found = of(options).activations;
            assert!(found < 0.7 * alone, "{options}: {found} of {alone}");
        }
        assert!(of("--micro-batches 1").activations > 1.5 * alone);
    }

    #[test]
    fn what_does_not_fit_is_said_with_what_makes_it_less() {
        let (run, _) = run("trainer --width 65536 --heads 2 --layers 4096 --sequence 65536");
        let available = Available { bytes: 8e9, whose: "are available" };
        let error = Demand::of(&run, 0, 4, false).check(1, available).expect_err("a large model").to_string();
        for part in ["the rank needs about", "PiB of activations", "7.5 GiB are available", "--micro-batches"]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
        Demand::default().check(1, available).expect("it fits");
    }

    #[test]
    fn the_lowest_limit_counts() {
        let table = "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n";
        let machine = available(table);
        assert_eq!(machine, Some(8_192_000_000.0));
        let least = |limits: &[f64]| Available::least(machine, limits.iter().copied());
        assert_eq!(least(&[]).bytes, 8_192_000_000.0);
        assert_eq!(
            (least(&[9e9, 1e9, 2e9]).bytes, least(&[1e9]).whose),
            (1e9, "are the limit of the control group")
        );
        assert_eq!((shown(1536.0), shown(3.0 * 1024f64.powi(4))), ("1.5 KiB".into(), "3.0 TiB".into()));
    }
}
