//! Ranks with devices: threads of one process, and every collective on a device against the
//! same call on the host.
//!
//! Invariant: a case has the same bytes in host memory and on the device, guards included, and both must hold the
//! same bytes afterwards, wherever the call defines them. Absent: ranks after a failure.

use std::ops::Range;

use consort::device::{Device, DeviceBuffer, DeviceCommunicator, Path, Stream, group};
use consort::planning::{Algorithm, Collective};
use consort::{Call, Communicator, DataType, ReduceOp, Result, Scalar, Span, SpanMut};
use consort_kernels::{Reducer, Source, Store, Target};

use crate::matrix::{call_of, collectives};
use crate::pattern::Fold;
use crate::system::Random;

/// The content that no call may change.
const GUARD: u8 = 0xa5;
/// Bytes of guard on either side.
const GUARDS: usize = 64;
/// Elements: none, one, odd, several KiB.
const COUNTS: [usize; 4] = [0, 1, 37, 1537];

/// A rank with its device.
#[derive(Debug)]
pub struct Seat {
    /// The rank.
    pub comm: DeviceCommunicator,
    /// Its device.
    pub device: Device,
    /// Streams of the device.
    pub streams: [Stream; 2],
    /// Whether no other rank of this process has the device: short all-reduces are a kernel in packets then.
    is_alone: bool,
    /// The communicator with which the rank joined; dropping it closes the communicator, also on the device.
    _joined: Communicator,
}

impl Seat {
    /// Puts a rank, one of `here` of this process, on the next device in turn.
    ///
    /// # Errors
    /// The library's.
    pub fn new(joined: Communicator, here: u32) -> Result<Self> {
        let device = Device::open(joined.rank() % Device::count()?)?;
        let is_alone = here <= Device::count()?;
        let streams = [device.stream()?, device.stream()?];
        Ok(Seat { comm: joined.on_device(&device)?, device, streams, is_alone, _joined: joined })
    }

    /// The rank's communicator.
    pub fn host(&self) -> &Communicator {
        self.comm.communicator()
    }

    /// Its number and how many there are.
    pub fn place(&self) -> (u32, u32) {
        (self.host().rank(), self.host().size())
    }

    /// Waits for both streams; returns how their operations ended.
    ///
    /// # Errors
    /// The failure of an operation.
    pub fn finish(&self) -> Result<()> {
        self.streams.iter().try_for_each(Stream::synchronize)?;
        self.comm.synchronize()
    }
}

