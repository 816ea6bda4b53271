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
    eight_bit: bool,
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
        let Arguments { seed, tokens, hidden, top_k, experts, fp8: eight_bit, .. } = *arguments;
        let [tokens, hidden, top_k] = [tokens, hidden, top_k].map(|size| size as usize);
        Routing { seed, tokens, hidden, top_k, experts, eight_bit, host_of: host_of.to_vec() }
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

    /// A value that every type holds: whole and up to 125, or for rows in 8-bit form an E4M3 number; in each 128 one is the largest
    /// there is, so that their scale is 1 and nothing is rounded.
    fn value(&self, rank: u32, token: usize, at: usize) -> f32 {
        let drawn = rank as usize * 37 + token * 11 + at * 5;
        if !self.eight_bit {
            return (drawn % 251) as f32 - 125.0;
        }
        let sign = if drawn.is_multiple_of(3) { -1.0 } else { 1.0 };
        if at.is_multiple_of(128) { sign * 448.0 } else { sign * ((8 + drawn % 8) << (drawn / 8 % 5)) as f32 }
    }

    /// The weight of a token's choice, by its place: they differ, by less than twice, and their sum is 1.
    fn weight(&self, place: usize) -> f32 {
        (self.top_k + place) as f32 * 2.0 / (self.top_k * (3 * self.top_k - 1)) as f32
    }

    /// The weights of all choices.
    pub(super) fn weights<T: Real>(&self) -> Vec<T::Sum> {
        (0..self.tokens * self.top_k).map(|slot| T::Sum::of_single(self.weight(slot % self.top_k))).collect()
    }

    /// What an expert multiplies rows by: exact in every type.
    fn factor(expert: i32) -> f32 {
        (1 << (expert % 3)) as f32
    }

    /// The rows of a rank's tokens.
    pub(super) fn tokens<T: Real>(&self, rank: u32) -> Vec<T> {
        let row = |token| (0..self.hidden).map(move |at| T::of_single(self.value(rank, token, at)));
        (0..self.tokens).flat_map(row).collect()
    }

    /// The expert, the source and the token of each row that a rank must get, in the order in which they are grouped.
    pub(super) fn grouped(&self, rank: u32) -> Vec<(i32, u32, usize)> {
        let all: Vec<Vec<i32>> = (0..self.host_of.len() as u32).map(|source| self.indices(source)).collect();
        let per_rank = self.experts / self.host_of.len() as u32;
        let mut by_expert = vec![Vec::new(); per_rank as usize];
        for (source, indices) in (0..).zip(&all) {
            for (slot, expert) in indices.iter().enumerate() {
                if self.owner(*expert) == rank as usize {
                    by_expert[*expert as usize % per_rank as usize].push((
                        *expert,
                        source,
                        slot / self.top_k,
                    ));
                }
            }
        }
        by_expert.concat()
    }

    /// The rows that a rank's experts must get.
    #[cfg(test)]
    pub(super) fn expected(&self, rank: u32) -> Vec<f32> {
        let row = |(_, source, token)| (0..self.hidden).map(move |at| self.value(source, token, at));
        self.grouped(rank).into_iter().flat_map(row).collect()
    }

    /// How many elements of a rank's rows are wrong.
    pub(super) fn wrong_rows<T: Real>(&self, grouped: &[(i32, u32, usize)], rows: &[T]) -> usize {
        let missing = grouped.len().abs_diff(rows.len() / self.hidden) * self.hidden;
        let wrong = grouped.iter().zip(rows.chunks_exact(self.hidden)).map(|((_, source, token), row)| {
            let values = row.iter().enumerate();
            values.filter(|(at, value)| value.to_single() != self.value(*source, *token, *at)).count()
        });
        wrong.sum::<usize>() + missing
    }

    /// What experts do: each multiplies its rows by a factor of its own.
    pub(super) fn compute<T: Real>(&self, grouped: &[(i32, u32, usize)], rows: &mut [T]) {
        for ((expert, ..), row) in grouped.iter().zip(rows.chunks_exact_mut(self.hidden)) {
            let factor = Self::factor(*expert);
            row.iter_mut().for_each(|value| *value = T::of_single(value.to_single() * factor));
        }
    }

    /// How many elements of the sums are not those of the tokens, which experts have changed or not.
    pub(super) fn wrong_sums<T: Real>(
        &self,
        indices: &[i32],
        tokens: &[T],
        sums: &[T],
        changed: bool,
    ) -> usize {
        // The sum of a rank, that of a host and the whole are rounded. One choice less changes a sum by more, with up to 14 choices.
        let roundings = if size_of::<T>() == 2 { 3.0 / 256.0 } else { 0.0 };
        let most = roundings + (self.top_k + 4) as f32 * f32::EPSILON;
        let (tokens, sums) = (tokens.chunks_exact(self.hidden), sums.chunks_exact(self.hidden));
        let wrong = tokens.zip(sums).zip(indices.chunks_exact(self.top_k)).map(|((token, sum), chosen)| {
            let parts = chosen.iter().enumerate();
            let factor: f32 = parts
                .map(|(place, expert)| self.weight(place) * if changed { Self::factor(*expert) } else { 1.0 })
                .sum();
            let is_wrong = |(token, sum): &(&T, &T)| {
                let right = token.to_single() * factor;
                let off = (right - sum.to_single()).abs();
                off.is_nan() || off > most * right.abs()
            };
            token.iter().zip(sum).filter(is_wrong).count()
        });
        wrong.sum()
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
