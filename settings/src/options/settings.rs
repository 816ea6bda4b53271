//! Options and variables become settings.
//!
//! Invariant: the settings are complete and within their limits, and every value has its origin. Absent: settings of
//! a single call.

use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;

use super::{
    Exchanged, Options, PLANNER_VERSION, Pinning, PortRange, Preferences, Rdma, SLOT_BYTES_MAX,
    SLOT_BYTES_MIN, SLOTS, TIMEOUT_MAX, TransportChoice, WIRE_VERSION, ports,
};
use consort_algorithms::hardware::BusId;

use crate::environment::{Environment, Origin, Resolved, Setting, Spelling, integer};
use consort_types::error::{Error, Result};

/// Operations in a flight record by default. A power of two.
pub const RECORDS: usize = 128;
/// Operations in a flight record with a trace, and the most that can be set.
pub(super) const RECORDS_FOR_TRACE: usize = 1 << 16;
const TRACE_RECORDS_MAX: usize = 1 << 22;
/// The fastest wire that can be named: 100 Tbit/s.
const WIRE_MBITS_MAX: u32 = 100_000_000;

/// [`Options`] and environment, resolved and checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Until an operation fails on all ranks.
    pub timeout: Duration,
    /// Until joining fails.
    pub join_timeout: Duration,
    /// Until a data connection that both ranks are making counts as broken.
    pub connect_timeout: Duration,
    /// Until an operation that does not end is reported.
    pub report_after: Duration,
    /// After how long one of several paths to a rank that is down counts as lost; [`Duration::MAX`] for never. Ranks may
    /// differ.
    pub path_lost_after: Duration,
    /// Operations that the flight record holds.
    pub records: usize,
    /// The transports; equal on all ranks.
    pub transport: TransportChoice,
    /// The network plugin, as `NCCL_NET_PLUGIN` has it; ranks may differ in its file.
    pub net_plugin: String,
    /// The ports at which this process listens for other hosts; `None` where the system picks. Ranks may differ.
    pub ports: Option<PortRange>,
    /// Megabits a second of this host's way to others, where the program's user says it. Ranks may differ.
    pub wire_mbits: Option<u32>,
    /// What is asked of RDMA, where that is the transport; ranks may differ.
    pub rdma: Rdma,
    /// Pinning of the thread that joins; ranks may differ.
    pub pinning: Pinning,
    /// The most channels of a plan.
    pub channels: u16,
    /// The fewest and the most thread blocks of a launch on a device, for one rank.
    pub thread_blocks: (u32, u32),
    /// Whether this rank may use a device.
    pub devices: bool,
    /// The PCI address of the device, where it is known.
    pub device: Option<BusId>,
    /// Whether rings run in both directions.
    pub bidirectional: bool,
    /// Bytes of a slot of a mailbox; `None` where the planner chooses.
    pub slot_bytes: Option<usize>,
    /// The directory for flight records.
    pub flight_record: Option<PathBuf>,
    /// The file for the trace.
    pub trace: Option<PathBuf>,
    /// The planner's settings.
    pub preferences: Preferences,
    /// The files by which machines, rings and trees are exchanged; ranks may differ.
    pub exchanged: Exchanged,
}

impl Settings {
    /// Reads the process's environment.
    pub fn resolve(options: &Options) -> Result<Self> {
        let environment = Environment::of_process();
        if let Some(trouble) = environment.trouble() {
            crate::notice::warn(trouble);
        }
        static SAID: Once = Once::new();
        if let Some((name, why)) = without_effect(&environment) {
            SAID.call_once(|| crate::notice::warn(&format!("{name} has no effect: {why}")));
        }
        Ok(Self::resolve_in(options, &environment)?.0)
    }

    /// The same, from variables that `lookup` returns.
    #[cfg(any(test, feature = "testing"))]
    pub fn resolve_from(options: &Options, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        Ok(Self::resolve_in(options, &Environment::from_lookup(lookup))?.0)
    }

