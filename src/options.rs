//! What a communicator can be told, and where each value came from.
//!
//! Precedence: `CONSORT_*` in the environment, then `NCCL_*`, then [`Options`], then a file of variables, then the
//! default (see `nccl::environment`). The environment is read when the communicator is made, and never changed.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::nccl::environment::{Environment, Origin, Resolved, Setting, Spelling, integer};
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
    channels_min: Option<u32>,
    channels_max: Option<u32>,
    network: Option<String>,
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

    /// The least and the most streams side by side, where nobody says how many exactly (`NCCL_MIN_CTAS`,
    /// `NCCL_MAX_CTAS` and their older names; default 1 and 16). What is beyond 16 counts as 16; the most wins over
    /// the least. Must be equal on all ranks.
    pub fn channels_within(mut self, least: Option<u32>, most: Option<u32>) -> Self {
        (self.channels_min, self.channels_max) = (least, most);
        self
    }

    /// The network between hosts (`NCCL_NET`): `socket`, in any case, is the only one there is. Another name is an
    /// error when the communicator is made.
    pub fn network(mut self, name: impl Into<String>) -> Self {
        self.network = Some(name.into());
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
        let environment = Environment::of_process();
        if let Some(trouble) = environment.trouble() {
            crate::report::warn(trouble);
        }
        Ok(Self::resolve_in(options, &environment)?.0)
    }

    /// The same from variables that `lookup` gives.
    #[cfg(test)]
    pub(crate) fn resolve_from(options: &Options, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        Ok(Self::resolve_in(options, &Environment::from_lookup(lookup))?.0)
    }

    /// The settings, and each by name with its origin.
    pub(crate) fn resolve_in(
        options: &Options,
        environment: &Environment<'_>,
    ) -> Result<(Self, Vec<Setting>)> {
        let mut read = Read { environment, settings: Vec::new() };
        network(options, environment)?;
        let timeout = read.duration("CONSORT_TIMEOUT", options.timeout, Duration::from_secs(30 * 60))?;
        let join_timeout =
            read.duration("CONSORT_JOIN_TIMEOUT", options.join_timeout, Duration::from_secs(300))?;
        let connect_timeout =
            read.duration("CONSORT_CONNECT_TIMEOUT", options.connect_timeout, Duration::from_secs(30))?;
        let report_after =
            read.duration("CONSORT_REPORT_AFTER", options.report_after, Duration::from_secs(60))?;
        let transport = read.value(
            &[
                ("CONSORT_TRANSPORT", &|text| {
                    let choice = TransportChoice::parse(text.trim());
                    choice.map(Some).ok_or_else(|| bad("CONSORT_TRANSPORT", text, "one of auto, shm, tcp"))
                }),
                ("NCCL_SHM_DISABLE", &|text| {
                    Ok((integer(text).unwrap_or(0) != 0).then_some(TransportChoice::Tcp))
                }),
            ],
            options.transport,
            TransportChoice::Auto,
            |choice| choice.name().to_owned(),
        )?;
        let channels = channels(&mut read, options)?;
        let bidirectional = read.value(
            &[("CONSORT_BIDIRECTIONAL", &|text| match text.trim() {
                "0" => Ok(Some(false)),
                "1" => Ok(Some(true)),
                text => Err(bad("CONSORT_BIDIRECTIONAL", text, "0 or 1")),
            })],
            options.bidirectional,
            false,
            |on| u8::from(*on).to_string(),
        )?;
        let slot_bytes = read.value(
            &[
                ("CONSORT_SLOT_BYTES", &|text| {
                    let bytes = text.trim().parse();
                    Ok(Some(Some(bytes.map_err(|_| bad("CONSORT_SLOT_BYTES", text, SLOT_RULE))?)))
                }),
                ("NCCL_BUFFSIZE", &|text| Ok(integer(text).and_then(slots_within).map(Some))),
            ],
            options.slot_bytes.map(Some),
            None,
            |bytes| bytes.map_or_else(|| "by size".to_owned(), |bytes| bytes.to_string()),
        )?;
        if let Some(bytes) = slot_bytes
            && !(bytes.is_power_of_two() && (SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&bytes))
        {
            return Err(bad("CONSORT_SLOT_BYTES", &bytes.to_string(), SLOT_RULE));
        }
        let flight_record = read.path("CONSORT_FLIGHT_RECORD", &options.flight_record)?;
        let trace = read.path("CONSORT_TRACE", &options.trace)?;
        let default_records = if trace.is_some() { TRACE_RECORDS } else { RECORDS };
        let records = read.value(
            &[("CONSORT_TRACE_EVENTS", &|text| {
                let number = text.trim().parse();
                number.map(Some).map_err(|_| bad("CONSORT_TRACE_EVENTS", text, EVENTS_RULE))
            })],
            options.trace_events,
            default_records,
            usize::to_string,
        )?;
        if !(1..=TRACE_RECORDS_MAX).contains(&records) {
            return Err(bad("CONSORT_TRACE_EVENTS", &records.to_string(), EVENTS_RULE));
        }
        let (preferences, planner) = Preferences::resolve(&options.planner, environment)?;
        read.settings.extend(planner);
        let settings = Settings {
            timeout,
            join_timeout,
            connect_timeout,
            report_after,
            records,
            transport,
            channels,
            bidirectional,
            slot_bytes,
            flight_record,
            trace,
            preferences,
        };
        Ok((settings, read.settings))
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

/// Reads settings and remembers where each came from.
struct Read<'e> {
    environment: &'e Environment<'e>,
    settings: Vec<Setting>,
}

