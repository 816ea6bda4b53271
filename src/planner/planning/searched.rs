//! Schedules of the machine as algorithms: rings and trees that a search finds, those that a file names, and what is made for it.
//!
//! Invariant: it follows from the topology and a file, which all ranks have agreed on, so that all have the same candidates. A
//! schedule is proved before it is one. Plans of rooted collectives count ranks from the root: one is made for each root that calls name,
//! of the same rings and trees. Absent: choosing; a candidate that was found has no other advantage than its price, which is that of
//! root 0.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use consort_algorithms::catalogue::{Algorithm, Imported};
use consort_algorithms::search::{self, Rings, Trees};
use consort_algorithms::synthesize::{self, Offer};
use consort_algorithms::topology::Topology;
use consort_algorithms::{Collective, LowerOptions, Rank, Schedule};

use super::{Planning, SIMULATED_RANKS_MAX};
use consort_settings::options::{Determinism, SLOTS, Source};

/// The most ranks for which what is found is offered: all its messages are simulated and proved.
const RANKS_MAX: u32 = 32;
/// The same of trees between hosts, which are not searched.
const RANKS_BETWEEN_HOSTS_MAX: u32 = SIMULATED_RANKS_MAX;

/// Nanoseconds in which a byte is folded where it is not a processor's core that does it; cores take 0.1 in the profiles. Where
/// cores move every byte, they and not the links are what channels share.
const FOLD_NS_MAX: f64 = 0.02;

/// Whether links carry the bytes, and no processor's cores do.
pub(super) fn moves_by_links(topology: &Topology) -> bool {
    topology.costs.work_ns(0, 1, 1) <= FOLD_NS_MAX
}

/// See [`Found::patience`].
const TREES_PATIENCE: u64 = 4;

/// What was found, once it is asked for.
#[derive(Debug, Default)]
pub(super) struct Searched {
    rings: OnceLock<Rings>,
    trees: OnceLock<Trees>,
    /// Those of the file; or why it has none for these ranks.
    given: OnceLock<Result<(Rings, Trees), String>>,
    algorithms: [OnceLock<Vec<Found>>; Collective::ALL.len()],
    /// The all-reduce over boxes that are not all alike.
    over_boxes: OnceLock<Option<Found>>,
    /// For other roots than rank 0.
    turned: Mutex<HashMap<(Algorithm, u32), Algorithm>>,
}

/// A schedule that was found.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Found {
    pub(super) algorithm: Algorithm,
    pub(super) source: Source,
    /// Which of its source, where that has several.
    number: usize,
    /// Bytes of the vector a second that its links carry: no call is faster, whatever a simulation continues from a beginning. What a file says
    /// that they carry is no bound.
    pub(super) bytes_s: f64,
    /// Messages that are simulated for a price, as a multiple of those for others. A tree has few messages a slice and its stages
    /// fill slowly: after the number that others need it still looked up to 1.8 times as fast as it is.
    pub(super) patience: u64,
    /// See [`Offer::hops`].
    pub(super) hops: Option<[u32; 2]>,
}

/// Rings or trees.
#[derive(Clone, Copy)]
enum Channels<'a> {
    Rings(&'a Rings),
    Trees(&'a Trees),
}

impl Channels<'_> {
    /// The schedule of a collective, whose root is `root` where it has one.
    fn schedule(self, collective: Collective, root: u32) -> Option<Schedule> {
        match self {
            Channels::Rings(rings) if root > 0 => rings.from_root(Rank(root)).schedule(collective),
            Channels::Rings(rings) => rings.schedule(collective),
            Channels::Trees(trees) if root > 0 => trees.from_root(Rank(root)).schedule(collective),
            Channels::Trees(trees) => trees.schedule(collective),
        }
    }

    /// Bytes of the vector a second.
    fn rate(self, collective: Collective) -> Option<f64> {
        match self {
            Channels::Rings(rings) => rings.rate(collective).map(|rate| rate.value()),
            Channels::Trees(trees) => Some(trees.total().value()),
        }
    }
}

/// The schedule as an algorithm, where it can be proved.
fn proved(schedule: Schedule) -> Option<Algorithm> {
    Imported::new(schedule, &LowerOptions { slots: SLOTS }).ok().map(Algorithm::Imported)
}

fn found_of((number, offer): (usize, Offer)) -> Option<Found> {
    Some(Found {
        algorithm: proved(offer.schedule)?,
        source: Source::Made,
        number,
        bytes_s: offer.rate.value(),
        patience: if offer.is_deep { TREES_PATIENCE } else { 1 },
        hops: offer.hops,
    })
}

