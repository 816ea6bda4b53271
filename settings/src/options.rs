//! The settings of a communicator, and where each value came from.
//!
//! Precedence: `CONSORT_*` in the environment, then `NCCL_*`, then [`Options`], then a file of variables, then the
//! default (see `settings`). The environment is read when the communicator is made, and never changed.

mod named;
mod ports;
mod preferences;
mod rdma;
mod restriction;
mod schedules;
mod settings;
#[cfg(test)]
mod tests;
mod tuning;

use std::path::PathBuf;
use std::time::Duration;

use consort_algorithms::catalogue::{Algorithm, Imported};
use consort_algorithms::{LowerOptions, Schedule};
use consort_types::error::{Error, Result};

pub use named::{
    Exchanged, MACHINE_BYTES_MAX, Misfit, cpu_graph, gpu_graph, graph_for, machine, read_topology,
    read_topology_for,
};
pub use ports::PortRange;
pub use preferences::Determinism;
pub use preferences::{Preferences, Wishes, digest};
pub use rdma::{Adapters, Rdma};
pub use restriction::Source;
pub use settings::{RECORDS, Settings};
pub use tuning::{Tuning, TuningError, TuningLine};

/// Slots of every mailbox. A power of two, and not more than a counter has tags.
pub const SLOTS: u32 = 4;
/// The longest slot, in bytes.
pub const SLOT_BYTES_MAX: usize = 512 << 10;
/// The shortest slot, in bytes.
pub const SLOT_BYTES_MIN: usize = 16 << 10;
/// The version of everything that travels between ranks; raised with every change of it.
pub const WIRE_VERSION: u32 = 21;
/// The version of the planner's choices; raised where it chooses otherwise for the same call.
pub const PLANNER_VERSION: u32 = 16;

/// A deadline that never comes, and that can still be added to any other time.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How ranks may be linked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum TransportChoice {
    /// In-process memory, shared memory on a host, TCP between hosts.
    #[default]
    Auto,
    /// Only memory: joining fails where two ranks share no host.
    SharedMemory,
    /// TCP between all ranks, also on one host.
    Tcp,
    /// RDMA through verbs between all ranks, also on one host.
    Verbs,
    /// A network plugin of NCCL's between all ranks, also on one host.
    Plugin,
}

impl TransportChoice {
    /// The name in variables and error texts.
    pub fn name(self) -> &'static str {
        match self {
            TransportChoice::Auto => "auto",
            TransportChoice::SharedMemory => "shm",
            TransportChoice::Tcp => "tcp",
            TransportChoice::Verbs => "verbs",
            TransportChoice::Plugin => "plugin",
        }
    }

    /// Whether no link between ranks is through memory that both have mapped.
    pub fn is_by_messages(self) -> bool {
        matches!(self, TransportChoice::Tcp | TransportChoice::Verbs | TransportChoice::Plugin)
    }

    fn parse(text: &str) -> Option<Self> {
        use TransportChoice::{Auto, Plugin, SharedMemory, Tcp, Verbs};
        [Auto, SharedMemory, Tcp, Verbs, Plugin].into_iter().find(|c| c.name() == text)
    }
}

/// The cores to which the thread that joins as a rank is pinned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pinning {
    /// No pinning: the thread runs where it may.
    #[default]
    None,
    /// One core a rank.
    Cores,
    /// The cores of one domain: a last-level cache, or else a memory node.
    Domains,
}

impl Pinning {
    /// The name in variables and error texts.
    pub fn name(self) -> &'static str {
        match self {
            Pinning::None => "none",
            Pinning::Cores => "cores",
            Pinning::Domains => "domains",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Pinning::None, Pinning::Cores, Pinning::Domains].into_iter().find(|pinning| pinning.name() == text)
    }
}

/// Settings of a communicator. A setting that is not set has its default.
///
/// ```
/// use std::time::Duration;
/// let options = consort_settings::Options::default().timeout(Duration::from_secs(60));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct Options {
    timeout: Option<Duration>,
    join_timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
    report_after: Option<Duration>,
    path_lost_after: Option<Duration>,
    transport: Option<TransportChoice>,
    pinning: Option<Pinning>,
    channels: Option<u16>,
    channels_min: Option<u32>,
    channels_max: Option<u32>,
    network: Option<String>,
    bidirectional: Option<bool>,
    slot_bytes: Option<usize>,
    flight_record: Option<PathBuf>,
    trace: Option<PathBuf>,
    trace_events: Option<usize>,
    planner: Wishes,
    devices: bool,
    device_at: Option<String>,
}

