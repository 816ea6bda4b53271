//! The records in which ranks tell each other of their devices, and the path that follows from them.
//!
//! Invariant: every rank has the same records, so every rank chooses the same path. Absent: how they travel.

use consort_control::codec::{Reader, bytes_of};

use crate::Rank;
pub use crate::planner::Path;
use crate::planner::{Paths, least};
use consort_settings::environment::Environment;
use consort_settings::options::Determinism;
use consort_types::error::{Error, Result, list};

/// Bytes of a [`Record`] on the wire.
pub(super) const RECORD_BYTES: usize = 64;

/// The most ranks that fold into each other's buffers in one step.
pub(super) const FUSED_MAX: u32 = 16;

/// Ranks of one device whose kernels wait for each other, at most, where that path is named.
const RANKS_BESIDE_MAX: u32 = 8;

/// Thread blocks of a launch that waits for peers, at most: the rest of the device is the program's.
const BLOCKS_MAX: u32 = 64;

pub(super) const VARIABLE: &str = "CONSORT_DEVICE_PATH";

/// One rank's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) process: [u8; 16],
    pub(super) uuid: [u8; 16],
    pub(super) ordinal: u32,
    pub(super) multiprocessors: u32,
    /// The fewest and the most blocks that its settings allow.
    pub(super) within: (u32, u32),
    pub(super) stream_memory_operations: bool,
    /// Whether kernels load there.
    pub(super) loads: bool,
    /// Whether it can share memory with other processes of its host by descriptors.
    pub(super) shares: bool,
    pub(super) wish: Option<Path>,
}

impl Record {
    pub(super) fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let flags = (self.stream_memory_operations, self.shares);
        let wish = self.wish.map_or(0, |wish| wish as u8 + 1);
        let form = (
            (self.process, self.uuid),
            (self.ordinal, self.multiprocessors),
            (flags, (wish, self.loads), self.within),
        );
        let mut bytes = [0; RECORD_BYTES];
        let said = bytes_of(&form);
        bytes[..said.len()].copy_from_slice(&said);
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let ((process, uuid), (ordinal, multiprocessors), rest): (_, _, ((_, _), (u8, _), _)) =
            Reader::new(bytes).take().ok()?;
        let ((stream_memory_operations, shares), (wish, loads), within) = rest;
        let wish = match wish {
            0 => None,
            code => Some(*Path::ALL.get(usize::from(code) - 1)?),
        };
        Some(Record {
            process,
            uuid,
            ordinal,
            multiprocessors,
            within,
            stream_memory_operations,
            loads,
            shares,
            wish,
        })
    }
}

/// The path that `CONSORT_DEVICE_PATH` asks for.
pub(super) fn wish() -> Result<Option<Path>> {
    let Some((text, _)) = Environment::of_process().text(VARIABLE) else { return Ok(None) };
    let known = Path::ALL.into_iter().find(|path| path.name() == text.trim());
    match (known, text.trim()) {
        (_, "" | "auto") => Ok(None),
        (Some(path), _) => Ok(Some(path)),
        (None, text) => Err(Error::invalid(
            format!("{VARIABLE} is {text:?}"),
            "it must be auto, fused, kernels, streams or host",
        )),
    }
}

