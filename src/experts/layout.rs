//! What all ranks of a group of experts know alike: where experts and ranks are, which way rows go, how long messages can be.
//!
//! Invariant: pure; the same on every rank, but for which of them this one is. Absent: tokens.

use consort_kernels::rows::{Real, eight_bit_bytes};

use super::{Exchange, ExpertOptions, Payload, Route};
use crate::Rank;

/// The longest message of a rank for which slots are taken, in bytes.
const SLOT_BYTES: usize = 16 << 10;
/// Bytes of the slots of all ranks up to which a rank sends them all, whatever has a row.
const SLOTS_BYTES: usize = 1 << 20;
/// The hierarchical route is taken where it has this part of the copies between hosts, or fewer.
const COPIES_PART: f64 = 0.8;
/// Bytes of a message before its rows and choices: the dispatch's number, how many rows, how many words of choices.
pub(super) const HEADER_BYTES: usize = 16;
/// Words of a row beside its choices: its source, its token, how many choices.
pub(super) const ROW_WORDS: usize = 3;

/// The stretch of a route between two meetings of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stretch {
    /// From the source to the rank of the expert.
    Whole,
    /// From the source to its rail's rank on the expert's host.
    Rails,
    /// From there to the rank of the expert.
    Inside,
}

/// Ranks, hosts and experts, and the choices that follow.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) rank: Rank,
    pub(super) options: ExpertOptions,
    /// By rank.
    pub(super) host_of: Vec<u32>,
    /// By rank: its number among the ranks of its host.
    number_of: Vec<u32>,
    /// By host.
    ranks_of: Vec<Vec<Rank>>,
    pub(super) experts_per_rank: u32,
    pub(super) route: Route,
    pub(super) exchange: Exchange,
    /// Bytes of a row of a dispatch, and words of the longest list of a row's choices.
    pub(super) row_bytes: usize,
    words_max: usize,
    /// Copies of a token on ranks and on hosts that are not its own, as expected.
    copies: [f64; 2],
}

impl Layout {
    pub(super) fn new<T: Real>(rank: Rank, host_of: Vec<u32>, options: ExpertOptions) -> Self {
        let hosts = host_of.iter().max().map_or(1, |last| last + 1);
        let mut ranks_of = vec![Vec::new(); hosts as usize];
        let mut number_of = Vec::new();
        for (rank, host) in (0..).zip(&host_of) {
            let ranks: &mut Vec<Rank> = &mut ranks_of[*host as usize];
            number_of.push(ranks.len() as u32);
            ranks.push(rank);
        }
        let row_bytes = match options.payload {
            Payload::Element => options.hidden * size_of::<T>(),
            Payload::EightBit => eight_bit_bytes(options.hidden),
        };
        let choice_words = 1 + size_of::<T::Sum>() / size_of::<u32>();
        let mut layout = Layout {
            rank,
            options,
            experts_per_rank: options.experts / host_of.len().max(1) as u32,
            host_of,
            number_of,
            ranks_of,
            route: Route::Direct,
            exchange: Exchange::Counted,
            row_bytes,
            words_max: ROW_WORDS + options.top_k * choice_words,
            copies: [0.0; 2],
        };
        layout.copies = layout.expected_copies();
        let longest = layout.message_bytes_max(options.tokens_max);
        let slots = options.route != Some(Route::Hierarchical)
            && longest <= SLOT_BYTES
            && longest.saturating_mul(layout.size() as usize) <= SLOTS_BYTES;
        layout.exchange = options.exchange.unwrap_or(if slots { Exchange::Slots } else { Exchange::Counted });
        let [ranks, hosts] = layout.copies;
        let is_fewer = hosts < ranks * COPIES_PART && layout.exchange == Exchange::Counted;
        layout.route = options.route.unwrap_or(if is_fewer { Route::Hierarchical } else { Route::Direct });
        layout
    }

    pub(super) fn size(&self) -> u32 {
        self.host_of.len() as u32
    }

