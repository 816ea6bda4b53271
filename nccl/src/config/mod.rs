//! NCCL's config struct (`ncclConfig_t`) of clients of every version.
//!
//! The struct only grew. A client's `size` is the number of its bytes and its `version` determines its fields: both
//! are needed, because some fields took the place of padding. A field that is newer than the client counts as unset;
//! a field that is newer than this library is not read.
//!
//! Invariant: a [`Config`] holds only values that NCCL's rules allow; nothing in the bytes makes decoding panic.
//! Absent: pointers (a field that is one is an address, from which the caller makes text).

mod call;
mod reader;
#[cfg(test)]
mod tests;

pub use call::{
    CALL_BYTES, CallConfig, EXTENSION_ALGORITHM, EXTENSION_TIMEOUT_MS, EXTENSION_VENDOR, Extension,
};

use std::ops::RangeInclusive;

use super::environment::Environment;
use super::log::{self, NO_DEVICE, Subsystem};
use consort_settings::environment::integer;
use consort_settings::options::{Options, Settings};
use consort_types::error::{Error, Result};
use reader::Reader;

/// Bytes of the newest struct that is known.
pub const CONFIG_BYTES: usize = 120;
/// Bytes of the first version of the struct.
const CONFIG_BYTES_MIN: usize = 24;
/// `NCCL_VERSION(major, minor, patch)`.
const fn version(major: u32, minor: u32, patch: u32) -> u32 {
    if major <= 2 && minor <= 8 {
        major * 1000 + minor * 100 + patch
    } else {
        major * 10_000 + minor * 100 + patch
    }
}

