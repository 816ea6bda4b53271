//! The variables of the pretended machine.
//!
//! Invariant: read once, at `cuInit`. A value that cannot be read counts as not set. Absent: changes later.

use std::env::var;
use std::path::PathBuf;

/// Whether devices reach each other's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peers {
    /// All do.
    All,
    /// No device reaches another's memory, and the driver says so.
    None,
    /// The driver says that all devices do, but a device reaches only its own copy of another's memory.
    Lie,
    /// All do, but a copy between two of them never ends.
    Hang,
}

/// The pretended machine.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// How many devices there are (`CONSORT_STANDIN_DEVICES`, 1).
    pub(crate) devices: u32,
    /// Which device reaches which (`CONSORT_STANDIN_PEERS`: `all`, `none`, `lie`, `hang`).
    pub(crate) peers: Peers,
    /// Hardware queues of a context (`CONSORT_STANDIN_CONNECTIONS`, else `CUDA_DEVICE_MAX_CONNECTIONS`, 8; 1 to 32).
    pub(crate) connections: usize,
    /// Major and minor compute capability (`CONSORT_STANDIN_CAPABILITY`, `8.0`); texts for later ones are refused.
    pub(crate) capability: (u32, u32),
    /// Whether a launch returns when the kernel has ended (`CUDA_LAUNCH_BLOCKING=1`).
    pub(crate) launches_block: bool,
    /// The seed of the interpreter's scheduler (`CONSORT_STANDIN_SEED`, 1).
    pub(crate) seed: u64,
    /// Blocks of a device and process that run at once (`CONSORT_STANDIN_BLOCKS_MAX`, 64).
    pub(crate) blocks_max: u32,
    /// Bytes of a device (`CONSORT_STANDIN_MEMORY`, 1 GiB).
    pub(crate) memory: u64,
    /// Whether machine code that consort ships for capability 8.0 is taken, its text run in its place
    /// (`CONSORT_STANDIN_BINARIES=refuse`: as by a driver that takes none).
    pub(crate) takes_binaries: bool,
    /// File to which calls are appended (`CONSORT_STANDIN_LOG`).
    pub(crate) log: Option<PathBuf>,
    /// Whether `cuInit` prints nothing (`CONSORT_STANDIN_QUIET=1`).
    pub(crate) quiet: bool,
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    var(name).ok()?.trim().parse().ok()
}

impl Settings {
    pub(crate) fn from_environment() -> Self {
        let connections = number("CONSORT_STANDIN_CONNECTIONS").or(number("CUDA_DEVICE_MAX_CONNECTIONS"));
        let capability = var("CONSORT_STANDIN_CAPABILITY").ok();
        let capability = capability.as_deref().and_then(|text| text.trim().split_once('.'));
        let capability =
            capability.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        Settings {
            devices: number("CONSORT_STANDIN_DEVICES").unwrap_or(1),
            peers: match var("CONSORT_STANDIN_PEERS").as_deref() {
                Ok("none") => Peers::None,
                Ok("lie") => Peers::Lie,
                Ok("hang") => Peers::Hang,
                _ => Peers::All,
            },
            connections: connections.unwrap_or(8usize).clamp(1, 32),
            capability: capability.unwrap_or((8, 0)),
            launches_block: var("CUDA_LAUNCH_BLOCKING").is_ok_and(|value| value == "1"),
            seed: number("CONSORT_STANDIN_SEED").unwrap_or(1),
            blocks_max: number("CONSORT_STANDIN_BLOCKS_MAX").unwrap_or(64u32).max(1),
            memory: number("CONSORT_STANDIN_MEMORY").unwrap_or(1 << 30),
            takes_binaries: var("CONSORT_STANDIN_BINARIES").as_deref() != Ok("refuse"),
            log: std::env::var_os("CONSORT_STANDIN_LOG").map(PathBuf::from),
            quiet: var("CONSORT_STANDIN_QUIET").is_ok_and(|value| value == "1"),
        }
    }

    /// Multiprocessors of a device: few, and never more than the blocks that run at once.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.blocks_max.min(32)
    }

    /// Blocks that one multiprocessor runs at once.
    pub(crate) fn blocks_per_multiprocessor(&self) -> u32 {
        self.blocks_max / self.multiprocessors()
    }
}
