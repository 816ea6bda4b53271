//! How communicators of the C interface are made, change, and end.
//!
//! Invariant: a new communicator is handed over once, when it is ready or when joining has failed; an end waits for
//! work in the background, and for no other rank. Absent: handles.

use std::sync::{Arc, Mutex, PoisonError};

use consort_cuda::Context;

use super::comm::{Comm, Phase};
use super::config::Config;
use super::device;
use super::environment::{root_if_agreed, unique_id};
use super::group::{self, Act, Task, Turn};
use super::result::{Failure, Progress, Result};
use super::{began, version};
use consort::{Communicator, Shrink};
use consort_control::bootstrap::{Launch, UniqueId};
use consort_settings::options::{Options, Settings};
use consort_types::Rank;
use consort_types::error::Error;

/// The ids that this process made and by which not all ranks have joined. Their rendezvous lives as long as they do,
/// whichever thread made them.
static CREATED: Mutex<Vec<UniqueId>> = Mutex::new(Vec::new());

/// Makes an id and keeps its rendezvous in this process: `ncclGetUniqueId`.
///
/// # Errors
/// As [`unique_id`].
pub fn create_id() -> Result<UniqueId> {
    began(version::TEXT);
    let created = unique_id()?;
    keep(&created);
    Ok(created)
}

/// This process's rank in the job that a launcher started, the number of ranks, and the id that they share:
/// `consortLaunch`.
///
/// # Errors
/// As [`Communicator::from_launcher`], but for joining.
pub fn launched() -> Result<(Rank, u32, UniqueId)> {
    began(version::TEXT);
    let settings = Settings::resolve(&Config::default().to_options()?)?;
    let Some(launch) = Launch::detect()? else {
        return Err(Failure::argument(
            "no launcher's variables are in the environment",
            "start with torchrun, mpirun or srun, or set CONSORT_RANK and CONSORT_SIZE",
        ));
    };
    let id = launch.rendezvous(settings.join_timeout)?;
    keep(&id);
    Ok((launch.rank, launch.size, id))
}

fn keep(created: &UniqueId) {
    CREATED.lock().unwrap_or_else(PoisonError::into_inner).push(created.clone());
    forget_joined();
}

/// The id with its rendezvous, if this process made it, so that a failed join can end it. C passes only bytes.
fn with_root(id: &UniqueId) -> UniqueId {
    let bytes = id.to_bytes();
    let ids = CREATED.lock().unwrap_or_else(PoisonError::into_inner);
    ids.iter().find(|created| created.to_bytes() == bytes).unwrap_or(id).clone()
}

/// Drops ids that are no longer needed: those by which a rank has just joined. Their threads and descriptors then do
/// not outlive the calls of this process's ranks.
fn forget_joined() {
    let over: Vec<UniqueId> = {
        let mut ids = CREATED.lock().unwrap_or_else(PoisonError::into_inner);
        ids.extract_if(.., |id| id.is_over()).collect()
    };
    // Dropping the last one joins a thread, which must not be waited for under the lock.
    drop(over);
}

/// Takes a new communicator to the caller; `None` for a rank that has none, and after a failure.
pub type Deliver = Box<dyn FnOnce(Option<Arc<Comm>>) -> Result<()> + Send>;

/// `NCCL_SPLIT_NOCOLOR`.
const NO_COLOR: i32 = -1;

/// Runs `make`, and delivers the communicator that it makes.
fn delivering(deliver: Deliver, make: impl FnOnce() -> Result<Option<Arc<Comm>>> + Send + 'static) -> Act {
    Box::new(move |refused| match refused.map_or_else(make, |why| Err(why.clone())) {
        Ok(made) => deliver(made),
        Err(failure) => {
            // The place already holds null.
            deliver(None)?;
            Err(failure)
        }
    })
}

