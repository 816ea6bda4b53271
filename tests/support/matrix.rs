//! Every collective by every algorithm that it has, compared with the expected result.
//!
//! Invariant: all ranks draw the same cases from the same seed, and every buffer lies between guard bytes. Absent:
//! floats that round, whose bits depend on the algorithm (`folds`).

use std::collections::HashMap;
use std::rc::Rc;

use consort::planning::{Algorithm, Collective};
use consort::{Call, Communicator, DataType, ReduceOp, Result, SpanMut};

use crate::pattern::{Fold, Pattern, is_exact, scalar_of};
use crate::system::Random;

/// The content that no call may change.
const GUARD: u8 = 0xa5;
/// Numbers of elements that fit into a slot, and odd ones.
const SMALL: [usize; 4] = [0, 1, 3, 1001];
/// Elements of several slices of the shortest slot.
pub const LONG: usize = 70_001;
/// More than four slots of the shortest length, as bytes of each rank's piece.
const FOUR_SLOTS: usize = (4 << 14) + 100;

/// The collectives, messages between two ranks apart.
pub fn collectives() -> impl Iterator<Item = Collective> {
    Collective::ALL.into_iter().filter(|collective| *collective != Collective::SendReceive)
}

/// The same over a number of ranks, with those that have a parameter.
pub fn collectives_over(ranks: u32) -> impl Iterator<Item = Collective> {
    let replicated = (1..=ranks).map(|group| Collective::AllToAllReplicated { group });
    collectives().chain(replicated.filter(move |collective| collective.fits(ranks)))
}

/// Every algorithm that is defined for `collective` over `ranks` ranks, with a choice of parameters where there are
/// many.
pub fn algorithms(collective: Collective, ranks: u32) -> Vec<Algorithm> {
    let mut all = vec![
        Algorithm::Tree,
        Algorithm::Doubling,
        Algorithm::HalvingDoubling,
        Algorithm::Pat,
        Algorithm::TwoShot,
        Algorithm::Pairwise,
        Algorithm::Spread,
        Algorithm::Binomial,
        Algorithm::ScatterAllGather,
        Algorithm::Swing,
        Algorithm::Coordinated,
    ];
    for channels in 1..=3 {
        all.extend([false, true].map(|bidirectional| Algorithm::Ring { channels, bidirectional }));
    }
    all.extend((2..=4).map(|radix| Algorithm::Bruck { radix }));
    all.extend((0..ranks).map(|first| Algorithm::Direct { first }));
    for per_box in 1..=ranks {
        all.extend([
            Algorithm::Hierarchical { per_box },
            Algorithm::BoxTree { per_box },
            Algorithm::BoxChain { per_box, first: 0 },
            Algorithm::BoxChain { per_box, first: per_box - 1 },
            Algorithm::TwoLevel { per_box },
            Algorithm::Rails { per_box, channels: 1 },
            Algorithm::Rails { per_box, channels: 3 },
            Algorithm::RailTrees { per_box, trees: 1, first: 0 },
            Algorithm::RailTrees { per_box, trees: 2, first: per_box - 1 },
        ]);
        let columns = per_box as u16;
        for rows in 1..=ranks as u16 / columns {
            let along = ranks as u16 / columns / rows;
            all.push(Algorithm::BlueConnect { dimensions: [columns, rows, along, 1] });
        }
    }
    all.retain(|algorithm| algorithm.is_defined(collective, ranks));
    all
}

/// One call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Case {
    /// The collective.
    pub collective: Collective,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The type of the elements.
    pub data_type: DataType,
    /// The fold, for collectives that have one.
    pub fold: Fold,
    /// Elements of a block.
    pub count: usize,
    /// The root of rooted collectives.
    pub root: u32,
    /// Whether input and output are the same memory.
    pub in_place: bool,
}

impl Case {
    fn call(&self, key: u64, rank: u32) -> Call {
        let Case { collective, data_type, fold, count, root, .. } = *self;
        let call = call_of(collective, data_type, fold.op(), count, root);
        fold.scaling(call, scalar_of(data_type, key, rank))
    }
}