/// The values that a field may have, and the words for them in errors.
type Allowed = (RangeInclusive<i32>, &'static str);

const ANY: Allowed = (i32::MIN..=i32::MAX, "");
const FLAG: Allowed = (0..=1, "0 or 1");
const NATURAL: Allowed = (0..=i32::MAX, "0 or more");
const POSITIVE: Allowed = (1..=i32::MAX, "1 or more");
const CTA_POLICY: Allowed = (0..=3, "a mask of 1 and 2");

/// The fields that are numbers: name, offset, the first version with the field, and its values.
const NUMBERS: [(&str, usize, u32, Allowed); 21] = [
    ("blocking", 16, version(2, 14, 0), FLAG),
    ("cgaClusterSize", 20, version(2, 17, 0), NATURAL),
    ("minCTAs", 24, version(2, 17, 0), POSITIVE),
    ("maxCTAs", 28, version(2, 17, 0), POSITIVE),
    ("splitShare", 40, version(2, 18, 0), FLAG),
    ("trafficClass", 44, version(2, 25, 0), ANY),
    ("collnetEnable", 56, version(2, 27, 0), FLAG),
    ("CTAPolicy", 60, version(2, 27, 0), CTA_POLICY),
    ("shrinkShare", 64, version(2, 27, 0), FLAG),
    ("nvlsCTAs", 68, version(2, 27, 0), POSITIVE),
    ("nChannelsPerNetPeer", 72, version(2, 28, 0), (1..=64, "from 1 to 64")),
    ("nvlinkCentricSched", 76, version(2, 28, 0), FLAG),
    ("graphUsageMode", 80, version(2, 29, 0), (0..=2, "0, 1 or 2")),
    ("numRmaCtx", 84, version(2, 29, 0), NATURAL),
    ("maxP2pPeers", 88, version(2, 30, 0), POSITIVE),
    ("graphStreamOrdering", 92, version(2, 30, 5), FLAG),
    ("launchOrderImplicit", 96, version(2, 31, 0), ANY),
    ("numRmaSig", 100, version(2, 31, 0), ANY),
    ("rmaEagerInit", 104, version(2, 31, 0), ANY),
    ("hostCftMode", 108, version(2, 31, 0), ANY),
    ("nvlsHostMode", 112, version(2, 32, 0), ANY),
];

/// A client's options for a communicator. A field that the client left undefined is `None`, or not in the list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Config {
    /// Whether calls return only when they are done (`blocking`); see [`Config::blocking`].
    pub blocking: Option<bool>,
    /// `minCTAs`: channels, at least.
    pub min_ctas: Option<i32>,
    /// `maxCTAs`: channels, at most.
    pub max_ctas: Option<i32>,
    /// `netName`: the network between hosts.
    pub net_name: Option<String>,
    /// `commName`: the name of the communicator in logs and errors.
    pub comm_name: Option<String>,
    /// The fields that are set and have no effect here, with their values.
    pub without_meaning: Vec<(&'static str, i32)>,
}

impl Config {
    /// Reads a client's struct. `bytes` are its first `min(size, CONFIG_BYTES)` bytes, where `size` is its first
    /// field; `text` returns the C string at an address.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the field: not initialised with `NCCL_CONFIG_INITIALIZER`, or a value that
    /// NCCL does not allow.
    pub fn decode(bytes: &[u8], text: &mut dyn FnMut(usize) -> Option<String>) -> Result<Self> {
        let mut read = Reader::begin("ncclConfig_t", bytes, CONFIG_BYTES_MIN, CONFIG_BYTES, text)?;
        let v2_17 = version(2, 17, 0);
        // NCCL's rule to the letter: with only a minimum set, the maximum is undefined, which is the least of
        // numbers.
        let (min_ctas, max_ctas) = (read.raw(24, v2_17), read.raw(28, v2_17));
        if min_ctas > max_ctas {
            let shown =
                |value: i32| if value == reader::UNDEFINED { "unset".to_owned() } else { value.to_string() };
            return Err(Error::invalid(
                format!("minCTAs is {} and maxCTAs is {}", shown(min_ctas), shown(max_ctas)),
                "set both, the minimum not above the maximum, or the maximum alone",
            ));
        }
        let mut config = Config {
            net_name: read.text(32, v2_17),
            comm_name: read.text(48, version(2, 27, 0)),
            ..Config::default()
        };
        for (name, at, since, allowed) in &NUMBERS {
            let Some(value) = within(name, read.int(*at, *since), allowed)? else { continue };
            match *name {
                "blocking" => config.blocking = Some(value == 1),
                "minCTAs" => config.min_ctas = Some(value),
                "maxCTAs" => config.max_ctas = Some(value),
                name => config.without_meaning.push((name, value)),
            }
        }
        Ok(config)
    }

    /// The config of a communicator that is made of one with this config: the child's own where it has one, else this
    /// one.
    pub fn inherit(&self, child: Option<Config>) -> Config {
        child.unwrap_or_else(|| self.clone())
    }

    /// Whether calls return only when they are done: `NCCL_COMM_BLOCKING`, else `blocking`, else a file, else yes.
    pub fn blocking(&self) -> bool {
        self.blocking_in(&Environment::of_process())
    }

    fn blocking_in(&self, environment: &Environment<'_>) -> bool {
        let said = |text: &str| {
            Ok(match integer(text) {
                Some(0) => Some(false),
                Some(1) => Some(true),
                // As in NCCL, any other text counts as unset.
                _ => None,
            })
        };
        let found = environment.find(&[("NCCL_COMM_BLOCKING", &said)], || Ok(self.blocking));
        found.ok().flatten().is_none_or(|found| found.value)
    }

    /// The options for which this library has a meaning. The log (INIT) lists the others, which change nothing.
    ///
    /// # Errors
    /// The error that making a communicator with these options would return now: [`Error::InvalidArgument`]
    /// for a network that does not exist, and for variables with invalid values.
    pub fn to_options(&self) -> Result<Options> {
        let channels = |ctas: Option<i32>| ctas.and_then(|ctas| u32::try_from(ctas).ok());
        let mut options =
            Options::default().channels_within(channels(self.min_ctas), channels(self.max_ctas));
        if let Some(name) = &self.net_name {
            options = options.network(name);
        }
        Settings::resolve(&options)?;
        if !self.without_meaning.is_empty() {
            let names: Vec<&str> = self.without_meaning.iter().map(|(name, _)| *name).collect();
            let text = format!("config: {} without meaning on host memory", names.join(", "));
            log::info(Subsystem::Init, NO_DEVICE, text);
        }
        Ok(options)
    }
}

fn bad(name: &str, value: i32, rule: &str) -> Error {
    Error::invalid(format!("{name} is {value}"), format!("it must be {rule}, or be left undefined"))
}

/// The value, if it is allowed.
fn within(name: &str, value: Option<i32>, (allowed, rule): &Allowed) -> Result<Option<i32>> {
    match value {
        Some(value) if !allowed.contains(&value) => Err(bad(name, value, rule)),
        value => Ok(value),
    }
}
