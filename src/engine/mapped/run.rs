//! One operation on mapped buffers, as far as it has come.
//!
//! Invariant: the stages come in order, on all ranks the same ones: the entry; where somebody has an area to tell of, the
//! notices and whether all could map what they need; the folds; the exit. A run never waits.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use consort_algorithms::Extents;
use consort_algorithms::plan::Plan;
use consort_kernels::{DataType, Reducer};
use consort_memory::areas::Area;
use consort_memory::{Mapping, Span, SpanMut, ticks};
use consort_transports::{Fetch, Lent, Shm};

use super::notes::{Entry, Notice, Opening, Place};
use super::pulled::{self, Pull, Theirs};
use super::{Pulls, Shares, Step, Stop, touched};
use crate::Rank;
use crate::call::{Call, Kind};
use crate::control::group::Group;
use crate::engine::bound::{Bearings, Broken};
use crate::engine::packets::{Board, Round, Wanted};
use crate::engine::trial::PULLED;
use crate::engine::{Buffers, Progress, Request};
use crate::error::{Error, Result};
use crate::notice::inform;

/// Operations that touch at least so many bytes of one rank write past the caches.
const STREAMING_BYTES_MIN: usize = 4 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Entry,
    Notices,
    /// Descriptors are fetched; then all ranks tell whether they have what they need.
    Fetch,
    Verdict,
    Folds,
    /// The same where ranks read what they need through the system: what is folded, and then what is copied.
    Pull,
    Halves,
    Copies,
    Exit,
    Done,
}

/// A buffer of a rank, mapped here; none where nobody touches it.
type Mapped = Option<(Arc<Mapping>, usize)>;

/// One operation.
pub(crate) struct Run {
    stage: Stage,
    round: Round,
    mark: u64,
    call: Call,
    entry: Entry,
    /// By rank.
    entries: Vec<Entry>,
    /// What this rank tells of, and as bytes.
    tells: Vec<(Arc<Area>, Lent)>,
    notices: Vec<u8>,
    /// Inputs and outputs by rank.
    pub(super) mapped: Vec<[Mapped; 2]>,
    /// What is being fetched: whose, and which area.
    fetching: Vec<(Rank, u64, Fetch)>,
    /// Whose could not be fetched last, and why.
    unmapped: Option<Broken>,
    /// Whether this rank has what it needs, and whether all have.
    has_all: bool,
    all_have: bool,
    /// Whether this rank may read the others' memory, and whether each may that of all.
    may_read: bool,
    all_may: bool,
    pub(super) plan: Option<Arc<Plan>>,
    pub(super) bearings: Bearings,
    pub(super) extents: Extents<'static>,
    /// The step of the plan and the bytes of it that are done.
    pub(super) at: (usize, usize),
    /// What others may write to.
    exposed: Option<(Arc<Area>, usize, usize)>,
    pub(super) streaming: bool,
    /// The way without mapped buffers, if it is taken: since when, and of whom.
    pull: Pull,
    pulled: Option<u64>,
    theirs: Vec<Theirs>,
    /// Whose memory is not there any more.
    unread: Option<Rank>,
}

