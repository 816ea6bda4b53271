//! Pinning: the thread of a rank keeps to some of the cores that it may run on already. Only when asked.
//!
//! Invariant: a rank never gets a core that its thread was not allowed before, so what a launcher, a control group or
//! `taskset` has decided holds. Ranks of one host get different cores as long as there are enough, and neighbours get
//! neighbouring ones, so that a domain holds ranks of successive numbers. A pin that the system refuses is one
//! warning and changes nothing. Absent: threads of the library (the control thread starts before the rank's thread is
//! pinned), and undoing: a thread that has joined stays where it is until it ends, unless joining failed.

use std::path::Path;
use std::sync::Once;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::{Cores, Host};
use consort_settings::options::Pinning;

/// The number of a rank among those of its host, and how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    /// The number among the ranks of the host.
    pub rank: u32,
    /// Number of ranks on the host.
    pub size: u32,
}

impl Local {
    /// What the launcher says (`said`), or else as if all ranks were on this host.
    pub fn or_all(rank: u32, size: u32, said: (Option<u32>, Option<u32>)) -> Self {
        match said {
            (Some(rank), Some(size)) if rank < size => Local { rank, size },
            _ => Local { rank, size },
        }
    }
}

/// The cores for one of the ranks of a host whose processes may all use `allowed`.
pub(super) fn cores_for(host: &Host, allowed: &Cores, pinning: Pinning, local: Local) -> Cores {
    // Threads of one physical core side by side, so that few ranks get one each.
    let domain = |core: u32| (host.node(core), host.cache(core));
    let mut cores: Vec<u32> = allowed.iter().copied().collect();
    cores.sort_by_key(|core| (domain(*core), host.first_thread(*core), *core));
    let at = u64::from(local.rank) * cores.len() as u64 / u64::from(local.size.max(1));
    let Some(&core) = cores.get(usize::try_from(at).unwrap_or(usize::MAX)) else { return allowed.clone() };
    match pinning {
        Pinning::None => allowed.clone(),
        Pinning::Cores => Cores::from([core]),
        Pinning::Domains => cores.into_iter().filter(|other| domain(*other) == domain(core)).collect(),
    }
}

/// A thread that is pinned in order to join. Dropping this restores its old cores, unless it was
/// [kept](Pinned::keep).
#[must_use]
pub struct Pinned {
    before: Option<CpuSet>,
}

impl Pinned {
    /// Pins the calling thread according to the option.
    pub fn thread(pinning: Pinning, local: Local) -> Self {
        if pinning == Pinning::None {
            return Pinned { before: None };
        }
        let this = Pid::from_raw(0);
        let allowed = super::allowed();
        let root = Path::new(super::SYSTEM);
        let host = Host::read(root, &allowed).with_threads(root, &allowed);
        let wanted = cores_for(&host, &allowed, pinning, local);
        if wanted == allowed {
            return Pinned { before: None };
        }
        let pinned = sched_getaffinity(this).and_then(|before| {
            let mut set = CpuSet::new();
            wanted.iter().try_for_each(|core| set.set(*core as usize))?;
            sched_setaffinity(this, &set).map(|()| before)
        });
        match pinned {
            Ok(before) => {
                tracing::info!(cores = ?wanted, "the thread of local rank {} is pinned", local.rank);
                Pinned { before: Some(before) }
            }
            Err(error) => {
                complain(&format!(
                    "CONSORT_PIN is {}, and the system refuses to pin a thread ({error}): ranks run where they may",
                    pinning.name()
                ));
                Pinned { before: None }
            }
        }
    }

    /// The rank has joined: its thread stays where it is.
    pub fn keep(mut self) {
        self.before = None;
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Dropping returns no error: these cores were allowed a moment ago.
            let _ = sched_setaffinity(Pid::from_raw(0), before);
        }
    }
}

/// A warning that is given once in a process, whatever its text: a program that pins 64 ranks needs one warning, not
/// 64.
pub fn complain(text: &str) {
    static SAID: Once = Once::new();
    SAID.call_once(|| consort_settings::notice::warn(text));
}
