//! What is said about a list of iteration times.
//!
//! Invariant: the choice of the percentile's element is nccl-tests', so the columns can be compared.

/// The spread of the iteration times, in seconds.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) avg: f64,
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) stdev: f64,
    /// In the order in which they were taken; each is the maximum over the ranks.
    pub(crate) times: Vec<f64>,
}

impl Spread {
    /// `None` of no times.
    pub(crate) fn of(times: Vec<f64>) -> Option<Self> {
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let percentile = |percent: usize| percentile(&sorted, percent).unwrap_or(max);
        let avg = sorted.iter().sum::<f64>() / count as f64;
        let variance = sorted.iter().map(|time| (time - avg).powi(2)).sum::<f64>() / count as f64;
        Some(Self {
            min,
            max,
            avg,
            p50: sorted[count / 2],
            p95: percentile(95),
            p99: percentile(99),
            stdev: variance.sqrt(),
            times,
        })
    }

    /// Standard deviation in percent of the average.
    pub(crate) fn variation_percent(&self) -> f64 {
        if self.avg > 0.0 { self.stdev / self.avg * 100.0 } else { 0.0 }
    }
}

/// The least element that `percent` percent of all elements do not exceed; `None` if there are no elements.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let place = (sorted.len() * percent).div_ceil(100).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(place).copied()
}

/// `-a`: how the ranks' times become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Average {
    Rank0,
    Mean,
    Min,
    Max,
}

impl Average {
    pub(crate) fn of(self, times: &[f64]) -> f64 {
        match self {
            Average::Rank0 => times.first().copied().unwrap_or(0.0),
            Average::Mean => times.iter().sum::<f64>() / times.len().max(1) as f64,
            Average::Min => times.iter().copied().fold(f64::INFINITY, f64::min),
            Average::Max => times.iter().copied().fold(0.0, f64::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let spread = Spread::of((1..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!((spread.min, spread.max, spread.avg), (1.0, 100.0, 50.5));
        assert_eq!((spread.p50, spread.p95, spread.p99), (51.0, 95.0, 99.0));
        assert_eq!(spread.times[0], 100.0);
        let one = Spread::of(vec![3.0]).unwrap();
        assert_eq!((one.p50, one.p95, one.p99, one.stdev), (3.0, 3.0, 3.0, 0.0));
        assert_eq!(Spread::of(vec![]), None);
        let two = Spread::of(vec![1.0, 3.0]).unwrap();
        assert_eq!(two.variation_percent(), 50.0);
    }

    #[test]
    fn averages_over_ranks() {
        let times = [2.0, 1.0, 6.0];
        let all =
            [Average::Rank0, Average::Mean, Average::Min, Average::Max].map(|average| average.of(&times));
        assert_eq!(all, [2.0, 3.0, 1.0, 6.0]);
    }
}
