//! Rings by covers: every rank has as many successors as there are rings, each choice of one for all ranks is a set of
//! cycles, and cycles are joined until each set is one ring.
//!
//! Source: a regular bipartite graph falls apart into perfect matchings (D. König, 1916), and exchanging along the alternating
//! cycles of two matchings gives two others of the same arcs. Whether an exchange joins cycles is tried, in an order that a
//! fixed seed gives. Invariant: counts of arcs never exceed what their links carry. Absent: links that several arcs share;
//! a ring is placed on its links afterwards.

use super::part::Graph;

/// Numbers that look random and are the same everywhere (G. Marsaglia, "Xorshift RNGs", 2003).
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new() -> Self {
        Numbers(0x9e37_79b9_7f4a_7c15)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) as usize) % limit.max(1)
    }
}

/// How many rings of `speed` each ordered pair of ranks could carry.
fn room(graph: &Graph<'_>, left: &[u128], speed: u128, count: usize) -> Vec<Vec<usize>> {
    let of = |rank: usize| {
        let widths = graph.widths(left, rank as u32);
        let fits = |width: u128| usize::try_from(width / speed).unwrap_or(count).min(count);
        let cells = widths.iter().enumerate();
        cells
            .map(
                |(to, (direct, around))| {
                    if to == rank { 0 } else { (fits(*direct) + fits(*around)).min(count) }
                },
            )
            .collect()
    };
    (0..graph.ranks()).map(of).collect()
}

/// How often each arc is used if every rank has `count` successors and `count` predecessors; none where there is no such
/// choice.
fn regular(room: &[Vec<usize>], count: usize) -> Option<Vec<Vec<usize>>> {
    let ranks = room.len();
    let mut used = vec![vec![0usize; ranks]; ranks];
    let (mut out, mut into) = (vec![0usize; ranks], vec![0usize; ranks]);
    // Arcs are used evenly first, then along augmenting paths.
    for level in 0..count {
        for shift in 1..ranks {
            for from in 0..ranks {
                let to = (from + shift) % ranks;
                if out[from] < count && into[to] < count && used[from][to] == level && room[from][to] > level
                {
                    used[from][to] += 1;
                    out[from] += 1;
                    into[to] += 1;
                }
            }
        }
    }
    while let Some(start) = out.iter().position(|of| *of < count) {
        // From successors' side back to a predecessor, alternately over arcs with room and arcs in use.
        let mut by_target: Vec<Option<usize>> = vec![None; ranks];
        let mut by_source: Vec<Option<usize>> = vec![None; ranks];
        let mut queue = vec![start];
        let mut found = None;
        let mut at = 0;
        while let (Some(&from), None) = (queue.get(at), found) {
            at += 1;
            for to in 0..ranks {
                if used[from][to] >= room[from][to] || by_target[to].is_some() {
                    continue;
                }
                by_target[to] = Some(from);
                if into[to] < count {
                    found = Some(to);
                    break;
                }
                for other in 0..ranks {
                    if used[other][to] > 0 && other != start && by_source[other].is_none() {
                        by_source[other] = Some(to);
                        queue.push(other);
                    }
                }
            }
        }
        let mut to = found?;
        into[to] += 1;
        out[start] += 1;
        loop {
            let from = by_target[to]?;
            used[from][to] += 1;
            if from == start {
                break;
            }
            to = by_source[from]?;
            used[from][to] -= 1;
        }
    }
    Some(used)
}

/// A successor for each rank, no two the same, over arcs that are in use; those that `order` names first are preferred.
fn matching(used: &[Vec<usize>], order: &[usize]) -> Option<Vec<usize>> {
    fn augment(
        used: &[Vec<usize>],
        order: &[usize],
        from: usize,
        seen: &mut [bool],
        of: &mut [Option<usize>],
    ) -> bool {
        for &to in order {
            if used[from][to] == 0 || std::mem::replace(&mut seen[to], true) {
                continue;
            }
            if of[to].is_none_or(|other| augment(used, order, other, seen, of)) {
                of[to] = Some(from);
                return true;
            }
        }
        false
    }
    let ranks = used.len();
    let mut of: Vec<Option<usize>> = vec![None; ranks];
    for from in 0..ranks {
        if !augment(used, order, from, &mut vec![false; ranks], &mut of) {
            return None;
        }
    }
    let mut next = vec![0; ranks];
    for (to, from) in of.into_iter().enumerate() {
        next[from?] = to;
    }
    Some(next)
}

/// The cycle of each rank, and how many there are.
fn cycles(next: &[usize]) -> (Vec<usize>, usize) {
    let mut of = vec![usize::MAX; next.len()];
    let mut count = 0;
    for start in 0..next.len() {
        if of[start] != usize::MAX {
            continue;
        }
        let mut at = start;
        while of[at] == usize::MAX {
            of[at] = count;
            at = next[at];
        }
        count += 1;
    }
    (of, count)
}

struct Covers {
    next: Vec<Vec<usize>>,
    room: Vec<Vec<usize>>,
    used: Vec<Vec<usize>>,
}

impl Covers {
    /// Joins two cycles of a cover by arcs that have room; whether any were joined.
    fn join(&mut self, cover: usize, numbers: &mut Numbers) -> bool {
        let (of, count) = cycles(&self.next[cover]);
        let ranks = of.len();
        let start = numbers.below(ranks);
        for (one, other) in (0..ranks).flat_map(|one| (0..ranks).map(move |other| (one, other))) {
            let (one, other) = ((one + start) % ranks, (other + start) % ranks);
            let (after, behind) = (self.next[cover][one], self.next[cover][other]);
            if count < 2 || of[one] == of[other] {
                continue;
            }
            if self.used[one][behind] < self.room[one][behind]
                && self.used[other][after] < self.room[other][after]
            {
                self.set(cover, one, behind);
                self.set(cover, other, after);
                return true;
            }
        }
        false
    }

