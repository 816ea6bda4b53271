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
/// The largest value of `nChannelsPerNetPeer`.
const CHANNELS_PER_NET_PEER_MAX: i32 = 64;

/// `NCCL_VERSION(major, minor, patch)`.
const fn version(major: u32, minor: u32, patch: u32) -> u32 {
    if major <= 2 && minor <= 8 {
        major * 1000 + minor * 100 + patch
    } else {
        major * 10_000 + minor * 100 + patch
    }
}

/// A client's options for a communicator; `None` where a field is undefined.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Config {
    /// Whether calls return only when they are done (`blocking`); see [`Config::blocking`].
    pub blocking: Option<bool>,
    /// `cgaClusterSize`.
    pub cga_cluster_size: Option<i32>,
    /// `minCTAs`: channels, at least.
    pub min_ctas: Option<i32>,
    /// `maxCTAs`: channels, at most.
    pub max_ctas: Option<i32>,
    /// `netName`: the network between hosts.
    pub net_name: Option<String>,
    /// `splitShare`.
    pub split_share: Option<bool>,
    /// `trafficClass`.
    pub traffic_class: Option<i32>,
    /// `commName`: the name of the communicator in logs.
    pub comm_name: Option<String>,
    /// `collnetEnable`.
    pub collnet_enable: Option<bool>,
    /// `CTAPolicy`, a mask of 1 (efficiency) and 2 (zero).
    pub cta_policy: Option<i32>,
    /// `shrinkShare`.
    pub shrink_share: Option<bool>,
    /// `nvlsCTAs`.
    pub nvls_ctas: Option<i32>,
    /// `nChannelsPerNetPeer`.
    pub channels_per_net_peer: Option<i32>,
    /// `nvlinkCentricSched`.
    pub nvlink_centric_sched: Option<bool>,
    /// `graphUsageMode`.
    pub graph_usage_mode: Option<i32>,
    /// `numRmaCtx`.
    pub rma_contexts: Option<i32>,
    /// `maxP2pPeers`.
    pub p2p_peers_max: Option<i32>,
    /// `graphStreamOrdering`.
    pub graph_stream_ordering: Option<bool>,
    /// `launchOrderImplicit`.
    pub launch_order_implicit: Option<i32>,
    /// `numRmaSig`.
    pub rma_signals: Option<i32>,
    /// `rmaEagerInit`.
    pub rma_eager_init: Option<i32>,
    /// `hostCftMode`.
    pub host_cft_mode: Option<i32>,
    /// `nvlsHostMode`.
    pub nvls_host_mode: Option<i32>,
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
        let flag = |name, value: Option<i32>| match value {
            None => Ok(None),
            Some(0) => Ok(Some(false)),
            Some(1) => Ok(Some(true)),
            Some(value) => Err(bad(name, value, "0 or 1")),
        };
        let positive = |name, value| within(name, value, 1..=i32::MAX, "1 or more");
        let natural = |name, value| within(name, value, 0..=i32::MAX, "0 or more");
        let (v2_17, v2_27) = (version(2, 17, 0), version(2, 27, 0));
        let (v2_28, v2_29) = (version(2, 28, 0), version(2, 29, 0));
        let v2_31 = version(2, 31, 0);
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
        Ok(Config {
            blocking: flag("blocking", read.int(16, version(2, 14, 0)))?,
            cga_cluster_size: natural("cgaClusterSize", read.int(20, v2_17))?,
            min_ctas: positive("minCTAs", read.int(24, v2_17))?,
            max_ctas: positive("maxCTAs", read.int(28, v2_17))?,
            net_name: read.text(32, v2_17),
            split_share: flag("splitShare", read.int(40, version(2, 18, 0)))?,
            traffic_class: read.int(44, version(2, 25, 0)),
            comm_name: read.text(48, v2_27),
            collnet_enable: flag("collnetEnable", read.int(56, v2_27))?,
            cta_policy: within("CTAPolicy", read.int(60, v2_27), 0..=3, "a mask of 1 and 2")?,
            shrink_share: flag("shrinkShare", read.int(64, v2_27))?,
            nvls_ctas: positive("nvlsCTAs", read.int(68, v2_27))?,
            channels_per_net_peer: within(
                "nChannelsPerNetPeer",
                read.int(72, v2_28),
                1..=CHANNELS_PER_NET_PEER_MAX,
                "from 1 to 64",
            )?,
            nvlink_centric_sched: flag("nvlinkCentricSched", read.int(76, v2_28))?,
            graph_usage_mode: within("graphUsageMode", read.int(80, v2_29), 0..=2, "0, 1 or 2")?,
            rma_contexts: natural("numRmaCtx", read.int(84, v2_29))?,
            p2p_peers_max: positive("maxP2pPeers", read.int(88, version(2, 30, 0)))?,
            graph_stream_ordering: flag("graphStreamOrdering", read.int(92, version(2, 30, 5)))?,
            launch_order_implicit: read.int(96, v2_31),
            rma_signals: read.int(100, v2_31),
            rma_eager_init: read.int(104, v2_31),
            host_cft_mode: read.int(108, v2_31),
            nvls_host_mode: read.int(112, version(2, 32, 0)),
        })
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
    /// # Errors The error that making a communicator with these options would return now: [`Error::InvalidArgument`]
    /// for a network that does not exist, and for variables with invalid values.
    pub fn to_options(&self) -> Result<Options> {
        let channels = |ctas: Option<i32>| ctas.and_then(|ctas| u32::try_from(ctas).ok());
        let mut options =
            Options::default().channels_within(channels(self.min_ctas), channels(self.max_ctas));
        if let Some(name) = &self.net_name {
            options = options.network(name);
        }
        Settings::resolve(&options)?;
        let ignored = self.without_meaning();
        if !ignored.is_empty() {
            let text = format!("config: {} without meaning on host memory", ignored.join(", "));
            log::info(Subsystem::Init, NO_DEVICE, text);
        }
        Ok(options)
    }

    /// The fields that are set and have no effect here.
    fn without_meaning(&self) -> Vec<&'static str> {
        let set = [
            ("cgaClusterSize", self.cga_cluster_size.is_some()),
            ("splitShare", self.split_share.is_some()),
            ("trafficClass", self.traffic_class.is_some()),
            ("collnetEnable", self.collnet_enable.is_some()),
            ("CTAPolicy", self.cta_policy.is_some()),
            ("shrinkShare", self.shrink_share.is_some()),
            ("nvlsCTAs", self.nvls_ctas.is_some()),
            ("nChannelsPerNetPeer", self.channels_per_net_peer.is_some()),
            ("nvlinkCentricSched", self.nvlink_centric_sched.is_some()),
            ("graphUsageMode", self.graph_usage_mode.is_some()),
            ("numRmaCtx", self.rma_contexts.is_some()),
            ("maxP2pPeers", self.p2p_peers_max.is_some()),
            ("graphStreamOrdering", self.graph_stream_ordering.is_some()),
            ("launchOrderImplicit", self.launch_order_implicit.is_some()),
            ("numRmaSig", self.rma_signals.is_some()),
            ("rmaEagerInit", self.rma_eager_init.is_some()),
            ("hostCftMode", self.host_cft_mode.is_some()),
            ("nvlsHostMode", self.nvls_host_mode.is_some()),
        ];
        set.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
    }
}

fn bad(name: &str, value: i32, rule: &str) -> Error {
    Error::invalid(format!("{name} is {value}"), format!("it must be {rule}, or be left undefined"))
}

/// The value, if it is allowed.
fn within(
    name: &str,
    value: Option<i32>,
    allowed: std::ops::RangeInclusive<i32>,
    rule: &str,
) -> Result<Option<i32>> {
    match value {
        Some(value) if !allowed.contains(&value) => Err(bad(name, value, rule)),
        value => Ok(value),
    }
}