/// Different rounds of one operation.
fn marked(mark: u64, round: u64) -> u64 {
    mark ^ (round + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl Run {
    /// Begins an operation of rank `me` of as many as there are processes.
    pub(crate) fn begin(
        shares: &mut Shares,
        board: &mut Board,
        shm: Option<&Shm>,
        request: &Request,
        (me, pids): (Rank, &[u32]),
        buffers: Buffers<'_>,
        Opening { way, may_map, may_pull, took }: Opening,
    ) -> Result<Box<Run>> {
        let Request { call, sequence, history, .. } = request;
        let size = pids.len() as u32;
        let mark = call.descriptor().digest(*sequence, *history);
        shares.known.resize_with(size as usize, Default::default);
        let needed = touched(call, me);
        let ranges = [
            (buffers.input.as_ptr() as usize, buffers.input.len()),
            (buffers.output.as_mut_ptr() as usize, buffers.output.len()),
        ];
        let mut found = [None, None];
        if may_map && shm.is_some() && call.scalar.is_none() {
            for ((found, needed), (start, bytes)) in found.iter_mut().zip(needed).zip(ranges) {
                *found = if needed { shares.find(start, bytes) } else { None };
            }
        }
        let complete = needed.iter().zip(&found).all(|(needed, found)| !needed || found.is_some());
        let mut entry = Entry::default();
        let mut tells = Vec::new();
        if let (true, Some(shm)) = (complete, shm) {
            let mut places = [Place::default(); 2];
            for ((place, found), (start, _)) in places.iter_mut().zip(&found).zip(ranges) {
                let Some(area) = found else { continue };
                *place = Place { key: area.key(), offset: (start - area.start()) as u64 };
                let lent = match shares.is_told(area.key()) {
                    Some(true) => continue,
                    Some(false) => Lent::new(shm, area.file()).ok(),
                    None => None,
                };
                // Without a descriptor there is nothing to tell, and all go the planned way.
                let Some(lent) = lent else {
                    (places, tells) = (Default::default(), Vec::new());
                    break;
                };
                if tells.iter().all(|(known, _): &(Arc<Area>, Lent)| known.key() != area.key()) {
                    tells.push((area.clone(), lent));
                }
            }
            [entry.input, entry.output] = places;
        }
        (entry.tells, entry.way, entry.took) = (!tells.is_empty(), way, took);
        let [_, output] = &found;
        let exposed = output.clone().filter(|_| entry.output.key != 0);
        let is_ordinary = entry.input.key == 0 && entry.output.key == 0;
        let is_within = call.kind == Kind::AllToAll && ranges[0].0 == ranges[1].0;
        if shm.is_some()
            && is_ordinary
            && !is_within
            && may_pull
            && let Some(witness) = shares.witness()
        {
            entry.may_pull = true;
            entry.has_pulled =
                shares.pulls == Pulls::Proved && ranges.iter().all(|range| shares.was_read(*range));
            entry.witness = witness;
            (entry.input.offset, entry.output.offset) = (ranges[0].0 as u64, ranges[1].0 as u64);
        }
        let round = Round::begin(board, Entry::BYTES, marked(mark, 0));
        let collective = call.kind.collective();
        let bearings = Bearings::Rotated { root: call.root, size };
        let block = call.count * call.data_type.size();
        let blocks = collective.output_blocks(size).max(collective.input_blocks(size)) as usize;
        let mut run = shares.idle.take().unwrap_or_else(|| Run::empty(round));
        run.stage = Stage::Entry;
        run.round = round;
        (run.mark, run.entry) = (mark, entry);
        run.entries.clear();
        run.entries.resize(size as usize, Entry::default());
        run.entries[me as usize] = entry;
        run.tells = tells;
        run.mapped.clear();
        run.mapped.resize_with(size as usize, || [None, None]);
        run.fetching.clear();
        run.unmapped = None;
        (run.has_all, run.all_have) = (true, true);
        (run.may_read, run.all_may) = (true, true);
        (run.plan, run.bearings, run.at) = (None, bearings, (0, 0));
        run.exposed = exposed.map(|area| (area, ranges[1].0, ranges[1].1));
        run.call = *call;
        (run.pulled, run.unread) = (None, None);
        run.theirs.clear();
        run.theirs.extend(pids.iter().map(|pid| Theirs { pid: *pid, ..Theirs::default() }));
        run.streaming = block * blocks >= STREAMING_BYTES_MIN;
        if may_map && (entry.input.key != 0 || entry.output.key != 0 || !needed.contains(&true)) {
            // Reduces begin at rank 0, whoever is the root.
            let first = if call.kind == Kind::Reduce { (size - call.root) % size } else { 0 };
            let plan = shares.plan(collective, size, (me + size - call.root) % size, first)?;
            let extents = plan.partition.extents(call.count, call.data_type.size());
            run.extents = match call.kind {
                Kind::Gather | Kind::Scatter => extents.from_root(call.root, size),
                _ => extents,
            };
            run.plan = Some(plan);
        }
        Ok(run)
    }

    fn empty(round: Round) -> Box<Run> {
        let partition = consort_algorithms::Partition { parts: 1 };
        Box::new(Run {
            stage: Stage::Done,
            round,
            mark: 0,
            entry: Entry::default(),
            entries: Vec::new(),
            tells: Vec::new(),
            notices: Vec::new(),
            mapped: Vec::new(),
            fetching: Vec::new(),
            unmapped: None,
            has_all: true,
            all_have: true,
            may_read: true,
            all_may: true,
            plan: None,
            bearings: Bearings::Rotated { root: 0, size: 1 },
            extents: partition.extents(0, 1),
            at: (0, 0),
            exposed: None,
            streaming: false,
            pull: Pull::default(),
            pulled: None,
            theirs: Vec::new(),
            unread: None,
            call: Call::new(Kind::Barrier, DataType::Int8, None, 0, 0),
        })
    }

    /// Keeps the tables of a run that is over.
    pub(crate) fn end(mut self: Box<Self>, shares: &mut Shares) {
        self.mapped.clear();
        self.tells.clear();
        if self.pulled.is_none() {
            self.pull = Pull::default();
        }
        self.plan = None;
        self.exposed = None;
        shares.idle = Some(self);
    }

    /// Goes on as far as possible, or to the end of a turn.
    ///
    /// # Errors
    /// See [`Stop`].
    pub(crate) fn advance(
        &mut self,
        shares: &mut Shares,
        board: &mut Board,
        shm: Option<&Shm>,
        me: Rank,
        reducer: &Reducer,
        buffers: Buffers<'_>,
    ) -> std::result::Result<Step, Stop> {
        let mut moved = Progress::Blocked;
        loop {
            let progress = match self.stage {
                Stage::Entry => self.enter(board)?,
                Stage::Notices => self.hear(shares, board)?,
                Stage::Fetch => self.fetch(shares, shm, me)?,
                Stage::Verdict => self.tell(board)?,
                Stage::Folds => self.fold(board, me, reducer, buffers)?,
                Stage::Pull => {
                    let Run { pull, theirs, streaming, .. } = self;
                    let turn = pull.fold(me, theirs, reducer, buffers, *streaming);
                    self.read(turn)?
                }
                Stage::Copies => {
                    let turn = self.pull.copy(&self.theirs, buffers);
                    match self.read(turn)? {
                        // What was read of a rank whose call has failed by now may be anything.
                        Progress::Done if board.is_forbidden() => Progress::Blocked,
                        progress => progress,
                    }
                }
                Stage::Halves | Stage::Exit => self.round.advance(board, Some(&[]), |_| true, |_, _| ())?,
                Stage::Done => return Ok(Step::Progress(Progress::Done)),
            };
            match progress {
                Progress::Done => {}
                Progress::Moved => return Ok(Step::Progress(Progress::Moved)),
                Progress::Blocked => return Ok(Step::Progress(moved)),
            }
            moved = Progress::Moved;
            self.stage = match self.stage {
                Stage::Entry if !self.is_possible() && !self.may_pull() => return Ok(Step::Declined),
                Stage::Entry if !self.is_possible() => {
                    for (their, entry) in self.theirs.iter_mut().zip(&self.entries) {
                        (their.input, their.output) = (entry.input.offset, entry.output.offset);
                    }
                    self.pulled = Some(ticks());
                    self.pull.begin(&self.call, me, &self.theirs);
                    if self.entries.iter().all(|entry| entry.has_pulled) {
                        Stage::Pull
                    } else {
                        let proved = shares.pulls == Pulls::Proved;
                        let own = [buffers.input, buffers.output.read()];
                        self.has_all = own.into_iter().all(|own| shares.is_readable(own));
                        self.may_read = proved || pulled::has_witnesses(me, &self.theirs, &self.entries);
                        self.round = Round::begin(board, 1, marked(self.mark, 2));
                        Stage::Verdict
                    }
                }
                Stage::Entry if self.entries.iter().any(|entry| entry.tells) => {
                    self.round = Round::begin(board, Notice::LIST_BYTES_MAX, marked(self.mark, 1));
                    let list: Vec<Notice> =
                        self.tells.iter().map(|(area, lent)| Notice::of(area, lent)).collect();
                    self.notices = Notice::encode_list(&list);
                    self.tells.drain(..).for_each(|(area, lent)| shares.tell(&area, lent));
                    Stage::Notices
                }
                Stage::Entry | Stage::Notices => {
                    self.look_up(shares, shm, me);
                    if self.stage == Stage::Notices || !self.fetching.is_empty() {
                        Stage::Fetch
                    } else {
                        Stage::Folds
                    }
                }
                Stage::Fetch if self.entries.iter().any(|entry| entry.tells) => {
                    self.round = Round::begin(board, 1, marked(self.mark, 2));
                    Stage::Verdict
                }
                // It was mapped before, and forgotten, so the others do not know that it is asked for.
                Stage::Fetch if !self.has_all => {
                    let none = || Error::internal("a rank named memory of which it has not told").into();
                    return Err(self.unmapped.take().map_or_else(none, Stop::Broken));
                }
                Stage::Verdict if !(self.all_have && self.all_may) => {
                    // A buffer that the system cannot read is a matter of this call.
                    let is_pull = self.pulled.take().is_some();
                    if is_pull && !self.all_may {
                        shares.pulls = Pulls::Forbidden;
                        inform(
                            "ranks of this host go without reading each other's memory (process_vm_readv)",
                        );
                    } else if !is_pull {
                        shares.refuse([self.entry.input.key, self.entry.output.key]);
                    }
                    return Ok(Step::Declined);
                }
                Stage::Verdict if self.pulled.is_some() => {
                    shares.pulls = Pulls::Proved;
                    Stage::Pull
                }
                Stage::Pull if self.pull.has_halves() => {
                    self.round = Round::begin(board, 0, marked(self.mark, 4));
                    Stage::Halves
                }
                Stage::Pull | Stage::Halves => Stage::Copies,
                Stage::Fetch | Stage::Verdict => Stage::Folds,
                Stage::Folds | Stage::Copies => {
                    self.round = Round::begin(board, 0, marked(self.mark, 3));
                    Stage::Exit
                }
                Stage::Exit if self.exposed.as_ref().is_some_and(|(area, ..)| area.is_spent()) => {
                    let why = "pages of the output were taken back while it was written, by another call that failed";
                    return Err(Error::internal(why).into());
                }
                Stage::Exit | Stage::Done => Stage::Done,
            };
        }
    }

    /// How rank 0 says that bytes are staged. Once the operation was declined.
    pub(crate) fn way(&self) -> u8 {
        self.entries.first().map_or(0, |entry| entry.way)
    }

    /// Whether ranks still tell each other where their buffers are.
    pub(crate) fn is_entering(&self) -> bool {
        self.stage == Stage::Entry
    }

    /// What ranks told of the operation before, once they have come.
    pub(crate) fn took(&self) -> impl Iterator<Item = u32> + Clone {
        self.entries.iter().map(|entry| entry.took)
    }

    /// What it waits for.
    pub(crate) fn wanted(&self, board: &Board) -> Option<Wanted> {
        match self.stage {
            Stage::Fetch => self.fetching.first().map(|(peer, ..)| Wanted { peer: *peer, room: false }),
            Stage::Pull | Stage::Copies => self.unread.map(|peer| Wanted { peer, room: false }),
            Stage::Folds | Stage::Done => None,
            _ => self.round.wanted(board),
        }
    }

    fn enter(&mut self, board: &mut Board) -> std::result::Result<Progress, Rank> {
        let Run { round, entry, entries, .. } = self;
        let note = entry.encode();
        let hear = |from: Rank, note: Span<'_>| entries[from as usize] = Entry::decode(note);
        round.advance(board, Some(&note), |_| true, hear)
    }

    /// Bytes of what is kept between operations.
    pub(super) fn memory_bytes(&self) -> usize {
        self.pull.memory_bytes()
    }

    /// Since when ranks have read each other's memory, if they did.
    pub(crate) fn pulled(&self) -> Option<u64> {
        self.pulled
    }

    /// What became of a turn of reading.
    fn read(&mut self, turn: std::result::Result<Progress, (Rank, io::Error)>) -> Result<Progress> {
        match turn {
            Ok(progress) => Ok(progress),
            // It is gone, as this rank is about to hear.
            Err((rank, error)) if error.raw_os_error() == Some(nix::libc::ESRCH) => {
                self.unread = Some(rank);
                Ok(Progress::Blocked)
            }
            Err((rank, error)) => {
                Err(Error::system(format!("reading the buffer of rank {rank} (process_vm_readv)"), error))
            }
        }
    }

    /// Whether rank 0 wants ranks to read each other's memory, and all can be asked to.
    fn may_pull(&self) -> bool {
        self.way() == PULLED && self.entries.iter().all(|entry| entry.may_pull)
    }

    /// Whether all buffers that others touch can be mapped.
    fn is_possible(&self) -> bool {
        (0..).zip(&self.entries).all(|(rank, entry)| {
            let [input, output] = touched(&self.call, rank);
            (!input || entry.input.key != 0) && (!output || entry.output.key != 0)
        })
    }

    fn hear(&mut self, shares: &mut Shares, board: &mut Board) -> std::result::Result<Progress, Rank> {
        let Run { round, entry, entries, notices, .. } = self;
        let note = entry.tells.then_some(&notices[..]);
        round.advance(
            board,
            note,
            |from| entries[from as usize].tells,
            |from, note| {
                let known = &mut shares.known[from as usize];
                Notice::decode_list(note).for_each(|notice| known.hear(notice));
            },
        )
    }

    /// Finds what is mapped already, and begins to fetch the rest.
    fn look_up(&mut self, shares: &mut Shares, shm: Option<&Shm>, me: Rank) {
        for (rank, entry) in (0..).zip(&self.entries) {
            if rank == me {
                continue;
            }
            let needed = touched(&self.call, rank);
            for (which, place) in [entry.input, entry.output].into_iter().enumerate() {
                if !needed[which] {
                    continue;
                }
                let known = &mut shares.known[rank as usize];
                if let Some(mapping) = known.mapped(place.key) {
                    self.mapped[rank as usize][which] = Some((mapping, place.offset as usize));
                    continue;
                }
                if self.fetching.iter().any(|(of, key, _)| (*of, *key) == (rank, place.key)) {
                    continue;
                }
                match (known.notice(place.key), shm) {
                    (Some(notice), Some(shm)) => {
                        let (offset, bytes) = (notice.file_offset as usize, notice.bytes as usize);
                        self.fetching.push((rank, place.key, Fetch::new(shm, &notice.lent, offset, bytes)));
                    }
                    _ => self.has_all = false,
                }
            }
        }
    }

    fn fetch(
        &mut self,
        shares: &mut Shares,
        shm: Option<&Shm>,
        me: Rank,
    ) -> std::result::Result<Progress, Stop> {
        if self.fetching.is_empty() {
            return Ok(Progress::Done);
        }
        let mut has_all = self.has_all;
        let Run { fetching, unmapped, .. } = self;
        fetching.retain_mut(|(rank, key, fetch)| match fetch.poll() {
            Ok(Poll::Pending) => true,
            Ok(Poll::Ready(mapping)) => {
                shares.known[*rank as usize].keep(*key, mapping);
                false
            }
            Err(error) => {
                tracing::info!(rank = *rank, %error, "a peer's buffer is not mapped");
                (has_all, *unmapped) = (false, Some(Broken { peer: *rank, error }));
                false
            }
        });
        self.has_all = has_all;
        if !self.fetching.is_empty() {
            return Ok(Progress::Blocked);
        }
        if self.has_all {
            self.look_up(shares, shm, me);
        }
        Ok(Progress::Done)
    }

    fn tell(&mut self, board: &mut Board) -> std::result::Result<Progress, Rank> {
        let Run { round, has_all, all_have, may_read, all_may, .. } = self;
        *all_have &= *has_all;
        *all_may &= *may_read;
        round.advance(
            board,
            Some(&[u8::from(*has_all) | u8::from(*may_read) << 1]),
            |_| true,
            |_, note| {
                let mut said = [0u8];
                SpanMut::of(&mut said).copy_from(note.slice(0, 1));
                *all_have &= said[0] & 1 != 0;
                *all_may &= said[0] & 2 != 0;
            },
        )
    }

    /// The operation has failed, and others touch nothing of it any more that they use. Whether nobody writes to this rank's memory any more; `at_last` says that nobody is
    /// waited for any longer: what may still be written to is then parted from what the others see.
    pub(crate) fn withdraw(&mut self, board: &mut Board, group: &Group, at_last: bool) -> bool {
        board.leave();
        // Who has not read what it needs will not take it for good.
        board.forbid();
        let Some((area, start, bytes)) = &self.exposed else { return true };
        if board.visitors().all(|rank| group.is_gone(rank)) {
            self.exposed = None;
            return true;
        }
        if !at_last {
            return false;
        }
        if let Err(error) = area.part(*start, *bytes) {
            crate::notice::warn(&format!(
                "a rank that does not answer may still write to the output of this operation: {error}"
            ));
        }
        self.exposed = None;
        true
    }

    /// Whether it waits for a file.
    #[cfg(test)]
    pub(super) fn is_fetching(&self) -> bool {
        self.stage == Stage::Fetch
    }

    /// How far it has come.
    #[cfg(test)]
    pub(super) fn standing(&self) -> String {
        format!(
            "{:?}, {} of {:?}",
            self.stage,
            self.fetching.len(),
            self.mapped[1].each_ref().map(Option::is_some)
        )
    }

    /// What notes of a round are marked with.
    #[cfg(test)]
    pub(super) fn marked(&self, round: u64) -> u64 {
        marked(self.mark, round)
    }
}
