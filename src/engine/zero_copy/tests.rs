//! Two ranks in one thread, with areas that come and go; and the bytes of their notes.

use std::sync::Arc;

use consort_kernels::{DataType, ReduceOp, Reducer};
use consort_memory::areas::{Area, SharedMemory};
use consort_memory::{Mapping, Span, SpanMut};
use consort_transports::{Lent, MemoryLender, Shm};

use super::offer::{Announcement, Note, Offer, Place};
use super::peer_memory::{ANNOUNCED_MAX, Export, Known, MAPPED_MAX};
use super::*;
use crate::engine::packets::{Board, sides};
use crate::engine::real_io::Broken;
use crate::engine::trouble::Fault;
use crate::engine::{Buffers, Request};
use crate::planner::Planner;
use consort_types::call::Kind;

/// Elements of the calls here.
pub(super) const COUNT: usize = 3000;
pub(super) const BYTES: usize = COUNT * 4;

/// One of two ranks.
pub(super) struct Side {
    pub(super) memory: PeerMemory,
    pub(super) board: Board,
    pub(super) shm: Shm,
    planner: Planner,
    /// What was begun last, and by which rank.
    begun: Option<(Call, Rank)>,
}

impl Side {
    pub(super) fn new(board: Board) -> Self {
        let (memory, shm) = (PeerMemory::default(), Shm::new().expect("a desk"));
        Side { memory, board, shm, planner: Planner::default(), begun: None }
    }

    pub(super) fn begin(&mut self, me: Rank, request: &Request, buffers: Buffers<'_>) -> Run {
        self.begun = Some((request.call, me));
        self.reaching(|reach| Run::begin(reach, request, me, buffers, 0))
    }

    pub(super) fn advance(
        &mut self,
        run: &mut Run,
        reducer: &Reducer,
        buffers: Buffers<'_>,
    ) -> std::result::Result<Step, Fault> {
        self.reaching(|reach| run.advance(reach, reducer, buffers))
    }

    fn reaching<R>(&mut self, then: impl FnOnce(Reach<'_>) -> R) -> R {
        let Side { memory, board, shm, planner, begun } = self;
        let (call, me) = begun.expect("it was begun");
        let size = board.ranks();
        let relative = (me + size - call.root) % size;
        let plan = &mut || planner.mapped(call.kind.collective(), size, relative, call.first_folded(size));
        then(Reach { memory, board, lender: Some(shm), plan })
    }

    /// The keys of the areas that the other rank has announced, and of those that are mapped here.
    fn knows(&self, rank: usize) -> (Vec<u64>, Vec<u64>) {
        let known = &self.memory.known[rank];
        let announced = known.announced.iter().map(|announcement| announcement.key).collect();
        (announced, known.mapped.iter().map(|(key, _)| *key).collect())
    }

    fn exports(&self) -> Vec<u64> {
        self.memory.exports.iter().map(|export| export.key).collect()
    }
}

/// How a call ended on both ranks.
#[derive(PartialEq, Eq, Debug)]
enum End {
    Done,
    Declined,
    Failed(Vec<String>),
}

struct Pair {
    sides: [Side; 2],
    sequence: u64,
    /// Whether rank 0 can fetch no area that rank 1 announces.
    withholds: bool,
}

impl Pair {
    fn new() -> Self {
        Pair { sides: sides::boards().map(Side::new), sequence: 0, withholds: false }
    }