    /// The settings, and a [`Setting`] with its origin for each.
    pub fn resolve_in(options: &Options, environment: &Environment<'_>) -> Result<(Self, Vec<Setting>)> {
        let mut read = Read { environment, settings: Vec::new() };
        network(options, environment)?;
        let timeout = read.duration("CONSORT_TIMEOUT", options.timeout, Duration::from_secs(30 * 60))?;
        let join_timeout =
            read.duration("CONSORT_JOIN_TIMEOUT", options.join_timeout, Duration::from_secs(300))?;
        let connect_timeout =
            read.duration("CONSORT_CONNECT_TIMEOUT", options.connect_timeout, Duration::from_secs(30))?;
        let report_after =
            read.duration("CONSORT_REPORT_AFTER", options.report_after, Duration::from_secs(60))?;
        let path_lost_after = read.path_lost_after(options.path_lost_after)?;
        let transport = read.value(
            &[
                ("CONSORT_TRANSPORT", &|text| {
                    let choice = TransportChoice::parse(text.trim());
                    choice
                        .map(Some)
                        .ok_or_else(|| bad("CONSORT_TRANSPORT", text, "one of auto, shm, tcp, verbs, plugin"))
                }),
                ("NCCL_SHM_DISABLE", &|text| {
                    Ok((integer(text).unwrap_or(0) != 0).then_some(TransportChoice::Tcp))
                }),
            ],
            options.transport,
            TransportChoice::Auto,
            |choice| choice.name().to_owned(),
        )?;
        let rdma = match transport {
            TransportChoice::Verbs => Rdma::asked(environment)?,
            _ => Rdma::default(),
        };
        let named = |text: &str| Ok(Some(text.to_owned()));
        let net_plugin = environment.find(&[("NCCL_NET_PLUGIN", &named)], || Ok(None))?;
        let ports = read.value(
            &[(ports::NAME, &|text| Ok(PortRange::read(text)?.map(Some)))],
            None,
            None,
            |ports: &Option<PortRange>| ports.map_or_else(String::new, |ports| ports.to_string()),
        )?;
        let wire_mbits = read.value(
            &[("CONSORT_WIRE_MBITS", &|text| {
                let text = text.trim();
                let mbits = text.parse::<u32>().ok().filter(|mbits| (1..=WIRE_MBITS_MAX).contains(mbits));
                match mbits {
                    Some(mbits) => Ok(Some(Some(mbits))),
                    None if text.is_empty() => Ok(None),
                    None => Err(bad("CONSORT_WIRE_MBITS", text, "megabits a second, from 1 to 100000000")),
                }
            })],
            None,
            None,
            |mbits| mbits.map_or_else(String::new, |mbits| mbits.to_string()),
        )?;
        let pinning = read.value(
            &[("CONSORT_PIN", &|text| {
                let pinning = Pinning::parse(text.trim());
                pinning.map(Some).ok_or_else(|| bad("CONSORT_PIN", text, "one of none, cores, domains"))
            })],
            options.pinning,
            Pinning::None,
            |pinning| pinning.name().to_owned(),
        )?;
        let (channels, thread_blocks) = channels(&mut read, options)?;
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
            |bytes| bytes.map_or_else(|| "by size and distance".to_owned(), |bytes| bytes.to_string()),
        )?;
        if let Some(bytes) = slot_bytes
            && !(bytes.is_power_of_two() && (SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&bytes))
        {
            return Err(bad("CONSORT_SLOT_BYTES", &bytes.to_string(), SLOT_RULE));
        }
        let flight_record = read.path("CONSORT_FLIGHT_RECORD", &options.flight_record)?;
        let trace = read.path("CONSORT_TRACE", &options.trace)?;
        let default_records = if trace.is_some() { RECORDS_FOR_TRACE } else { RECORDS };
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
            path_lost_after,
            records,
            transport,
            net_plugin: net_plugin.map(|found| found.value).unwrap_or_default(),
            ports,
            wire_mbits,
            rdma,
            pinning,
            channels,
            thread_blocks,
            devices: options.devices,
            device: options.device_at.as_deref().map(device).transpose()?,
            bidirectional,
            slot_bytes,
            flight_record,
            trace,
            preferences,
            exchanged: Exchanged::of(environment),
        };
        Ok((settings, read.settings))
    }

    /// The settings that must be equal on all ranks, by name.
    pub fn agreed(&self) -> Vec<(String, String)> {
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

/// As long as a rank tries to reach another one to which no path is open: longer than switches and links take to come back.
const PATH_LOST_AFTER: Duration = Duration::from_secs(30);

/// A time of that many seconds, where that is a sensible number.
fn time_of(text: &str) -> Option<Duration> {
    let seconds = text.trim().parse::<f64>().ok();
    let sensible = seconds.filter(|seconds| *seconds > 0.0 && *seconds < TIMEOUT_MAX.as_secs_f64());
    // A time that rounds to 0 ns counts as none.
    let time = sensible.map(Duration::from_secs_f64).filter(|time| !time.is_zero());
    time.map(|time| time.max(Duration::from_millis(1)))
}

/// Reads settings and remembers where each came from.
struct Read<'e> {
    environment: &'e Environment<'e>,
    settings: Vec<Setting>,
}