impl Read<'_> {
    /// The setting that is called as the first spelling is.
    fn value<T>(
        &mut self,
        spellings: &[Spelling<'_, T>],
        option: Option<T>,
        default: T,
        show: impl Fn(&T) -> String,
    ) -> Result<T> {
        let found = self.environment.find(spellings, || Ok(option))?;
        let Resolved { value, origin, variable } =
            found.unwrap_or(Resolved { value: default, origin: Origin::Default, variable: None });
        if let Some((name, _)) = spellings.first() {
            self.settings.push(Setting { name, value: show(&value), origin, variable });
        }
        Ok(value)
    }

    fn duration(
        &mut self,
        name: &'static str,
        option: Option<Duration>,
        default: Duration,
    ) -> Result<Duration> {
        let read = |text: &str| {
            let seconds = text.trim().parse::<f64>().ok();
            let sensible = seconds.filter(|seconds| *seconds > 0.0 && *seconds < TIMEOUT_MAX.as_secs_f64());
            // Less than a nanosecond is nothing.
            let time = sensible.map(Duration::from_secs_f64).filter(|time| !time.is_zero());
            let time = time.map(|time| time.max(Duration::from_millis(1)));
            time.map(Some).ok_or_else(|| bad(name, text, "a number of seconds greater than 0"))
        };
        let time = self.value(&[(name, &read)], option, default, |time| time.as_secs_f64().to_string())?;
        if time.is_zero() { Err(bad(name, "0", "longer than nothing")) } else { Ok(time.min(TIMEOUT_MAX)) }
    }

    fn path(&mut self, name: &'static str, option: &Option<PathBuf>) -> Result<Option<PathBuf>> {
        // Of use although the program changes its directory. An empty value is as good as none.
        let absolute = |path: PathBuf| {
            Some(path)
                .filter(|path| !path.as_os_str().is_empty())
                .map(|path| std::path::absolute(&path).unwrap_or(path))
        };
        let read = |text: &str| Ok(Some(absolute(PathBuf::from(text))));
        let shown = |path: &Option<PathBuf>| {
            path.as_ref().map_or_else(String::new, |path| path.display().to_string())
        };
        self.value(&[(name, &read)], option.clone().map(absolute), None, shown)
    }
}