impl Comm {
    /// Joins it: `ncclCommInitRank` and similar calls. The failure of a non-blocking communicator stays in it;
    /// otherwise `failed` is called.
    ///
    /// # Errors
    /// As [`Communicator::join_scalable`], and for numbers that are no ranks.
    pub fn join(
        self: &Arc<Self>,
        rank: i32,
        size: i32,
        ids: Vec<UniqueId>,
        failed: Box<dyn FnOnce() + Send>,
    ) -> Result<Progress> {
        let checked = u32::try_from(size).ok().filter(|size| *size > 0).zip(u32::try_from(rank).ok());
        let Some((size, rank)) = checked.filter(|(size, rank)| rank < size) else {
            let failure = Failure::argument(
                format!("rank {rank} does not exist in a communicator of {size}"),
                "ranks count from 0 to the number of ranks - 1",
            );
            group::refuse(&failure);
            failed();
            return Err(failure);
        };
        began(version::TEXT);
        self.expect_shape(rank, size);
        let comm = self.clone();
        let act = move |refused: Option<&Failure>| {
            let join = || {
                if let Some(why) = refused {
                    return Err(why.clone());
                }
                let options = comm.options()?;
                // The id is kept until all have joined, if its rendezvous runs here.
                let ids = ids.iter().map(|id| root_if_agreed(rank, &with_root(id)));
                let ids = ids.collect::<consort_types::Result<Vec<_>>>()?;
                let joined = Communicator::join_unless(rank, size, &ids, &options, Some(comm.cancelled()));
                // In any case: C does not drop ids.
                ids.iter().skip(1).for_each(UniqueId::retire);
                comm.joined(joined?)
            };
            let joined = join();
            forget_joined();
            match joined {
                Ok(()) => Ok(()),
                Err(failure) => {
                    let failure = failure.said_by(&comm);
                    if comm.is_blocking() {
                        failed();
                    }
                    comm.stillborn(&failure);
                    Err(failure)
                }
            }
        };
        group::task(Task { comm: self.clone(), act: Box::new(act), turn: Turn::Begin })
    }

    /// One communicator for all ranks of this process: `ncclCommInitAll`.
    ///
    /// # Errors
    /// As [`Communicator::local_with`].
    pub fn local(size: u32, devices: Option<&[i32]>) -> Result<Vec<Arc<Comm>>> {
        began(version::TEXT);
        let contexts = device::numbered(devices, size)?;
        let placed = contexts.iter().all(Option::is_some);
        let options: Options = Config::default().to_options()?.timeout(super::comm::NEVER).devices(placed);
        let addresses = contexts.iter().map(|of| of.as_ref().map(|context| context.device().pci.clone()));
        let ranks = Communicator::local_on(&addresses.collect::<Vec<_>>(), &options)?;
        let device = |rank: usize| devices.map_or(rank as i32, |devices| devices[rank]);
        let made = ranks.into_iter().zip(contexts).enumerate();
        let of = |(rank, (communicator, context))| {
            Comm::of(communicator, Config::default(), device(rank), context)
        };
        if !placed {
            return made.map(of).collect();
        }
        // Placement is a collective.
        std::thread::scope(|threads| {
            let started: Vec<_> = made.map(|rank| threads.spawn(move || of(rank))).collect();
            let panicked = |_| Err(Error::internal("a panic while ranks found their places").into());
            started.into_iter().map(|rank| rank.join().unwrap_or_else(panicked)).collect()
        })
    }

    /// A communicator that is already joined.
    fn of(
        communicator: Communicator,
        config: Config,
        device: i32,
        context: Option<Context>,
    ) -> Result<Arc<Self>> {
        let comm = Comm::new(config, device, context);
        comm.joined(communicator)?;
        Ok(comm)
    }

    /// Starts the making of a new communicator from this one. The new config must be valid, but channels and network
    /// are those of this communicator.
    fn offspring(
        self: &Arc<Self>,
        config: Config,
        turn: Turn,
        deliver: Deliver,
        make: impl FnOnce(&Comm) -> Result<Option<Communicator>> + Send + 'static,
    ) -> Result<Progress> {
        config.to_options().map(drop)?;
        let parent = self.clone();
        let act = delivering(deliver, move || {
            let of = |communicator| Comm::of(communicator, config, parent.device(), parent.context.clone());
            make(&parent)?.map(of).transpose()
        });
        group::task(Task { comm: self.clone(), act, turn })
    }

    /// `ncclCommSplit`.
    ///
    /// # Errors
    /// As [`Communicator::split`]; for a negative colour that is not `NCCL_SPLIT_NOCOLOR`.
    pub fn split(
        self: &Arc<Self>,
        color: i32,
        key: i32,
        config: Config,
        deliver: Deliver,
    ) -> Result<Progress> {
        group::noting(|| {
            self.open_for("split")?;
            let color = match u32::try_from(color) {
                Ok(color) => Some(color),
                Err(_) if color == NO_COLOR => None,
                Err(_) => {
                    return Err(Failure::argument(
                        format!("a colour of {color}"),
                        "pass 0 or more, or NCCL_SPLIT_NOCOLOR for a rank that is to be in no communicator",
                    ));
                }
            };
            self.offspring(config, Turn::Begin, deliver, move |parent| {
                Ok(parent.communicator()?.split(color, i64::from(key))?)
            })
        })
    }

