//! All-to-all near what is possible, on any machine.
//!
//! The bound is that of [`bounds`]. Makers are tried, the simplest first, until one is near it:
//!
//! 1. every block straight to its rank, which is best on meshes, switches and boxes with adapters;
//! 2. over boxes first to the rank on the target's rail, then along the rail;
//! 3. on machines whose ranks are alike the flow out of one rank, turned to the others;
//! 4. the flow of all pairs.
//!
//! A flow is divided into few pieces of a block ([`Options::pieces_max`]), and each piece takes one way from rank to
//! rank. Exchanges whose counts differ are put in order by [`stages()`].
//!
//! Invariant: the same topology and options give the same schedule; its [`rate`](Exchange::rate) is counted on the
//! emitted transfers in whole numbers, with links between the same nodes as one ([`Topology::bundled`]). Absent:
//! latency, but for the smallest number of pieces and of hops that is near enough.

mod alike;
mod emit;
mod flow;
mod grid;
mod hops;
mod order;
mod pieces;
mod stages;
mod turned;

pub use stages::{Move, Parcel, Stage, balance, makespan, stages};
pub use turned::Turned;

use emit::{Cut, Routed};
use flow::{Flow, Pair};
use grid::Grid;
use hops::{Hops, Wires};
use pieces::{Divider, Division};

use super::rate::rate;
use crate::bounds::{self, Bound, Ratio};
use crate::topology::Topology;
use crate::{Collective, Schedule, whole};

/// Numbers of pieces that are tried.
const PIECES: [u32; 10] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16];
/// Numbers of pieces that are near enough and whose rounds are compared.
const ORDERS_MAX: u32 = 3;
/// With more pieces of all pairs the first number that is near enough is taken.
const COMPARED_MAX: usize = 512;
/// Rounds that take less than this part of the fullest wire's time are even.
const EVEN: f64 = 1.03;

/// How far to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The most pieces of a block that take ways of their own; at least 1.
    pub pieces_max: u32,
    /// The part of the bound, in thousandths, at which nothing better is looked for.
    pub enough: u32,
    /// Rounds in which every pair is routed once.
    pub rounds: u32,
    /// The most ranks of a machine whose flow is computed.
    pub ranks_max: u32,
    /// Channels; each carries its part of every piece; at least 1.
    pub channels: u16,
}

impl Default for Options {
    fn default() -> Self {
        Options { pieces_max: 16, enough: 990, rounds: 64, ranks_max: 128, channels: 4 }
    }
}

/// How a schedule was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Every block goes straight to its rank.
    Direct,
    /// Blocks change rails within the box.
    Rails,
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
            Form::Rails => "rails",
            Form::Turned => "turned",
            Form::Flow => "flow",
        }
    }
}

/// An all-to-all for one machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchange {
    schedule: Schedule,
    regular: Option<Turned>,
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

    /// The same by ranks, where all do alike.
    pub fn regular(&self) -> Option<&Turned> {
        self.regular.as_ref()
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

    /// What no schedule whose hops take the routes of the topology exceeds, in bytes a second, up to rounding; none
    /// where the flow was not computed. Where ranks are alike, a route over a third rank counts as two hops.
    pub fn at_most(&self) -> Option<f64> {
        self.at_most.map(|part| part.min(1.0) * self.bound.rate.value())
    }

    /// How it was made.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Pieces of a block that take ways of their own.
    pub fn pieces(&self) -> u32 {
        self.schedule.partition.parts / u32::from(self.schedule.channels())
    }

    /// The most messages that follow each other.
    pub fn depth(&self) -> u32 {
        self.schedule.cost().depth
    }
}

/// The best all-to-all that is found for `topology`; none for fewer than two ranks, where a rank is not reached, and
/// where no block goes straight on a machine of more than [`Options::ranks_max`] ranks.
///
/// # Panics
///
/// When [`Options::pieces_max`] or [`Options::channels`] is 0.
pub fn exchange(topology: &Topology, options: &Options) -> Option<Exchange> {
    assert!(options.pieces_max > 0 && options.channels > 0, "a block has a piece, and a piece a channel");
    let topology = &topology.bundled();
    let bound = bounds::bound(topology, Collective::AllToAll, &bounds::Options::default()).ok()?;
    if bound.rate.is_zero() {
        return None;
    }
    let ranks = topology.ranks();
    let mut search = Search { topology, options, bound, best: None };
    search.offer_turned(Turned::direct(ranks, options.channels), None, Form::Direct);
    if !search.is_enough()
        && let Some((boxes, per_box)) = even_boxes(topology)
    {
        search.offer_turned(Turned::rails(boxes, per_box, options.channels), None, Form::Rails);
    }
    if search.is_enough() || ranks > options.ranks_max {
        return search.best;
    }
    let wires = Wires::new(topology);
    let all = hops::hops(topology, &wires);
    if let Some((grid, hops)) = alike::alike(ranks, &all, &wires) {
        search.flow(&hops, Some(grid));
    }
    if !search.is_enough() {
        search.flow(&Hops::of_all(ranks, &all, &wires), None);
    }
    search.best
}

/// How many boxes there are and how many ranks each has, where they are equal and have consecutive ranks.
fn even_boxes(topology: &Topology) -> Option<(u32, u32)> {
    let boxes = topology.boxes();
    let per_box = boxes.first()?.len();
    let even = boxes.iter().all(|ranks| ranks.len() == per_box);
    let in_order = boxes.iter().flatten().zip(0..).all(|(rank, number)| rank.0 == number);
    (even && in_order && per_box > 1 && boxes.len() > 1).then_some((boxes.len() as u32, per_box as u32))
}

