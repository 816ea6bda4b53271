//! Who has which tokens and what they choose, from the seed alone; and whether what came is that.
//!
//! Invariant: a rank's choices and values depend on the seed and its number alone. Absent: ranks that run.

use consort::Real;

use super::Arguments;

/// The choices of all ranks.
pub(super) struct Routing {
    seed: u64,
    pub(super) tokens: usize,
    pub(super) hidden: usize,
    pub(super) top_k: usize,
    experts: u32,
    pub(super) host_of: Vec<u32>,
}

/// SplitMix64's output function (Steele, Lea and Flood, OOPSLA 2014).
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Routing {
    pub(super) fn new(arguments: &Arguments, host_of: &[u32]) -> Self {
        let Arguments { seed, tokens, hidden, top_k, experts, .. } = *arguments;
        let [tokens, hidden, top_k] = [tokens, hidden, top_k].map(|size| size as usize);
        Routing { seed, tokens, hidden, top_k, experts, host_of: host_of.to_vec() }
    }

    /// The rank of an expert.
    pub(super) fn owner(&self, expert: i32) -> usize {
        expert as usize / (self.experts as usize / self.host_of.len())
    }

    /// The choices of a rank's tokens: experts that differ.
    pub(super) fn indices(&self, rank: u32) -> Vec<i32> {
        let mut drawn = mix(self.seed ^ u64::from(rank) << 32);
        let mut indices: Vec<i32> = Vec::with_capacity(self.tokens * self.top_k);
        for token in 0..self.tokens {
            while indices.len() < (token + 1) * self.top_k {
                drawn = drawn.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let expert = (mix(drawn) % u64::from(self.experts)) as i32;
                if !indices[token * self.top_k..].contains(&expert) {
                    indices.push(expert);
                }
            }
        }
        indices
    }

    /// A value: whole, and small enough for every type.
    fn value(rank: u32, token: usize, at: usize) -> f32 {
        ((rank as usize * 37 + token * 11 + at * 5) % 251) as f32 - 125.0
    }

    /// The rows of a rank's tokens.
    pub(super) fn tokens<T: Real>(&self, rank: u32) -> Vec<T> {
        let row = |token| (0..self.hidden).map(move |at| T::of_single(Self::value(rank, token, at)));
        (0..self.tokens).flat_map(row).collect()
    }

    /// The source and the token of each row that a rank's experts must get, in the order in which they are grouped.
    fn grouped(&self, rank: u32) -> Vec<(u32, usize)> {
        let all: Vec<Vec<i32>> = (0..self.host_of.len() as u32).map(|source| self.indices(source)).collect();
        let per_rank = self.experts / self.host_of.len() as u32;
        let mut by_expert = vec![Vec::new(); per_rank as usize];
        for (source, indices) in (0..).zip(&all) {
            for (slot, expert) in indices.iter().enumerate() {
                if self.owner(*expert) == rank as usize {
                    by_expert[*expert as usize % per_rank as usize].push((source, slot / self.top_k));
                }
            }
        }
        by_expert.concat()
    }

    /// The rows that a rank's experts must get.
    #[cfg(test)]
    pub(super) fn expected(&self, rank: u32) -> Vec<f32> {
        let row = |(source, token)| (0..self.hidden).map(move |at| Self::value(source, token, at));
        self.grouped(rank).into_iter().flat_map(row).collect()
    }

    /// How many elements of a rank's rows are wrong.
    pub(super) fn wrong_rows<T: Real>(&self, rank: u32, rows: &[T], eight_bit: bool) -> usize {
        let grouped = self.grouped(rank);
        let missing = grouped.len().abs_diff(rows.len() / self.hidden) * self.hidden;
        let wrong = grouped.iter().zip(rows.chunks_exact(self.hidden)).map(|((source, token), row)| {
            let values = row.iter().enumerate();
            values
                .filter(|(at, value)| is_wrong(Self::value(*source, *token, *at), **value, eight_bit))
                .count()
        });
        wrong.sum::<usize>() + missing
    }

    /// How many elements of the sums are not those of the tokens.
    pub(super) fn wrong_sums<T: Real>(&self, tokens: &[T], sums: &[T], eight_bit: bool) -> usize {
        // Each of two sums on the way is rounded.
        let most = match (eight_bit, size_of::<T>()) {
            (true, _) => 20.0,
            (false, 2) => 3.0,
            (false, _) => 1e-3,
        };
        let is_wrong = |token: &T, sum: &T| {
            let off = (token.to_single() - sum.to_single()).abs();
            off.is_nan() || off > most
        };
        tokens.iter().zip(sums).filter(|(token, sum)| is_wrong(token, sum)).count()
    }

    /// Copies of a rank's tokens on other hosts, if each goes to a host once.
    pub(super) fn copies_between_hosts(&self, rank: u32) -> u64 {
        let own = self.host_of[rank as usize];
        let copies = self.indices(rank);
        let copies = copies.chunks_exact(self.top_k).map(|indices| {
            let mut hosts: Vec<u32> =
                indices.iter().map(|expert| self.host_of[self.owner(*expert)]).collect();
            hosts.sort_unstable();
            hosts.dedup();
            hosts.into_iter().filter(|host| *host != own).count() as u64
        });
        copies.sum()
    }
}

/// Whether a value is not what was sent; in 8-bit form it may be a sixteenth off.
fn is_wrong<T: Real>(sent: f32, value: T, eight_bit: bool) -> bool {
    let most = if eight_bit { sent.abs() / 14.0 + 0.5 } else { 0.0 };
    let off = (value.to_single() - sent).abs();
    off.is_nan() || off > most
}
