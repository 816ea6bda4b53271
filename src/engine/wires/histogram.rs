//! How often values were about so large.
//!
//! Invariant: a value is counted in a class that is at most a fifth wider than the value. Absent: what the values are.

/// Classes for each doubling.
const PER_DOUBLING: u32 = 4;
const CLASSES: usize = 64 * PER_DOUBLING as usize;

/// Counts of positive numbers by their size.
#[derive(Clone, Default, Debug)]
pub(super) struct Histogram {
    /// Up to the largest class that was met.
    counts: Vec<u32>,
    total: u64,
}

impl Histogram {
    pub(super) fn add(&mut self, value: u64) {
        let class = class_of(value);
        if self.counts.len() <= class {
            self.counts.resize(class + 1, 0);
        }
        self.counts[class] = self.counts[class].saturating_add(1);
        self.total += 1;
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// A value that a share of the values, in thousandths, is not above: the least of its class. 0 where nothing was counted.
    pub(super) fn quantile(&self, thousandths: u64) -> u64 {
        let mut left = (self.total * thousandths).div_ceil(1000).max(1);
        for (class, count) in self.counts.iter().enumerate() {
            match left.checked_sub(u64::from(*count)) {
                Some(more) if more > 0 => left = more,
                _ if *count > 0 => return least_of(class),
                _ => {}
            }
        }
        0
    }
}

/// Classes begin at 4, 5, 6 and 7 times each power of two.
fn class_of(value: u64) -> usize {
    let value = value.max(1);
    let doubling = value.ilog2();
    let quarter = if doubling < 2 { value << (2 - doubling) } else { value >> (doubling - 2) } & 3;
    ((doubling * PER_DOUBLING) as usize + quarter as usize).min(CLASSES - 1)
}

fn least_of(class: usize) -> u64 {
    let (doubling, quarter) = (class as u32 / PER_DOUBLING, class as u64 % u64::from(PER_DOUBLING));
    if doubling < 2 { (4 + quarter) >> (2 - doubling) } else { (4 + quarter) << (doubling - 2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_each_other_and_hold_what_belongs_to_them() {
        let values = (1..5_000).chain((0..64).flat_map(|bit| [1 << bit, (1 << bit) + (1 << bit) / 2]));
        for value in values.chain([u64::MAX]) {
            let (least, next) = (least_of(class_of(value)), least_of((class_of(value) + 1).min(CLASSES - 1)));
            assert!(
                least <= value && (value < next || least == next || value >= next.max(7 << 61)),
                "{value}"
            );
            assert!(value - least <= value / 5, "{value} is counted as {least}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.quantile(500), histogram.total()), (0, 0));
        (1..=1_000).for_each(|value| histogram.add(value));
        let all = [1, 100, 500, 900, 1_000].map(|thousandths| histogram.quantile(thousandths));
        assert_eq!(all, [1, 96, 448, 896, 896]);
        assert_eq!(histogram.total(), 1_000);
    }
}