/// The call of a collective; `op` and `root` are of those that have one.
pub(crate) fn call_of(
    collective: Collective,
    data_type: DataType,
    op: ReduceOp,
    count: usize,
    root: u32,
) -> Call {
    match collective {
        Collective::AllReduce => Call::all_reduce(data_type, op, count),
        Collective::Reduce => Call::reduce(data_type, op, count, root),
        Collective::Broadcast => Call::broadcast(data_type, count, root),
        Collective::AllGather => Call::all_gather(data_type, count),
        Collective::ReduceScatter => Call::reduce_scatter(data_type, op, count),
        Collective::AllToAll => Call::all_to_all(data_type, count),
        Collective::AllToAllReplicated { group } => Call::all_to_all_replicated(data_type, count, group),
        Collective::Gather => Call::gather(data_type, count, root),
        Collective::Scatter => Call::scatter(data_type, count, root),
        Collective::SendReceive => panic!("no collective"),
    }
}

/// The cases that are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// The seed of the draws.
    pub seed: u64,
    /// One algorithm in this many is drawn; 1 for all.
    pub one_of: u64,
    /// Whether every type comes with every count, operator and root, in place and not.
    pub all: bool,
}

impl Draw {
    /// The algorithms that are drawn, with the seeds of their cases.
    fn algorithms(&self, collective: Collective, ranks: u32) -> Vec<(Algorithm, u64)> {
        let number = match collective {
            Collective::AllToAllReplicated { group } => 1 << 32 | u64::from(group),
            other => other.number().map_or(0, |number| number as u64),
        };
        let mut random = Random::new(self.seed ^ u64::from(ranks) << 8 ^ number);
        let seeded = algorithms(collective, ranks).into_iter().map(|algorithm| (algorithm, random.draw()));
        seeded.filter(|(_, seed)| seed.is_multiple_of(self.one_of)).collect()
    }

    /// The cases of one collective, the same on all ranks; in parts, by algorithm.
    pub fn cases(&self, collective: Collective, ranks: u32) -> Vec<Vec<Case>> {
        let of = |(algorithm, seed)| match self.all {
            true => every(collective, algorithm, ranks),
            false => some(collective, algorithm, ranks, &mut Random::new(seed)),
        };
        self.algorithms(collective, ranks).into_iter().map(of).collect()
    }
}

fn pick<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.draw() as usize % all.len()]
}

/// Some cases of an algorithm, the same for a seed.
pub fn drawn(collective: Collective, algorithm: Algorithm, ranks: u32, seed: u64) -> Vec<Case> {
    some(collective, algorithm, ranks, &mut Random::new(seed))
}

/// Every type with a sum, one with another operator, one with a scaled sum, and one long buffer.
fn some(collective: Collective, algorithm: Algorithm, ranks: u32, random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |data_type, fold, count, random: &mut Random| {
        let (root, in_place) = ((random.draw() % u64::from(ranks)) as u32, random.draw() & 1 == 1);
        cases.push(Case { collective, algorithm, data_type, fold, count, root, in_place });
    };
    for data_type in DataType::ALL {
        let count = pick(random, &SMALL);
        case(data_type, Fold::Plain(ReduceOp::Sum), count, random);
    }
    if collective.reduces() {
        let others = [ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];
        let (data_type, op) = (pick(random, &DataType::ALL), pick(random, &others));
        if is_exact(data_type, op) {
            case(data_type, Fold::Plain(op), 1001, random);
        }
        let (data_type, count) = (pick(random, &DataType::ALL), pick(random, &SMALL[1..]));
        case(data_type, Fold::Scaled, count, random);
    }
    let data_type = pick(random, &DataType::ALL);
    let long = if random.draw().is_multiple_of(8) { longest(collective, data_type, ranks) } else { LONG };
    // Blocks of all ranks are long enough together.
    let long = long / (collective.input_blocks(ranks).max(collective.output_blocks(ranks)) as usize);
    case(data_type, Fold::Plain(ReduceOp::Sum), long, random);
    cases
}

/// Elements of all pieces of a block (an all-reduce may have one for every rank), each of more than four slots.
fn longest(collective: Collective, data_type: DataType, ranks: u32) -> usize {
    let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks)) as usize;
    let pieces = if collective == Collective::AllReduce { ranks as usize } else { blocks };
    pieces * FOUR_SLOTS / data_type.size()
}