/// Runs `body` on each item, a thread each; returns the results in order.
///
/// # Panics
/// If one does.
pub fn each<T: Send, R: Send>(all: impl IntoIterator<Item = T>, body: impl Fn(T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|threads| {
        let body = &body;
        let threads: Vec<_> = all.into_iter().map(|one| threads.spawn(move || body(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// One call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Case {
    collective: Collective,
    data_type: DataType,
    fold: Fold,
    count: usize,
    root: u32,
    in_place: bool,
    /// Bytes by which the buffers are off their alignment.
    shifts: [usize; 2],
    /// Which stream it goes into.
    stream: usize,
    seed: u64,
    /// The algorithm that the call names.
    algorithm: Option<Algorithm>,
}

/// Every collective with every type and operator, one case in `one_of`, with sizes, roots, places and alignments that
/// are drawn; the same on all ranks.
pub fn cases(size: u32, seed: u64, one_of: u64) -> Vec<Case> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for collective in collectives() {
        for data_type in DataType::ALL {
            let folds: Vec<Fold> = match collective.reduces() {
                true => ReduceOp::ALL.into_iter().map(Fold::Plain).chain([Fold::Scaled]).collect(),
                false => vec![Fold::Plain(ReduceOp::Sum)],
            };
            for fold in folds {
                for count in COUNTS {
                    let mut number = |below: usize| random.draw() as usize % below;
                    // Away from every alignment now and then, and from the same one more often.
                    let shifts = [[0, 0], [4, 4], [16, 8], [1, 3]][number(4)];
                    let case = Case {
                        collective,
                        data_type,
                        fold,
                        count,
                        root: number(size as usize) as u32,
                        in_place: number(2) == 1 && collective != Collective::AllToAll,
                        shifts,
                        stream: number(2),
                        seed: random.draw(),
                        algorithm: None,
                    };
                    if random.draw().is_multiple_of(one_of) {
                        all.push(case);
                    }
                }
            }
        }
    }
    all
}

impl Case {
    /// A call on whole numbers, `count` of them in each block, in the first stream.
    pub fn plain(collective: Collective, count: usize, seed: u64) -> Self {
        Case {
            collective,
            data_type: DataType::Int32,
            fold: Fold::Plain(ReduceOp::Sum),
            count,
            root: 1,
            in_place: false,
            shifts: [0, 0],
            stream: 0,
            seed,
            algorithm: None,
        }
    }

    /// The same call by the algorithm that it names.
    pub fn by(self, algorithm: Algorithm) -> Self {
        Case { algorithm: Some(algorithm), ..self }
    }

    /// What the case is of; none where it moves nothing, so that no plan runs.
    pub fn collective(&self) -> Option<Collective> {
        (self.count > 0).then_some(self.collective)
    }

    fn call(&self, rank: u32) -> Call {
        let Case { collective, data_type, fold, count, root, .. } = *self;
        let call = call_of(collective, data_type, fold.op(), count, root);
        let scalar = Scalar::from_bytes(data_type, &self.bytes(!rank, data_type.size()));
        Call { algorithm: self.algorithm, ..fold.scaling(call, scalar.expect("one element")) }
    }

    /// Whether the order in which contributions are folded changes no bit.
    fn is_in_any_order(&self) -> bool {
        use DataType::{Int8, Int32, Int64, Uint8, Uint32, Uint64};
        let is_whole = matches!(self.data_type, Int8 | Uint8 | Int32 | Uint32 | Int64 | Uint64);
        !self.collective.reduces() || (is_whole && self.fold != Fold::Plain(ReduceOp::Avg))
    }

    /// Whether a path folds all contributions in one step, and so rounds once, where the host's direct exchange rounds
    /// after each.
    fn is_rounded_once(&self, seat: &Seat) -> bool {
        let (path, (_, size)) = (seat.comm.path(), seat.place());
        const PACKET_BYTES: usize = 32 << 10;
        let short =
            self.collective == Collective::AllReduce && self.count * self.data_type.size() <= PACKET_BYTES;
        let in_packets = path == Path::Kernels && seat.is_alone && short && self.algorithm.is_none();
        self.collective.reduces() && size > 1 && (path == Path::Fused || in_packets)
    }

    /// All contributions, folded in the order of ranks by the host's kernels in one step.
    fn folded_once(&self, size: u32) -> Vec<u8> {
        let contributions: Vec<Vec<u8>> = (0..size).map(|rank| self.contribution(rank, size)).collect();
        let mut folded = vec![0; contributions[0].len()];
        let reducer = Reducer::new(self.data_type, self.fold.op(), size);
        let raw = !matches!(self.fold, Fold::Scaled);
        let sources: Vec<Source<'_>> =
            contributions.iter().map(|bytes| Source { span: Span::of(bytes), raw }).collect();
        let target = Target { span: SpanMut::of(&mut folded), store: Store::Cached };
        reducer.fold(&[target], &sources, true);
        folded
    }

    /// A rank's contribution, multiplied by its scalar if it has one.
    fn contribution(&self, rank: u32, size: u32) -> Vec<u8> {
        let memory = self.memory(rank, size);
        let (of, range) = memory.input.clone();
        let bytes = memory.all[of].all[memory.all[of].within(&range)].to_vec();
        if !matches!(self.fold, Fold::Scaled) {
            return bytes;
        }
        let scalar = Scalar::from_bytes(self.data_type, &self.bytes(!rank, self.data_type.size()));
        let mut scaled = vec![0; bytes.len()];
        let target = Target { span: SpanMut::of(&mut scaled), store: Store::Cached };
        let source = Source { span: Span::of(&bytes), raw: true };
        Reducer::pre_mul_sum(scalar.expect("one element")).fold(&[target], &[source], true);
        scaled
    }

    /// Random bits; for the larger floats every other time numbers of about one size, whose sums round.
    fn bytes(&self, rank: u32, bytes: usize) -> Vec<u8> {
        let mut random = Random::new(self.seed ^ u64::from(rank) << 32);
        let tame = self.seed & 1 == 0;
        let word = |random: &mut Random| match (self.data_type, tame) {
            (DataType::Float32, true) => {
                let [one, other] = [random.draw(), random.draw()].map(|word| word as i32 as f32 * 1e-5);
                u64::from(one.to_bits()) << 32 | u64::from(other.to_bits())
            }
            (DataType::Float64, true) => (random.draw() as i64 as f64 * 1e-9).to_bits(),
            _ => random.draw(),
        };
        let words = (0..bytes.div_ceil(8)).flat_map(|_| word(&mut random).to_le_bytes());
        words.take(bytes).collect()
    }

    /// Its memory before the call, on a rank.
    fn memory(&self, rank: u32, size: u32) -> Memory {
        let block = self.count * self.data_type.size();
        let blocks = |number: u32| number as usize * block;
        let (input, output) =
            (blocks(self.collective.input_blocks(size)), blocks(self.collective.output_blocks(size)));
        let own = rank as usize * block..(rank as usize + 1) * block;
        if !self.in_place {
            let from = Bytes::new(&self.bytes(rank, input), self.shifts[0]);
            let to = Bytes::new(&self.bytes(rank ^ 0x8000_0000, output), self.shifts[1]);
            return Memory { all: vec![from, to], input: (0, 0..input), output: (1, 0..output) };
        }
        let both = Bytes::new(&self.bytes(rank, input.max(output)), self.shifts[0]);
        let part = |length: usize| if length < input.max(output) { own.clone() } else { 0..length };
        Memory { all: vec![both], input: (0, part(input)), output: (0, part(output)) }
    }
}

/// Bytes between guards.
#[derive(Clone)]
struct Bytes {
    all: Vec<u8>,
    at: usize,
}

impl Bytes {
    fn new(inside: &[u8], shift: usize) -> Self {
        let at = GUARDS + shift;
        let mut all = vec![GUARD; at + inside.len() + GUARDS];
        all[at..at + inside.len()].copy_from_slice(inside);
        Bytes { all, at }
    }

    fn within(&self, part: &Range<usize>) -> Range<usize> {
        self.at + part.start..self.at + part.end
    }
}

/// The bytes of each buffer, and the memory that holds them.
struct Memory {
    all: Vec<Bytes>,
    input: (usize, Range<usize>),
    output: (usize, Range<usize>),
}

/// A case that is ready for the call on the device.
pub struct Ready {
    case: Case,
    call: Call,
    /// The host's result.
    expected: Memory,
    on_device: Vec<DeviceBuffer<u8>>,
    input: DeviceBuffer<u8>,
    output: DeviceBuffer<u8>,
}

impl Ready {
    /// Makes the call on the host, and copies its arguments to the device.
    ///
    /// # Errors
    /// The library's.
    pub fn new(seat: &Seat, case: &Case) -> Result<Self> {
        let (rank, size) = seat.place();
        let (call, mut expected) = (case.call(rank), case.memory(rank, size));
        let on_device: Vec<_> =
            expected.all.iter().map(|bytes| seat.device.copy_of(&bytes.all)).collect::<Result<_>>()?;
        // The host's links fold in the order that the planner chooses for the same call on the host, kernels in the one that their
        // prices choose; all else from rank 0 on.
        let direct = Algorithm::Direct { first: 0 };
        let named = match seat.comm.path() {
            // Where any order of folds has the same bits, another schedule says what they are.
            _ if case.algorithm.is_some() => {
                let any = case.is_in_any_order() && direct.is_defined(case.collective, size);
                let algorithm = if any { Some(direct) } else { case.algorithm };
                algorithm.map(|algorithm| seat.host().with_algorithm(algorithm))
            }
            Path::Host => None,
            // Streams run plans of one lane.
            Path::Streams if case.collective == Collective::ReduceScatter && size > 2 => {
                Some(seat.host().with_algorithm(Algorithm::Ring { channels: 1, bidirectional: false }))
            }
            Path::Kernels if case.collective.reduces() => {
                let explained = seat.comm.explain(case.collective, case.count * case.data_type.size())?;
                explained.chosen().map(|chosen| seat.host().with_algorithm(chosen.algorithm))
            }
            _ => direct.is_defined(case.collective, size).then(|| seat.host().with_algorithm(direct)),
        };
        let comm = named.as_deref().unwrap_or(seat.host());
        let (from, to) = (expected.input.clone(), expected.output.clone());
        let parts = |memory: &Memory| {
            let part =
                |(of, bytes): &(usize, Range<usize>)| on_device[*of].slice(memory.all[*of].within(bytes));
            (part(&from), part(&to))
        };
        let (input, output) = parts(&expected);
        let [first, rest @ ..] = &mut expected.all[..] else { panic!("a case has memory") };
        let (from_at, to_at) = (first.within(&from.1), rest.first().unwrap_or(first).within(&to.1));
        let first = SpanMut::of(&mut first.all);
        let second = rest.first_mut().map_or(first, |rest| SpanMut::of(&mut rest.all));
        comm.execute(
            &call,
            first.slice(from_at.start, from_at.len()).read(),
            second.slice(to_at.start, to_at.len()),
        )?;
        if case.is_rounded_once(seat) {
            let folded = case.folded_once(size);
            let (of, range) = expected.output.clone();
            let block = case.count * case.data_type.size();
            let part = match case.collective {
                Collective::ReduceScatter => &folded[rank as usize * block..][..block],
                Collective::Reduce if rank != case.root => &[],
                _ => &folded[..],
            };
            let at = expected.all[of].within(&range).start;
            expected.all[of].all[at..at + part.len()].copy_from_slice(part);
        }
        Ok(Ready { case: *case, call, expected, on_device, input, output })
    }

    /// Makes the call alone.
    ///
    /// # Errors
    /// The library's.
    pub fn call(&self, seat: &Seat) -> Result<()> {
        seat.comm.execute(&self.call, &self.input, &self.output, &seat.streams[self.case.stream])
    }

    /// Compares the device's result.
    ///
    /// # Errors
    /// The library's.
    ///
    /// # Panics
    /// If it differs from the host's.
    pub fn check(&self, seat: &Seat) -> Result<()> {
        seat.finish()?;
        let (case, (rank, size)) = (&self.case, seat.place());
        for (nth, (bytes, device)) in self.expected.all.iter().zip(&self.on_device).enumerate() {
            let mut found = device.to_vec()?;
            // In place the other blocks may be overwritten.
            if case.collective == Collective::ReduceScatter && case.in_place {
                let (all, own) =
                    (bytes.within(&self.expected.input.1), bytes.within(&self.expected.output.1));
                for at in all.filter(|at| !own.contains(at)) {
                    found[at] = bytes.all[at];
                }
            }
            let differs = found.iter().zip(&bytes.all).position(|(found, expected)| found != expected);
            if let Some(at) = differs {
                let around = at..(at + 8).min(found.len());
                panic!(
                    "rank {rank} of {size} by {}, {case:?}: buffer {nth} differs from byte {} on: {:x?} instead of {:x?}",
                    seat.comm.path(),
                    at as isize - bytes.at as isize,
                    &found[around.clone()],
                    &bytes.all[around],
                );
            }
        }
        Ok(())
    }
}

/// Makes these calls on one rank, which has a thread of its own.
///
/// # Errors
/// The library's.
///
/// # Panics
/// If a result is wrong.
pub fn check_alone(seat: &Seat, cases: &[Case]) -> Result<()> {
    for case in cases {
        let ready = Ready::new(seat, case)?;
        ready.call(seat)?;
        ready.check(seat)?;
    }
    Ok(())
}

/// Makes these calls on all of `seats` in this thread: those of `together` cases in one group.
///
/// # Errors
/// The library's.
///
/// # Panics
/// If a result is wrong.
pub fn check_together(seats: &[Seat], cases: &[Case], together: usize) -> Result<()> {
    for cases in cases.chunks(together) {
        let ready = each(seats, |seat| cases.iter().map(|case| Ready::new(seat, case)).collect());
        let ready: Vec<Vec<Ready>> = ready.into_iter().collect::<Result<_>>()?;
        group(|group| {
            for (seat, ready) in seats.iter().zip(&ready) {
                for Ready { call, input, output, case, .. } in ready {
                    group.execute(&seat.comm, call, input, output, &seat.streams[case.stream])?;
                }
            }
            Ok(())
        })?;
        for (seat, ready) in seats.iter().zip(&ready) {
            ready.iter().try_for_each(|ready| ready.check(seat))?;
        }
    }
    Ok(())
}
