//! Answers of NVML that were written down, one a line, so that a captured tree has those of its machine.
//!
//! Invariant: a line is the library's name of a function, its arguments, `=` and the answer; `*` stands for any argument, and an
//! answer of `!` and a number is an error of the library. Of several lines that fit, the one with fewer `*` counts. What is not
//! written down has no answer. `standins/nvml` answers programs by the same lines.

use std::collections::BTreeMap;

use consort_cuda::management::{Fabric, Management, NoAnswer, PeerUse, RemoteKind, refusal_words};

/// More lines than a machine's answers have.
const LINES_MAX: usize = 100_000;

/// Answers that were written down.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    answers: BTreeMap<String, String>,
}

/// A line that is no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoRecord {
    /// Its number, from 1.
    pub line: usize,
    /// What it says, shortened.
    pub says: String,
}

impl std::fmt::Display for NoRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {:?} is no FUNCTION ARGUMENTS = ANSWER", self.line, self.says)
    }
}

impl std::error::Error for NoRecord {}

impl Recorded {
    /// Reads answers; `#` begins a comment.
    ///
    /// # Errors
    ///
    /// [`NoRecord`] with the first line that is none.
    pub fn read(text: &str) -> Result<Recorded, NoRecord> {
        let mut answers = BTreeMap::new();
        for (line, at) in text.lines().zip(1..) {
            let code = line.split('#').next().unwrap_or_default().trim();
            if code.is_empty() {
                continue;
            }
            let parts = code.split_once('=').filter(|_| at <= LINES_MAX);
            let Some((question, answer)) = parts.filter(|(question, _)| !question.trim().is_empty()) else {
                return Err(NoRecord { line: at, says: code.chars().take(60).collect() });
            };
            let question = question.split_whitespace().collect::<Vec<_>>().join(" ");
            answers.insert(question, answer.trim().to_owned());
        }
        Ok(Recorded { answers })
    }

    /// The answer to a question with at most three arguments.
    fn answer(&self, function: &str, arguments: &[u32]) -> Result<&str, NoAnswer> {
        // Bit `i` of a mask stands for `*` in place of argument `i`; fewer bits are better.
        let mut masks: Vec<u32> = (0..1 << arguments.len()).collect();
        masks.sort_by_key(|mask| mask.count_ones());
        let found = masks.into_iter().find_map(|mask| {
            let mut question = function.to_owned();
            for (argument, at) in arguments.iter().zip(0..) {
                question += &if mask >> at & 1 == 1 { " *".to_owned() } else { format!(" {argument}") };
            }
            self.answers.get(&question)
        });
        let answer = found.ok_or(NoAnswer::TooOld)?;
        match answer.strip_prefix('!') {
            None => Ok(answer),
            Some("3") => Err(NoAnswer::NotSupported),
            Some("2" | "6") => Err(NoAnswer::NoSuch),
            Some("13" | "25") => Err(NoAnswer::TooOld),
            Some(code) => Err(NoAnswer::Refused { reason: format!("NVML's error {code}") }),
        }
    }

    fn number(&self, function: &str, arguments: &[u32]) -> Result<u64, NoAnswer> {
        let answer = self.answer(function, arguments)?;
        answer.parse().map_err(|_| NoAnswer::Refused { reason: format!("{answer:?} is no number") })
    }

    fn small(&self, function: &str, arguments: &[u32]) -> Result<u32, NoAnswer> {
        let number = self.number(function, arguments)?;
        u32::try_from(number).map_err(|_| NoAnswer::Refused { reason: format!("{number} is too large") })
    }
}

impl Management for Recorded {
    fn driver_version(&self) -> Result<String, NoAnswer> {
        self.answer("nvmlSystemGetDriverVersion", &[]).map(str::to_owned)
    }

    fn gpus(&self) -> Result<u32, NoAnswer> {
        self.small("nvmlDeviceGetCount_v2", &[])
    }

    fn address(&self, gpu: u32) -> Result<String, NoAnswer> {
        self.answer("nvmlDeviceGetPciInfo_v3", &[gpu]).map(str::to_owned)
    }

    fn uuid(&self, gpu: u32) -> Result<String, NoAnswer> {
        self.answer("nvmlDeviceGetUUID", &[gpu]).map(str::to_owned)
    }

    fn model(&self, gpu: u32) -> Result<String, NoAnswer> {
        self.answer("nvmlDeviceGetName", &[gpu]).map(str::to_owned)
    }

    fn capability(&self, gpu: u32) -> Result<(u32, u32), NoAnswer> {
        let answer = self.answer("nvmlDeviceGetCudaComputeCapability", &[gpu])?;
        let parts = answer
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        parts.ok_or_else(|| NoAnswer::Refused { reason: format!("{answer:?} is no version") })
    }

    fn is_split(&self, gpu: u32) -> Result<bool, NoAnswer> {
        self.number("nvmlDeviceGetMigMode", &[gpu]).map(|mode| mode == 1)
    }

    fn is_link_up(&self, gpu: u32, link: u32) -> Result<bool, NoAnswer> {
        self.number("nvmlDeviceGetNvLinkState", &[gpu, link]).map(|state| state == 1)
    }

    fn link_version(&self, gpu: u32, link: u32) -> Result<u32, NoAnswer> {
        self.small("nvmlDeviceGetNvLinkVersion", &[gpu, link])
    }

    fn link_remote(&self, gpu: u32, link: u32) -> Result<String, NoAnswer> {
        self.answer("nvmlDeviceGetNvLinkRemotePciInfo_v2", &[gpu, link]).map(str::to_owned)
    }

    fn link_remote_kind(&self, gpu: u32, link: u32) -> Result<RemoteKind, NoAnswer> {
        Ok(match self.number("nvmlDeviceGetNvLinkRemoteDeviceType", &[gpu, link])? {
            0 => RemoteKind::Gpu,
            1 => RemoteKind::Processor,
            2 => RemoteKind::Switch,
            _ => RemoteKind::Unknown,
        })
    }

    fn coherent_links(&self, gpu: u32) -> Result<u32, NoAnswer> {
        self.small("nvmlDeviceGetFieldValues", &[gpu, 170])
    }

    fn coherent_mb_s(&self, gpu: u32) -> Result<u64, NoAnswer> {
        self.number("nvmlDeviceGetFieldValues", &[gpu, 172])
    }

    fn fabric(&self, gpu: u32) -> Result<Fabric, NoAnswer> {
        let answer = self.answer("nvmlDeviceGetGpuFabricInfoV", &[gpu])?;
        let mut words = answer.split_whitespace();
        let parsed: Option<(u32, Fabric)> = (|| {
            let (state, cluster): (u32, &str) = (words.next()?.parse().ok()?, words.next()?);
            let clique = words.next()?.parse().ok()?;
            let is_hex = cluster.len() == 32 && cluster.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hex.then(|| (state, Fabric { is_joined: state == 3, cluster: cluster.to_owned(), clique }))
        })();
        match parsed {
            Some((0, _)) => Err(NoAnswer::NotSupported),
            Some((_, fabric)) => Ok(fabric),
            None => Err(NoAnswer::Refused { reason: format!("{answer:?} is no STATE CLUSTER CLIQUE") }),
        }
    }

    fn refusal(&self, gpu: u32, other: u32, how: PeerUse) -> Result<Option<&'static str>, NoAnswer> {
        let how = match how {
            PeerUse::Read => 0,
            PeerUse::Write => 1,
            PeerUse::NvLink => 2,
        };
        self.small("nvmlDeviceGetP2PStatus", &[gpu, other, how]).map(refusal_words)
    }
}