    /// `ncclCommShrink`: the ranks that are not `excluded` form a new communicator; `how` decides what happens to
    /// operations under way.
    ///
    /// # Errors
    /// As [`Communicator::shrink`].
    pub fn shrink(
        self: &Arc<Self>,
        excluded: &[i32],
        how: Shrink,
        config: Config,
        deliver: Deliver,
    ) -> Result<Progress> {
        group::noting(|| {
            let communicator = self.communicator()?;
            if how == Shrink::Idle {
                self.open_for("shrink")?;
                if self.unfinished().is_some() {
                    return Err(Failure::usage(
                        "the communicator has operations under way",
                        "wait for them, or pass NCCL_SHRINK_ABORT to end them",
                    ));
                }
            }
            let size = communicator.size();
            let known = |rank: &i32| u32::try_from(*rank).ok().filter(|rank| *rank < size);
            let excluded: Vec<Rank> = excluded
                .iter()
                .map(|rank| {
                    known(rank).ok_or_else(|| {
                        Failure::argument(
                            format!("rank {rank} is to be excluded from a communicator of {size}"),
                            format!("pass ranks between 0 and {}", size - 1),
                        )
                    })
                })
                .collect::<Result<_>>()?;
            communicator.leaving(&excluded)?;
            let turn = if how == Shrink::Abort { Turn::Interrupt } else { Turn::Begin };
            self.offspring(config, turn, deliver, move |parent| {
                Ok(Some(parent.communicator()?.shrink(&excluded, how)?))
            })
        })
    }

    /// `ncclCommGrow` on a rank that is in the communicator already; one rank passes the id that [`Comm::growth_id`]
    /// made.
    ///
    /// # Errors
    /// As [`Communicator::grow`].
    pub fn grow(
        self: &Arc<Self>,
        size: i32,
        id: Option<UniqueId>,
        config: Config,
        deliver: Deliver,
    ) -> Result<Progress> {
        group::noting(|| {
            self.open_for("grow")?;
            let size = u32::try_from(size).map_err(|_| {
                Failure::argument(format!("a size of {size}"), "pass the number of ranks, old and new")
            })?;
            self.offspring(config, Turn::Begin, deliver, move |parent| {
                let grown = parent.communicator()?.grow_unless(size, id.as_ref(), Some(parent.cancelled()));
                forget_joined();
                Ok(Some(grown?))
            })
        })
    }

    /// The id by which new ranks join when this communicator grows: `ncclCommGetUniqueId`.
    ///
    /// # Errors
    /// As [`Communicator::grow_id`].
    pub fn growth_id(&self) -> Result<UniqueId> {
        self.open_for("grow")?;
        let id = self.communicator()?.grow_id()?;
        keep(&id);
        Ok(id)
    }

    /// Whether a new communicator may be made of it.
    fn open_for(&self, what: &str) -> Result<()> {
        self.ready()?;
        self.communicator()?;
        match self.phase() {
            Phase::Ready | Phase::Revoked => Ok(()),
            Phase::Suspended => Err(Failure::usage(
                format!("a suspended communicator cannot {what}"),
                "call ncclCommResume on all ranks first",
            )),
            _ => Err(Failure::usage(
                format!("a communicator that was finalized or aborted cannot {what}"),
                "do it before ncclCommFinalize",
            )),
        }
    }

    /// `ncclCommFinalize`: waits for operations under way; after it only an end is allowed.
    ///
    /// # Errors
    /// The second time, and after a revocation.
    pub fn finalize(self: &Arc<Self>) -> Result<Progress> {
        group::noting(|| {
            self.ready()?;
            self.communicator()?;
            let before = self.phase();
            let may = matches!(before, Phase::Ready | Phase::Suspended);
            if !may || !self.advance(before, Phase::Finalized) {
                return Err(match self.phase() {
                    Phase::Finalized => {
                        Failure::argument("the communicator was finalized before", "call ncclCommDestroy")
                    }
                    _ => Failure::usage(
                        "a communicator that was revoked or aborted cannot be finalized",
                        "call ncclCommDestroy or ncclCommAbort",
                    ),
                });
            }
            // Operations under way end first: a task comes after them.
            let comm = self.clone();
            let act = move |refused: Option<&Failure>| {
                if refused.is_some() {
                    comm.advance(Phase::Finalized, before);
                    return Ok(());
                }
                // Also waits for operations in streams of a device.
                let communicator = comm.communicator()?;
                if comm.placement().is_some() && communicator.status().is_ok() {
                    communicator.finish_streams(super::comm::NEVER)?;
                }
                Ok(())
            };
            group::task(Task { comm: self.clone(), act: Box::new(act), turn: Turn::Begin })
        })
    }