    pub(super) fn stretches(&self) -> &'static [Stretch] {
        match self.route {
            Route::Direct => &[Stretch::Whole],
            Route::Hierarchical => &[Stretch::Rails, Stretch::Inside],
        }
    }

    /// The ranks in the order in which what they return is added: by hosts, then by ranks.
    pub(super) fn in_order(&self) -> impl Iterator<Item = Rank> + '_ {
        self.ranks_of.iter().flatten().copied()
    }

    pub(super) fn owner(&self, expert: u32) -> Rank {
        expert / self.experts_per_rank
    }

    fn is_near(&self, one: Rank, other: Rank) -> bool {
        self.host_of[one as usize] == self.host_of[other as usize]
    }

    /// Whether what goes to a rank crosses between hosts.
    pub(super) fn crosses(&self, to: Rank) -> bool {
        !self.is_near(self.rank, to)
    }

    /// The rank of a host that takes what `source` has for the host.
    fn rail(&self, source: Rank, host: u32) -> Rank {
        let ranks = &self.ranks_of[host as usize];
        ranks[self.number_of[source as usize] as usize % ranks.len()]
    }

    /// The rank to which this one sends a row that an expert has to get.
    pub(super) fn next(&self, stretch: Stretch, expert: u32) -> Rank {
        let owner = self.owner(expert);
        match stretch {
            Stretch::Rails if self.is_near(self.rank, owner) => self.rank,
            Stretch::Rails => self.rail(self.rank, self.host_of[owner as usize]),
            Stretch::Whole | Stretch::Inside => owner,
        }
    }

    /// Whether what an expert has to get can come to this rank on a stretch.
    pub(super) fn takes(&self, stretch: Stretch, expert: u32) -> bool {
        let owner = self.owner(expert);
        match stretch {
            Stretch::Rails => self.is_near(self.rank, owner),
            Stretch::Whole | Stretch::Inside => self.rank == owner,
        }
    }

    /// The most rows that a rank sends to another on a stretch.
    pub(super) fn rows_max(&self, stretch: Stretch, from: Rank, to: Rank) -> usize {
        let tokens = self.options.tokens_max;
        match stretch {
            _ if from == to => 0,
            Stretch::Whole => tokens,
            Stretch::Rails => {
                let is_rail = !self.is_near(from, to) && self.rail(from, self.host_of[to as usize]) == to;
                if is_rail { tokens } else { 0 }
            }
            Stretch::Inside if self.is_near(from, to) => {
                let host = self.host_of[from as usize];
                let hands_on = |source: &Rank| {
                    *source == from || (!self.is_near(*source, from) && self.rail(*source, host) == from)
                };
                tokens.saturating_mul((0..self.size()).filter(hands_on).count())
            }
            Stretch::Inside => 0,
        }
    }

    /// Bytes of the slots that go from a rank to all ranks or come from them; 0 where the two never meet. Where all ranks meet they
    /// are of one length, that of a rank for itself included.
    pub(super) fn slots(&self, stretch: Stretch, from_here: bool) -> Vec<usize> {
        let bytes = |other| {
            let (from, to) = if from_here { (self.rank, other) } else { (other, self.rank) };
            match self.rows_max(stretch, from, to) {
                _ if stretch == Stretch::Whole => self.message_bytes_max(self.options.tokens_max),
                0 => 0,
                rows => self.message_bytes_max(rows),
            }
        };
        (0..self.size()).map(bytes).collect()
    }

    /// Bytes of the longest message of that number of rows.
    pub(super) fn message_bytes_max(&self, rows: usize) -> usize {
        let row = self.row_bytes.saturating_add(self.words_max * size_of::<u32>());
        rows.saturating_mul(row).saturating_add(HEADER_BYTES)
    }

    /// With choices that are uniform and differ: copies on ranks of other hosts, and on other hosts, a token of a mean rank.
    fn expected_copies(&self) -> [f64; 2] {
        let (all, choices) = (f64::from(self.options.experts), self.options.top_k);
        // That some choice is among `some` of all experts.
        let met = |some: u32| {
            let missed = |choice: usize| {
                let drawn = choice as f64;
                ((all - f64::from(some) - drawn) / (all - drawn)).max(0.0)
            };
            1.0 - (0..choices).map(missed).product::<f64>()
        };
        let size = self.size() as usize;
        let (mut ranks, mut hosts) = (0.0, 0.0);
        for of_host in &self.ranks_of {
            // Each host is another one for so much of all tokens.
            let others = (size - of_host.len()) as f64 / size.max(1) as f64;
            ranks += others * of_host.len() as f64 * met(self.experts_per_rank);
            hosts += others * met(self.experts_per_rank * of_host.len() as u32);
        }
        [ranks, hosts]
    }

    /// Why rows go as they do.
    pub(super) fn explain(&self) -> String {
        let [ranks, hosts] = self.copies;
        let is_pinned = |pinned: bool| if pinned { ", as asked for" } else { "" };
        let exchange = match self.exchange {
            Exchange::Counted => "counts before rows",
            Exchange::Slots => "slots of fixed length",
        };
        format!(
            "{}{}: with uniform choices a token has {ranks:.2} copies on ranks of other hosts and {hosts:.2} on other hosts \
             ({} hosts, {} ranks); {exchange}{}, as the longest message of a rank has {} bytes",
            self.route.name(),
            is_pinned(self.options.route.is_some()),
            self.ranks_of.len(),
            self.size(),
            is_pinned(self.options.exchange.is_some()),
            self.message_bytes_max(self.options.tokens_max),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(rank: Rank, host_of: &[u32], options: ExpertOptions) -> Layout {
        Layout::new::<f32>(rank, host_of.to_vec(), options)
    }

    #[test]
    fn fewer_copies_between_hosts_decide() {
        let long = ExpertOptions::new(16, 1024, 4, 4096);
        assert_eq!(layout(0, &[0; 4], long).route, Route::Direct, "one host");
        assert_eq!(layout(0, &[0, 1, 2, 3], long).route, Route::Direct, "a host each");
        let two = layout(0, &[0, 0, 1, 1], long);
        assert_eq!((two.route, two.exchange), (Route::Hierarchical, Exchange::Counted));
        // 1 - C(8, 4) / C(16, 4) of the tokens have a choice on the other host.
        assert!((two.copies[1] - (1.0 - 70.0 / 1820.0)).abs() < 1e-12, "{:?}", two.copies);
        assert!((two.copies[0] - 2.0 * (1.0 - 495.0 / 1820.0)).abs() < 1e-12, "{:?}", two.copies);
        assert_eq!(layout(0, &[0, 0, 1, 1], long.route(Route::Direct)).route, Route::Direct);
        // With one choice there is one copy, whatever the route.
        assert_eq!(layout(0, &[0, 0, 1, 1], ExpertOptions::new(16, 1024, 1, 4096)).route, Route::Direct);
        let short = layout(0, &[0, 0, 1, 1], ExpertOptions::new(16, 64, 4, 8));
        assert_eq!((short.route, short.exchange), (Route::Direct, Exchange::Slots));
        assert!(short.explain().contains("2 hosts, 4 ranks"), "{}", short.explain());
        let short = ExpertOptions::new(600, 64, 4, 8);
        let exchange = |host_of: &[u32], options| layout(0, host_of, options).exchange;
        assert_eq!(exchange(&[0, 0, 1, 1], short.route(Route::Hierarchical)), Exchange::Counted);
        // A message of 8 rows has 2,416 bytes at the most.
        assert_eq!(exchange(&[0; 300], short), Exchange::Slots);
        assert_eq!(exchange(&[0; 600], short), Exchange::Counted, "1.4 MB for 32 rows at the most");
    }

    #[test]
    fn rails_reach_hosts_of_other_sizes() {
        let host_of = [0, 1, 0, 0, 1];
        let at = |rank| layout(rank, &host_of, ExpertOptions::new(10, 4, 2, 8).route(Route::Hierarchical));
        // Experts 2 and 3 are on rank 1, 8 and 9 on rank 4.
        let rails: Vec<Rank> = [0, 2, 3].map(|rank| at(rank).next(Stretch::Rails, 9)).to_vec();
        assert_eq!(rails, [1, 4, 1]);
        assert_eq!([1, 4].map(|rank| at(rank).next(Stretch::Rails, 0)), [0, 2]);
        assert_eq!(at(2).next(Stretch::Rails, 0), 2, "its own host keeps it");
        let layout = at(1);
        for (from, to, rails, inside) in [
            (0, 1, 8, 0),
            (0, 4, 0, 0),
            (3, 1, 8, 0),
            (1, 4, 0, 24),
            (4, 1, 0, 16),
            (3, 2, 0, 8),
            (1, 1, 0, 0),
        ] {
            let rows = [Stretch::Rails, Stretch::Inside].map(|stretch| layout.rows_max(stretch, from, to));
            assert_eq!(rows, [rails, inside], "{from} to {to}");
        }
        assert_eq!(layout.in_order().collect::<Vec<_>>(), [0, 2, 3, 1, 4]);
    }
}