/// How many streams: as said, or else one, within what was asked for.
fn channels(read: &mut Read<'_>, options: &Options) -> Result<u16> {
    let parse = |text: &str| {
        let number = text.trim().parse();
        number.map(Some).map_err(|_| bad("CONSORT_CHANNELS", text, CHANNELS_RULE))
    };
    let said = read.value(&[("CONSORT_CHANNELS", &parse)], options.channels, 0, u16::to_string)?;
    let Some(setting) = read.settings.last_mut().filter(|setting| setting.origin == Origin::Default) else {
        let allowed = (1..=CHANNELS_MAX).contains(&said);
        return allowed
            .then_some(said)
            .ok_or_else(|| bad("CONSORT_CHANNELS", &said.to_string(), CHANNELS_RULE));
    };
    // As in NCCL, what is not a number above 0 is as good as nothing.
    let count = |text: &str| Ok(integer(text).filter(|count| *count > 0));
    let bound = |names: [&'static str; 3], option: Option<u32>| {
        let spellings = names.map(|name| (name, &count as &dyn Fn(&str) -> Result<Option<i64>>));
        read.environment.find(&spellings, || Ok(option.map(i64::from).filter(|count| *count > 0)))
    };
    let least = bound(["NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"], options.channels_min)?;
    let most = bound(["NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"], options.channels_max)?;
    let within = |bound: &Option<Resolved<i64>>, default: u16| {
        bound.as_ref().map_or(default, |found| u16::try_from(found.value).unwrap_or(CHANNELS_MAX))
    };
    let channels = within(&least, 1).min(within(&most, CHANNELS_MAX)).clamp(1, CHANNELS_MAX);
    setting.value = channels.to_string();
    if let Some(found) = least.filter(|_| channels > 1) {
        (setting.origin, setting.variable) = (found.origin, found.variable);
    }
    Ok(channels)
}

/// The slots of a staging buffer of so many bytes; none where it is as long as the longest slots make it.
fn slots_within(buffer_bytes: i64) -> Option<usize> {
    let slot = usize::try_from(buffer_bytes).ok().filter(|bytes| *bytes > 0)? / SLOTS as usize;
    let power = slot.checked_ilog2().map_or(0, |log| 1 << log);
    (power < SLOT_BYTES_MAX).then_some(power.max(SLOT_BYTES_MIN))
}

/// NCCL fails where a network that was named is not there, and so does this.
fn network(options: &Options, environment: &Environment<'_>) -> Result<()> {
    let named = |text: &str| Ok(Some(text.trim().to_owned()).filter(|name| !name.is_empty()));
    let Some(found) = environment.find(&[("NCCL_NET", &named)], || Ok(options.network.clone()))? else {
        return Ok(());
    };
    if found.value.trim().eq_ignore_ascii_case("socket") {
        return Ok(());
    }
    let name = found.variable.unwrap_or("the config's netName");
    Err(Error::invalid(
        format!("{name} is {:?}, a network that is not there", found.value),
        "there is only Socket (TCP); name it, or no network",
    ))
}

