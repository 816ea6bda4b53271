//! Who keeps the others waiting.
//!
//! Invariant: the analysis is a pure function of when ranks entered collectives, on one clock and each known to an
//! error; a rank whose lateness that error alone would explain is not called late. Absent: asking (see `communicator`).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::brief;
use crate::recorder::RECORDS;
use crate::report::json::seconds;
use crate::report::text::columns;
use consort_types::Rank;
use consort_types::error::list;

/// When the ranks of a communicator arrived at its last collectives. `Display` is the text for people,
/// [`Stragglers::to_json`] the same for programs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Stragglers {
    /// The communicator's name: the same on all its ranks.
    pub communicator: String,
    /// How many ranks it has.
    pub size: u32,
    /// The rank that asked the others.
    pub by: Rank,
    /// How many collectives were looked at: the last ones that every rank that answered has entered, 128 at most.
    pub collectives: u32,
    /// To how many of them all ranks came at the same time, as far as the error lets one see.
    pub even: u32,
    /// The rank that came last most often; none when all came at the same time.
    pub latest: Option<Rank>,
    /// How long a rank waited for the last one, in the mean over collectives and ranks.
    #[serde(rename = "waited_s", serialize_with = "seconds")]
    pub waited: Duration,
    /// The largest of the ranks' errors.
    #[serde(rename = "error_s", serialize_with = "seconds")]
    pub error: Duration,
    /// Every rank that answered, in order.
    pub ranks: Vec<Straggler>,
    /// The ranks that did not answer.
    pub silent: Vec<Rank>,
}

/// When one rank came.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Straggler {
    /// Which.
    pub rank: Rank,
    /// The host it runs on.
    pub host: String,
    /// Its process there.
    pub process: u32,
    /// How often it came last, alone or together with others.
    pub last: u32,
    /// How long after the first rank it came, in the mean; times within the error count as nothing.
    #[serde(rename = "mean_s", serialize_with = "seconds")]
    pub mean: Duration,
    /// The same at most.
    #[serde(rename = "max_s", serialize_with = "seconds")]
    pub max: Duration,
    /// How long the others waited for it when it came last, in the mean.
    #[serde(rename = "others_waited_s", serialize_with = "seconds")]
    pub others_waited: Duration,
    /// How far its times may be off. Two ranks came one after the other when their times differ by more than both
    /// their errors together.
    #[serde(rename = "error_s", serialize_with = "seconds")]
    pub error: Duration,
}

/// The times at which one rank entered collectives, by the asking rank's clock.
#[derive(Clone, Debug)]
pub struct Arrivals {
    pub rank: Rank,
    pub host: String,
    pub pid: u32,
    pub error: Duration,
    /// When it entered collectives, by number; nanoseconds from some beginning.
    pub entered: BTreeMap<u64, i64>,
}

impl Arrivals {
    fn error_ns(&self) -> i64 {
        self.error.as_nanos() as i64
    }
}

/// Sums over collectives, nanoseconds.
#[derive(Clone, Default)]
struct Sums {
    last: u32,
    late: i64,
    max: i64,
    waited: i64,
}

fn mean(sum: i64, count: u32) -> Duration {
    Duration::from_nanos((sum / i64::from(count.max(1))).max(0) as u64)
}

