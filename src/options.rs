//! What a communicator can be told, and where each value came from.
//!
//! Precedence: `CONSORT_*` in the environment, then [`Options`], then the default. The environment is read
//! once, when the communicator is made, and never changed.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::planner::{Determinism, Preferences, Wishes};
use crate::recorder::RECORDS;

/// Slots of every mailbox. A power of two, and not more than a counter has tags.
pub(crate) const SLOTS: u32 = 4;
/// The longest slot, in bytes.
pub(crate) const SLOT_BYTES_MAX: usize = 512 << 10;
/// The shortest slot, in bytes.
pub(crate) const SLOT_BYTES_MIN: usize = 16 << 10;
/// Changes with every change of what travels between ranks.
pub(crate) const WIRE_VERSION: u32 = 4;
/// Changes with every change of what the planner chooses for the same call.
pub(crate) const PLANNER_VERSION: u32 = 2;

/// Operations that the flight record holds when a trace is wanted, and the most that can be asked for.
const TRACE_RECORDS: usize = 1 << 16;
const TRACE_RECORDS_MAX: usize = 1 << 22;

/// As good as never, and still a time that can be added to any other.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How ranks may be linked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum TransportChoice {
    /// In-process memory, shared memory on a host, TCP between hosts.
    #[default]
    Auto,
    /// Only memory: fails where two ranks share no host.
    SharedMemory,
    /// TCP between all ranks, also on one host.
    Tcp,
}

impl TransportChoice {
    pub(crate) fn name(self) -> &'static str {
        match self {
            TransportChoice::Auto => "auto",
            TransportChoice::SharedMemory => "shm",
            TransportChoice::Tcp => "tcp",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [TransportChoice::Auto, TransportChoice::SharedMemory, TransportChoice::Tcp]
            .into_iter()
            .find(|c| c.name() == text)
    }
}

/// Settings of a communicator. What is not set keeps its default.
///
/// ```
/// use std::time::Duration;
/// let options = consort::Options::default().timeout(Duration::from_secs(60));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct Options {
    timeout: Option<Duration>,
    join_timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
    report_after: Option<Duration>,
    transport: Option<TransportChoice>,
    channels: Option<u16>,
    bidirectional: Option<bool>,
    slot_bytes: Option<usize>,
    flight_record: Option<PathBuf>,
    trace: Option<PathBuf>,
    trace_events: Option<usize>,
    planner: Wishes,
}

impl Options {
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
    /// [`Communicator::last_report`](crate::Communicator::last_report), long before it fails
    /// (`CONSORT_REPORT_AFTER`, seconds; default 60 s).
    pub fn report_after(mut self, time: Duration) -> Self {
        self.report_after = Some(time);
        self
    }

    /// How ranks may be linked (`CONSORT_TRANSPORT`: `auto`, `shm` or `tcp`). Must be equal on all ranks.
    pub fn transport(mut self, choice: TransportChoice) -> Self {
        self.transport = Some(choice);
        self
    }

    /// Streams side by side between neighbours (`CONSORT_CHANNELS`, 1 to 16; default 1). Must be equal on all
    /// ranks.
    pub fn channels(mut self, channels: u16) -> Self {
        self.channels = Some(channels);
        self
    }

    /// Whether half of the data goes round the ring the other way (`CONSORT_BIDIRECTIONAL`, 0 or 1; default
    /// 0). Must be equal on all ranks.
    pub fn bidirectional(mut self, on: bool) -> Self {
        self.bidirectional = Some(on);
        self
    }

    /// Bytes of one slot of the staging pipeline (`CONSORT_SLOT_BYTES`, a power of two from 16 KiB to 512 KiB;
    /// default by size). Must be equal on all ranks.
    pub fn slot_bytes(mut self, bytes: usize) -> Self {
        self.slot_bytes = Some(bytes);
        self
    }

    /// A directory to which a communicator that fails writes its flight record, as
    /// `consort-<communicator>-rank<r>.json`, with the error's text and, if there is one, the report that explains
    /// it (`CONSORT_FLIGHT_RECORD`; default none). It holds 4096 operations at most, and is written once, by the first call that returns the failure
    /// or else when the communicator is closed; what cannot be written is a warning.
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

    /// How many operations of a communicator are kept for the trace and the flight record, rounded up to a power
    /// of two, at 48 bytes each (`CONSORT_TRACE_EVENTS`, 1 to 4194304, 128 at least; default 65536 with a trace,
    /// 128 without).
    pub fn trace_events(mut self, events: usize) -> Self {
        self.trace_events = Some(events);
        self
    }
}

impl Options {
    /// Which algorithms may be chosen (`CONSORT_ALGO`, or `NCCL_ALGO` with NCCL's names; default all):
    /// `ring,tree`, `^tree`, `all_reduce:tree;broadcast:ring`. A call for which none is left is
    /// [`Error::InvalidArgument`] and lists what is possible. Must be equal on all ranks.
    pub fn algorithms(mut self, names: impl Into<String>) -> Self {
        self.planner.algorithms = Some(names.into());
        self
    }