fn is_rooted(collective: Collective) -> bool {
    matches!(collective, Collective::Broadcast | Collective::Reduce)
}

impl Planning {
    /// Whether this algorithm is one of the machine's rings or trees. Its name says what it is to this process alone: a tuning table
    /// cannot hold it.
    pub fn is_searched(&self, algorithm: Algorithm, collective: Collective) -> bool {
        algorithm.is_imported() && self.known(collective).any(|found| found.algorithm == algorithm)
    }

    /// Whether an algorithm is rings of the machine or of a file. Their slots are as long as those of one ring, and their pieces
    /// travel whole where they fit: channels side by side keep a link full, and a cut only adds messages.
    pub(super) fn is_found_ring(&self, algorithm: Algorithm) -> bool {
        let Algorithm::Imported(of) = algorithm else { return false };
        let sources = self.sources(algorithm, of.schedule().collective);
        sources.iter().any(|source| matches!(source, Source::Rings | Source::FileRings))
    }

    /// In how many slices a piece travels along trees over boxes that are not alike: those of trees along rails.
    pub(super) fn slices_over_boxes(&self, algorithm: Algorithm) -> Option<u64> {
        let known = self.searched.over_boxes.get()?.as_ref().filter(|found| found.algorithm == algorithm);
        known.and(Algorithm::RailTrees { per_box: 1, trees: 1, first: 0 }.slices())
    }

    /// Where an algorithm comes from, if it is one of rings or trees: lists of algorithms name it so.
    pub fn sources(&self, algorithm: Algorithm, collective: Collective) -> Vec<Source> {
        if !algorithm.is_imported() {
            return Vec::new();
        }
        let found = self.known(collective).filter(|found| found.algorithm == algorithm);
        found.map(|found| found.source).collect()
    }

    /// Rings and trees for `collective`: those that are found on a machine that a setting names (what ranks say of their hosts is no
    /// list of links), those of a file, and those between hosts that are not alike.
    pub(in super::super) fn searched(&self, collective: Collective) -> &[Found] {
        let Some(number) = collective.number().filter(|_| collective != Collective::SendReceive) else {
            return &[];
        };
        if !(2..=RANKS_BETWEEN_HOSTS_MAX).contains(&self.machine.ranks) {
            return &[];
        }
        self.searched.algorithms[number].get_or_init(|| {
            let found = |source: Source| {
                let channels = self.channels_of(source, collective)?;
                let is_of_file = matches!(source, Source::FileRings | Source::FileTrees);
                let rate = channels.rate(collective)?;
                Some(Found {
                    algorithm: proved(channels.schedule(collective, 0)?)?,
                    source,
                    number: 0,
                    bytes_s: if is_of_file { f64::INFINITY } else { rate },
                    patience: if matches!(channels, Channels::Trees(_)) { TREES_PATIENCE } else { 1 },
                    hops: None,
                })
            };
            let is_few = self.machine.ranks <= RANKS_MAX;
            let mut all: Vec<Found> = Source::ALL.into_iter().filter(|_| is_few).filter_map(found).collect();
            all.extend(self.made(collective));
            all
        })
    }

    /// Schedules that are made for the machine.
    fn made(&self, collective: Collective) -> Vec<Found> {
        if !Source::Made.serves(collective) {
            return Vec::new();
        }
        self.offers(collective, Rank(0)).into_iter().enumerate().filter_map(found_of).collect()
    }

    /// What makers offer: between hosts that are not alike or whose ranks are in no order; and where a setting names the machine or
    /// ranks measured the wires between their hosts, by its links. A number means the same maker for every root only of the first:
    /// how many there are of the others follows from the root.
    fn offers(&self, collective: Collective, root: Rank) -> Vec<Offer> {
        let is_wired = (self.is_named && moves_by_links(&self.topology))
            || (self.topology.measured && self.machine.between.is_messages());
        let is_wired = is_wired && self.machine.ranks <= RANKS_MAX;
        let between_hosts = || synthesize::offer_between_hosts(self.priced_on(collective), collective, root);
        let mut all: Vec<Offer> =
            self.machine.between.is_messages().then(between_hosts).flatten().into_iter().collect();
        if is_wired {
            all.extend(synthesize::offers(&self.topology, collective, root));
        }
        all
    }

    /// The schedule that is made for boxes that are not all alike, where a setting names the machine, whatever the number of ranks.
    pub(super) fn over_boxes(&self, collective: Collective) -> Option<&Found> {
        // Many messages are proved only for what may be chosen.
        let is_free = self.preferences.determinism != Determinism::Invariant
            && self.preferences.restriction.allows_source(collective, Source::Made);
        let is_wired = self.is_named && moves_by_links(&self.topology) && !self.machine.between.is_messages();
        if collective != Collective::AllReduce || !is_free || !is_wired {
            return None;
        }
        let make = || found_of((0, synthesize::offer_over_boxes(&self.topology)?));
        self.searched.over_boxes.get_or_init(make).as_ref()
    }

