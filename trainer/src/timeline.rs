//! What each rank did when, within one step.
//!
//! Invariant: times count from the beginning of the rank's own step. Ranks that have just left a barrier begin it together, within
//! what a message takes. A sum counts as running until it was seen to be over, which is looked at whenever a gradient is
//! finished and when the rank waits. Ranks of a pipeline have different numbers of spans.

use std::time::Instant;

use consort::Communicator;

use crate::error::Result;

/// What a rank does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// The layers, first to last, and the loss.
    Forward,
    /// The layers, last to first.
    Backward,
    /// A bucket's gradients are summed over the ranks, beside whatever else.
    Sum,
    /// A bucket's weights come from the ranks that have shares of them, beside whatever else.
    Gather,
    /// Nothing, until the last sum is over.
    Wait,
    /// Nothing, until another stage of the pipeline has come as far.
    Idle,
    /// Norm, clipping and the change of the parameters.
    Optimizer,
}

/// All activities, in the order of their numbers.
pub const ACTIVITIES: [Activity; 7] = [
    Activity::Forward,
    Activity::Backward,
    Activity::Sum,
    Activity::Gather,
    Activity::Wait,
    Activity::Idle,
    Activity::Optimizer,
];

/// An activity from one moment to another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// What.
    pub activity: Activity,
    /// Seconds from the step's beginning.
    pub begin_s: f64,
    /// Seconds from the step's beginning.
    pub end_s: f64,
}

impl Span {
    /// An activity of a step that began at `step`.
    pub fn new(activity: Activity, step: Instant, begin: Instant, end: Instant) -> Self {
        let since = |moment: Instant| moment.duration_since(step).as_secs_f64();
        Span { activity, begin_s: since(begin), end_s: since(end) }
    }
}

/// A call that was started.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    begun: Instant,
    /// When it was seen to be over.
    over: Option<Instant>,
}

impl Flight {
    /// One that is started now.
    pub fn now() -> Self {
        Flight { begun: Instant::now(), over: None }
    }

    /// Looks whether it is over.
    pub fn look(&mut self, is_over: bool) {
        if self.over.is_none() && is_over {
            self.over = Some(Instant::now());
        }
    }

    /// From its start, or that of the step, to when it was seen to be over.
    pub fn span(&self, activity: Activity, step: Instant) -> Span {
        Span::new(activity, step, self.begun, self.over.unwrap_or_else(Instant::now))
    }
}

/// The spans of all ranks, by rank. Every rank calls it, each with as many spans as it has.
///
/// # Errors
/// What an all-gather ends with.
pub fn gather(comm: Option<&Communicator>, spans: &[Span]) -> Result<Vec<Vec<Span>>> {
    let Some(comm) = comm else { return Ok(vec![spans.to_vec()]) };
    let number = |activity| ACTIVITIES.iter().position(|other| *other == activity).unwrap_or_default() as f64;
    let own: Vec<f64> =
        spans.iter().flat_map(|span| [number(span.activity), span.begin_s, span.end_s]).collect();
    let mut counts = vec![0; comm.size() as usize];
    comm.all_gather(&[own.len() as u64], &mut counts)?;
    let counts: Vec<usize> = counts.into_iter().map(|count| count as usize).collect();
    let mut all = vec![0.0; counts.iter().sum()];
    comm.all_gather_v(&own, &mut all, &counts[..])?;
    let span = |[activity, begin_s, end_s]: &[f64; 3]| Span {
        activity: ACTIVITIES[*activity as usize],
        begin_s: *begin_s,
        end_s: *end_s,
    };
    let mut rest = &all[..];
    let rank = |count| {
        let (rank, behind) = rest.split_at(count);
        rest = behind;
        rank.as_chunks::<3>().0.iter().map(span).collect()
    };
    Ok(counts.into_iter().map(rank).collect())
}