impl Options {
    /// Whether this rank may use a device, for bindings that look for one by themselves.
    pub fn devices(mut self, wanted: bool) -> Self {
        self.devices = wanted;
        self
    }

    /// This rank uses the device at a PCI address (`0000:65:00.0`), as all ranks then know: where a job has some of its hosts' GPUs, it
    /// is planned on the graph of these. Default: other ranks do not know which it is.
    pub fn device_at(mut self, address: impl Into<String>) -> Self {
        (self.devices, self.device_at) = (true, Some(address.into()));
        self
    }

    /// How long an operation may take before it fails on all ranks (`CONSORT_TIMEOUT`, seconds; default 30
    /// minutes).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long joining may take before it fails (`CONSORT_JOIN_TIMEOUT`, seconds; default 300 s).
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = Some(timeout);
        self
    }

    /// How long making a data connection may take once both ranks have begun (`CONSORT_CONNECT_TIMEOUT`, seconds;
    /// default 30 s).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// After how long an operation that does not end is reported, once, as a warning and in
    /// `Communicator::last_report`, long before it fails (`CONSORT_REPORT_AFTER`, seconds; default 60 s).
    pub fn report_after(mut self, time: Duration) -> Self {
        self.report_after = Some(time);
        self
    }

    /// After how long one of several paths to a rank on another host that is down, while the others carry on, counts as lost. All ranks then
    /// plan for what is left, from one call on, until it has been back for as long (`CONSORT_PATH_LOST_AFTER`, seconds; default
    /// 30 s; `never`, or [`Duration::MAX`], leaves plans as they are).
    pub fn path_lost_after(mut self, time: Duration) -> Self {
        self.path_lost_after = Some(time);
        self
    }

    /// How ranks may be linked (`CONSORT_TRANSPORT`: `auto`, `shm`, `tcp`, `verbs` or `plugin`). Must be equal on all ranks.
    pub fn transport(mut self, choice: TransportChoice) -> Self {
        self.transport = Some(choice);
        self
    }

    /// Whether the thread that joins is pinned (`CONSORT_PIN`: `none`, `cores` or `domains`; default
    /// [`Pinning::None`]).
    ///
    /// The thread gets its share of the cores that it may run on already, by its number among the ranks of its host,
    /// so that neighbouring ranks are near each other. The launcher sets that number; without a launcher all ranks
    /// count as being on this host. The thread stays pinned until it ends or pins itself anew, also where the
    /// communicator is dropped: the library does not know when the thread no longer needs it. Threads that it starts
    /// later inherit its cores. If joining fails, the thread gets its old cores back; if the system refuses, that is
    /// a warning. Ranks that are made together by `Communicator::local` are not pinned, as their threads do not exist
    /// yet.
    pub fn pin(mut self, pinning: Pinning) -> Self {
        self.pinning = Some(pinning);
        self
    }

    /// The number of channels between neighbours (`CONSORT_CHANNELS`, 1 to 16; default 1). Must be equal on all
    /// ranks.
    pub fn channels(mut self, channels: u16) -> Self {
        self.channels = Some(channels);
        self
    }

    /// The least and the most channels, where their number is not set (`NCCL_MIN_CTAS`, `NCCL_MAX_CTAS` and their
    /// older names; default 1 and 16). A number above 16 counts as 16, and the most wins over the least. Must be
    /// equal on all ranks.
    pub fn channels_within(mut self, least: Option<u32>, most: Option<u32>) -> Self {
        (self.channels_min, self.channels_max) = (least, most);
        self
    }

    /// The network between hosts (`NCCL_NET`). Only `socket` exists, in upper or lower case. Another name is an error
    /// when the communicator is made.
    pub fn network(mut self, name: impl Into<String>) -> Self {
        self.network = Some(name.into());
        self
    }

    /// Whether half of the data goes round the ring in the other direction (`CONSORT_BIDIRECTIONAL`, 0 or 1; default
    /// 0). Must be equal on all ranks.
    pub fn bidirectional(mut self, on: bool) -> Self {
        self.bidirectional = Some(on);
        self
    }

    /// Bytes of one slot of the mailboxes (`CONSORT_SLOT_BYTES`, a power of two from 16 KiB to 512 KiB; default by
    /// size). Must be equal on all ranks.
    pub fn slot_bytes(mut self, bytes: usize) -> Self {
        self.slot_bytes = Some(bytes);
        self
    }

    /// A directory to which a communicator that fails writes its flight record, as
    /// `consort-<communicator>-rank<r>.json`, with the error's text and, if there is one, the hang report
    /// (`CONSORT_FLIGHT_RECORD`; default none). The file holds 4096 operations at most. It is written once, by the
    /// first call that returns the failure or else when the communicator is closed; a file that cannot be written is
    /// a warning.
    pub fn flight_record(mut self, directory: impl Into<PathBuf>) -> Self {
        self.flight_record = Some(directory.into());
        self
    }

    /// A file to which every communicator adds its operations when it is closed or has failed, as an array of
    /// Chrome trace events that Perfetto reads (`CONSORT_TRACE`; default none). All ranks of a host may write to
    /// the same file; times are those of the job's rank 0. Events of an earlier run stay in it.
    pub fn trace(mut self, file: impl Into<PathBuf>) -> Self {
        self.trace = Some(file.into());
        self
    }

    /// How many operations of a communicator are kept for the trace and the flight record (`CONSORT_TRACE_EVENTS`, 1
    /// to 4194304; default 65536 with a trace, 128 without). The number is rounded up to a power of two and is at
    /// least 128; an operation takes 48 bytes.
    pub fn trace_events(mut self, events: usize) -> Self {
        self.trace_events = Some(events);
        self
    }
}