const CHANNELS_MAX: u16 = 16;
const CHANNELS_RULE: &str = "a number from 1 to 16";
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

    fn settings(set: &[(&str, &str)], options: &Options) -> Result<(Settings, Vec<Setting>)> {
        let lookup =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
        Settings::resolve_in(options, &Environment::from_lookup(lookup))
    }

    #[test]
    fn ncclss_variables_come_after_ours_and_before_options() {
        let transport = |set: &[(&str, &str)], options: Options| {
            let (settings, told) = settings(set, &options).expect("settings");
            let told = told.into_iter().find(|told| told.name == "CONSORT_TRANSPORT").expect("a setting");
            assert_eq!(told.value, settings.transport.name());
            (settings.transport, told.origin, told.variable)
        };
        let shared = Options::default().transport(TransportChoice::SharedMemory);
        let nccl = ("NCCL_SHM_DISABLE", "1");
        assert_eq!(
            transport(&[nccl], shared.clone()),
            (TransportChoice::Tcp, Origin::Nccl, Some("NCCL_SHM_DISABLE"))
        );
        assert_eq!(
            transport(&[nccl, ("CONSORT_TRANSPORT", "auto")], shared.clone()),
            (TransportChoice::Auto, Origin::Consort, Some("CONSORT_TRANSPORT"))
        );
        assert_eq!(
            transport(&[("NCCL_SHM_DISABLE", "0")], shared),
            (TransportChoice::SharedMemory, Origin::Config, None)
        );
        assert_eq!(
            transport(&[("NCCL_SHM_DISABLE", "no")], Options::default()),
            (TransportChoice::Auto, Origin::Default, None)
        );
    }

    #[test]
    fn ctas_bound_the_streams() {
        let streams =
            |set: &[(&str, &str)], options: Options| settings(set, &options).expect("settings").0.channels;
        let none = Options::default;
        assert_eq!(streams(&[], none()), 1);
        assert_eq!(streams(&[("NCCL_MIN_CTAS", "4")], none()), 4);
        assert_eq!(streams(&[("NCCL_MIN_NRINGS", "99999999")], none()), 16);
        assert_eq!(streams(&[("NCCL_MIN_NCHANNELS", "8"), ("NCCL_MAX_NCHANNELS", "2")], none()), 2);
        assert_eq!(streams(&[("NCCL_MIN_CTAS", "0"), ("NCCL_MIN_NCHANNELS", "3")], none()), 3);
        assert_eq!(streams(&[("NCCL_MIN_CTAS", "-2"), ("NCCL_MAX_CTAS", "many")], none()), 1);
        assert_eq!(streams(&[("NCCL_MIN_CTAS", "4"), ("CONSORT_CHANNELS", "2")], none()), 2);
        assert_eq!(streams(&[("NCCL_MIN_CTAS", "4")], none().channels(2)), 2);
        assert_eq!(streams(&[], none().channels_within(Some(3), None)), 3);
        assert_eq!(streams(&[("NCCL_MAX_CTAS", "2")], none().channels_within(Some(3), Some(5))), 2);
        let (_, told) = settings(&[("NCCL_MIN_CTAS", "4")], &none()).expect("settings");
        let told = told.iter().find(|told| told.name == "CONSORT_CHANNELS").expect("a setting");
        assert_eq!((told.value.as_str(), told.variable), ("4", Some("NCCL_MIN_CTAS")));
    }

    #[test]
    fn a_buffer_is_four_slots() {
        let slots = |set: &[(&str, &str)]| settings(set, &Options::default()).expect("settings").0.slot_bytes;
        for (bytes, slot) in [
            ("4194304", None),
            ("2097152", None),
            ("2097151", Some(256 << 10)),
            ("0x100000", Some(256 << 10)),
            ("65536", Some(16 << 10)),
            ("1", Some(16 << 10)),
            ("0", None),
            ("-2", None),
            ("big", None),
        ] {
            assert_eq!(slots(&[("NCCL_BUFFSIZE", bytes)]), slot, "{bytes}");
        }
        let both = [("NCCL_BUFFSIZE", "65536"), ("CONSORT_SLOT_BYTES", "32768")];
        assert_eq!(slots(&both), Some(32 << 10));
    }

    #[test]
    fn a_network_that_is_not_there_is_an_error() {
        let found = |set: &[(&str, &str)], options: Options| settings(set, &options).map(drop);
        let infiniband = Options::default().network("IB");
        for name in ["Socket", "socket", " SOCKET ", ""] {
            assert!(found(&[("NCCL_NET", name)], Options::default()).is_ok(), "{name:?}");
        }
        assert!(found(&[("NCCL_NET", "Socket")], infiniband.clone()).is_ok(), "the environment wins");
        let error = found(&[("NCCL_NET", "IB")], Options::default()).expect_err("no such").to_string();
        assert!(error.contains("NCCL_NET is \"IB\"") && error.contains("Socket"), "{error}");
        let error = found(&[], infiniband).expect_err("no such").to_string();
        assert!(error.contains("netName"), "{error}");
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
