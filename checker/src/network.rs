//! The machine as a network of flows.
//!
//! A rank is three nodes: itself, the node where its links begin and the node where they end. What it sends goes from
//! itself to where its links begin, within its limit of injection; what comes to it goes from where its links end to
//! itself, within its limit of ejection. Where ranks relay, bytes also pass from where links end to where they begin.

use crate::parse::{Certificate, Kind, Part, Side, begin};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Arc {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Bytes a second.
    pub(crate) capacity: u128,
    pub(crate) part: Part,
}

#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) nodes: usize,
    pub(crate) ranks: usize,
    pub(crate) arcs: Vec<Arc>,
}

impl Network {
    pub(crate) fn new(certificate: &Certificate) -> Network {
        let (whole, ranks) = (certificate.machine.nodes.len(), certificate.ranks as usize);
        let mut ends: Vec<(usize, usize)> = (0..whole).map(|node| (node, node)).collect();
        let (mut out, mut into) = (vec![0u128; whole], vec![0u128; whole]);
        for link in &certificate.machine.links {
            out[link.from] += u128::from(link.bytes_s);
            into[link.to] += u128::from(link.bytes_s);
        }
        let mut arcs = Vec::new();
        for (rank, kind) in certificate.machine.nodes[..ranks].iter().enumerate() {
            let Kind::Rank { inject, eject } = *kind else { continue };
            let (begin, end) = (begin(whole, rank), begin(whole, rank) + 1);
            ends[rank] = (begin, end);
            // What links cannot carry is no limit.
            let least = |limit: Option<u64>, all: u128| limit.map_or(all, |limit| all.min(limit.into()));
            let mut arc = |from, to, capacity, part| arcs.push(Arc { from, to, capacity, part });
            arc(rank, begin, least(inject, out[rank]), ("inject", rank));
            arc(end, rank, least(eject, into[rank]), ("eject", rank));
            if certificate.machine.relays {
                arc(end, begin, out[rank].min(into[rank]), ("through", rank));
            }
        }
        for (number, link) in certificate.machine.links.iter().enumerate() {
            let capacity = link.bytes_s.into();
            arcs.push(Arc { from: ends[link.from].0, to: ends[link.to].1, capacity, part: ("link", number) });
        }
        Network { nodes: whole + 2 * ranks, ranks, arcs }
    }

    /// For each node whether it is on a side.
    pub(crate) fn inside(&self, side: &Side) -> Vec<bool> {
        let mut inside = vec![false; self.nodes];
        side.nodes.iter().for_each(|node| inside[*node] = true);
        inside
    }

    /// What leaves a set in a second; none where that does not fit.
    pub(crate) fn out_of(&self, inside: &[bool]) -> Option<u128> {
        let crossing = self.arcs.iter().filter(|arc| inside[arc.from] && !inside[arc.to]);
        crossing.map(|arc| arc.capacity).try_fold(0u128, |sum, capacity| sum.checked_add(capacity))
    }

    /// The distances of all nodes from one, [`u128::MAX`] where it is not reached; `lengths` are those of the arcs.
    pub(crate) fn distances(&self, leaving: &[Vec<usize>], lengths: &[u64], source: usize) -> Vec<u128> {
        let mut known = vec![u128::MAX; self.nodes];
        let mut queue = std::collections::BTreeSet::from([(0u128, source)]);
        known[source] = 0;
        while let Some((here, node)) = queue.pop_first() {
            for arc in &leaving[node] {
                let (to, there) = (self.arcs[*arc].to, here + u128::from(lengths[*arc]));
                if there < known[to] {
                    queue.remove(&(known[to], to));
                    known[to] = there;
                    queue.insert((there, to));
                }
            }
        }
        known
    }
}
