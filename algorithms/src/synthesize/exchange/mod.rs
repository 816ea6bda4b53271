//! All-to-all near what is possible, on any machine.
//!
//! The bound is that of [`bounds`](crate::bounds). Three makers are tried, the simplest first, until one is near it:
//!
//! 1. every block straight to its rank, which is best on meshes, switches and boxes with adapters;
//! 2. on machines whose ranks are alike the flow out of one rank, turned to the others;
//! 3. the flow of all pairs.
//!
//! A flow is divided into few pieces of a block ([`Options::pieces_max`]), each of which takes one way from rank to rank.
//!
//! Invariant: the same topology and options give the same schedule; its [`rate`](Exchange::rate) is counted on the emitted transfers
//! in whole numbers. Absent: latency, but for the smallest number of pieces and of hops that is near enough.

mod emit;
mod flow;
mod hops;
mod pieces;
mod turned;

use emit::Routed;
use flow::{Flow, Pair};
use hops::{Hops, Wires};
use pieces::{Division, Divider};
use turned::Grid;

use super::rate::rate;
use crate::bounds::{self, Bound, Ratio};
use crate::builders::spread_out;
use crate::topology::Topology;
use crate::{Collective, Schedule};

/// Numbers of pieces that are tried.
const PIECES: [u32; 10] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16];

/// How far to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The most pieces of a block; at least 1.
    pub pieces_max: u32,
    /// The part of the bound, in thousandths, at which nothing better is looked for.
    pub enough: u32,
    /// Rounds in which every pair is routed once.
    pub rounds: u32,
    /// The most ranks of a machine whose flow is computed.
    pub ranks_max: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { pieces_max: 16, enough: 990, rounds: 100, ranks_max: 128 }
    }
}

/// How a schedule was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Every block goes straight to its rank.
    Direct,
    /// The ways from one rank serve all, turned.
    Turned,
    /// Every pair has ways of its own.
    Flow,
}

impl Form {
    /// One word for users.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Direct => "direct",
            Form::Turned => "turned",
            Form::Flow => "flow",
        }
    }
}

/// An all-to-all for one machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchange {
    schedule: Schedule,
    rate: Ratio,
    bound: Bound,
    at_most: Option<f64>,
    form: Form,
}

impl Exchange {
    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The algorithm bandwidth that its loads allow, in bytes of a rank's send buffer a second.
    pub fn rate(&self) -> Ratio {
        self.rate
    }

    /// What no schedule exceeds.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// The part of the bound that it reaches.
    pub fn share(&self) -> f64 {
        self.rate.value() / self.bound.rate.value()
    }

    /// What no schedule whose hops take the routes of the topology exceeds, in bytes a second, up to rounding; none where the flow
    /// was not computed.
    pub fn at_most(&self) -> Option<f64> {
        self.at_most.map(|part| part.min(1.0) * self.bound.rate.value())
    }

    /// How it was made.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The most messages that follow each other.
    pub fn depth(&self) -> u32 {
        self.schedule.cost().depth
    }
}

/// The best all-to-all that is found for `topology`; none for fewer than two ranks, where a rank is not reached, or where ranks are
/// more than [`Options::ranks_max`] and blocks that go straight are far from the bound.
///
/// # Panics
///
/// When [`Options::pieces_max`] is 0.
pub fn exchange(topology: &Topology, options: &Options) -> Option<Exchange> {
    assert!(options.pieces_max > 0, "a block has a piece");
    let bound = bounds::bound(topology, Collective::AllToAll, &bounds::Options::default()).ok()?;
    if bound.rate.is_zero() {
        return None;
    }
    let ranks = topology.ranks();
    let mut search = Search { topology, options, bound, best: None };
    search.offer(spread_out(ranks), None, Form::Direct);
    if search.is_enough() || ranks > options.ranks_max {
        return search.best;
    }
    let wires = Wires::new(topology);
    let all = hops::hops(topology, &wires);
    if let Some((grid, hops)) = turned::turned(ranks, &all, &wires) {
        search.flow(&hops, Some(&grid));
    }
    if !search.is_enough() {
        search.flow(&Hops::of_all(ranks, &all, &wires), None);
    }
    search.best
}