/// A schedule as an algorithm of this process, for a communicator that has `others`.
///
/// # Errors
/// As [`Options::schedule`].
pub fn imported(schedule: Schedule, others: &[Imported]) -> Result<Imported> {
    let imported = Imported::new(schedule, &LowerOptions { slots: SLOTS })
        .map_err(|refused| Error::invalid(refused.to_string(), "correct the schedule or its name"))?;
    // Ranks compare the words of the algorithms that their calls name.
    let word = |of: Imported| Algorithm::Imported(of).word();
    match others.iter().find(|of| **of != imported && word(**of) == word(imported)) {
        None => Ok(imported),
        Some(other) => {
            let (one, other) = (imported.name(), other.name());
            let what = format!("the schedules {other:?} and {one:?} look alike to other ranks");
            Err(Error::invalid(what, "give one of them another name"))
        }
    }
}

impl Options {
    /// The algorithms that may be chosen (`CONSORT_ALGO`, or `NCCL_ALGO` with NCCL's names; default all):
    /// `ring,tree`, `^tree`, `all_reduce:tree;broadcast:ring`. A call for which none is left is
    /// [`Error::InvalidArgument`], which lists the possible ones. Must be equal on all ranks.
    pub fn algorithms(mut self, names: impl Into<String>) -> Self {
        self.planner.algorithms = Some(names.into());
        self
    }

    /// A schedule as data. It becomes a candidate for its collective on communicators of its number of ranks, beside
    /// the algorithms of the catalogue: it has a price, and `CONSORT_ALGO`, tuning tables and calls can name it. From
    /// then on [`Schedule::name`] means this schedule in the whole process, which keeps it. Ranks of rooted
    /// collectives are relative to the root. Must be equal on all ranks, also in the order of the calls.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the verifier refuses the schedule, with the reason, and where the
    /// name has another meaning.
    pub fn schedule(mut self, schedule: Schedule) -> Result<Self> {
        let imported = imported(schedule, &self.planner.schedules)?;
        if !self.planner.schedules.contains(&imported) {
            self.planner.schedules.push(imported);
        }
        Ok(self)
    }

    /// A directory whose files are schedules (`CONSORT_SCHEDULE_DIR`): XML of MSCCL (`.xml`) and execution plans of MSCCL++
    /// (`.json`), each by its file's name without the end, as by [`Options::schedule`], for the lengths that it names. A
    /// file that cannot be used is left out with a warning that names its line. What was accepted must be equal on all
    /// ranks.
    pub fn schedule_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.planner.schedule_directory = Some(directory.into());
        self
    }

    /// What the bits of results may depend on (`CONSORT_DETERMINISM`: `run` or `invariant`; default
    /// [`Determinism::Run`]). Must be equal on all ranks.
    pub fn determinism(mut self, determinism: Determinism) -> Self {
        self.planner.determinism = Some(determinism);
        self
    }

    /// The machine on which algorithms are priced (`CONSORT_TOPOLOGY`): a profile such as `dgx-h100:2`, or a file.
    /// The default is made of the ranks' table of hosts. It is used where it has as many ranks as the communicator.
    /// Must be equal on all ranks.
    pub fn topology(mut self, name: impl Into<String>) -> Self {
        self.planner.topology = Some(name.into());
        self
    }

    /// A table of measurements that `collbench tune` wrote (`CONSORT_TUNING`; default the file beside the topology's,
    /// with `.tuning` appended). The planner prefers its measurements to prices; a table of another version or
    /// machine is ignored with a warning. Must be equal on all ranks.
    pub fn tuning(mut self, file: impl Into<PathBuf>) -> Self {
        self.planner.tuning = Some(file.into());
        self
    }
}