struct Search<'a> {
    topology: &'a Topology,
    options: &'a Options,
    bound: Bound,
    best: Option<Exchange>,
}

impl Search<'_> {
    fn offer_turned(&mut self, turned: Turned, at_most: Option<f64>, form: Form) {
        self.offer(whole(&turned), Some(turned), at_most, form);
    }

    /// Takes a schedule when it is faster than the best one.
    fn offer(&mut self, schedule: Schedule, regular: Option<Turned>, at_most: Option<f64>, form: Form) {
        let known = self.best.as_ref().and_then(|best| best.at_most);
        // Where ranks are alike, the flow out of one is that of all; what is known of all is no less.
        let at_most = at_most.into_iter().chain(known).reduce(f64::min);
        match rate(&schedule, self.topology) {
            Ok(Some(rate)) if self.best.as_ref().is_none_or(|best| rate > best.rate) => {
                let bound = self.bound.clone();
                self.best = Some(Exchange { schedule, regular, rate, bound, at_most, form });
            }
            _ => {
                if let Some(best) = &mut self.best {
                    best.at_most = at_most;
                }
            }
        }
    }

    fn is_enough(&self) -> bool {
        let part = self.best.as_ref().map_or(0.0, Exchange::share);
        part * 1000.0 >= f64::from(self.options.enough)
    }

    /// The flow of `hops` in pieces; with a grid the ways of rank 0 are turned along it.
    fn flow(&mut self, hops: &Hops, grid: Option<Grid>) {
        let ranks = self.topology.ranks();
        let wanted = self.bound.rate.value() / f64::from(ranks);
        let Some(Flow { at_most, pairs }) = flow::flow(hops, wanted, self.options.rounds) else { return };
        let Some((pieces, routed)) = self.divide(hops, &pairs, wanted, at_most) else { return };
        let cut = Cut { ranks, pieces, channels: self.options.channels };
        if let Some(grid) = grid {
            let turned = Turned::new(format!("exchange(turned, pieces={pieces})"), cut, grid, routed);
            self.offer_turned(turned, Some(at_most), Form::Turned);
        } else {
            let schedule = emit::emit(format!("exchange(flow, pieces={pieces})"), cut, &routed);
            self.offer(schedule, None, Some(at_most), Form::Flow);
        }
    }

    /// The fewest pieces that are near what is possible, in the load of wires and in that of rounds, or the best ones.
    fn divide(&self, hops: &Hops, pairs: &[Pair], wanted: f64, at_most: f64) -> Option<(u32, Vec<Routed>)> {
        let divider = Divider::new(hops, pairs, wanted);
        let enough = at_most.min(1.0) * f64::from(self.options.enough) / 1000.0;
        let mut best: Option<(f64, Division)> = None;
        let mut ordered: Option<(f64, u32, Vec<Routed>)> = None;
        let mut orders = 0;
        for pieces in PIECES.into_iter().filter(|pieces| *pieces <= self.options.pieces_max) {
            let division = divider.divide(pieces);
            if division.reached >= enough {
                let (time, routed) = route(hops, pairs, &division);
                if ordered.as_ref().is_none_or(|(known, ..)| time * EVEN < *known) {
                    ordered = Some((time, pieces, routed));
                }
                orders += 1;
            }
            if best.as_ref().is_none_or(|(known, _)| division.reached > *known) {
                best = Some((division.reached, division));
            }
            let many = pieces as usize * pairs.len() > COMPARED_MAX;
            let done = ordered.is_some() && (many || orders == ORDERS_MAX);
            if done || ordered.as_ref().is_some_and(|(time, ..)| *time < EVEN) {
                break;
            }
        }
        let routed = ordered.map(|(_, pieces, routed)| (pieces, routed));
        routed.or_else(|| best.map(|(_, division)| (division.pieces, route(hops, pairs, &division).1)))
    }
}

/// The pieces with their ways and rounds, and the time of the rounds as a part of the fullest wire's; nearest
/// successors first, so that no rank is the first target of all.
fn route(hops: &Hops, pairs: &[Pair], division: &Division) -> (f64, Vec<Routed>) {
    let ranks = hops.ranks() as u32;
    let mut all: Vec<(&Pair, u32, &[u32])> = Vec::new();
    for (pair, counts) in pairs.iter().zip(&division.counts) {
        let ways = pair.ways.iter().zip(counts).flat_map(|(way, count)| (0..*count).map(move |_| way));
        all.extend(ways.zip(0..).map(|(way, piece)| (pair, piece, way.hops.as_slice())));
    }
    all.sort_by_key(|(pair, piece, _)| ((pair.to + ranks - pair.from) % ranks, *piece, pair.from));
    let ways: Vec<&[u32]> = all.iter().map(|(.., way)| *way).collect();
    let (time, rounds) = order::rounds(hops, &ways);
    let routed = |((pair, piece, way), rounds): ((&Pair, u32, &[u32]), Vec<u32>)| {
        let over = ranks_of(hops, pair.from, &way[..way.len() - 1]);
        Routed { from: pair.from, to: pair.to, piece, over, rounds }
    };
    (time, all.into_iter().zip(rounds).map(routed).collect())
}

/// The ranks to which hops lead from a rank on.
fn ranks_of(hops: &Hops, from: u32, way: &[u32]) -> Vec<u32> {
    let mut at = from;
    let next = |hop: &u32| {
        let found = hops.leaving[at as usize].iter().find(|(_, number)| number == hop);
        at = found.expect("a hop leaves the rank that the way has reached").0;
        at
    };
    way.iter().map(next).collect()
}