    /// What the bits of results may depend on (`CONSORT_DETERMINISM`: `run` or `invariant`; default
    /// [`Determinism::Run`]). Must be equal on all ranks.
    pub fn determinism(mut self, determinism: Determinism) -> Self {
        self.planner.determinism = Some(determinism);
        self
    }

    /// The machine on which algorithms are priced (`CONSORT_TOPOLOGY`): a profile such as `dgx-h100:2`, or a
    /// file; default what the ranks say of their hosts. Used where it has as many ranks as the communicator. Must
    /// be equal on all ranks.
    pub fn topology(mut self, name: impl Into<String>) -> Self {
        self.planner.topology = Some(name.into());
        self
    }

    /// A table of measurements that `collbench tune` wrote (`CONSORT_TUNING`; default the file beside the
    /// topology's, with `.tuning` appended). What it says is preferred to prices; a table of another version or
    /// machine is ignored with a warning. Must be equal on all ranks.
    pub fn tuning(mut self, file: impl Into<PathBuf>) -> Self {
        self.planner.tuning = Some(file.into());
        self
    }
}

/// [`Options`] and environment, resolved and checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) join_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) report_after: Duration,
    /// Operations that the flight record holds.
    pub(crate) records: usize,
    pub(crate) transport: TransportChoice,
    pub(crate) channels: u16,
    pub(crate) bidirectional: bool,
    pub(crate) slot_bytes: Option<usize>,
    /// The directory for flight records, and the file for the trace.
    pub(crate) flight_record: Option<PathBuf>,
    pub(crate) trace: Option<PathBuf>,
    pub(crate) preferences: Preferences,
}

impl Settings {
    /// Reads the process's environment.
    pub(crate) fn resolve(options: &Options) -> Result<Self> {
        Self::resolve_from(options, &|name| std::env::var(name).ok())
    }

    pub(crate) fn resolve_from(options: &Options, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let duration = |name: &str, option: Option<Duration>, default: Duration| -> Result<Duration> {
            match lookup(name) {
                None if option == Some(Duration::ZERO) => Err(bad(name, "0", "longer than nothing")),
                None => Ok(option.unwrap_or(default).min(TIMEOUT_MAX)),
                Some(text) => text
                    .trim()
                    .parse::<f64>()
                    .ok()
                    .filter(|seconds| *seconds > 0.0 && *seconds < TIMEOUT_MAX.as_secs_f64())
                    .map(Duration::from_secs_f64)
                    // Less than a nanosecond is nothing.
                    .filter(|time| !time.is_zero())
                    .map(|time| time.max(Duration::from_millis(1)))
                    .ok_or_else(|| bad(name, &text, "a number of seconds greater than 0")),
            }
        };
        let transport = match lookup("CONSORT_TRANSPORT") {
            None => options.transport.unwrap_or_default(),
            Some(text) => TransportChoice::parse(text.trim())
                .ok_or_else(|| bad("CONSORT_TRANSPORT", &text, "one of auto, shm, tcp"))?,
        };
        let channels = match lookup("CONSORT_CHANNELS") {
            None => options.channels.unwrap_or(1),
            Some(text) => {
                text.trim().parse().map_err(|_| bad("CONSORT_CHANNELS", &text, "a number from 1 to 16"))?
            }
        };
        if !(1..=16).contains(&channels) {
            return Err(bad("CONSORT_CHANNELS", &channels.to_string(), "a number from 1 to 16"));
        }
        let bidirectional = match lookup("CONSORT_BIDIRECTIONAL").as_deref().map(str::trim) {
            None => options.bidirectional.unwrap_or(false),
            Some("0") => false,
            Some("1") => true,
            Some(text) => return Err(bad("CONSORT_BIDIRECTIONAL", text, "0 or 1")),
        };
        let slot_bytes = match lookup("CONSORT_SLOT_BYTES") {
            None => options.slot_bytes,
            Some(text) => Some(text.trim().parse().map_err(|_| bad("CONSORT_SLOT_BYTES", &text, SLOT_RULE))?),
        };
        if let Some(bytes) = slot_bytes
            && !(bytes.is_power_of_two() && (SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&bytes))
        {
            return Err(bad("CONSORT_SLOT_BYTES", &bytes.to_string(), SLOT_RULE));
        }
        // Of use although the program changes its directory. An empty value is as good as none.
        let path = |name: &str, option: &Option<PathBuf>| {
            let path = lookup(name).map(PathBuf::from).or_else(|| option.clone());
            let path = path.filter(|path| !path.as_os_str().is_empty());
            path.map(|path| std::path::absolute(&path).unwrap_or(path))
        };
        let flight_record = path("CONSORT_FLIGHT_RECORD", &options.flight_record);
        let trace = path("CONSORT_TRACE", &options.trace);
        let asked = match lookup("CONSORT_TRACE_EVENTS") {
            None => options.trace_events,
            Some(text) => {
                let number = text.trim().parse();
                Some(number.map_err(|_| bad("CONSORT_TRACE_EVENTS", &text, EVENTS_RULE))?)
            }
        };
        if let Some(events) = asked
            && !(1..=TRACE_RECORDS_MAX).contains(&events)
        {
            return Err(bad("CONSORT_TRACE_EVENTS", &events.to_string(), EVENTS_RULE));
        }
        let default_records = if trace.is_some() { TRACE_RECORDS } else { RECORDS };
        Ok(Settings {
            timeout: duration("CONSORT_TIMEOUT", options.timeout, Duration::from_secs(30 * 60))?,
            join_timeout: duration("CONSORT_JOIN_TIMEOUT", options.join_timeout, Duration::from_secs(300))?,
            connect_timeout: duration(
                "CONSORT_CONNECT_TIMEOUT",
                options.connect_timeout,
                Duration::from_secs(30),
            )?,
            report_after: duration("CONSORT_REPORT_AFTER", options.report_after, Duration::from_secs(60))?,
            records: asked.unwrap_or(default_records),
            transport,
            channels,
            bidirectional,
            slot_bytes,
            flight_record,
            trace,
            preferences: Preferences::resolve(&options.planner, lookup)?,
        })
    }

