//! Jellyfish: switches joined at random.

use std::collections::BTreeSet;

use super::draft::{Draft, End};
use super::words::{Boxes, Family, Key, Values};

/// A random regular graph of switches with `degree` cables to other switches and `hosts` hosts each; `seed` chooses it.
///
/// Source: A. Singla, C. Hong, L. Popa, B. Godfrey, "Jellyfish: networking data centers randomly", NSDI 2012: free ports of
/// two switches that are not yet joined are joined at random until none is left; a switch with free ports that all lead
/// to neighbours takes the place of a random cable. Its bisection is, by B. Bollobás, "The isoperimetric number of random
/// graphs", 1988, almost surely at least `N (r/4 - sqrt(r ln 2)/2)` cables for `N` switches of degree `r`; diameter at
/// most `2 + 1 + ceil(log_(r-1)((2 + e) r N log N))` by B. Bollobás and W. de la Vega, "The diameter of random regular
/// graphs", 1982. Where a graph is not connected, the next one of the same seed is taken.
pub(super) const FAMILY: Family = Family {
    name: "jellyfish",
    keys: &[
        Key::needed("switches", "SWITCHES", 4..=16_384),
        Key::needed("degree", "DEGREE", 3..=512),
        Key::or("hosts", "HOSTS_A_SWITCH", 1, 1..=512),
        Key::or("seed", "SEED", 0, 0..=u32::MAX),
    ],
    boxes: Boxes::Allowed,
    draft,
};

/// Graphs that are tried; almost every one is connected.
const GRAPHS_MAX: u32 = 100;
/// Pairs of ports that are tried before a graph is given up: the last ports of dense graphs may lead nowhere.
const VAIN_MAX: usize = 1 << 20;

fn draft(values: &Values) -> Result<Draft, String> {
    let [switches, degree, hosts, seed] = values.numbers();
    if degree >= switches {
        return Err(format!("degree={degree}: there are {} other switches", switches - 1));
    }
    if !(u64::from(switches) * u64::from(degree)).is_multiple_of(2) {
        return Err(format!("{switches} switches of degree {degree} have an odd number of ports"));
    }
    let [n, r, h] = [switches, degree, hosts].map(u64::from);
    let mut draft = Draft::announce(n * h, n, n * h + n * r / 2)?;
    let mut random = Random(seed.into());
    let mut graphs = (0..GRAPHS_MAX).filter_map(|_| Graph::regular(switches, degree, &mut random));
    let Some(graph) = graphs.find(Graph::is_connected) else {
        return Err(format!("seed={seed} finds no connected graph: take another"));
    };
    draft.switches("switch", switches);
    for host in 0..switches * hosts {
        draft.cable(End::Host(host), End::Switch(host / hosts));
    }
    for [one, other] in graph.cables {
        draft.cable(End::Switch(one), End::Switch(other));
    }
    Ok(draft)
}

/// Numbers that follow from a seed alone.
///
/// Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014 (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * limit as u128) >> 64) as usize
    }
}

struct Graph {
    neighbours: Vec<BTreeSet<u32>>,
    cables: Vec<[u32; 2]>,
}

impl Graph {
    fn regular(switches: u32, degree: u32, random: &mut Random) -> Option<Graph> {
        let mut graph = Graph { neighbours: vec![BTreeSet::new(); switches as usize], cables: Vec::new() };
        // A switch stands here once for each of its free ports.
        let mut free: Vec<u32> = (0..switches).flat_map(|switch| (0..degree).map(move |_| switch)).collect();
        let mut in_vain = 0;
        while free.len() > 1 {
            // Two ports, of one switch perhaps.
            let first = random.below(free.len());
            let second = random.below(free.len() - 1);
            let second = if second >= first { second + 1 } else { second };
            let [one, other] = [free[first], free[second]];
            if one != other && !graph.are_joined(one, other) {
                graph.join(one, other);
            } else if in_vain < 2 * free.len() || !graph.take_place(one, other, random) {
                in_vain += 1;
                if in_vain > VAIN_MAX {
                    return None;
                }
                continue;
            }
            in_vain = 0;
            free.swap_remove(first.max(second));
            free.swap_remove(first.min(second));
        }
        Some(graph)
    }

    fn are_joined(&self, one: u32, other: u32) -> bool {
        self.neighbours[one as usize].contains(&other)
    }

    fn join(&mut self, one: u32, other: u32) {
        self.neighbours[one as usize].insert(other);
        self.neighbours[other as usize].insert(one);
        self.cables.push([one, other]);
    }

    /// Puts two free ports, perhaps of one switch, into the place of a random cable, if that one allows it.
    fn take_place(&mut self, one: u32, other: u32, random: &mut Random) -> bool {
        let at = random.below(self.cables.len());
        let [near, far] = self.cables[at];
        let is_new = |switch: u32, end: u32| switch != end && !self.are_joined(switch, end);
        if !(is_new(one, near) && is_new(other, far)) {
            return false;
        }
        self.cables.swap_remove(at);
        self.neighbours[near as usize].remove(&far);
        self.neighbours[far as usize].remove(&near);
        self.join(one, near);
        self.join(other, far);
        true
    }

    fn is_connected(&self) -> bool {
        let mut reached = vec![false; self.neighbours.len()];
        let mut waiting = vec![0u32];
        reached[0] = true;
        while let Some(switch) = waiting.pop() {
            for &next in &self.neighbours[switch as usize] {
                if !std::mem::replace(&mut reached[next as usize], true) {
                    waiting.push(next);
                }
            }
        }
        reached.into_iter().all(|reached| reached)
    }
}