    /// `ncclCommDestroy`, after its handle was freed: waits for operations under way and closes it. A forked child
    /// only frees its copy.
    ///
    /// # Errors
    /// None now; a group that is open may have failed before.
    pub fn destroy(self: Arc<Self>) -> Result<()> {
        let comm = self.clone();
        let act = move |_: Option<&Failure>| {
            comm.set_phase(Phase::Finalized);
            drop(comm);
            Ok(())
        };
        group::task(Task { comm: self, act: Box::new(act), turn: Turn::End }).map(drop)
    }

    /// `ncclCommAbort`, after its handle was freed: ends this rank's operations under way on all ranks, also a join,
    /// and closes it. Any thread may call it at any time. A forked child only frees its copy.
    ///
    /// # Errors
    /// As [`Comm::destroy`].
    pub fn abort(self: Arc<Self>) -> Result<()> {
        // Relaxed: a thread that joins loads it again and again.
        self.cancelled().store(true, std::sync::atomic::Ordering::Relaxed);
        // A rank that has nothing under way only leaves, which clients expect that abort where others destroy: ranks
        // that still finish a call that this rank has finished must not fail.
        if let Ok(communicator) = self.communicator()
            && (self.is_busy() || communicator.is_in_use())
        {
            communicator.abort("ncclCommAbort was called");
        }
        self.set_phase(Phase::Aborted);
        self.destroy()
    }

    /// `ncclCommRevoke`: ends operations under way on all ranks; the communicator can then be split, shrunk or
    /// closed.
    ///
    /// # Errors
    /// For unknown flags; while it is being joined.
    pub fn revoke(&self, flags: i32) -> Result<()> {
        if flags != 0 {
            return Err(Failure::argument(
                format!("revoke flags of {flags}"),
                "pass NCCL_REVOKE_DEFAULT, the only one there is",
            ));
        }
        self.communicator()?;
        if !self.advance(Phase::Ready, Phase::Revoked) && self.phase() != Phase::Revoked {
            return Err(Failure::usage(
                "only a communicator in use can be revoked",
                "this one was suspended, finalized or aborted",
            ));
        }
        self.interrupt("ncclCommRevoke was called");
        Ok(())
    }

    /// `ncclCommSuspend`, on all ranks: frees the memory of its connections; until [`Comm::resume`] it takes no
    /// calls.
    ///
    /// # Errors
    /// For unknown flags, and where it is not idle; as [`Communicator::suspend`].
    pub fn suspend(self: &Arc<Self>, flags: i32) -> Result<Progress> {
        const SUSPEND_MEM: i32 = 1;
        group::noting(|| {
            if flags != SUSPEND_MEM {
                return Err(Failure::argument(format!("suspend flags of {flags}"), "pass NCCL_SUSPEND_MEM"));
            }
            self.for_data()?;
            if self.unfinished().is_some() || !self.advance(Phase::Ready, Phase::Suspended) {
                return Err(Failure::usage(
                    "only an idle communicator can be suspended",
                    "wait for its operations first",
                ));
            }
            let comm = self.clone();
            let act = move |refused: Option<&Failure>| match refused {
                None => comm.communicator()?.suspend().map_err(|error| {
                    comm.advance(Phase::Suspended, Phase::Ready);
                    Failure::from(error)
                }),
                Some(why) => {
                    comm.advance(Phase::Suspended, Phase::Ready);
                    Err(why.clone())
                }
            };
            group::task(Task { comm: self.clone(), act: Box::new(act), turn: Turn::Begin })
        })
    }

    /// `ncclCommResume`.
    ///
    /// # Errors
    /// When it is not suspended.
    pub fn resume(&self) -> Result<()> {
        self.ready()?;
        if self.advance(Phase::Suspended, Phase::Ready) {
            return Ok(());
        }
        Err(Failure::usage("the communicator is not suspended", "call ncclCommSuspend first"))
    }

    /// Whether it is suspended.
    pub fn is_suspended(&self) -> bool {
        self.phase() == Phase::Suspended
    }
}