/// What the times of all ranks that answered say. The names, `size` and `by` are passed on.
pub fn analyse(communicator: String, size: u32, by: Rank, answers: &[Arrivals]) -> Stragglers {
    let known = |sequence: &&u64| answers.iter().all(|rank| rank.entered.contains_key(sequence));
    let numbers = answers.first().into_iter().flat_map(|rank| rank.entered.keys().rev());
    let common: Vec<u64> = numbers.filter(known).take(RECORDS).copied().collect();
    let mut sums = vec![Sums::default(); answers.len()];
    let (mut even, mut waited) = (0, 0);
    for sequence in &common {
        let times: Vec<i64> = answers.iter().map(|rank| rank.entered[sequence]).collect();
        let (Some(first), Some(last)) = (extreme(&times, false), extreme(&times, true)) else { continue };
        let apart = |one: usize, other: usize| {
            times[one] - times[other] > answers[one].error_ns() + answers[other].error_ns()
        };
        let late: Vec<usize> = (0..answers.len()).filter(|rank| apart(*rank, first)).collect();
        for rank in &late {
            let lateness = times[*rank] - times[first];
            sums[*rank].late += lateness;
            sums[*rank].max = sums[*rank].max.max(lateness);
        }
        let latest: Vec<usize> = late.into_iter().filter(|rank| !apart(last, *rank)).collect();
        if latest.is_empty() {
            even += 1;
            continue;
        }
        let others = answers.len() as i64 - 1;
        for rank in &latest {
            let wait = |time: &i64| (times[*rank] - time).max(0);
            sums[*rank].last += 1;
            sums[*rank].waited += times.iter().map(wait).sum::<i64>() / others;
        }
        waited += times.iter().map(|time| times[last] - time).sum::<i64>() / others;
    }
    let count = common.len() as u32;
    let rank = |(rank, sums): (&Arrivals, &Sums)| Straggler {
        rank: rank.rank,
        host: rank.host.clone(),
        process: rank.pid,
        last: sums.last,
        mean: mean(sums.late, count),
        max: mean(sums.max, 1),
        others_waited: mean(sums.waited, sums.last),
        error: rank.error,
    };
    let mut ranks: Vec<Straggler> = answers.iter().zip(&sums).map(rank).collect();
    ranks.sort_by_key(|rank| rank.rank);
    let latest = ranks.iter().filter(|rank| rank.last > 0).max_by_key(|rank| (rank.last, rank.mean));
    Stragglers {
        communicator,
        size,
        by,
        collectives: count,
        even,
        latest: latest.map(|rank| rank.rank),
        waited: mean(waited, count),
        error: answers.iter().map(|rank| rank.error).max().unwrap_or_default(),
        silent: (0..size).filter(|rank| !answers.iter().any(|answer| answer.rank == *rank)).collect(),
        ranks,
    }
}

/// The place of the first of the largest values, or of the smallest.
fn extreme(times: &[i64], largest: bool) -> Option<usize> {
    (0..times.len()).min_by_key(|at| if largest { -times[*at] } else { times[*at] })
}

impl Stragglers {
    /// The result as one JSON object. Its keys are the names of the fields here, durations are seconds in a key
    /// that ends in `_s`.
    pub fn to_json(&self) -> String {
        json!(self).to_string()
    }
}

