//! Who takes the table of ranks from whom in a large job.
//!
//! The root gives the whole table to some ranks. To each of the others, its *takers*, it says the table's digest and which two ranks
//! hand it on to them, their *sources*: among the first ranks of hosts in a tree, and within a host in another, so that the table
//! comes to each host once.
//!
//! Invariant: pure; what the root says of a rank's sources, these know of their takers from the table, which holds the form of the
//! tree as well. Absent: how it travels (see `membership::relays`).

use std::collections::HashMap;

use super::wire::{self, Member, Table};
use crate::codec::{Malformed, Reader, Taken, Wire, bytes_of};
use crate::proof::{digest, prove};
use consort_types::Rank;

/// How a table is spread: it travels with the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// Up to how many ranks the root gives the whole table to each.
    pub whole_max: u32,
    /// How many ranks have it from the root at most, and how many of other hosts, and as many of its own, a rank gives it to.
    pub fanout: u16,
}

impl Default for Spread {
    fn default() -> Self {
        Spread { whole_max: 256, fanout: 16 }
    }
}

impl Wire for Spread {
    fn put(&self, out: &mut Vec<u8>) {
        (self.whole_max, self.fanout).put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let (whole_max, fanout) = reader.take()?;
        if fanout == 0 {
            return Err(Malformed("a table that is given to no rank"));
        }
        Ok(Spread { whole_max, fanout })
    }
}

/// Which rank each rank takes the table from.
pub struct Tree {
    /// By rank; none where it is the root.
    sources: Vec<Option<Rank>>,
    /// Those to which the root gives it.
    by_root: Vec<Rank>,
}

impl Tree {
    /// The tree of ranks that are on these hosts, by rank.
    pub fn new(hosts: impl ExactSizeIterator<Item = [u8; 16]>, spread: Spread) -> Self {
        if hosts.len() <= spread.whole_max as usize {
            return Tree { sources: vec![None; hosts.len()], by_root: Vec::new() };
        }
        let fanout = usize::from(spread.fanout);
        let mut firsts: Vec<Rank> = Vec::new();
        let mut known: HashMap<[u8; 16], Vec<Rank>> = HashMap::new();
        let source = |(rank, host): (Rank, [u8; 16])| {
            let here = known.entry(host).or_default();
            here.push(rank);
            match here.len() - 1 {
                0 => {
                    firsts.push(rank);
                    let above = ((firsts.len() - 1) / fanout).checked_sub(1);
                    above.map(|place| firsts[place])
                }
                place => Some(here[(place - 1) / fanout]),
            }
        };
        let sources = (0..).zip(hosts).map(source).collect();
        firsts.truncate(fanout);
        Tree { sources, by_root: firsts }
    }

    /// The tree of a table.
    pub fn of(table: &Table) -> Self {
        Self::new(table.members.iter().map(|member| member.host_key), table.spread)
    }

    /// The rank from which this one takes the table, and one for the case that the first does not answer: the one above it, or another to
    /// which the root gives it where there is one. None where the root gives it to this rank.
    pub fn sources(&self, rank: Rank) -> Vec<Rank> {
        let above = |rank: Rank| self.sources.get(rank as usize).copied().flatten();
        let Some(first) = above(rank) else { return Vec::new() };
        let beside = || {
            let place = self.by_root.iter().position(|other| *other == first)?;
            Some(self.by_root[(place + 1) % self.by_root.len()]).filter(|other| *other != first)
        };
        [first].into_iter().chain(above(first).or_else(beside)).collect()
    }

    /// The ranks that take it from this one.
    pub fn takers(&self, rank: Rank) -> Vec<Rank> {
        let of = |(taker, source): (Rank, &Option<Rank>)| (*source == Some(rank)).then_some(taker);
        (0..).zip(&self.sources).filter_map(of).collect()
    }
}

/// The most sources that a rank hears of.
pub(super) const SOURCES_MAX: usize = 2;

/// What the root says to a rank to which it does not give the table.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Referral {
    pub(super) nonce: [u8; 32],
    /// Of the body of the table.
    pub(super) digest: [u8; 32],
    pub(super) sources: Vec<(Rank, Member)>,
}

impl Referral {
    pub(super) fn encode(&self) -> Vec<u8> {
        bytes_of(&(self.nonce, self.digest, self.sources.clone()))
    }

    pub(super) fn decode(body: &[u8], size: u32) -> Taken<Self> {
        let mut reader = Reader::new(body);
        let (nonce, digest, sources): (_, _, Vec<(Rank, Member)>) = reader.take()?;
        reader.end()?;
        let fits = |(rank, member): &(Rank, Member)| *rank < size && member.fits();
        if sources.is_empty() || sources.len() > SOURCES_MAX || !sources.iter().all(fits) {
            return Err(Malformed("the ranks that are said to have the table cannot be"));
        }
        Ok(Referral { nonce, digest, sources })
    }
}