    /// Sums what is in the two buffers, in place.
    fn sum(&mut self, buffers: [SpanMut<'_>; 2]) -> End {
        self.run(Call::all_reduce(DataType::Int32, ReduceOp::Sum, COUNT), buffers)
    }

    /// Makes a call, in place.
    fn run(&mut self, call: Call, buffers: [SpanMut<'_>; 2]) -> End {
        self.sequence += 1;
        let request = Request { call, sequence: self.sequence, history: 0, record: 0 };
        let buffers = buffers.map(|output| Buffers { input: output.read(), output });
        let reducer = Reducer::new(DataType::Int32, ReduceOp::Sum, 2);
        let mut runs = [0, 1].map(|me| Some(self.sides[me].begin(me as Rank, &request, buffers[me])));
        let (mut declined, mut failed) = (0, Vec::new());
        for _ in 0..100_000 {
            for me in 0..2 {
                let Some(mut run) = runs[me].take() else { continue };
                match self.sides[me].advance(&mut run, &reducer, buffers[me]) {
                    Ok(Step::Progress(Progress::Done)) => run.end(&mut self.sides[me].memory),
                    Ok(Step::Progress(_)) => runs[me] = Some(run),
                    Ok(Step::Declined) => {
                        declined += 1;
                        run.end(&mut self.sides[me].memory);
                    }
                    Err(Fault::Failed(error)) => failed.push(error.to_string()),
                    Err(Fault::Broken(Broken { peer, error })) => {
                        failed.push(format!("rank {me} has no memory of rank {peer}: {error}"));
                    }
                    Err(Fault::Mismatch { peer }) => failed.push(format!("a mismatch with {peer}")),
                }
                if self.withholds {
                    self.sides[1].memory.exports.iter_mut().for_each(|export| export.lent = None);
                }
                // As the control thread does.
                self.sides.iter().for_each(|side| side.shm.desk().serve());
            }
            if runs.iter().all(Option::is_none) || !failed.is_empty() {
                break;
            }
        }
        assert!(runs.iter().all(Option::is_none) || !failed.is_empty(), "they do not come to an end");
        match (declined, failed.is_empty()) {
            (0, true) => End::Done,
            (2, true) => End::Declined,
            _ => End::Failed(failed),
        }
    }

    /// As [`Pair::sum`], of these numbers; whether it is right.
    fn sums(&mut self, buffers: [&SharedMemory; 2], numbers: [i32; 2]) -> bool {
        for (buffer, number) in buffers.iter().zip(numbers) {
            buffer.span().copy_from(Span::of(&vec![number; COUNT]));
        }
        assert_eq!(self.sum(buffers.map(SharedMemory::span)), End::Done);
        buffers.iter().all(|buffer| numbers_of(buffer.span()) == vec![numbers[0] + numbers[1]; COUNT])
    }
}

pub(super) fn memory() -> SharedMemory {
    SharedMemory::new(BYTES).expect("memory")
}

fn numbers_of(span: SpanMut<'_>) -> Vec<i32> {
    let mut numbers = vec![0; COUNT];
    SpanMut::of(&mut numbers).copy_from(span.read());
    numbers
}

#[test]
fn both_ranks_decline_buffers_whose_roots_take_turns_and_take_them_again() {
    let (mut pair, buffers) = (Pair::new(), [memory(), memory()]);
    let mut broadcast = |root: Rank| {
        buffers[root as usize].span().copy_from(Span::of(&vec![7 + root as i32; COUNT]));
        let call = Call::broadcast(DataType::Int32, COUNT, root);
        let end = pair.run(call, [0, 1].map(|rank: usize| buffers[rank].span()));
        if end == End::Done {
            let other = numbers_of(buffers[1 - root as usize].span());
            assert_eq!(other, vec![7 + root as i32; COUNT]);
        }
        end
    };
    for _ in 0..5 {
        assert_eq!(broadcast(0), End::Done);
    }
    for turn in 1..9 {
        assert_eq!(broadcast(turn % 2), End::Declined, "turn {turn}");
    }
    let ends: Vec<End> = (0..8).map(|_| broadcast(0)).collect();
    assert!(ends[..3].iter().all(|end| *end == End::Declined), "{ends:?}");
    assert!(ends[4..].iter().all(|end| *end == End::Done), "{ends:?}");
    // Another collective of the same buffers does not mind who was the root.
    assert_eq!(pair.sum([0, 1].map(|rank: usize| buffers[rank].span())), End::Done);
}

#[test]
fn what_ranks_say_of_buffers_survives_being_sent() {
    for nth in 0..200u64 {
        let word = |salt: u64| (nth + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = |salt: u64| Place { key: word(salt), offset: word(salt + 1) };
        let offer = Offer { places: [place(1), place(5)], announces: nth % 2 == 1 };
        let note = Note { offer, sample: word(9) };
        assert_eq!(Note::decode(Span::of(&note.encode())), note);
        let announcement = |salt: u64| Announcement {
            key: word(salt),
            bytes: word(salt + 1),
            file_offset: word(salt + 2),
            lent: std::array::from_fn(|at| word(at as u64) as u8),
        };
        let list: Vec<Announcement> = (0..nth % 3).map(announcement).collect();
        let mut bytes = Announcement::encode_list(&list);
        assert!(bytes.len() <= Announcement::LIST_BYTES_MAX);
        // A slot has bytes of earlier messages behind it.
        bytes.resize(Announcement::LIST_BYTES_MAX, 0xee);
        assert_eq!(Announcement::decode_list(Span::of(&bytes)).collect::<Vec<_>>(), list);
    }
    // A longer list than there can be is read as far as there is one.
    let mut bytes = vec![1; Announcement::LIST_BYTES_MAX];
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(Announcement::decode_list(Span::of(&bytes)).count(), 2);
}

#[test]
fn mappings_are_few_and_the_one_used_longest_ago_goes_first() {
    let mapping = Arc::new(Mapping::anonymous(1).expect("memory"));
    let mut known = Known::default();
    let keys = |known: &Known| known.mapped.iter().map(|(key, _)| *key).collect::<Vec<_>>();
    (1..=MAPPED_MAX as u64).for_each(|key| known.keep(key, mapping.clone()));
    assert_eq!(keys(&known), (1..=MAPPED_MAX as u64).collect::<Vec<_>>());
    assert!(known.mapped(1).is_some() && known.mapped(1000).is_none());
    known.keep(100, mapping.clone());
    assert!(known.mapped(2).is_none(), "it was used longest ago");
    assert!(known.mapped(1).is_some() && known.mapped(100).is_some());
    assert_eq!(keys(&known).len(), MAPPED_MAX);
    assert_eq!(Arc::strong_count(&mapping), 1 + MAPPED_MAX, "the others are unmapped");
}

#[test]
fn both_sides_forget_the_same_announcements() {
    let shm = Shm::new().expect("a desk");
    let (mut exporter, mut importer) = (PeerMemory::default(), Known::default());
    let areas: Vec<SharedMemory> = (0..3).map(|_| memory()).collect();
    let announcement = |area: &Arc<Area>, key: u64| {
        let lent = Lent::new(&shm, area.file()).expect("it is lent");
        (Announcement { key, ..Announcement::of(area, &lent) }, lent)
    };
    for key in 1..=2 * ANNOUNCED_MAX as u64 + 5 {
        let area = areas[key as usize % 3].area();
        let (announcement, lent) = announcement(area, key);
        exporter.export(area, lent);
        exporter.exports.back_mut().expect("it was exported").key = key;
        importer.add(announcement);
        let exported: Vec<u64> = exporter.exports.iter().map(|export| export.key).collect();
        let known: Vec<u64> = importer.announced.iter().map(|announcement| announcement.key).collect();
        assert_eq!(exported, known);
        assert_eq!(exported, (key.saturating_sub(ANNOUNCED_MAX as u64) + 1..=key).collect::<Vec<_>>());
    }
}

#[test]
fn a_freed_area_is_never_read_again_and_another_is_announced() {
    let mut pair = Pair::new();
    let (kept, freed) = (memory(), memory());
    assert!(pair.sums([&kept, &freed], [1, 2]));
    let (key, start) = (freed.area().key(), freed.area().start());
    assert_eq!(pair.sides[0].knows(1), (vec![key], vec![key]));
    assert_eq!(pair.sides[1].exports(), [key]);
    let stale = pair.sides[0].memory.known[1].mapped(key).expect("it is mapped");
    drop(freed);
    assert_eq!(numbers_of(stale.span(0, BYTES)), vec![0; COUNT], "what is mapped is nothing");
    stale.span(0, BYTES).copy_from(Span::of(&vec![77; COUNT]));
    let other = memory();
    let is_there_again = other.area().start() == start;
    for numbers in [[3, 4], [5, 6]] {
        assert!(pair.sums([&kept, &other], numbers), "at the same address: {is_there_again}");
    }
    assert_eq!(numbers_of(stale.span(0, BYTES)), vec![77; COUNT], "somebody wrote there");
    let now = other.area().key();
    assert_ne!(now, key);
    assert_eq!(pair.sides[0].knows(1), (vec![key, now], vec![key, now]));
    let is_lent = |export: &Export| (export.key, export.lent.is_some());
    assert_eq!(
        pair.sides[1].memory.exports.iter().map(is_lent).collect::<Vec<_>>(),
        [(key, false), (now, true)],
        "nobody can fetch what is freed"
    );
}

#[test]
fn more_areas_than_are_known_are_used_in_turn() {
    let mut pair = Pair::new();
    let mine = memory();
    let many: Vec<SharedMemory> = (0..ANNOUNCED_MAX + 20).map(|_| memory()).collect();
    for nth in 0..2 * many.len() {
        // The second time it is known no more.
        assert!(pair.sums([&mine, &many[nth % many.len()]], [nth as i32, 1]), "call {nth}");
        // Again and again.
        assert!(pair.sums([&mine, &many[nth % 7]], [2, nth as i32]), "call {nth}");
        for me in 0..2 {
            let (heard, mapped) = pair.sides[me].knows(1 - me);
            assert_eq!(heard, pair.sides[1 - me].exports(), "both count alike");
            assert!(heard.len() <= ANNOUNCED_MAX && mapped.len() <= MAPPED_MAX);
        }
    }
    assert_eq!(pair.sides[0].knows(1).0.len(), ANNOUNCED_MAX);
    assert_eq!(pair.sides[0].knows(1).1.len(), MAPPED_MAX);
}

#[test]
fn memory_that_a_rank_cannot_map_is_used_as_any_other() {
    let mut pair = Pair::new();
    let (mine, theirs) = (memory(), memory());
    pair.withholds = true;
    for nth in 0..5 {
        assert_eq!(pair.sum([mine.span(), theirs.span()]), End::Declined, "call {nth}");
    }
    pair.withholds = false;
    assert!(pair.sums([&memory(), &memory()], [3, 4]), "other memory is not concerned");
}

#[test]
fn who_cannot_map_again_what_it_forgot_says_whose_it_is_and_why() {
    let mut pair = Pair::new();
    let mine = memory();
    let many: Vec<SharedMemory> = (0..=MAPPED_MAX).map(|_| memory()).collect();
    for theirs in &many {
        assert!(pair.sums([&mine, theirs], [1, 2]));
    }
    pair.sides[1].memory.exports.iter_mut().for_each(|export| export.lent = None);
    assert!(pair.sums([&mine, &many[1]], [3, 4]), "it is still mapped");
    let End::Failed(texts) = pair.sum([mine.span(), many[0].span()]) else { panic!("it was forgotten") };
    let [text] = &texts[..] else { panic!("rank 1 has all: {texts:?}") };
    assert!(text.starts_with("rank 0 has no memory of rank 1: shm: the peer closed"), "{text}");
}

#[test]
fn ranks_offer_exactly_what_plans_touch() {
    use consort_algorithms::plan::Region;
    let kinds = [
        Kind::AllReduce,
        Kind::Reduce,
        Kind::Broadcast,
        Kind::ReduceScatter,
        Kind::AllGather,
        Kind::AllToAll,
        Kind::Gather,
        Kind::Scatter,
    ];
    for (kind, size) in kinds.into_iter().flat_map(|kind| [2, 3, 5].map(|size| (kind, size))) {
        // The root is rank 0, from which plans count.
        let call = Call::new(kind, DataType::Int32, None, 0, COUNT);
        let mut named = vec![[false; 2]; size as usize];
        for me in 0..size {
            let plan = Planner::default().mapped(kind.collective(), size, me, 0).expect("a plan");
            for region in &plan.regions {
                let (rank, which) = match region.region {
                    Region::Input(rank) => (rank.0, 0),
                    Region::Output(rank) => (rank.0, 1),
                    other => panic!("{kind:?}: {other:?}"),
                };
                named[rank as usize][which] |= rank != me;
            }
        }
        let touched: Vec<[bool; 2]> = (0..size).map(|rank| touched(&call, rank)).collect();
        assert_eq!(named, touched, "{kind:?} of {size}");
    }
}

#[test]
fn memory_that_was_not_announced_is_refused_and_whose_it_is_is_said() {
    let mut pair = Pair::new();
    let (mine, theirs) = (memory(), memory());
    assert!(pair.sums([&mine, &theirs], [1, 2]));
    // As if rank 0 had never heard of it.
    pair.sides[0].memory.known[1] = Known::default();
    let End::Failed(texts) = pair.sum([mine.span(), theirs.span()]) else { panic!("it has no mapping") };
    let [text] = &texts[..] else { panic!("rank 1 has all: {texts:?}") };
    assert!(
        text.starts_with("rank 0 has no memory of rank 1: shm: ") && text.contains("announced"),
        "{text}"
    );
}
