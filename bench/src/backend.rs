//! The library behind [`Group`]: the only place that knows its calls on memory of the host.
//!
//! Invariant: an error of the library keeps its text, which names ranks; a missed deadline has an exit code of its own.

use std::sync::Arc;

use consort::planning::{Algorithm, Planning};
use consort::{
    Blocks, Call, CallV, Communicator, DataType, Error, Launch, Options, Rank, Span, SpanMut, UniqueId,
};

use crate::arguments::Settings;
use crate::collective::{Collective, Work};
use crate::failure::{Exit, Failure};
use crate::group::{Buffers, Group, Repeat};

/// The bytes that all ranks of a job share.
pub(crate) type Id = [u8; 128];

/// A rank of a communicator.
pub(crate) struct Member {
    comm: Arc<Communicator>,
    /// The algorithm of its collectives; `None` where the selector chooses.
    algorithm: Option<Algorithm>,
}

/// An error of the library.
pub(crate) fn failure(error: Error) -> Failure {
    let exit = match &error {
        Error::Timeout { .. } | Error::MissingRanks { .. } => Exit::Timeout,
        _ => Exit::Library,
    };
    Failure::new(exit, error.to_string())
}

impl Member {
    fn of(comm: Communicator) -> Self {
        Member { comm: Arc::new(comm), algorithm: None }
    }

    /// The same rank, with one algorithm for its collectives in place of the selector's.
    pub(crate) fn by(&self, algorithm: Algorithm) -> Self {
        self.with_algorithm(Some(algorithm))
    }

    /// The same rank, with the algorithm that the settings name, if they name one.
    pub(crate) fn with_algorithm(&self, algorithm: Option<Algorithm>) -> Self {
        Member { comm: Arc::clone(&self.comm), algorithm }
    }

    /// The communicator.
    pub(crate) fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// What the communicator's selector chooses by.
    pub(crate) fn planning(&self) -> &Planning {
        self.comm.planning()
    }

    /// The failure of a call; after a missed deadline with what every rank was doing.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        let report = matches!(error, Error::Timeout { .. }).then(|| self.comm.last_report()).flatten();
        let failure = failure(error);
        match report {
            Some(report) => Failure::new(failure.exit, format!("{failure}\n{report}")),
            None => failure,
        }
    }
}

/// The library's options that the settings give.
pub(crate) fn options(settings: &Settings) -> Options {
    match settings.timeout {
        Some(timeout) => Options::default().timeout(timeout).join_timeout(timeout),
        None => Options::default(),
    }
}

/// A new job, whose meeting place lives in this process; keep the guard until the job is over.
pub(crate) fn create() -> Result<(Id, UniqueId), Failure> {
    let id = UniqueId::create().map_err(failure)?;
    Ok((id.to_bytes(), id))
}

/// Joins as a process of a job that [`create`] began.
pub(crate) fn join(rank: u32, size: u32, id: &Id, options: &Options) -> Result<Member, Failure> {
    let id = UniqueId::from_bytes(id).map_err(failure)?;
    Communicator::join_with(rank, size, &id, options).map(Member::of).map_err(failure)
}

/// All ranks in this process.
pub(crate) fn local(size: u32, options: &Options) -> Result<Vec<Member>, Failure> {
    let all = Communicator::local_with(size, options).map_err(failure)?;
    Ok(all.into_iter().map(Member::of).collect())
}

/// The ranks that the launcher's variables describe, if there is a launcher.
pub(crate) fn detect() -> Result<Option<Launch>, Failure> {
    Launch::detect().map_err(failure)
}

/// Joins as the launcher says.
pub(crate) fn launched(options: &Options) -> Result<Member, Failure> {
    Communicator::from_launcher_with(options).map(Member::of).map_err(failure)
}

impl Group for Member {
    fn rank(&self) -> u32 {
        self.comm.rank()
    }

    fn size(&self) -> u32 {
        self.comm.size()
    }

    fn ready(
        &self,
        work: &Work,
        buffers: Buffers<'_>,
        body: &mut dyn FnMut(&mut Repeat<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let named = self.algorithm.map(|algorithm| self.comm.with_algorithm(algorithm));
        let comm = named.as_deref().unwrap_or(&self.comm);
        let mut with = |call: &mut dyn FnMut() -> consort::Result<()>| {
            body(&mut |times| (0..times).try_for_each(|_| call()).map_err(|error| self.failure(error)))
        };
        match work.collective {
            collective if collective.varies() => blocks(comm, work, buffers, &mut with),
            _ => whole(comm, work, buffers, &mut with),
        }
    }

    fn algorithm(&self, work: &Work) -> Option<String> {
        let collective = work.collective.planned()?;
        let algorithm = match self.algorithm {
            Some(algorithm) => algorithm,
            None => {
                let block_bytes = work.shape.count * work.data_type.size();
                self.comm.explain(collective, block_bytes as u64).ok()?.chosen()?.algorithm
            }
        };
        Some(algorithm.to_string())
    }

    fn barrier(&self) -> Result<(), Failure> {
        self.comm.barrier().map_err(|error| self.failure(error))
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut all = vec![0u8; mine.len() * self.size() as usize];
        let call = Call::all_gather(DataType::Uint8, mine.len());
        self.comm
            .execute(&call, Span::of(mine), SpanMut::of(&mut all))
            .map_err(|error| self.failure(error))?;
        Ok(all)
    }

    fn memory_bytes(&self) -> Result<usize, Failure> {
        self.comm.memory_bytes().map_err(|error| self.failure(error))
    }
}

/// Runs a call that stands ready.
pub(crate) type With<'a> = dyn FnMut(&mut dyn FnMut() -> consort::Result<()>) -> Result<(), Failure> + 'a;

fn spans<'a>(buffers: Buffers<'a>) -> (Span<'a>, SpanMut<'a>) {
    match buffers {
        Buffers::Apart { input, output } => (Span::of(input), SpanMut::of(output)),
        Buffers::Together { memory, input, output } => {
            let memory = SpanMut::of(memory);
            (memory.read().slice(input.start, input.len()), memory.slice(output.start, output.len()))
        }
    }
}