/// Where a rank gets the table, when all have come.
#[derive(Clone)]
pub struct Reference {
    /// As in the table.
    pub job: [u8; 16],
    /// As in the table.
    pub key: [u8; 32],
    /// Ranks that have it or will have it, the nearest first.
    pub sources: Vec<(Rank, Member)>,
    /// How many ranks there are.
    pub size: u32,
    pub(super) digest: [u8; 32],
}

impl std::fmt::Debug for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reference")
            .field("job", &self.job)
            .field("sources", &self.sources)
            .finish_non_exhaustive()
    }
}

impl Reference {
    /// The longest body of the table.
    pub fn bytes_max(&self) -> usize {
        wire::table_max(self.size)
    }

    /// Of a table, as the root gives it.
    #[cfg(test)]
    pub(crate) fn to(table: &Table, sources: Vec<(Rank, Member)>) -> Self {
        let digest = digest(&table.bytes());
        Reference { job: table.job, key: table.key, sources, size: table.members.len() as u32, digest }
    }

    /// The table of these bytes, which another rank gave.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn read(&self, body: &[u8]) -> Result<Table, &'static str> {
        if digest(body) != self.digest {
            return Err("it gave what is not the table of this job's root");
        }
        let (nonce, spread, members) = wire::decode_table(body, self.size).map_err(|what| what.0)?;
        Ok(Table { job: self.job, key: self.key, nonce, spread, members: members.into() })
    }
}

/// The name under which ranks hand on the table of a job with this key.
pub(crate) fn relay_name(key: &[u8; 32]) -> [u8; 16] {
    let name = prove(key, "table of ranks", &[]);
    std::array::from_fn(|byte| name[byte])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: usize) -> [u8; 16] {
        (number as u128).to_le_bytes()
    }

    /// Of `size` ranks, that are on hosts by `of`.
    fn tree(size: usize, spread: Spread, of: impl Fn(usize) -> usize) -> Tree {
        Tree::new((0..size).map(|rank| host(of(rank))), spread)
    }

    /// How many ranks hand it on before it comes to this one.
    fn depth(tree: &Tree, rank: Rank) -> usize {
        tree.sources(rank).first().map_or(0, |source| 1 + depth(tree, *source))
    }

    #[test]
    fn each_rank_has_one_way_to_the_root_and_gives_to_few() {
        let spread = Spread { whole_max: 4, fanout: 3 };
        for size in [5, 6, 40, 333] {
            for hosts in [1, 2, 7, size] {
                for tree in
                    [tree(size, spread, |rank| rank % hosts), tree(size, spread, |rank| rank * hosts / size)]
                {
                    let mut by_root = 0;
                    for rank in 0..size as Rank {
                        assert!(depth(&tree, rank) < size);
                        let sources = tree.sources(rank);
                        by_root += usize::from(sources.is_empty());
                        if let Some(source) = sources.first() {
                            assert!(tree.takers(*source).contains(&rank) && *source < rank);
                        }
                        // Those of its own host, and first ranks of others.
                        assert!(tree.takers(rank).len() <= 2 * usize::from(spread.fanout));
                        let is_alone = hosts.min(usize::from(spread.fanout)) == 1 && depth(&tree, rank) == 1;
                        assert_eq!(
                            sources.len(),
                            if sources.is_empty() { 0 } else { 2 - usize::from(is_alone) }
                        );
                        assert!(sources.len() < 2 || sources[0] != sources[1]);
                    }
                    assert_eq!(by_root, hosts.min(usize::from(spread.fanout)), "{size} ranks on {hosts}");
                }
            }
        }
    }

    #[test]
    fn a_table_comes_to_each_host_once_and_in_few_steps() {
        let tree = tree(16_384, Spread::default(), |rank| rank / 8);
        let of_others =
            |rank: &Rank| tree.sources(*rank).first().is_some_and(|source| source / 8 != rank / 8);
        assert_eq!((0..16_384).filter(of_others).count(), 2_048 - 16);
        assert_eq!((0..16_384).map(|rank| depth(&tree, rank)).max(), Some(3));
        assert_eq!(tree.sources(16_383), [16_376, tree.sources(16_376)[0]]);
        assert_eq!(tree.sources(1), [0, 8], "there is none above the first");
    }

    #[test]
    fn small_jobs_have_it_from_the_root() {
        let tree = tree(256, Spread::default(), |rank| rank);
        assert!((0..256).all(|rank| tree.sources(rank).is_empty() && tree.takers(rank).is_empty()));
    }
}
