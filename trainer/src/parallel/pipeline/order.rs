//! In which order a rank of a pipeline does its work, as data.
//!
//! Invariant: an order is a function of the numbers of ranks, stages and micro-batches alone, so each rank knows what every
//! other does, and when its rows come. In every stage micro-batches go forward, and backward, in their order, so gradients
//! are added up as without a pipeline. A rank's last stage is the first to end, as in the layout of its gradients. Stage `g` of
//! the model is on rank `g % ranks`. Absent: rows and how they travel.
//!
//! Orders without a bubble (Qi and others, 2024) need a third pass of their own, for the gradients of the weights: what that
//! needs of a backward would be kept for each stage and micro-batch, as activations are, and `Block::backward` be parted again in
//! two. Neither [`timed`] nor [`program`] would change but for its cost: it sends nothing and waits for nothing.

use crate::error::{Error, Result};
use crate::parameters::Pass;

/// How a pipeline of some ranks orders its work.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Order {
    /// All micro-batches forward, then all backward (Huang and others, 2019).
    GPipe,
    /// As few forward as keep all ranks busy, then one backward and one forward in turn (Narayanan and others, 2019).
    #[default]
    OneForwardOneBackward,
    /// The same with several stages on each rank, that are shorter for it, and so is the bubble (Narayanan and others, 2021).
    Interleaved {
        /// The stages of a rank.
        chunks: usize,
    },
}

/// The work on one micro-batch in one stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    /// Which way.
    pub pass: Pass,
    /// The stage's number in the model.
    pub stage: usize,
    /// The micro-batch's number in the step.
    pub micro: usize,
}

/// A step's work on a pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// In which order.
    pub order: Order,
    /// How many ranks.
    pub ranks: usize,
    /// How many micro-batches.
    pub micro_batches: usize,
}

/// What a rank does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// It computes.
    Compute(Action),
    /// It sends rows to the rank that needs them for this action.
    Send(Action),
    /// It receives the rows that it needs for this action.
    Receive(Action),
}

impl Order {
    /// The stages of a rank.
    pub fn chunks(&self) -> usize {
        if let Order::Interleaved { chunks } = self { *chunks } else { 1 }
    }
}

impl Plan {
    /// Whether the order can be kept.
    ///
    /// # Errors
    /// [`Error::Configuration`] with the numbers that do not fit it.
    pub fn check(&self) -> Result<()> {
        let Plan { order, ranks, micro_batches } = *self;
        let Order::Interleaved { chunks } = order else { return Ok(()) };
        let fault = if ranks < 2 {
            Some((
                "stages are interleaved over several ranks, and the pipeline has one".to_owned(),
                "give a longer --pp, or another --schedule",
            ))
        } else if chunks == 0 {
            Some(("a rank has 0 interleaved stages".to_owned(), "give --chunks 1 or more"))
        } else if !micro_batches.is_multiple_of(ranks) {
            Some((
                format!(
                    "{micro_batches} micro-batches are no multiple of {ranks} ranks with interleaved stages"
                ),
                "make --micro-batches a multiple of --pp, or choose --schedule 1f1b",
            ))
        } else {
            None
        };
        fault.map_or(Ok(()), |(what, hint)| Err(Error::configuration(what, hint)))
    }

    /// The stages of the model.
    pub fn stages(&self) -> usize {
        self.ranks.saturating_mul(self.order.chunks())
    }

    /// The rank that has a stage.
    pub fn rank(&self, stage: usize) -> usize {
        stage % self.ranks
    }

    /// What a rank computes, one after the other.
    pub fn actions(&self, rank: usize) -> Vec<Action> {
        let Plan { order, ranks, micro_batches } = *self;
        let chunks = order.chunks();
        let all = micro_batches * chunks;
        let ahead = match order {
            Order::GPipe => all,
            Order::OneForwardOneBackward => ranks - 1 - rank,
            // The first micro-batches of all stages before the last, and twice the way to the last rank.
            Order::Interleaved { .. } => (chunks - 1) * ranks + 2 * (ranks - 1 - rank),
        }
        .min(all);
        // As many micro-batches as there are ranks go through a rank's first stage, then through its second.
        let action = |pass, number: usize| {
            let (round, chunk) = (number / (ranks * chunks), number / ranks % chunks);
            let (micro, chunk) = match (order, pass) {
                (Order::Interleaved { .. }, Pass::Forward) => (round * ranks + number % ranks, chunk),
                (Order::Interleaved { .. }, Pass::Backward) => {
                    (round * ranks + number % ranks, chunks - 1 - chunk)
                }
                _ => (number, 0),
            };
            Action { pass, stage: chunk * ranks + rank, micro }
        };
        let forward = (0..all).map(|number| action(Pass::Forward, number));
        let backward = (0..all).map(|number| action(Pass::Backward, number));
        let (first, rest) = (forward.clone().take(ahead), forward.skip(ahead));
        let in_turn = rest.zip(backward.clone()).flat_map(|(forward, backward)| [forward, backward]);
        first.chain(in_turn).chain(backward.skip(all - ahead)).collect()
    }