    /// Exchanges the successors of two ranks where arcs have room and that makes no more cycles.
    fn vary(&mut self, cover: usize, numbers: &mut Numbers) {
        let ranks = self.room.len();
        let cover = if numbers.below(2) == 0 { cover } else { numbers.below(self.next.len()) };
        for _ in 0..ranks {
            let (one, other) = (numbers.below(ranks), numbers.below(ranks));
            let (after, behind) = (self.next[cover][one], self.next[cover][other]);
            let has_room = |from: usize, to: usize| self.used[from][to] < self.room[from][to];
            if one == other || !has_room(one, behind) || !has_room(other, after) {
                continue;
            }
            let before = cycles(&self.next[cover]).1;
            self.set(cover, one, behind);
            self.set(cover, other, after);
            if cycles(&self.next[cover]).1 > before {
                self.set(cover, one, after);
                self.set(cover, other, behind);
                continue;
            }
            return;
        }
    }

    fn set(&mut self, cover: usize, from: usize, to: usize) {
        self.used[from][self.next[cover][from]] -= 1;
        self.used[from][to] += 1;
        self.next[cover][from] = to;
    }

    /// Joins cycles until each cover is one, or for `budget` steps; gives the steps that are left.
    fn mend(&mut self, mut budget: u64, numbers: &mut Numbers) -> u64 {
        let count = self.next.len();
        while budget > 0 {
            let Some(broken) = (0..count).find(|cover| cycles(&self.next[*cover]).1 > 1) else { break };
            budget -= 1;
            if self.join(broken, numbers) {
                continue;
            }
            self.vary(broken, numbers);
            if count < 2 {
                continue;
            }
            let one = if numbers.below(2) == 0 { broken } else { numbers.below(count) };
            let other = (one + 1 + numbers.below(count - 1)) % count;
            self.exchange(one, other, numbers);
        }
        budget
    }

    /// Exchanges the arcs of two covers along some of their alternating cycles, where that makes no more cycles than there were.
    fn exchange(&mut self, one: usize, other: usize, numbers: &mut Numbers) {
        let ranks = self.room.len();
        let (mut first, mut second) = (self.next[one].clone(), self.next[other].clone());
        let mut back = vec![0; ranks];
        second.iter().enumerate().for_each(|(from, to)| back[*to] = from);
        let mut is_seen = vec![false; ranks];
        for start in 0..ranks {
            if is_seen[start] {
                continue;
            }
            let flips = numbers.below(2) == 1;
            let mut at = start;
            while !std::mem::replace(&mut is_seen[at], true) {
                let following = back[self.next[one][at]];
                if flips {
                    (first[at], second[at]) = (second[at], first[at]);
                }
                at = following;
            }
        }
        let before = cycles(&self.next[one]).1 + cycles(&self.next[other]).1;
        let after = cycles(&first).1 + cycles(&second).1;
        if after <= before && first != self.next[one] {
            (self.next[one], self.next[other]) = (first, second);
        }
    }
}

/// Steps for each rank after which other covers are begun with. An exchange leaves the parity of all covers together as it
/// is, so from half of all beginnings no exchange leads to rings.
const PATIENCE: u64 = 60;

/// Arcs that are used `count` times at each rank, as covers.
fn decompose(used: &[Vec<usize>], count: usize, numbers: &mut Numbers) -> Option<Vec<Vec<usize>>> {
    let mut rest = used.to_vec();
    let mut order: Vec<usize> = (0..used.len()).collect();
    let mut next = Vec::new();
    for _ in 0..count {
        (1..order.len()).rev().for_each(|at| order.swap(at, numbers.below(at + 1)));
        let cover = matching(&rest, &order)?;
        cover.iter().enumerate().for_each(|(from, to)| rest[from][*to] -= 1);
        next.push(cover);
    }
    Some(next)
}

/// Up to `count` rings of `speed` each, as orders of ranks that begin with rank `first`; as many as were found within `steps`.
pub(super) fn covers(
    graph: &Graph<'_>,
    left: &[u128],
    speed: u128,
    count: usize,
    first: usize,
    steps: &mut u64,
) -> Vec<Vec<u32>> {
    let room = room(graph, left, speed, count);
    let Some(used) = regular(&room, count) else { return Vec::new() };
    let mut numbers = Numbers::new();
    // Walks may find what covers do not.
    let mut budget = *steps / 4 * 3;
    *steps -= budget;
    let mut best: (usize, Vec<Vec<usize>>) = (0, Vec::new());
    while best.0 < count && budget > 0 {
        let Some(next) = decompose(&used, count, &mut numbers) else { break };
        let mut covers = Covers { next, room: room.clone(), used: used.clone() };
        let patience = budget.min(PATIENCE * graph.ranks() as u64);
        budget -= patience - covers.mend(patience, &mut numbers);
        let whole = covers.next.iter().filter(|next| cycles(next).1 == 1).count();
        if whole > best.0 {
            best = (whole, covers.next);
        }
    }
    *steps += budget;
    let ring = |next: &Vec<usize>| {
        let order = std::iter::successors(Some(first), |at| Some(next[*at]).filter(|to| *to != first));
        order.take(next.len()).map(|rank| rank as u32).collect::<Vec<u32>>()
    };
    best.1.iter().filter(|next| cycles(next).1 == 1).map(ring).collect()
}
