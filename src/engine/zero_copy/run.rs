//! One zero-copy operation, as far as it has come.
//!
//! ```text
//!   Offer ── a rank offers nothing ─────────────────────────────────────► declined
//!     ├── a rank announces areas ──► Announce ──► Import ──► Verdict ──── a rank could not import: declined
//!     ├── this rank forgot a mapping ───────────► Import ─┐     │
//!     └── all is mapped ──────────────────────────────────┴─────┴──► Fold ──► Exit ──► Done
//! ```
//!
//! Negotiation ends with [`Folds`]; from then on nothing is left to agree but the exit. A rank that has nothing to import skips
//! that stage. Where areas were announced, all ranks take part in a verdict; an import without one is a matter of this rank
//! alone, which must succeed.
//!
//! Invariant: all ranks take the same rounds in the same order. A run never waits.

use std::sync::Arc;
use std::task::Poll;

use consort_algorithms::Plan;
use consort_kernels::Reducer;
use consort_memory::areas::Area;
use consort_memory::{Span, SpanMut};
use consort_transports::{Fetch, MemoryLender, TransportError};

use super::folds::{Folds, Unmapped};
use super::offer::{Announcement, Note};
use super::peer_memory::{Exports, PeerMemory};
use super::{Step, touched};
use crate::Rank;
use crate::engine::packets::{Board, Round};
use crate::engine::real_io::Broken;
use crate::engine::trouble::Fault;
use crate::engine::{Buffers, Progress, Request};
use consort_control::membership::group::Group;
use consort_control::report::evidence::Want;
use consort_types::call::Call;
use consort_types::error::Error;

type Result<T> = std::result::Result<T, Fault>;

/// What a run works with.
pub(crate) struct Reach<'a> {
    pub(crate) memory: &'a mut PeerMemory,
    pub(crate) board: &'a mut Board,
    /// Where memory is lent to other processes, if it is.
    pub(crate) lender: Option<&'a dyn MemoryLender>,
    /// Finds the plan of the operation's shape, which is asked for once all ranks have offered their buffers.
    pub(crate) plan: &'a mut dyn FnMut() -> consort_types::error::Result<Arc<Plan>>,
}