    /// The action that what `action` computes goes to: the same micro-batch, in the stage behind or before it.
    pub fn next(&self, action: Action) -> Option<Action> {
        let stage = match action.pass {
            Pass::Forward => Some(action.stage + 1).filter(|stage| *stage < self.stages()),
            Pass::Backward => action.stage.checked_sub(1),
        };
        stage.map(|stage| Action { stage, ..action })
    }

    /// The rank whose rows an action needs, if it needs any.
    pub fn source(&self, action: Action) -> Option<usize> {
        let stage = match action.pass {
            Pass::Forward => action.stage.checked_sub(1),
            Pass::Backward => Some(action.stage + 1).filter(|stage| *stage < self.stages()),
        };
        stage.map(|stage| self.rank(stage))
    }

    /// The actions that must be over before `action` begins.
    fn before(&self, action: Action) -> [Option<Action>; 2] {
        let Action { pass, stage, .. } = action;
        match pass {
            Pass::Forward => [stage.checked_sub(1).map(|stage| Action { stage, ..action }), None],
            Pass::Backward => {
                let behind = Some(stage + 1).filter(|stage| *stage < self.stages());
                let forward = Action { pass: Pass::Forward, ..action };
                [behind.map(|stage| Action { stage, ..action }), Some(forward)]
            }
        }
    }

    /// The number of an action among all of them.
    fn number(&self, action: Action) -> usize {
        (action.stage * self.micro_batches + action.micro) * 2 + usize::from(action.pass == Pass::Backward)
    }
}

/// How long an action takes in [`timed`].
pub(super) fn cost(action: Action) -> usize {
    match action.pass {
        Pass::Forward => 1,
        Pass::Backward => 2,
    }
}

/// The times at which each rank's actions begin, if each begins as soon as its rank is free and what it needs is computed: rows
/// travel in no time. `actions` are those of each rank. `None` if there is an action that cannot begin.
pub(super) fn timed(plan: &Plan, actions: &[Vec<Action>]) -> Option<Vec<Vec<usize>>> {
    let mut ends: Vec<Option<usize>> = vec![None; plan.stages() * plan.micro_batches * 2];
    let mut begins: Vec<Vec<usize>> = vec![Vec::new(); actions.len()];
    let mut left: usize = actions.iter().map(Vec::len).sum();
    let mut free = vec![0; actions.len()];
    while left > 0 {
        let before = left;
        for ((actions, begins), free) in actions.iter().zip(&mut begins).zip(&mut free) {
            while let Some(action) = actions.get(begins.len()) {
                let needed: Option<Vec<usize>> = plan
                    .before(*action)
                    .into_iter()
                    .flatten()
                    .map(|action| ends[plan.number(action)])
                    .collect();
                let Some(needed) = needed else { break };
                let begin = needed.into_iter().fold(*free, usize::max);
                *free = begin + cost(*action);
                ends[plan.number(*action)] = Some(*free);
                begins.push(begin);
                left -= 1;
            }
        }
        if left == before {
            return None;
        }
    }
    Some(begins)
}

/// When it is done, whether it is no message, and by which rank: no two are equal.
type Key = (usize, bool, usize);

/// What each rank does, its messages among what it computes.
///
/// All actions and messages are put in one order, and each rank does its part of it: an action stands at its begin in [`timed`], a
/// message at the end of what makes its rows, before actions that begin then. So whatever is the first in that order that
/// is not over can go on, on both of its ranks, also where a message ends on both sides at once: no rank waits for ever.
///
/// # Panics
/// If an order has an action that cannot begin.
pub(super) fn program(plan: &Plan) -> Vec<Vec<Doing>> {
    let actions: Vec<Vec<Action>> = (0..plan.ranks).map(|rank| plan.actions(rank)).collect();
    let begins = timed(plan, &actions).expect("in an order each action can begin");
    let mut doings: Vec<Vec<(Key, Doing)>> = vec![Vec::new(); plan.ranks];
    for (rank, (actions, begins)) in actions.iter().zip(&begins).enumerate() {
        for (action, begin) in actions.iter().zip(begins) {
            doings[rank].push(((*begin, true, rank), Doing::Compute(*action)));
            if let Some(next) = plan.next(*action) {
                let key = (begin + cost(*action), false, rank);
                doings[rank].push((key, Doing::Send(next)));
                doings[plan.rank(next.stage)].push((key, Doing::Receive(next)));
            }
        }
    }
    let in_order = |mut doings: Vec<(Key, Doing)>| {
        doings.sort_by_key(|(key, _)| *key);
        doings.into_iter().map(|(_, doing)| doing).collect()
    };
    doings.into_iter().map(in_order).collect()
}
