//! Which workloads there can be.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;

use super::Workload;

/// More ranks than a mesh may have.
const RANKS_MAX: u64 = 1 << 16;

/// More pairs of ranks that share experts than a table of traffic has: each pair is a row of some 64 bytes.
const PAIRS_MAX: u64 = 1 << 22;

/// Why a workload cannot be, and which flags to change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Impossible(pub String);

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Impossible {}

/// A flag and its value.
type Flag = (&'static str, u32);

impl Workload {
    /// Whether the mesh divides the model and the batch.
    ///
    /// # Errors
    ///
    /// The first thing that does not divide, with the flags and the values that would.
    pub fn check(&self) -> Result<(), Impossible> {
        let flags = [
            ("--layers", self.layers),
            ("--hidden", self.hidden),
            ("--heads", self.heads),
            ("--sequence", self.sequence),
            ("--vocabulary", self.vocabulary),
            ("--micro-batch", self.micro_batch),
            ("--micro-batches", self.micro_batches),
            ("--tp", self.tensor),
            ("--pp", self.pipeline),
            ("--dp", self.data),
            ("--ep", self.expert),
            ("--cp", self.context),
        ];
        if let Some((flag, _)) = flags.into_iter().find(|(_, value)| *value == 0) {
            return Err(Impossible(format!("{flag} 0: there must be at least 1")));
        }
        if self.zero > 3 {
            return Err(Impossible(format!("--zero {}: the stages of ZeRO are 0, 1, 2 and 3", self.zero)));
        }
        self.check_size()?;
        divides(("--layers", self.layers), ("--pp", self.pipeline))?;
        divides(("--hidden", self.hidden), ("--heads", self.heads))?;
        divides(("--heads", self.heads), ("--tp", self.tensor))?;
        divides(("--vocabulary", self.vocabulary), ("--tp", self.tensor))?;
        divides(("--sequence", self.sequence), ("--cp", self.context))?;
        if self.sequence_parallel && !(self.sequence / self.context).is_multiple_of(self.tensor) {
            let tokens = self.sequence / self.context;
            return Err(Impossible(format!(
                "--sequence-parallel: the {tokens} tokens of a context rank (--sequence {} / --cp {}) are no multiple of \
                 --tp {}: change one of these, or leave --sequence-parallel out",
                self.sequence, self.context, self.tensor
            )));
        }
        self.check_experts()
    }

    fn check_experts(&self) -> Result<(), Impossible> {
        if self.experts == 0 {
            return if self.expert == 1 {
                Ok(())
            } else {
                Err(Impossible(format!(
                    "--ep {} without experts: add --experts, or take --ep 1",
                    self.expert
                )))
            };
        }
        if self.top_k == 0 || self.top_k > self.experts {
            let (top_k, experts) = (self.top_k, self.experts);
            return Err(Impossible(format!(
                "--top-k {top_k}: a token passes 1 to {experts} experts (--experts)"
            )));
        }
        divides(("--experts", self.experts), ("--ep", self.expert))?;
        let positions = self.context * self.data;
        if positions.is_multiple_of(self.expert) {
            return Ok(());
        }
        let fitting = near_divisors(positions, self.expert);
        Err(Impossible(format!(
            "--ep {} does not divide the {positions} ranks of --cp {} times --dp {}, which share the experts: take --ep \
             {fitting}, or other --dp or --cp",
            self.expert, self.context, self.data
        )))
    }

    fn check_size(&self) -> Result<(), Impossible> {
        let axes = [self.tensor, self.context, self.data, self.pipeline];
        let ranks = axes.iter().try_fold(1u64, |ranks, axis| ranks.checked_mul(u64::from(*axis)));
        let Some(ranks) = ranks.filter(|ranks| *ranks <= RANKS_MAX) else {
            let [tensor, context, data, pipeline] = axes;
            return Err(Impossible(format!(
                "--tp {tensor} times --cp {context} times --dp {data} times --pp {pipeline} are more than {RANKS_MAX} \
                 ranks: lower one of them"
            )));
        };
        // Groups of experts talk directly; all others are rings and lines, with some pairs for each rank.
        let pairs = ranks.saturating_mul(u64::from(self.expert.min(self.experts)));
        if pairs > PAIRS_MAX {
            return Err(Impossible(format!(
                "--ep {} on {ranks} ranks are {pairs} pairs that exchange tokens, and at most {PAIRS_MAX} are counted: lower \
                 --ep, or --tp, --cp, --dp or --pp",
                self.expert
            )));
        }
        if self.most_bytes(ranks).is_none_or(|most| most > u128::from(u64::MAX)) {
            return Err(Impossible(
                "a step may move more than 2^64 bytes: lower --micro-batches, --micro-batch, --sequence, --hidden, \
                 --layers or the mesh"
                    .into(),
            ));
        }
        Ok(())
    }

    /// More bytes than all ranks move in a step; `None` where that is no number of 128 bits.
    fn most_bytes(&self, ranks: u64) -> Option<u128> {
        let product = |factors: &[u32]| {
            factors.iter().try_fold(1u128, |product, factor| product.checked_mul(u128::from(*factor)))
        };
        let square = u128::from(self.hidden).pow(2);
        let tokens = [self.sequence, self.micro_batch, self.hidden, self.top_k.max(1), self.layers];
        // Each tensor and data rank passes whole sequences; a layer and direction has 4 collectives at most.
        let activations = product(&tokens)?.checked_mul(product(&[32, self.tensor, self.data])?)?;
        let matrices = u128::from(13 + 9 * u64::from(self.experts)).checked_mul(square)?;
        let gradients = matrices.checked_mul(product(&[4, self.layers, self.context, self.data])?)?;
        let ends = (u128::from(self.vocabulary) + u128::from(self.sequence)) * u128::from(self.hidden);
        let all =
            activations.checked_add(gradients)?.checked_add(ends.checked_mul(8 * u128::from(ranks))?)?;
        all.checked_mul(product(&[self.micro_batches, self.element_bytes])?)
    }
}

/// That the second is a divisor of the first.
fn divides((whole, of): Flag, (part, by): Flag) -> Result<(), Impossible> {
    if of.is_multiple_of(by) {
        return Ok(());
    }
    let fitting = near_divisors(of, by);
    // The nearest multiples of the divisor.
    let (below, above) = (of / by * by, (of / by + 1).saturating_mul(by));
    let multiples = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
    Err(Impossible(format!(
        "{whole} {of} is no multiple of {part} {by}: take {part} {fitting}, or {whole} {multiples}"
    )))
}

/// The divisors of `of` next to `by`, in words.
fn near_divisors(of: u32, by: u32) -> String {
    // Of two divisors whose product is `of`, one is at most the root.
    let small = (1..=of.isqrt()).filter(|part| of.is_multiple_of(*part));
    let all: BTreeSet<u32> = small.flat_map(|part| [part, of / part]).collect();
    let below = all.range(..=by).next_back();
    let above = all.iter().find(|part| **part > by);
    let words: Vec<String> = [below, above].into_iter().flatten().map(|part| part.to_string()).collect();
    words.join(" or ")
}