    /// What must be equal on all ranks, by name.
    pub(crate) fn agreed(&self) -> Vec<(String, String)> {
        let setting = |name: &str, value: String| (name.to_owned(), value);
        let mut agreed = vec![
            setting("consort version", env!("CARGO_PKG_VERSION").into()),
            setting("wire version", WIRE_VERSION.to_string()),
            setting("planner version", PLANNER_VERSION.to_string()),
            setting("byte order", if cfg!(target_endian = "little") { "little" } else { "big" }.into()),
            setting("longest slot", SLOT_BYTES_MAX.to_string()),
            setting("slots", SLOTS.to_string()),
            setting("transport", self.transport.name().into()),
            setting("channels", self.channels.to_string()),
            setting("bidirectional", self.bidirectional.to_string()),
            setting("slot bytes", self.slot_bytes.map_or("by size".into(), |bytes| bytes.to_string())),
        ];
        agreed.extend(self.preferences.agreed().map(|(name, value)| setting(name, value)));
        agreed
    }
}

const EVENTS_RULE: &str = "a number from 1 to 4194304";
const SLOT_RULE: &str = "a power of two from 16384 to 524288";

fn bad(name: &str, value: &str, rule: &str) -> Error {
    Error::invalid(format!("{name} is {value:?}"), format!("it must be {rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_wins_over_the_options() {
        let options = Options::default().timeout(Duration::from_secs(5)).channels(2);
        let lookup = |name: &str| (name == "CONSORT_TIMEOUT").then(|| "0.25".to_owned());
        let settings = Settings::resolve_from(&options, &lookup).expect("valid settings");
        assert_eq!(settings.timeout, Duration::from_millis(250));
        assert_eq!(settings.channels, 2);
        assert_eq!(settings.join_timeout, Duration::from_secs(300));
    }

    #[test]
    fn nonsense_is_named() {
        for (name, value) in [
            ("CONSORT_TIMEOUT", "soon"),
            ("CONSORT_TIMEOUT", "-1"),
            ("CONSORT_JOIN_TIMEOUT", "nan"),
            ("CONSORT_JOIN_TIMEOUT", "1e-20"),
            ("CONSORT_TRANSPORT", "pigeon"),
            ("CONSORT_CHANNELS", "0"),
            ("CONSORT_CHANNELS", "99"),
            ("CONSORT_BIDIRECTIONAL", "yes"),
            ("CONSORT_SLOT_BYTES", "100000"),
            ("CONSORT_SLOT_BYTES", "1048576"),
            ("CONSORT_TRACE_EVENTS", "many"),
            ("CONSORT_TRACE_EVENTS", "0"),
            ("CONSORT_TRACE_EVENTS", "-1"),
            ("CONSORT_TRACE_EVENTS", "4194305"),
        ] {
            let lookup = |asked: &str| (asked == name).then(|| value.to_owned());
            let error = Settings::resolve_from(&Options::default(), &lookup).expect_err(value).to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }

    #[test]
    fn a_trace_makes_the_ring_longer() {
        let resolved = |options: &Options, set: &[(&str, &str)]| {
            let lookup =
                |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            let settings = Settings::resolve_from(options, &lookup).expect("valid settings");
            (settings.records, settings.trace.is_some(), settings.flight_record.is_some())
        };
        let options = Options::default();
        assert_eq!(resolved(&options, &[]), (RECORDS, false, false));
        assert_eq!(resolved(&options, &[("CONSORT_TRACE", "t.json")]), (TRACE_RECORDS, true, false));
        assert_eq!(resolved(&options, &[("CONSORT_TRACE_EVENTS", " 500 ")]), (500, false, false));
        let options = options.trace("t.json").trace_events(9).flight_record("here");
        assert_eq!(resolved(&options, &[]), (9, true, true));
        assert_eq!(
            resolved(&options, &[("CONSORT_TRACE", ""), ("CONSORT_FLIGHT_RECORD", "")]),
            (9, false, false)
        );
    }
}