    /// What was found and made for `collective`, without making what is over boxes: an algorithm can be that only where it was made.
    fn known(&self, collective: Collective) -> impl Iterator<Item = &Found> {
        let is_one = collective == Collective::AllReduce;
        let over_boxes = self.searched.over_boxes.get().filter(|_| is_one).and_then(Option::as_ref);
        self.searched(collective).iter().chain(over_boxes)
    }

    /// What is known of an algorithm that was found or made.
    pub(super) fn found(&self, algorithm: Algorithm, collective: Collective) -> Option<&Found> {
        self.known(collective).find(|found| found.algorithm == algorithm)
    }

    fn channels_of(&self, source: Source, collective: Collective) -> Option<Channels<'_>> {
        if !source.serves(collective) {
            return None;
        }
        let options = search::Options::default();
        let is_searched = self.is_named && moves_by_links(&self.topology);
        Some(match source {
            Source::Rings if is_searched => {
                Channels::Rings(self.searched.rings.get_or_init(|| search::rings(&self.topology, &options)))
            }
            Source::Trees if is_searched => {
                Channels::Trees(self.searched.trees.get_or_init(|| search::trees(&self.topology, &options)))
            }
            Source::Rings | Source::Trees | Source::Made => return None,
            Source::FileRings => Channels::Rings(&self.given()?.as_ref().ok()?.0),
            Source::FileTrees => Channels::Trees(&self.given()?.as_ref().ok()?.1),
        })
    }

    /// The rings and trees of the file, if there is one.
    fn given(&self) -> Option<&Result<(Rings, Trees), String>> {
        let graphs = self.channels.as_ref()?;
        Some(self.searched.given.get_or_init(|| search::given(graphs, &self.gpu_numbers())))
    }

    /// The host of each rank with the number that its GPU has there; of ranks whose GPUs are not known, their own number there.
    fn gpu_numbers(&self) -> Vec<(u32, u64)> {
        let machine = &self.machine;
        let host = |rank: u32| match machine.host_of.get(rank as usize) {
            Some(host) => *host,
            None if machine.hosts <= 1 => 0,
            None => rank / machine.per_box.max(1),
        };
        let mut before: HashMap<u32, u64> = HashMap::new();
        let mut number = |rank: u32| {
            let local = before.entry(host(rank)).or_default();
            *local += 1;
            let known = machine.graphs.numbers.get(rank as usize).copied();
            (host(rank), known.unwrap_or(*local - 1))
        };
        (0..machine.ranks).map(&mut number).collect()
    }

    /// Bytes of the vector a second that the links carry of what was found for a collective, root 0's of rooted ones.
    pub(in super::super) fn carried_bytes_s(
        &self,
        algorithm: Algorithm,
        collective: Collective,
    ) -> Option<f64> {
        if !algorithm.is_imported() {
            return None;
        }
        self.found(algorithm, collective).map(|found| found.bytes_s)
    }

    /// Why rings and trees of a file are no candidates, if there is a file.
    pub(crate) fn channels_misfit(&self) -> Option<String> {
        if let Some((one, other)) = self.machine.graphs.channels_differ {
            return Some(format!(
                "ranks {one} and {other} have not the same rings and trees; name one file on all ranks, or none"
            ));
        }
        self.given()?.as_ref().err().cloned()
    }

    /// The algorithm for a call with this root: of rings and trees the schedule whose ranks are counted from there.
    pub(in super::super) fn turned(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        root: u32,
    ) -> Algorithm {
        if root >= self.machine.ranks || !is_rooted(collective) {
            return algorithm;
        }
        if !algorithm.is_imported() {
            return algorithm.rooted_at(root);
        }
        if root == 0 {
            return algorithm;
        }
        let Some(found) = self.found(algorithm, collective) else { return algorithm };
        let memory = || self.searched.turned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turned) = memory().get(&(algorithm, root)) {
            return *turned;
        }
        let schedule = match found.source {
            Source::Made => {
                self.offers(collective, Rank(root)).into_iter().nth(found.number).map(|offer| offer.schedule)
            }
            source => self.channels_of(source, collective).and_then(|of| of.schedule(collective, root)),
        };
        // The one from rank 0 is right for any root, along other links.
        let turned = schedule.and_then(proved).unwrap_or(algorithm);
        memory().insert((algorithm, root), turned);
        turned
    }
}