/// The path that all ranks take, and all paths with what speaks against them: the one that is named, or the first of those that
/// can be and whose empty calls are cheapest. `no_fused` says what else speaks against the path that has one program.
///
/// # Errors
/// When ranks ask for different paths, or for one that cannot be.
pub(super) fn choose(
    records: &[Record],
    determinism: Determinism,
    no_fused: Option<String>,
) -> Result<(Path, Paths)> {
    let ranks = records.len() as u32;
    let first = &records[0];
    let everywhere = |same: &dyn Fn(&Record) -> bool| records.iter().all(same);
    let one_process = everywhere(&|record| record.process == first.process);
    let one_device = everywhere(&|record| record.uuid == first.uuid);
    let fused = one_process && one_device && ranks <= FUSED_MAX;
    // Two ranks of a process on one device would stand in each other's way in a hardware queue.
    let alone = records.iter().enumerate().all(|(at, record)| {
        records[..at].iter().all(|other| other.process != record.process || other.uuid != record.uuid)
    });
    let apart = records
        .iter()
        .enumerate()
        .all(|(at, record)| records[..at].iter().all(|other| other.uuid != record.uuid));
    let kernels = ranks > 1 && everywhere(&|record| record.shares);
    let streams = alone && everywhere(&|record| record.stream_memory_operations && record.shares);
    // Other paths round where the host's does not, as their steps fold more or fewer contributions at once.
    let invariant = determinism == Determinism::Invariant && ranks > 2;
    let loads = everywhere(&|record| record.loads);
    let can = |path: Path, is_named: bool| match path {
        Path::Host => true,
        _ if invariant || !loads => false,
        Path::Fused => fused && no_fused.is_none(),
        Path::Kernels => kernels && (apart || is_named && have_room(records)),
        Path::Streams => streams,
    };
    let by_name_only = |path| can(path, true).then(|| format!("only {VARIABLE}={path} takes it"));
    let why = |path| {
        let no_fused = no_fused.clone().filter(|_| path == Path::Fused && fused && !invariant && loads);
        by_name_only(path).or(no_fused).unwrap_or_else(|| reason(path, records, invariant))
    };
    let wishes: Vec<Option<Path>> = records.iter().map(|record| record.wish).collect();
    if let Some(other) = wishes.iter().position(|wish| *wish != wishes[0]) {
        let said = |rank: usize| wishes[rank].map_or("auto", Path::name);
        return Err(Error::Settings {
            difference: format!("{VARIABLE}: rank 0 says {}; rank {other} says {}", said(0), said(other)),
        });
    }
    let chosen = match wishes[0] {
        Some(path) if can(path, true) => Ok(path),
        Some(path) => Err(Error::invalid(
            format!("{VARIABLE} is {path}, which these ranks cannot take: {}", why(path)),
            "let it choose (auto), or set host",
        )),
        None => {
            let free = Path::ALL.into_iter().filter(|path| can(*path, false)).collect::<Vec<_>>();
            Ok(least(&free, Path::price).unwrap_or(Path::Host))
        }
    }?;
    let against = |path: Path| match wishes[0] {
        _ if path == chosen => None,
        Some(wish) => Some(format!("{VARIABLE} is {wish}")),
        None => (!can(path, false)).then(|| why(path)),
    };
    Ok((chosen, Path::ALL.into_iter().map(|path| (path, against(path))).collect()))
}

/// Whether ranks that share a device are few enough for it: each has two blocks, for what it sends and what it receives.
fn have_room(records: &[Record]) -> bool {
    let beside = beside_max(records);
    beside <= RANKS_BESIDE_MAX && records.iter().all(|record| record.multiprocessors >= 2 * beside)
}

/// The most ranks of one device.
fn beside_max(records: &[Record]) -> u32 {
    let beside = |record: &Record| records.iter().filter(|other| other.uuid == record.uuid).count() as u32;
    records.iter().map(beside).max().unwrap_or(1)
}

/// Whether a rank shares its device with another of its process.
pub(super) fn has_neighbour(records: &[Record], mine: &Record) -> bool {
    let place = |of: &&Record| (of.process, of.uuid) == (mine.process, mine.uuid);
    records.iter().filter(place).count() > 1
}

/// Whether some rank does: a launch for each would not do there, as those may need the same hardware queue.
pub(super) fn has_neighbours(records: &[Record]) -> bool {
    records.iter().any(|record| has_neighbour(records, record))
}

/// Whether a rank shares its device with another of its process, in a job that has other processes.
pub(super) fn is_mixed(records: &[Record], mine: &Record) -> bool {
    has_neighbour(records, mine) && !records.iter().all(|of| of.process == mine.process)
}

/// Thread blocks of a launch of one rank, the same on all ranks: blocks of different ranks work together.
///
/// Blocks that wait for peers have a multiprocessor each ([`super::flight`]), and one launch has half of them, so that
/// two communicators can be under way at once. `NCCL_MIN_CTAS` and `NCCL_MAX_CTAS` of the ranks change that, up to the
/// whole device.
pub(super) fn blocks_max(records: &[Record], path: Path) -> u32 {
    let beside = beside_max(records);
    let all = records.iter().map(|record| record.multiprocessors / beside).min().unwrap_or(1).max(1);
    let (share, bound) = match path {
        Path::Kernels => ((all / 2).clamp(1, BLOCKS_MAX), all),
        // Nothing waits in a launch.
        Path::Fused | Path::Streams | Path::Host => (2 * all, u32::MAX),
    };
    let least = records.iter().map(|record| record.within.0).max().unwrap_or(1);
    let most = records.iter().map(|record| record.within.1).min().unwrap_or(u32::MAX);
    share.max(least).min(most).clamp(1, bound)
}