impl fmt::Display for Stragglers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stragglers { size, by, collectives, even, .. } = self;
        let name = self.communicator.get(..8).unwrap_or(&self.communicator);
        let plural = if *size == 1 { "rank" } else { "ranks" };
        writeln!(
            f,
            "arrivals at {collectives} collectives of communicator {name} ({size} {plural}), by rank {by}: {even} even, \
             times known to {}",
            brief(self.error)
        )?;
        match self.ranks.iter().find(|rank| Some(rank.rank) == self.latest) {
            Some(rank) => {
                let (waited, last) = (brief(rank.others_waited), rank.last);
                write!(f, "most often last: rank {} ({last} times, the others waited {waited})", rank.rank)?;
            }
            None => write!(f, "no rank was late")?,
        }
        if !self.silent.is_empty() {
            write!(f, "; no answer from {}", list(&self.silent))?;
        }
        let header = ["rank", "where", "last", "mean late", "max late", "others waited", "error"];
        let mut rows = vec![header.map(String::from)];
        rows.extend(self.ranks.iter().map(|rank| {
            [
                rank.rank.to_string(),
                format!("host {}, pid {}", rank.host, rank.process),
                rank.last.to_string(),
                brief(rank.mean),
                brief(rank.max),
                brief(rank.others_waited),
                brief(rank.error),
            ]
        }));
        write!(f, "\n{}", columns(&rows, [true, false, true, true, true, true, true]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// Per rank its error and when it entered collectives 1, 2, and so on.
    fn analysed(ranks: &[(i64, &[i64])]) -> Stragglers {
        let answer = |(rank, (error, times)): (u32, &(i64, &[i64]))| Arrivals {
            rank,
            host: "a".into(),
            pid: 70 + rank,
            error: Duration::from_nanos(*error as u64),
            entered: (1..).zip(times.iter().copied()).collect(),
        };
        let answers: Vec<Arrivals> = (0..).zip(ranks).map(answer).collect();
        analyse("0123456789abcdef".into(), ranks.len() as u32, 0, &answers)
    }

    #[test]
    fn one_late_rank_is_named_with_its_times() {
        let stragglers = analysed(&[
            (0, &[0, 100 * MS, 200 * MS]),
            (1_000, &[10_000, 100 * MS + 500, 200 * MS]),
            (2_000, &[10 * MS, 112 * MS, 200 * MS + 1_000]),
        ]);
        assert_eq!((stragglers.collectives, stragglers.even, stragglers.latest), (3, 1, Some(2)));
        let rank = &stragglers.ranks[2];
        assert_eq!((rank.last, rank.max), (2, Duration::from_millis(12)));
        assert_eq!(rank.mean, Duration::from_nanos(22 * MS as u64 / 3));
        assert_eq!(rank.others_waited.as_nanos(), (10 * MS - 5_000 + 12 * MS - 250) as u128 / 2);
        let others: Vec<_> =
            stragglers.ranks[..2].iter().map(|rank| (rank.last, rank.max.as_nanos())).collect();
        assert_eq!(others, [(0, 0), (0, 10_000)]);
        assert_eq!(stragglers.error, Duration::from_nanos(2_000));
        let text = stragglers.to_string();
        assert!(text.contains("most often last: rank 2 (2 times, the others waited 11.0 ms)"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&stragglers.to_json()).expect("json");
        assert_eq!((&json["latest"], &json["ranks"][2]["last"]), (&json!(2), &json!(2)));
    }

    #[test]
    fn what_the_error_explains_is_nobody_s_fault() {
        let stragglers = analysed(&[(0, &[0, 100]), (600, &[500, 0]), (400, &[900, 500])]);
        assert_eq!((stragglers.collectives, stragglers.even, stragglers.latest), (2, 1, Some(2)));
        assert_eq!(stragglers.ranks[1].mean, Duration::ZERO);
        let even = analysed(&[(500, &[0, 700]), (500, &[1_000, 0])]);
        assert_eq!((even.even, even.latest, even.waited), (2, None, Duration::ZERO));
        assert!(even.to_string().contains("no rank was late"), "{even}");
    }

    #[test]
    fn who_cannot_be_told_from_the_last_was_last_too() {
        let stragglers = analysed(&[(10, &[0, 0]), (10, &[5 * MS, 5 * MS]), (10, &[5 * MS + 15, 6 * MS])]);
        let last: Vec<u32> = stragglers.ranks.iter().map(|rank| rank.last).collect();
        assert_eq!((last, stragglers.latest), (vec![0, 1, 2], Some(2)));
    }

    #[test]
    fn only_what_all_know_is_compared() {
        let (few, many): (Vec<i64>, Vec<i64>) = ((0..3).collect(), (0..500).collect());
        assert_eq!(analysed(&[(0, &few), (0, &many)]).collectives, 3);
        assert_eq!(analysed(&[(0, &many), (0, &many)]).collectives, 128);
        assert_eq!(analysed(&[(0, &[]), (0, &many)]).collectives, 0);
        let alone = analysed(&[(0, &many)]);
        assert_eq!((alone.collectives, alone.even, alone.latest), (128, 128, None));
        let answers =
            [Arrivals { rank: 1, host: "a".into(), pid: 1, error: Duration::ZERO, entered: [(1, 5)].into() }];
        let partly = analyse("0123456789abcdef".into(), 3, 1, &answers);
        assert_eq!(partly.silent, [0, 2]);
        assert!(partly.to_string().contains("no answer from 0, 2"), "{partly}");
    }
}