/// Every case.
fn every(collective: Collective, algorithm: Algorithm, ranks: u32) -> Vec<Case> {
    let mut cases = Vec::new();
    let has_root = matches!(
        collective,
        Collective::Reduce | Collective::Broadcast | Collective::Gather | Collective::Scatter
    );
    for data_type in DataType::ALL {
        let all = ReduceOp::ALL.into_iter().map(Fold::Plain).chain([Fold::Scaled]);
        let folds = all.filter(|fold| match collective.reduces() {
            true => is_exact(data_type, *fold),
            false => *fold == Fold::Plain(ReduceOp::Sum),
        });
        for fold in folds {
            for root in 0..if has_root { ranks } else { 1 } {
                let counts = SMALL.into_iter().chain((root == 0).then_some(LONG));
                let longest = (root == 0 && fold == Fold::Plain(ReduceOp::Sum))
                    .then(|| longest(collective, data_type, ranks) / collective.input_blocks(ranks) as usize);
                for count in counts.chain(longest) {
                    for in_place in [false, true] {
                        cases.push(Case { collective, algorithm, data_type, fold, count, root, in_place });
                    }
                }
            }
        }
    }
    cases
}

/// One rank's knowledge of all contents.
#[derive(Debug)]
pub struct Known {
    key: u64,
    patterns: HashMap<(DataType, Option<Fold>, Option<u32>), Rc<Pattern>>,
}

impl Known {
    /// Contents that follow from a number.
    pub fn new(key: u64) -> Self {
        Known { key, patterns: HashMap::new() }
    }

    fn of(&mut self, data_type: DataType, fold: Option<Fold>, rank: u32) -> Rc<Pattern> {
        let key = self.key;
        let make = || match fold {
            Some(fold) => Pattern::contribution(data_type, fold, key, rank),
            None => Pattern::any(data_type, key, rank),
        };
        self.patterns.entry((data_type, fold, Some(rank))).or_insert_with(|| Rc::new(make())).clone()
    }

    fn reduced(&mut self, data_type: DataType, fold: Fold, size: u32) -> Rc<Pattern> {
        let key = self.key;
        let make = || Rc::new(Pattern::reduced(data_type, fold, key, size));
        self.patterns.entry((data_type, Some(fold), None)).or_insert_with(make).clone()
    }

    /// The input of a case on `rank`.
    fn input(&mut self, case: &Case, rank: u32, size: u32) -> Vec<u8> {
        let fold = case.collective.reduces().then_some(case.fold);
        let elements = case.call(self.key, rank).input_bytes(rank, size) / case.data_type.size();
        // The ranks of a group pass the same.
        let origin = case.collective.origin(consort::planning::Rank(rank)).0;
        self.of(case.data_type, fold, origin).buffer(elements)
    }

    /// The expected output.
    fn output(&mut self, case: &Case, rank: u32, size: u32) -> Vec<u8> {
        let Case { collective, data_type, fold, count, root, .. } = *case;
        let (bytes, all) = (count * data_type.size(), count * size as usize);
        let own = rank as usize * bytes..(rank as usize + 1) * bytes;
        if case.call(self.key, rank).output_bytes(rank, size) == 0 {
            return Vec::new();
        }
        match collective {
            Collective::AllReduce | Collective::Reduce => self.reduced(data_type, fold, size).buffer(count),
            Collective::ReduceScatter => self.reduced(data_type, fold, size).buffer(all)[own].to_vec(),
            Collective::Broadcast => self.of(data_type, None, root).buffer(count),
            Collective::Scatter => self.of(data_type, None, root).buffer(all)[own].to_vec(),
            Collective::AllToAll => (0..size)
                .flat_map(|from| self.of(data_type, None, from).buffer(all)[own.clone()].to_vec())
                .collect(),
            Collective::AllToAllReplicated { group } => (0..size / group)
                .flat_map(|of| {
                    let first = (rank / group * group) as usize * bytes;
                    let input = self.of(data_type, None, of * group).buffer(all);
                    input[first..first + group as usize * bytes].to_vec()
                })
                .collect(),
            _ => (0..size).flat_map(|from| self.of(data_type, None, from).buffer(count)).collect(),
        }
    }
}

/// Bytes between guards.
struct Guarded {
    bytes: Vec<u8>,
    at: usize,
    length: usize,
}

