//! What the ranks of a communicator know of each other's memory: the areas that were announced, on both sides alike, and
//! those that are mapped here.
//!
//! Invariant: a rank and its peers forget announcements at the same time; how many mappings there are is bounded.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use consort_memory::Mapping;
use consort_memory::areas::{self, Area};
use consort_transports::{Lent, MemoryLender};

use super::folds::Home;
use super::offer::{Announcement, Note, Offer, Place};
use super::run::Exposed;
use super::touched;
use super::turns::Turns;
use crate::Rank;
use crate::engine::Buffers;
use consort_types::call::Call;

/// How many of a rank's areas others know of; one more, and the one that was announced first is forgotten by all.
pub(super) const ANNOUNCED_MAX: usize = 128;
/// How many areas of one rank are mapped here at most.
pub(super) const MAPPED_MAX: usize = 32;
/// How many areas of this rank are found without asking for them.
const RECENT: usize = 8;

/// Another rank's areas.
#[derive(Default)]
pub(super) struct Known {
    pub(super) announced: VecDeque<Announcement>,
    /// The one that was used last, last.
    pub(super) mapped: VecDeque<(u64, Arc<Mapping>)>,
}

impl Known {
    pub(super) fn add(&mut self, announcement: Announcement) {
        self.announced.push_back(announcement);
        if self.announced.len() > ANNOUNCED_MAX {
            self.announced.pop_front();
        }
    }

    pub(super) fn announcement(&self, key: u64) -> Option<&Announcement> {
        self.announced.iter().find(|announcement| announcement.key == key)
    }

    /// The mapping of an area, if it is here.
    pub(super) fn mapped(&mut self, key: u64) -> Option<Arc<Mapping>> {
        if let Some((last, mapping)) = self.mapped.back()
            && *last == key
        {
            return Some(mapping.clone());
        }
        let at = self.mapped.iter().position(|(known, _)| *known == key)?;
        let found = self.mapped.remove(at)?;
        let mapping = found.1.clone();
        self.mapped.push_back(found);
        Some(mapping)
    }

    pub(super) fn keep(&mut self, key: u64, mapping: Arc<Mapping>) {
        self.mapped.push_back((key, mapping));
        if self.mapped.len() > MAPPED_MAX {
            self.mapped.pop_front();
        }
    }
}

/// An area of this rank that the others know of.
pub(super) struct Export {
    pub(super) key: u64,
    area: Weak<Area>,
    /// None once the area is freed; the others forget it in its turn.
    pub(super) lent: Option<Lent>,
    /// A rank could not map what was needed when it was used. It is not offered again: only that rank would know that there
    /// is something to be asked.
    is_refused: bool,
}

/// Areas of this rank that the others do not know yet.
pub(super) type Exports = Vec<(Arc<Area>, Lent)>;

/// What a communicator's ranks know of each other's memory.
#[derive(Default)]
pub(crate) struct PeerMemory {
    /// By rank.
    pub(super) known: Vec<Known>,
    /// This rank's areas that the others know of, the first one first.
    pub(super) exports: VecDeque<Export>,
    /// This rank's areas that were found last, as of an epoch.
    recent: Vec<Arc<Area>>,
    epoch: u64,
    turns: Turns,
    /// Vectors of operations that are over.
    pub(super) idle_notes: Vec<Note>,
    pub(super) idle_homes: Vec<Home>,
}

impl PeerMemory {
    /// What rank `me` offers of a call's buffers, with the areas that it must announce first and what others may write to.
    /// None where a buffer that others touch is none that they can map, or where [turns](Turns) make slots the faster way.
    pub(super) fn offer(
        &mut self,
        call: &Call,
        me: Rank,
        shm: &dyn MemoryLender,
        buffers: Buffers<'_>,
    ) -> Option<(Offer, Exports, Option<Exposed>)> {
        let ranges = [
            (buffers.input.as_ptr() as usize, buffers.input.len()),
            (buffers.output.as_mut_ptr() as usize, buffers.output.len()),
        ];
        let mut areas = [None, None];
        for ((area, touched), (start, bytes)) in areas.iter_mut().zip(touched(call, me)).zip(ranges) {
            *area = if touched { Some(self.find(start, bytes)?) } else { None };
        }
        if self.turns.change(call, me, self.known.len(), ranges.map(|(start, _)| start)) {
            return None;
        }
        let (mut offer, mut exports) = (Offer::default(), Exports::new());
        for ((place, area), (start, _)) in offer.places.iter_mut().zip(&areas).zip(ranges) {
            let Some(area) = area else { continue };
            *place = Place { key: area.key(), offset: (start - area.start()) as u64 };
            match self.exports.iter().find(|export| export.key == area.key()) {
                Some(export) if export.is_refused => return None,
                Some(_) => continue,
                None if exports.iter().any(|(new, _)| new.key() == area.key()) => continue,
                None => exports.push((area.clone(), Lent::new(shm, area.file()).ok()?)),
            }
        }
        offer.announces = !exports.is_empty();
        let [_, output] = areas;
        let (start, bytes) = ranges[1];
        Some((offer, exports, output.map(|area| Exposed { area, start, bytes })))
    }

    /// The area that holds these addresses.
    fn find(&mut self, start: usize, bytes: usize) -> Option<Arc<Area>> {
        let now = areas::epoch();
        if now != self.epoch {
            self.epoch = now;
            self.recent.clear();
            let freed = self.exports.iter_mut().filter(|export| export.area.strong_count() == 0);
            freed.for_each(|export| export.lent = None);
        }
        let holds = |area: &&Arc<Area>| {
            area.start() <= start && start + bytes <= area.start() + area.bytes() && !area.is_spent()
        };
        if let Some(area) = self.recent.iter().find(holds) {
            return Some(area.clone());
        }
        let found = areas::find(start, bytes)?;
        if self.recent.len() >= RECENT {
            self.recent.remove(0);
        }
        self.recent.push(found.clone());
        Some(found)
    }

    /// The others know of an area from now on.
    pub(super) fn export(&mut self, area: &Arc<Area>, lent: Lent) {
        let export =
            Export { key: area.key(), area: Arc::downgrade(area), lent: Some(lent), is_refused: false };
        self.exports.push_back(export);
        if self.exports.len() > ANNOUNCED_MAX {
            self.exports.pop_front();
        }
    }

    /// A rank could not map what an operation needed.
    pub(super) fn refuse(&mut self, offer: &Offer) {
        let of_it = |export: &&mut Export| offer.places.iter().any(|place| place.key == export.key);
        self.exports.iter_mut().filter(of_it).for_each(|export| export.is_refused = true);
    }

    /// Bytes of the tables; mappings are of memory that is others'.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of_known = |known: &Known| {
            known.announced.capacity() * size_of::<Announcement>()
                + known.mapped.capacity() * size_of::<(u64, Arc<Mapping>)>()
        };
        self.known.iter().map(of_known).sum::<usize>()
            + self.turns.bytes()
            + self.exports.capacity() * size_of::<Export>()
            + self.idle_notes.capacity() * size_of::<Note>()
            + self.idle_homes.capacity() * size_of::<Home>()
    }
}