/// The call of `rank`; nothing where the work is made of messages or its blocks differ.
pub(crate) fn call(work: &Work, rank: Rank) -> Option<Call> {
    let (data_type, count, root) = (work.data_type, work.shape.count, work.root);
    let (op, scaling) = (work.op.folds_with(), |call| work.op.scaling(call, data_type, rank));
    Some(match work.collective {
        Collective::AllReduce => scaling(Call::all_reduce(data_type, op, count)),
        Collective::Reduce => scaling(Call::reduce(data_type, op, count, root)),
        Collective::Broadcast => Call::broadcast(data_type, count, root),
        Collective::AllGather => Call::all_gather(data_type, count),
        Collective::ReduceScatter => scaling(Call::reduce_scatter(data_type, op, count)),
        Collective::AllToAll => Call::all_to_all(data_type, count),
        Collective::Gather => Call::gather(data_type, count, root),
        Collective::Scatter => Call::scatter(data_type, count, root),
        _ => return None,
    })
}

/// The calls that know no blocks, or blocks of one length.
fn whole(comm: &Communicator, work: &Work, buffers: Buffers<'_>, with: &mut With<'_>) -> Result<(), Failure> {
    let (input, output) = spans(buffers);
    let (rank, size, data_type) = (comm.rank(), comm.size(), work.data_type);
    if let Some(call) = call(work, rank) {
        return with(&mut || comm.execute(&call, input, output));
    }
    if work.collective == Collective::HyperCube {
        return with(&mut || hypercube(comm, data_type, input, output));
    }
    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    with(&mut || comm.exchange(data_type, input, to, output, from))
}

/// An all-gather as nccl-tests makes it: in each round a rank sends all that it has to the rank across the next
/// dimension, and receives as much.
fn hypercube(
    comm: &Communicator,
    data_type: DataType,
    input: Span<'_>,
    output: SpanMut<'_>,
) -> consort::Result<()> {
    let (rank, bytes) = (comm.rank(), input.len());
    let blocks = |first: Rank, count: u32| output.slice(first as usize * bytes, count as usize * bytes);
    let own = blocks(rank, 1);
    if own.as_mut_ptr().cast_const() != input.as_ptr() {
        own.copy_from(input);
    }
    (0..comm.size().ilog2()).map(|dimension| 1 << dimension).try_for_each(|across: u32| {
        let first = rank & !(across - 1);
        let (mine, theirs) = (blocks(first, across), blocks(first ^ across, across));
        comm.exchange(data_type, mine.read(), rank ^ across, theirs, rank ^ across)
    })
}

/// How long the blocks of a rank's call are, where they differ.
pub(crate) struct Lengths {
    rank: Rank,
    counts: Vec<usize>,
    sent: Vec<usize>,
    received: Vec<usize>,
}

impl Lengths {
    pub(crate) fn new(work: &Work, rank: Rank, size: u32) -> Self {
        let (cut, own, ranks) = (work.cut(size), rank as usize, 0..size as usize);
        Lengths {
            rank,
            counts: cut.counts(),
            sent: ranks.clone().map(|to| cut.message(own, to)).collect(),
            received: ranks.map(|from| cut.message(from, own)).collect(),
        }
    }

    /// The rank's call.
    pub(crate) fn call(&self, work: &Work) -> CallV<'_> {
        let (data_type, root) = (work.data_type, work.root);
        let (all, own) = (Blocks::from(&self.counts), self.counts[self.rank as usize]);
        match work.collective {
            Collective::AllGatherV => CallV::all_gather(data_type, all),
            Collective::ReduceScatterV => {
                let call = CallV::reduce_scatter(data_type, work.op.folds_with(), all);
                match work.op.scalar(data_type, self.rank) {
                    Some(scalar) => call.scaled_by(scalar),
                    None => call,
                }
            }
            Collective::GatherV => CallV::gather(data_type, own, all, root),
            Collective::ScatterV => CallV::scatter(data_type, all, own, root),
            _ => CallV::all_to_all(data_type, Blocks::from(&self.sent), Blocks::from(&self.received)),
        }
    }
}

/// The calls on blocks that differ.
fn blocks(
    comm: &Communicator,
    work: &Work,
    buffers: Buffers<'_>,
    with: &mut With<'_>,
) -> Result<(), Failure> {
    let (input, output) = spans(buffers);
    let lengths = Lengths::new(work, comm.rank(), comm.size());
    let call = lengths.call(work);
    with(&mut || comm.execute_v(&call, input, output))
}
