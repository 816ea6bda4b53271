//! Random numbers by position: each is a function of a seed, a name and an index, so any rank can make any part of them.
//!
//! Invariant: the same arguments give the same number on every rank and for every number of ranks. The mixing is that of
//! SplitMix64 (Steele, Lea and Flood, 2014), the hash of names FNV-1a.

/// A family of random numbers.
#[derive(Clone, Copy)]
pub struct Random {
    key: u64,
}

fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Random {
    /// The family of a seed and a name.
    pub fn new(seed: u64, name: &str) -> Self {
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let name = name.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
        Random { key: mix(mix(seed) ^ name) }
    }

    /// 64 random bits at an index.
    pub fn bits(&self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// A number from 0 to below 1 at an index.
    pub fn uniform(&self, index: u64) -> f64 {
        (self.bits(index) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number below `end` at an index.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn below(&self, index: u64, end: usize) -> usize {
        assert!(end > 0, "there is no number below 0");
        // The upper half of the product: no value is more likely than another by more than 2^-32 here.
        ((u128::from(self.bits(index)) * end as u128) >> 64) as usize
    }

    /// A number of the normal distribution with mean 0 and deviation 1 at an index, by Box and Muller.
    pub fn normal(&self, index: u64) -> f64 {
        let (first, second) = (self.uniform(2 * index), self.uniform(2 * index + 1));
        (-2.0 * (1.0 - first).ln()).sqrt() * (std::f64::consts::TAU * second).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_the_moments_of_the_distribution() {
        let random = Random::new(7, "layers.0");
        let values: Vec<f64> = (0..100_000).map(|index| random.normal(index)).collect();
        let moment = |power| values.iter().map(|value| value.powi(power)).sum::<f64>() / values.len() as f64;
        assert!(moment(1).abs() < 0.02 && (moment(2) - 1.0).abs() < 0.02 && (moment(4) - 3.0).abs() < 0.1);
    }

    #[test]
    fn seed_name_and_index_each_change_the_number() {
        let bits = [(1, "a", 0), (2, "a", 0), (1, "b", 0), (1, "a", 1)]
            .map(|(seed, name, index)| Random::new(seed, name).bits(index));
        let distinct: std::collections::BTreeSet<u64> = bits.into_iter().collect();
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn numbers_below_an_end_reach_all_of_them() {
        let random = Random::new(3, "below");
        let mut seen = [0; 7];
        (0..7000).for_each(|index| seen[random.below(index, 7)] += 1);
        assert!(seen.iter().all(|count| (900..1100).contains(count)), "{seen:?}");
    }
}