impl Read<'_> {
    /// The setting that the first spelling names.
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
            time_of(text).map(Some).ok_or_else(|| bad(name, text, "a number of seconds greater than 0"))
        };
        let time = self.value(&[(name, &read)], option, default, |time| time.as_secs_f64().to_string())?;
        if time.is_zero() { Err(bad(name, "0", "longer than nothing")) } else { Ok(time.min(TIMEOUT_MAX)) }
    }

    /// A time, or never, which is [`Duration::MAX`].
    fn path_lost_after(&mut self, option: Option<Duration>) -> Result<Duration> {
        const NAME: &str = "CONSORT_PATH_LOST_AFTER";
        let read = |text: &str| match text.trim() {
            "never" => Ok(Some(Duration::MAX)),
            text => time_of(text)
                .map(Some)
                .ok_or_else(|| bad(NAME, text, "a number of seconds greater than 0, or never")),
        };
        let show = |time: &Duration| match *time {
            Duration::MAX => "never".into(),
            time => time.as_secs_f64().to_string(),
        };
        let time = self.value(&[(NAME, &read)], option, PATH_LOST_AFTER, show)?;
        if time.is_zero() { Err(bad(NAME, "0", "longer than nothing")) } else { Ok(time) }
    }

    fn path(&mut self, name: &'static str, option: &Option<PathBuf>) -> Result<Option<PathBuf>> {
        // An absolute path holds although the program changes its directory. An empty value counts as unset.
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

/// The number of channels: as set, or else one, within the least and the most; and the least and the most thread
/// blocks of a launch on a device.
fn channels(read: &mut Read<'_>, options: &Options) -> Result<(u16, (u32, u32))> {
    let parse = |text: &str| {
        let number = text.trim().parse();
        number.map(Some).map_err(|_| bad("CONSORT_CHANNELS", text, CHANNELS_RULE))
    };
    let said = read.value(&[("CONSORT_CHANNELS", &parse)], options.channels, 0, u16::to_string)?;
    // As in NCCL, a text that is not a number above 0 counts as unset.
    let count = |text: &str| Ok(integer(text).filter(|count| *count > 0));
    let bound = |names: [&'static str; 3], option: Option<u32>| {
        let spellings = names.map(|name| (name, &count as &dyn Fn(&str) -> Result<Option<i64>>));
        read.environment.find(&spellings, || Ok(option.map(i64::from).filter(|count| *count > 0)))
    };
    let least = bound(["NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"], options.channels_min)?;
    let most = bound(["NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"], options.channels_max)?;
    let blocks = |bound: &Option<Resolved<i64>>, default: u32| {
        bound.as_ref().map_or(default, |found| u32::try_from(found.value).unwrap_or(u32::MAX))
    };
    let thread_blocks = (blocks(&least, 1).min(blocks(&most, u32::MAX)), blocks(&most, u32::MAX));
    let Some(setting) = read.settings.last_mut().filter(|setting| setting.origin == Origin::Default) else {
        let allowed = (1..=CHANNELS_MAX).contains(&said);
        return allowed
            .then_some((said, thread_blocks))
            .ok_or_else(|| bad("CONSORT_CHANNELS", &said.to_string(), CHANNELS_RULE));
    };
    let within = |bound: &Option<Resolved<i64>>, default: u16| {
        bound.as_ref().map_or(default, |found| u16::try_from(found.value).unwrap_or(CHANNELS_MAX))
    };
    let channels = within(&least, 1).min(within(&most, CHANNELS_MAX)).clamp(1, CHANNELS_MAX);
    setting.value = channels.to_string();
    if let Some(found) = least.filter(|_| channels > 1) {
        (setting.origin, setting.variable) = (found.origin, found.variable);
    }
    Ok((channels, thread_blocks))
}

/// The slot length for a staging buffer of `buffer_bytes`; `None` where the longest slots fit.
fn slots_within(buffer_bytes: i64) -> Option<usize> {
    let slot = usize::try_from(buffer_bytes).ok().filter(|bytes| *bytes > 0)? / SLOTS as usize;
    let power = slot.checked_ilog2().map_or(0, |log| 1 << log);
    (power < SLOT_BYTES_MAX).then_some(power.max(SLOT_BYTES_MIN))
}

/// As in NCCL, a named network that does not exist is an error.
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

/// A variable of an earlier version that is set, accepted and without effect, and the reason.
fn without_effect(environment: &Environment<'_>) -> Option<(&'static str, &'static str)> {
    let why = "ranks read no other rank's memory through the system (process_vm_readv) any more";
    environment.text("CONSORT_CMA").map(|_| ("CONSORT_CMA", why))
}

const CHANNELS_MAX: u16 = 16;
const CHANNELS_RULE: &str = "a number from 1 to 16";
/// A PCI address.
fn device(address: &str) -> Result<BusId> {
    address.parse().map_err(|_| bad("the address of the rank's device", address, "as 0000:65:00.0"))
}

const EVENTS_RULE: &str = "a number from 1 to 4194304";
const SLOT_RULE: &str = "a power of two from 16384 to 524288";

pub(super) fn bad(name: &str, value: &str, rule: &str) -> Error {
    Error::invalid(format!("{name} is {value:?}"), format!("it must be {rule}"))
}