impl Guarded {
    /// A copy `at` bytes from the beginning of the allocation.
    fn new(inside: &[u8], at: usize) -> Self {
        let mut bytes = vec![GUARD; at + inside.len() + 19];
        bytes[at..at + inside.len()].copy_from_slice(inside);
        Guarded { bytes, at, length: inside.len() }
    }

    fn span(&mut self) -> SpanMut<'_> {
        SpanMut::of(&mut self.bytes).slice(self.at, self.length)
    }

    fn inside(&self) -> &[u8] {
        &self.bytes[self.at..self.at + self.length]
    }

    #[track_caller]
    fn assert_holds(&self, expected: &[u8], what: &str) {
        let differs = || self.inside().iter().zip(expected).position(|(one, other)| one != other);
        assert!(self.inside() == expected, "{what}: from byte {:?} of {}", differs(), self.length);
        self.assert_guarded(what);
    }

    #[track_caller]
    fn assert_guarded(&self, what: &str) {
        let around = self.bytes[..self.at].iter().chain(&self.bytes[self.at + self.length..]);
        assert!(around.copied().all(|byte| byte == GUARD), "{what}: bytes outside were written");
    }
}

/// Makes the call of a case.
///
/// # Errors
/// The call's.
///
/// # Panics
/// If a result is wrong, the input of a call that is not in place was written, or a byte around the buffers.
pub fn check(comm: &Communicator, known: &mut Known, case: &Case) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let (call, what) = (case.call(known.key, rank), format!("rank {rank} of {size}, {case:?}"));
    let (input, expected) = (known.input(case, rank, size), known.output(case, rank, size));
    let named = comm.with_algorithm(case.algorithm);
    // Away from every natural alignment now and then.
    let shift = case.count % 2 * 3;
    let is_exchange = matches!(case.collective, Collective::AllToAll | Collective::AllToAllReplicated { .. });
    let apart = !case.in_place || is_exchange;
    if apart || input.is_empty() || expected.is_empty() {
        let mut from = Guarded::new(&input, shift);
        let mut to = Guarded::new(&vec![!GUARD; expected.len()], 2 * shift);
        named.execute(&call, from.span().read(), to.span())?;
        to.assert_holds(&expected, &what);
        from.assert_holds(&input, &format!("the input of {what}"));
        return Ok(());
    }
    // The smaller one is this rank's block of the larger one; all of it where they are as long.
    let block = rank as usize * input.len().min(expected.len());
    let (mut whole, own) = match input.len().cmp(&expected.len()) {
        std::cmp::Ordering::Equal => (input.clone(), 0..input.len()),
        std::cmp::Ordering::Less => (vec![!GUARD; expected.len()], block..block + input.len()),
        std::cmp::Ordering::Greater => (input.clone(), block..block + expected.len()),
    };
    if input.len() < expected.len() {
        whole[own.clone()].copy_from_slice(&input);
    }
    let mut both = Guarded::new(&whole, shift);
    let span = both.span();
    let own_span = span.slice(own.start, own.len());
    match input.len().cmp(&expected.len()) {
        std::cmp::Ordering::Greater => named.execute(&call, span.read(), own_span)?,
        _ => named.execute(&call, own_span.read(), span)?,
    }
    if case.collective == Collective::ReduceScatter {
        // The other blocks may be overwritten.
        assert!(both.inside()[own] == expected, "{what}");
        both.assert_guarded(&what);
        return Ok(());
    }
    // Bytes beside the result stay as they were.
    if expected.len() < input.len() {
        whole[own].copy_from_slice(&expected);
    } else {
        whole = expected;
    }
    both.assert_holds(&whole, &what);
    Ok(())
}

/// Makes the calls of these cases, whose contents follow from a number.
///
/// # Errors
/// Those of the calls.
///
/// # Panics
/// As [`check`].
pub fn check_all(comm: &Communicator, key: u64, cases: &[Case]) -> Result<()> {
    let mut known = Known::new(key);
    cases.iter().try_for_each(|case| check(comm, &mut known, case))
}

/// All cases of a draw.
///
/// # Errors
/// Those of the calls.
///
/// # Panics
/// As [`check`].
pub fn everything(comm: &Communicator, draw: &Draw) -> Result<()> {
    for collective in collectives_over(comm.size()) {
        check_all(comm, draw.seed, &draw.cases(collective, comm.size()).concat())?;
    }
    Ok(())
}