struct Search<'a> {
    topology: &'a Topology,
    options: &'a Options,
    bound: Bound,
    best: Option<Exchange>,
}

impl Search<'_> {
    /// Takes a schedule when it is faster than the best one.
    fn offer(&mut self, schedule: Schedule, at_most: Option<f64>, form: Form) {
        let Ok(Some(rate)) = rate(&schedule, self.topology) else { return };
        if self.best.as_ref().is_none_or(|best| rate > best.rate) {
            let at_most = at_most.or(self.best.as_ref().and_then(|best| best.at_most));
            self.best = Some(Exchange { schedule, rate, bound: self.bound.clone(), at_most, form });
        } else if let Some(best) = &mut self.best {
            best.at_most = at_most.or(best.at_most);
        }
    }

    fn is_enough(&self) -> bool {
        let part = self.best.as_ref().map_or(0.0, Exchange::share);
        part * 1000.0 >= f64::from(self.options.enough)
    }

    /// The flow of `hops` in pieces; with a grid the ways of rank 0 are turned along it.
    fn flow(&mut self, hops: &Hops, grid: Option<&Grid>) {
        let ranks = self.topology.ranks();
        let wanted = self.bound.rate.value() / f64::from(ranks);
        let Some(Flow { at_most, pairs }) = flow::flow(hops, wanted, self.options.rounds) else { return };
        let Some(division) = self.divide(hops, &pairs, wanted, at_most) else { return };
        let routed = route(hops, &pairs, &division, grid);
        let form = if grid.is_some() { Form::Turned } else { Form::Flow };
        let name = format!("exchange({}, pieces={})", form.name(), division.pieces);
        // Where ranks are alike, the flow out of one is that of all.
        self.offer(emit::emit(name, ranks, division.pieces, &routed), Some(at_most), form);
    }

    /// The division into the fewest pieces that is near what is possible, or the best one.
    fn divide(&self, hops: &Hops, pairs: &[Pair], wanted: f64, at_most: f64) -> Option<Division> {
        let divider = Divider::new(hops, pairs, wanted);
        let enough = at_most.min(1.0) * f64::from(self.options.enough) / 1000.0;
        let mut best: Option<Division> = None;
        for pieces in PIECES.into_iter().filter(|pieces| *pieces <= self.options.pieces_max) {
            let division = divider.divide(pieces);
            if best.as_ref().is_none_or(|best| division.reached > best.reached) {
                best = Some(division);
            }
            if best.as_ref().is_some_and(|best| best.reached >= enough) {
                break;
            }
        }
        best
    }
}

/// The pieces with their ways, in the order of targets after each rank.
fn route(hops: &Hops, pairs: &[Pair], division: &Division, grid: Option<&Grid>) -> Vec<Routed> {
    let mut routed = Vec::new();
    for (pair, counts) in pairs.iter().zip(&division.counts) {
        let mut piece = 0;
        for (way, count) in pair.ways.iter().zip(counts).filter(|(_, count)| **count > 0) {
            let mut over = Vec::new();
            let mut at = pair.from;
            for hop in &way.hops {
                let to = hops.leaving[at as usize].iter().find(|(_, number)| number == hop).map(|(to, _)| *to);
                at = to.expect("a hop leaves the rank that the way has reached");
                over.push(at);
            }
            over.pop();
            for _ in 0..*count {
                routed.push(Routed { from: pair.from, to: pair.to, piece, over: over.clone() });
                piece += 1;
            }
        }
    }
    if let Some(grid) = grid {
        let all = (0..hops.ranks() as u32).flat_map(|by| {
            routed.iter().map(move |first| Routed {
                from: by,
                to: grid.turn(first.to, by),
                piece: first.piece,
                over: first.over.iter().map(|rank| grid.turn(*rank, by)).collect(),
            })
        });
        routed = all.collect();
    }
    // Nearest successors first, so that no rank is the first target of all.
    let ranks = hops.ranks() as u32;
    routed.sort_by_key(|routed| ((routed.to + ranks - routed.from) % ranks, routed.piece, routed.from));
    routed
}
