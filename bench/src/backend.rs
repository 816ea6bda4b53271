//! The library behind [`Group`]: the only place that knows its calls.
//!
//! Invariant: an error of the library keeps its text, which names ranks; missed deadlines are told apart from
//! other errors because they have an exit code of their own.

use consort::{Call, Communicator, DataType, Error, Launch, Options, Span, SpanMut, UniqueId};

use crate::arguments::Settings;
use crate::collective::{Collective, Work};
use crate::failure::{Exit, Failure};
use crate::group::{Buffers, Group};

/// The bytes that all ranks of a job share.
pub(crate) type Id = [u8; 128];

/// A rank of a communicator.
pub(crate) struct Member(Communicator);

fn failure(error: Error) -> Failure {
    let exit = match &error {
        Error::Timeout { .. } | Error::MissingRanks { .. } => Exit::Timeout,
        _ => Exit::Library,
    };
    Failure::new(exit, error.to_string())
}

impl Member {
    /// The failure of a call; after a missed deadline with what every rank was doing.
    fn failure(&self, error: Error) -> Failure {
        let report = matches!(error, Error::Timeout { .. }).then(|| self.0.last_report()).flatten();
        let failure = failure(error);
        match report {
            Some(report) => Failure::new(failure.exit, format!("{failure}\n{report}")),
            None => failure,
        }
    }
}

fn options(settings: &Settings) -> Options {
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
pub(crate) fn join(rank: u32, size: u32, id: &Id, settings: &Settings) -> Result<Member, Failure> {
    let id = UniqueId::from_bytes(id).map_err(failure)?;
    Communicator::join_with(rank, size, &id, &options(settings)).map(Member).map_err(failure)
}

/// All ranks in this process.
pub(crate) fn local(size: u32, settings: &Settings) -> Result<Vec<Member>, Failure> {
    let all = Communicator::local_with(size, &options(settings)).map_err(failure)?;
    Ok(all.into_iter().map(Member).collect())
}

/// What the launcher said, if there is one.
pub(crate) fn detect() -> Result<Option<Launch>, Failure> {
    Launch::detect().map_err(failure)
}

/// Joins as the launcher says.
pub(crate) fn launched(settings: &Settings) -> Result<Member, Failure> {
    Communicator::from_launcher_with(&options(settings)).map(Member).map_err(failure)
}

impl Group for Member {
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn size(&self) -> u32 {
        self.0.size()
    }

    fn repeat(&self, work: &Work, buffers: Buffers<'_>, times: u64) -> Result<(), Failure> {
        let (input, output) = match buffers {
            Buffers::Apart { input, output } => (Span::of(input), SpanMut::of(output)),
            Buffers::Together { memory, input, output } => {
                let memory = SpanMut::of(memory);
                (memory.read().slice(input.start, input.len()), memory.slice(output.start, output.len()))
            }
        };
        let (data_type, count, root) = (work.data_type, work.shape.count, work.root);
        let call = match work.collective {
            Collective::AllReduce => Call::all_reduce(data_type, work.op, count),
            Collective::Reduce => Call::reduce(data_type, work.op, count, root),
            Collective::Broadcast => Call::broadcast(data_type, count, root),
            Collective::AllGather => Call::all_gather(data_type, count),
            Collective::ReduceScatter => Call::reduce_scatter(data_type, work.op, count),
            Collective::SendRecv => {
                let (rank, size) = (self.rank(), self.size());
                let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
                for _ in 0..times {
                    self.0
                        .exchange(data_type, input, to, output, from)
                        .map_err(|error| self.failure(error))?;
                }
                return Ok(());
            }
        };
        for _ in 0..times {
            self.0.execute(&call, input, output).map_err(|error| self.failure(error))?;
        }
        Ok(())
    }

    fn barrier(&self) -> Result<(), Failure> {
        self.0.barrier().map_err(|error| self.failure(error))
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut all = vec![0u8; mine.len() * self.size() as usize];
        let call = Call::all_gather(DataType::Uint8, mine.len());
        self.0.execute(&call, Span::of(mine), SpanMut::of(&mut all)).map_err(|error| self.failure(error))?;
        Ok(all)
    }

    fn memory_bytes(&self) -> Result<usize, Failure> {
        self.0.memory_bytes().map_err(|error| self.failure(error))
    }
}