/// What others may write to.
pub(super) struct Exposed {
    pub(super) area: Arc<Area>,
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// An area of another rank on its way here.
struct Import {
    peer: Rank,
    key: u64,
    fetch: Fetch,
}

enum Stage {
    /// All ranks offer their buffers. What this one announces next, if all have offered theirs, waits here.
    Offer {
        round: Round,
        exports: Exports,
    },
    /// Ranks that offered areas for the first time announce them; this one as well, if it has a note.
    Announce {
        round: Round,
        note: Option<Vec<u8>>,
    },
    /// Areas are imported; one that could not be is not forgotten.
    Import {
        imports: Vec<Import>,
        failed: Option<Broken>,
    },
    /// All ranks say whether they have their folds; `all` is of the others.
    Verdict {
        round: Round,
        folds: Option<Folds>,
        all: bool,
    },
    Fold(Folds),
    Exit(Round),
    Done,
}

/// The rounds of an operation, by what their notes are marked with.
#[derive(Clone, Copy)]
enum Rounds {
    Offer,
    Announce,
    Verdict,
    Exit,
}

fn marked(mark: u64, round: u64) -> u64 {
    mark ^ (round + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// One operation.
pub(crate) struct Run {
    call: Call,
    me: Rank,
    mark: u64,
    /// By rank.
    notes: Vec<Note>,
    exposed: Option<Exposed>,
    stage: Stage,
}

impl Run {
    /// Begins an operation of rank `me`, with a [sample](crate::engine::store_tuner) for the others. Nothing is offered where
    /// there is no lender, or memory may not be lent for this call.
    pub(crate) fn begin(
        reach: Reach<'_>,
        request: &Request,
        me: Rank,
        buffers: Buffers<'_>,
        sample: u64,
    ) -> Run {
        let Reach { memory, board, lender, .. } = reach;
        let (call, size) = (request.call, board.ranks() as usize);
        memory.known.resize_with(size, Default::default);
        let lender = lender.filter(|_| call.scalar.is_none());
        let offered = lender.and_then(|lender| memory.offer(&call, me, lender, buffers));
        let (offer, exports, exposed) = offered.unwrap_or_default();
        let mut notes = std::mem::take(&mut memory.idle_notes);
        notes.clear();
        notes.resize(size, Note::default());
        notes[me as usize] = Note { offer, sample };
        let mark = request.mark(me, 0);
        let round = Round::begin(board, Note::BYTES, marked(mark, Rounds::Offer as u64));
        Run { call, me, mark, notes, exposed, stage: Stage::Offer { round, exports } }
    }

    /// Keeps the tables of a run that is over.
    pub(crate) fn end(self, memory: &mut PeerMemory) {
        memory.idle_notes = self.notes;
    }

    /// Goes on as far as possible, or to the end of a turn.
    ///
    /// # Errors
    /// Why it cannot go on; not to be called again then.
    // Inlined it makes every other kind of operation's turn longer.
    #[inline(never)]
    pub(crate) fn advance(
        &mut self,
        mut reach: Reach<'_>,
        reducer: &Reducer,
        buffers: Buffers<'_>,
    ) -> Result<Step> {
        let mut moved = Progress::Blocked;
        while !matches!(self.stage, Stage::Done) {
            match self.turn(&mut reach, reducer, buffers)? {
                Progress::Done => {}
                Progress::Moved => return Ok(Step::Progress(Progress::Moved)),
                Progress::Blocked => return Ok(Step::Progress(moved)),
            }
            let Some(next) = self.next(&mut reach)? else { return Ok(Step::Declined) };
            (self.stage, moved) = (next, Progress::Moved);
        }
        Ok(Step::Progress(Progress::Done))
    }

    /// A turn of the present stage.
    fn turn(&mut self, reach: &mut Reach<'_>, reducer: &Reducer, buffers: Buffers<'_>) -> Result<Progress> {
        let (notes, Reach { memory, board, .. }) = (&mut self.notes, reach);
        Ok(match &mut self.stage {
            Stage::Offer { round, .. } => {
                let own = notes[self.me as usize].encode();
                let hear = |from: Rank, note: Span<'_>| notes[from as usize] = Note::decode(note);
                round.advance(board, Some(&own), |_| true, hear)?
            }
            Stage::Announce { round, note } => round.advance(
                board,
                note.as_deref(),
                |from| notes[from as usize].offer.announces,
                |from, list| {
                    let known = &mut memory.known[from as usize];
                    Announcement::decode_list(list).for_each(|announcement| known.add(announcement));
                },
            )?,
            Stage::Import { imports, failed } => {
                imports.retain_mut(|import| import.is_under_way(memory, failed));
                if imports.is_empty() { Progress::Done } else { Progress::Blocked }
            }
            Stage::Verdict { round, folds, all } => {
                let own = [u8::from(folds.is_some())];
                let hear = |_, note: Span<'_>| {
                    let mut said = [0u8];
                    SpanMut::of(&mut said).copy_from(note.slice(0, 1));
                    *all &= said[0] & 1 != 0;
                };
                round.advance(board, Some(&own), |_| true, hear)?
            }
            Stage::Fold(folds) => folds.turn(board, reducer, buffers),
            Stage::Exit(round) => round.advance(board, Some(&[]), |_| true, |_, _| ())?,
            Stage::Done => Progress::Done,
        })
    }

    /// What follows the present stage, which is over; none if the operation is declined.
    fn next(&mut self, reach: &mut Reach<'_>) -> Result<Option<Stage>> {
        let Reach { memory, board, .. } = reach;
        Ok(Some(match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Offer { .. } if !self.is_offered() => return Ok(None),
            Stage::Offer { exports, .. } if self.is_announced() => {
                let list: Vec<_> = exports.iter().map(|(area, lent)| Announcement::of(area, lent)).collect();
                let note = (!list.is_empty()).then(|| Announcement::encode_list(&list));
                exports.into_iter().for_each(|(area, lent)| memory.export(&area, lent));
                let round = self.round(board, Rounds::Announce, Announcement::LIST_BYTES_MAX);
                Stage::Announce { round, note }
            }
            Stage::Import { failed: Some(broken), .. } => self.negotiated(board, Err(broken))?,
            Stage::Offer { .. } | Stage::Announce { .. } | Stage::Import { .. } => self.bind(reach)?,
            Stage::Verdict { folds: Some(folds), all: true, .. } => Stage::Fold(folds),
            Stage::Verdict { .. } => {
                memory.refuse(&self.notes[self.me as usize].offer);
                return Ok(None);
            }
            Stage::Fold(folds) => {
                folds.end(memory);
                Stage::Exit(self.round(board, Rounds::Exit, 0))
            }
            Stage::Exit(_) if self.exposed.as_ref().is_some_and(|exposed| exposed.area.is_spent()) => {
                let why =
                    "pages of the output were taken back while it was written, by another call that failed";
                return Err(Error::internal(why).into());
            }
            Stage::Exit(_) | Stage::Done => Stage::Done,
        }))
    }

    fn round(&self, board: &mut Board, round: Rounds, bytes_max: usize) -> Round {
        Round::begin(board, bytes_max, marked(self.mark, round as u64))
    }

    /// Takes what is mapped, or begins to import what is not.
    fn bind(&self, reach: &mut Reach<'_>) -> Result<Stage> {
        let Reach { memory, board, lender, plan } = reach;
        match Folds::bind(memory, &self.call, self.me, &self.notes, plan()?)? {
            Ok(folds) => self.negotiated(board, Ok(folds)),
            Err(unmapped) => match Import::begin(memory, *lender, &unmapped) {
                Ok(imports) => Ok(Stage::Import { imports, failed: None }),
                Err(broken) => self.negotiated(board, Err(broken)),
            },
        }
    }

    /// This rank has its folds, or cannot.
    fn negotiated(&self, board: &mut Board, folds: std::result::Result<Folds, Broken>) -> Result<Stage> {
        match folds {
            _ if self.is_announced() => {
                let round = self.round(board, Rounds::Verdict, 1);
                Ok(Stage::Verdict { round, folds: folds.ok(), all: true })
            }
            Ok(folds) => Ok(Stage::Fold(folds)),
            // The others do not know that it was asked for.
            Err(broken) => Err(broken.into()),
        }
    }

    /// Whether all buffers that others touch are offered.
    fn is_offered(&self) -> bool {
        (0..).zip(&self.notes).all(|(rank, note)| {
            let mut places = touched(&self.call, rank).into_iter().zip(note.offer.places);
            places.all(|(touched, place)| !touched || place.key != 0)
        })
    }

    /// Whether some rank announces areas.
    fn is_announced(&self) -> bool {
        self.notes.iter().any(|note| note.offer.announces)
    }

    /// Whether ranks still offer their buffers.
    pub(crate) fn is_entering(&self) -> bool {
        matches!(self.stage, Stage::Offer { .. })
    }

    /// What all ranks said for the [tuner](crate::engine::store_tuner), once they have entered.
    pub(crate) fn samples(&self) -> impl Iterator<Item = u64> + Clone {
        self.notes.iter().map(|note| note.sample)
    }

    /// The rank that it waits for, and for what.
    pub(crate) fn wanted(&self, board: &Board) -> Option<(Rank, Want)> {
        match &self.stage {
            Stage::Offer { round, .. }
            | Stage::Announce { round, .. }
            | Stage::Verdict { round, .. }
            | Stage::Exit(round) => round.wanted(board),
            Stage::Import { imports, .. } => imports.first().map(|import| (import.peer, Want::Data)),
            Stage::Fold(_) | Stage::Done => None,
        }
    }

    /// The operation has failed. Whether no rank writes to this rank's memory any more.
    ///
    /// `at_last` says that no rank is waited for any longer: pages that one may still write to are detached from what the
    /// others see.
    pub(crate) fn withdraw(&mut self, board: &mut Board, group: &Group, at_last: bool) -> bool {
        board.end_access();
        // A rank that has not read what it needs will not take it for good.
        board.forbid();
        let Some(Exposed { area, start, bytes }) = &self.exposed else { return true };
        if !board.accessing().all(|rank| group.is_gone(rank)) {
            if !at_last {
                return false;
            }
            if let Err(error) = area.detach(*start, *bytes) {
                consort_settings::notice::warn(&format!(
                    "a rank that does not answer may still write to the output of this operation: {error}"
                ));
            }
        }
        self.exposed = None;
        true
    }

    /// This process is a fork of the one whose operation it is, which goes on there. Nothing is said to other ranks: their
    /// boards are its parent's. What they write to is detached here.
    pub(crate) fn disown(&mut self) {
        if let Some(Exposed { area, start, bytes }) = self.exposed.take()
            && let Err(error) = area.detach(start, bytes)
        {
            tracing::debug!("a forked child shares the output of its parent's operation: {error}");
        }
    }

    /// Whether it waits for a file.
    #[cfg(test)]
    pub(super) fn is_importing(&self) -> bool {
        matches!(self.stage, Stage::Import { .. })
    }

    /// How far it has come.
    #[cfg(test)]
    pub(super) fn standing(&self) -> String {
        match &self.stage {
            Stage::Offer { exports, .. } => format!("offer, {}", exports.len()),
            Stage::Announce { note, .. } => format!("announce, {}", note.is_some()),
            Stage::Import { imports, failed } => format!("import, {} {}", imports.len(), failed.is_some()),
            Stage::Verdict { folds, all, .. } => format!("verdict, {} {all}", folds.is_some()),
            Stage::Fold(_) => "fold".into(),
            Stage::Exit(_) => "exit".into(),
            Stage::Done => "done".into(),
        }
    }

    /// What notes of a round are marked with.
    #[cfg(test)]
    pub(super) fn marked(&self, round: u64) -> u64 {
        marked(self.mark, round)
    }
}

impl Import {
    /// Begins to fetch areas of other ranks.
    fn begin(
        memory: &PeerMemory,
        lender: Option<&dyn MemoryLender>,
        unmapped: &Unmapped,
    ) -> std::result::Result<Vec<Import>, Broken> {
        let begin = |(peer, key): &(Rank, u64)| {
            let announced = memory.known[*peer as usize].announcement(*key);
            let (Some(announced), Some(lender)) = (announced, lender) else {
                let what = "it offered memory that it has not announced";
                let error = TransportError::Protocol { transport: "shm", what };
                return Err(Broken { peer: *peer, error });
            };
            let (offset, bytes) = (announced.file_offset as usize, announced.bytes as usize);
            Ok(Import { peer: *peer, key: *key, fetch: Fetch::new(lender, &announced.lent, offset, bytes) })
        };
        unmapped.iter().map(begin).collect()
    }

    /// Looks at one; what has come is kept.
    fn is_under_way(&mut self, memory: &mut PeerMemory, failed: &mut Option<Broken>) -> bool {
        match self.fetch.poll() {
            Ok(Poll::Pending) => return true,
            Ok(Poll::Ready(mapping)) => memory.known[self.peer as usize].keep(self.key, mapping),
            Err(error) => {
                tracing::info!(rank = self.peer, %error, "a peer's buffer is not mapped");
                *failed = Some(Broken { peer: self.peer, error });
            }
        }
        false
    }
}