fn reason(path: Path, records: &[Record], invariant: bool) -> String {
    if invariant {
        return "CONSORT_DETERMINISM is invariant, and only the host's path has bits that depend on nothing else".into();
    }
    let ranks = |is: &dyn Fn(&Record) -> bool| {
        let ranks: Vec<Rank> = (0..).zip(records).filter(|(_, of)| is(of)).map(|(rank, _)| rank).collect();
        list(&ranks)
    };
    if !records.iter().all(|record| record.loads) {
        return format!("no kernel loads on the devices of ranks {}", ranks(&|of| !of.loads));
    }
    match path {
        Path::Fused if records.len() as u32 > FUSED_MAX => format!("more than {FUSED_MAX} ranks"),
        Path::Fused => format!(
            "ranks {} are in another process or on another device than rank 0",
            ranks(&|of| of.process != records[0].process || of.uuid != records[0].uuid)
        ),
        Path::Kernels => {
            let lacking = ranks(&|of| !of.shares);
            if records.len() == 1 {
                "there is one rank".into()
            } else if lacking.is_empty() {
                format!(
                    "more than {RANKS_BESIDE_MAX} ranks share a device, or it has too few multiprocessors"
                )
            } else {
                format!("ranks {lacking} cannot share memory")
            }
        }
        Path::Streams => {
            let lacking = ranks(&|of| !of.stream_memory_operations || !of.shares);
            if lacking.is_empty() {
                "two ranks of one process share a device".into()
            } else {
                format!("ranks {lacking} lack stream memory operations or cannot share memory")
            }
        }
        Path::Host => "nothing".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(records: &[Record]) -> Result<Path> {
        choose(records, Determinism::Run, None).map(|(path, _)| path)
    }

    fn record(process: u8, device: u8) -> Record {
        Record {
            process: [process; 16],
            uuid: [device; 16],
            ordinal: u32::from(device),
            multiprocessors: 8,
            within: (1, u32::MAX),
            stream_memory_operations: true,
            loads: true,
            shares: true,
            wish: None,
        }
    }

    #[test]
    fn records_come_back() {
        let record =
            Record { wish: Some(Path::Streams), multiprocessors: 132, within: (2, 9), ..record(3, 5) };
        assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
        let mut bytes = record.to_bytes();
        bytes[42] = 9;
        assert_eq!(Record::from_bytes(&bytes), None);
    }

    #[test]
    fn paths_follow_from_processes_and_devices() {
        let together = [record(1, 1), record(1, 1)];
        assert_eq!(chosen(&together).expect("a path"), Path::Fused);
        assert_eq!(chosen(&[record(1, 1)]).expect("a path"), Path::Fused);
        assert_eq!(chosen(&[record(1, 1), record(2, 1)]).expect("a path"), Path::Streams);
        assert_eq!(chosen(&[record(1, 1), record(2, 2)]).expect("a path"), Path::Kernels);
        assert_eq!(chosen(&[record(1, 1), record(1, 2)]).expect("a path"), Path::Kernels);
        // Two of a process on one device beside another process.
        assert_eq!(chosen(&[record(1, 1), record(1, 1), record(2, 1)]).expect("a path"), Path::Host);
        assert_eq!(chosen(&[record(1, 1); 17]).expect("a path"), Path::Host);
        let old = Record { stream_memory_operations: false, ..record(2, 1) };
        assert_eq!(chosen(&[record(1, 1), old]).expect("a path"), Path::Host);
    }

    #[test]
    fn paths_that_are_left_out_say_why() {
        let why = |records: &[Record], path: Path| {
            let (chosen, all) = choose(records, Determinism::Run, None).expect("a path");
            assert!(all.contains(&(chosen, None)));
            all.into_iter().find(|of| of.0 == path).and_then(|of| of.1).unwrap_or_default()
        };
        let beside = [record(1, 1), record(2, 1)];
        assert!(why(&beside, Path::Fused).contains("ranks 1 are in another process"));
        assert_eq!(why(&beside, Path::Kernels), "only CONSORT_DEVICE_PATH=kernels takes it");
        assert_eq!(why(&beside, Path::Host), "", "it could be, and comes later");
        let blind = [record(1, 1), Record { loads: false, ..record(2, 2) }];
        assert!(why(&blind, Path::Kernels).contains("no kernel loads on the devices of ranks 1"));
    }

    #[test]
    fn wishes_are_equal_and_possible() {
        let wishing = |path, record: Record| Record { wish: Some(path), ..record };
        let host = [wishing(Path::Host, record(1, 1)), wishing(Path::Host, record(1, 1))];
        assert_eq!(chosen(&host).expect("always possible"), Path::Host);
        let apart = [wishing(Path::Fused, record(1, 1)), wishing(Path::Fused, record(2, 1))];
        let text = chosen(&apart).expect_err("two processes").to_string();
        assert!(text.contains("fused") && text.contains("ranks 1 are in another process"), "{text}");
        let mixed = [wishing(Path::Host, record(1, 1)), record(1, 1)];
        let text = chosen(&mixed).expect_err("they differ").to_string();
        assert!(text.contains("rank 0 says host; rank 1 says auto"), "{text}");
    }
}
