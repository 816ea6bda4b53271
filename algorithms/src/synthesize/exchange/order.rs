//! The rounds of hops, so that every round loads the wires alike.
//!
//! A rank goes on to its next round when what it sends and receives in this one has passed. So a round takes as long
//! as its fullest wire, and wires are busy all the time where each has the same load in every round. A hop may wait
//! for a later round; the number of rounds is the smallest that is near the best of those tried.
//!
//! Invariant: hops of a way are in rising rounds; floating point as in [`pieces`](super::pieces). Absent: channels,
//! whose lanes run side by side and fill what is left.

use super::hops::Hops;
use super::pieces::power;

/// Times that hops are placed anew, all in all; each way at least [`PASSES_MIN`] times.
const PLACES: usize = 20_000;
const PASSES_MIN: usize = 4;
const PASSES_MAX: usize = 40;
/// The power in the cost of a load, as the number of squarings.
const SQUARINGS: u32 = 4;
/// The part of the best order at which fewer rounds are better.
const NEAR: f64 = 1.02;
/// More transfers than this are placed once, in the fewest rounds.
const TRANSFERS_MAX: usize = 1 << 16;

/// For each way, which are lists of hops, the round of each hop; and the time of all rounds one after the other, as a
/// part of the time that the fullest wire needs.
pub(super) fn rounds(hops: &Hops, ways: &[&[u32]]) -> (f64, Vec<Vec<u32>>) {
    let depth = ways.iter().map(|way| way.len()).max().unwrap_or(1);
    let transfers: usize = ways.iter().map(|way| way.len()).sum();
    let (most, passes) = match transfers {
        _ if depth == 1 => (depth, 1),
        many if many > TRANSFERS_MAX => (depth, 1),
        few => (2 * depth + 2, (PLACES / few.max(1)).clamp(PASSES_MIN, PASSES_MAX)),
    };
    let mut best = (f64::INFINITY, Vec::new());
    for count in depth..=most {
        let (time, rounds) = Order::new(hops, ways, count).run(passes);
        if time * NEAR < best.0 {
            best = (time, rounds);
        }
        if best.0 < NEAR {
            break;
        }
    }
    best
}

struct Order<'a> {
    hops: &'a Hops,
    ways: &'a [&'a [u32]],
    /// Load of each wire in each round, as a part of the fullest wire's load if all rounds were alike.
    load: Vec<Vec<f64>>,
    /// What a piece adds to each wire.
    unit: Vec<f64>,
    placed: Vec<Vec<u32>>,
}

impl<'a> Order<'a> {
    fn new(hops: &'a Hops, ways: &'a [&'a [u32]], count: usize) -> Order<'a> {
        let mut whole = vec![0.0f64; hops.capacity.len()];
        for wire in ways.iter().flat_map(|way| way.iter()).flat_map(|hop| &hops.wires[*hop as usize]) {
            whole[*wire as usize] += 1.0 / hops.capacity[*wire as usize];
        }
        let fullest = whole.iter().copied().fold(0.0, f64::max);
        let unit = hops.capacity.iter().map(|capacity| count as f64 / (capacity * fullest)).collect();
        Order {
            hops,
            ways,
            load: vec![vec![0.0; whole.len()]; count],
            unit,
            placed: vec![Vec::new(); ways.len()],
        }
    }

    /// The time of all rounds, as a part of the fullest wire's, and the rounds.
    fn run(mut self, passes: usize) -> (f64, Vec<Vec<u32>>) {
        let mut order: Vec<usize> = (0..self.ways.len()).collect();
        order.sort_by_key(|way| (std::cmp::Reverse(self.ways[*way].len()), *way));
        let time = |load: &[Vec<f64>]| {
            let of_round = |load: &Vec<f64>| load.iter().copied().fold(0.0, f64::max);
            load.iter().map(of_round).sum::<f64>() / load.len() as f64
        };
        let mut best = (f64::INFINITY, Vec::new());
        for pass in 0..passes {
            for &way in &order {
                self.put(way, -1.0);
                self.placed[way] = self.place(way);
                self.put(way, 1.0);
            }
            let now = time(&self.load);
            if now < best.0 {
                best = (now, self.placed.clone());
            }
            // Another order each time, so that no early choice stays for ever.
            order.rotate_left((1 + pass * 7) % self.ways.len().max(1));
            if pass % 3 == 2 {
                order.reverse();
            }
        }
        best
    }

    fn put(&mut self, way: usize, times: f64) {
        for (hop, round) in self.ways[way].iter().zip(&self.placed[way]) {
            for wire in &self.hops.wires[*hop as usize] {
                self.load[*round as usize][*wire as usize] += times * self.unit[*wire as usize];
            }
        }
    }

    /// The cheapest rising rounds of a way's hops, hop by hop for every last round.
    fn place(&self, way: usize) -> Vec<u32> {
        let (hops, count) = (self.ways[way], self.load.len());
        // Per hop and last round: the cost so far, and the round of the hop.
        let mut costs: Vec<Vec<(f64, u32)>> = Vec::with_capacity(hops.len());
        for (at, hop) in hops.iter().enumerate() {
            let mut row = vec![(f64::INFINITY, 0); count];
            for round in at..count + at + 1 - hops.len() {
                let before = if at == 0 { 0.0 } else { costs[at - 1][round - 1].0 };
                let here = before + self.cost(*hop, round);
                let earlier = if round > at { row[round - 1] } else { (f64::INFINITY, 0) };
                row[round] = if here < earlier.0 { (here, round as u32) } else { earlier };
            }
            costs.push(row);
        }
        let mut rounds = vec![0u32; hops.len()];
        let mut last = count;
        for at in (0..hops.len()).rev() {
            let end = (last - 1).min(count + at - hops.len());
            rounds[at] = costs[at][end].1;
            last = rounds[at] as usize;
        }
        rounds
    }

    fn cost(&self, hop: u32, round: usize) -> f64 {
        let of_wire = |wire: &u32| {
            let load = self.load[round][*wire as usize];
            power(load + self.unit[*wire as usize], SQUARINGS) - power(load, SQUARINGS)
        };
        self.hops.wires[hop as usize].iter().map(of_wire).sum()
    }
}
