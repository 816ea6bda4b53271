//! How communicators come to be: explicitly, under a launcher, or all ranks in one process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use consort_memory::sync::AtomicBool;

use super::{Communicator, Core, adapters, exchanged};
use crate::Rank;
use crate::planner::Planner;
use consort_algorithms::hardware::BusId;
use consort_control::bootstrap::{self, Hello, Joined, Launch, Table, UniqueId};
use consort_control::membership::dial;
use consort_control::membership::group::Group;
use consort_control::membership::member::{Link, Member};
use consort_control::membership::patience::Patience;
use consort_control::membership::process::{Process, Shared, random};
use consort_control::membership::relays;
use consort_control::trace;
use consort_settings::options::{Options, Pinning, Settings};
use consort_topology::Place;
use consort_topology::pin::{self, Local, Pinned};
use consort_types::error::{Error, Result};

impl Communicator {
    /// Joins a communicator of `size` ranks as `rank`, with the id that one of them
    /// [created](UniqueId::create) and handed to the others. Returns when all have joined. The process that
    /// created the id must keep it until then.
    ///
    /// ```
    /// use consort::{Communicator, ReduceOp, UniqueId};
    ///
    /// let id = UniqueId::create()?;
    /// let bytes = id.to_bytes(); // to the other processes, by whatever way is private
    /// std::thread::scope(|threads| {
    ///     threads.spawn(|| {
    ///         let id = UniqueId::from_bytes(&bytes).expect("what rank 0 sent");
    ///         let comm = Communicator::join(1, 2, &id).expect("rank 0 joins too");
    ///         comm.send(&[1i64, 2, 3], 0).expect("rank 0 receives it");
    ///     });
    ///     let comm = Communicator::join(0, 2, &id).expect("rank 1 joins too");
    ///     let mut message = [0i64; 3];
    ///     comm.receive(&mut message, 1).expect("rank 1 sends it");
    ///     assert_eq!(message, [1, 2, 3]);
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::MissingRanks`] naming them when not all come within the join timeout, [`Error::Settings`] when
    /// they were started differently, [`Error::Join`] when the id leads nowhere.
    pub fn join(rank: Rank, size: u32, id: &UniqueId) -> Result<Self> {
        Self::join_with(rank, size, id, &Options::default())
    }

    /// As [`Communicator::join`], with options.
    ///
    /// # Errors
    /// As [`Communicator::join`], and [`Error::InvalidArgument`] for options that make no sense.
    pub fn join_with(rank: Rank, size: u32, id: &UniqueId, options: &Options) -> Result<Self> {
        Self::meet(rank, size, id, &[], Settings::resolve(options)?, None)
    }

    /// As [`Communicator::join_with`], for a job whose program made several ids, in as many processes (the same
    /// ones in the same order on all ranks, from 1 to `size` of them). The ranks meet by the first id; of the others
    /// is only made sure that all ranks pass the same, and those made in this process are given up, so that their
    /// roots end. Nothing is spread over them: a rendezvous answers each rank once, and one process serves thousands.
    ///
    /// # Errors
    /// As [`Communicator::join_with`]; [`Error::InvalidArgument`] for no ids or more than ranks, [`Error::Settings`]
    /// when ranks pass different ones.
    pub fn join_scalable(rank: Rank, size: u32, ids: &[UniqueId], options: &Options) -> Result<Self> {
        Self::join_unless(rank, size, ids, options, None)
    }

    /// As [`Communicator::join_scalable`]; soon after `cancelled` was set, [`Error::Join`] as long as not all ranks have
    /// come.
    #[doc(hidden)]
    pub fn join_unless(
        rank: Rank,
        size: u32,
        ids: &[UniqueId],
        options: &Options,
        cancelled: Option<&AtomicBool>,
    ) -> Result<Self> {
        match ids {
            [first, others @ ..] if ids.len() <= size as usize => {
                let joined = Self::meet(rank, size, first, others, Settings::resolve(options)?, cancelled)?;
                others.iter().for_each(UniqueId::retire);
                Ok(joined)
            }
            _ => Err(Error::invalid(
                format!("{} unique ids were given for {size} ranks", ids.len()),
                "give one at least and at most as many as there are ranks",
            )),
        }
    }

    /// Joins the job of `id`; all ranks must have the same `others`.
    pub(super) fn meet(
        rank: Rank,
        size: u32,
        id: &UniqueId,
        others: &[UniqueId],
        settings: Settings,
        cancelled: Option<&AtomicBool>,
    ) -> Result<Self> {
        if size == 0 || rank >= size {
            return Err(Error::invalid(
                format!("rank {rank} does not exist in a communicator of {size}"),
                "ranks count from 0 to size - 1",
            ));
        }
        let span = tracing::info_span!("join", rank, size);
        let _entered = span.enter();
        let deadline = Instant::now() + settings.join_timeout;
        let process = Process::acquire(settings.ports)?;
        let (local, pinned) = pinned(&process, rank, size, &settings)?;
        let member = bootstrap::Member {
            wire_mbits: settings.wire_mbits.unwrap_or_else(bootstrap::wire_mbits),
            // Without shared memory the ranks of this host are linked as if they were on others.
            unix: if process.shared.memory.is_some() { process.shared.unix_name.clone() } else { Vec::new() },
            tcp: process.shared.tcp_addresses()?,
            ..of_this_process(&process, &settings)
        };
        let mut agreed = settings.agreed();
        if !others.is_empty() {
            let value = format!("{} with the mark {}", others.len() + 1, id.mark(others));
            agreed.push(("unique ids".into(), value));
        }
        let hello = Hello { rank, size, settings: agreed, member: member.clone() };
        let joined = bootstrap::join_unless(id, hello, settings.join_timeout, cancelled)?;
        let patience = Patience::until(deadline, cancelled);
        let table = match joined {
            Joined::Whole(table) => table,
            Joined::Elsewhere(reference) => {
                // Others may ask it for the table before it has it.
                process.ensure_thread()?;
                relays::take(&process.shared, rank, &member, &reference, patience)?
            }
        };
        let member = link_up(&process, rank, table, patience, settings.join_timeout)?;
        pinned.keep();
        if settings.pinning != Pinning::None {
            pin_is_doubtful(&member, local, size);
        }
        Ok(root_communicator(process, member, settings))
    }

    /// Joins the communicator that a launcher started this process for: torchrun, Open MPI, MPICH, Slurm, or
    /// `CONSORT_RANK` and `CONSORT_SIZE`. On one host the ranks find each other by themselves; across hosts
    /// set `CONSORT_ADDRESS` and `CONSORT_SECRET`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when no launcher is there; otherwise as [`Communicator::join`].
    pub fn from_launcher() -> Result<Self> {
        Self::from_launcher_with(&Options::default())
    }

    /// As [`Communicator::from_launcher`], with options.
    ///
    /// # Errors
    /// As [`Communicator::from_launcher`].
    pub fn from_launcher_with(options: &Options) -> Result<Self> {
        let settings = Settings::resolve(options)?;
        let Some(launch) = Launch::detect()? else {
            return Err(Error::invalid(
                "no launcher's variables are in the environment",
                "start with torchrun, mpirun or srun, or set CONSORT_RANK and CONSORT_SIZE",
            ));
        };
        let id = launch.rendezvous(settings.join_timeout)?;
        Self::join_with(launch.rank, launch.size, &id, options)
    }

    /// A communicator of `size` ranks that all live in this process, one per element; give each to a thread of
    /// its own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `size` is 0; otherwise the system's.
    pub fn local(size: u32) -> Result<Vec<Self>> {
        Self::local_with(size, &Options::default())
    }

    /// As [`Communicator::local`], with options.
    ///
    /// # Errors
    /// As [`Communicator::local`], and [`Error::InvalidArgument`] for options that make no sense.
    pub fn local_with(size: u32, options: &Options) -> Result<Vec<Self>> {
        // Whose thread runs which rank is not known yet.
        Self::local_as(size, Settings::resolve(options)?, &|_, of| of)
    }

    /// As [`Communicator::local_with`], of ranks that use the devices at these PCI addresses; what is no address is not known.
    ///
    /// # Errors
    /// As [`Communicator::local_with`].
    #[doc(hidden)]
    pub fn local_on(addresses: &[Option<String>], options: &Options) -> Result<Vec<Self>> {
        let device = |address: &Option<String>| address.as_deref()?.parse().ok();
        let devices: Vec<Option<BusId>> = addresses.iter().map(device).collect();
        Self::local_as(addresses.len() as u32, Settings::resolve(options)?, &|rank, of| bootstrap::Member {
            device: devices[rank as usize],
            ..of
        })
    }

    /// As [`Communicator::local_with`], of ranks that say of themselves what `said` makes of what this process knows.
    pub(crate) fn local_as(
        size: u32,
        settings: Settings,
        said: &dyn Fn(Rank, bootstrap::Member) -> bootstrap::Member,
    ) -> Result<Vec<Self>> {
        if size == 0 {
            return Err(Error::invalid("a communicator of 0 ranks", "ask for at least 1"));
        }
        let process = Process::acquire(settings.ports)?;
        let here = of_this_process(&process, &settings);
        let member = |rank| said(rank, here.clone());
        // Kept until the communicators keep it.
        let planner = Planner::of_process();
        if size > 1 {
            planner.expect_many();
        }
        let (job, key) = (random::<16>()?, random::<32>()?);
        let table: Vec<bootstrap::Member> = (0..size).map(member).collect();
        let table: Arc<[bootstrap::Member]> = table.into();
        let members: Vec<Arc<Member>> =
            (0..size).map(|rank| Member::new(&process.shared, job, key, rank, table.clone())).collect();
        for member in &members {
            for peer in &members {
                member.set_link(peer.rank, Link::Local(Arc::downgrade(peer)));
            }
        }
        let communicator = |member: Arc<Member>| root_communicator(process.clone(), member, settings.clone());
        Ok(members.into_iter().map(communicator).collect())
    }
}

/// What a rank of the calling thread says of itself when it joins, without addresses.
fn of_this_process(process: &Process, settings: &Settings) -> bootstrap::Member {
    let place = Place::of_thread();
    bootstrap::Member {
        host: bootstrap::host_name(),
        pid: std::process::id(),
        process: process.shared.nonce,
        machine: bootstrap::boot_id(),
        host_key: bootstrap::host_key(),
        wire_mbits: 0,
        ports: adapters::said(settings, &place),
        round_trip: Default::default(),
        cores: cores(),
        place,
        devices: settings.devices,
        device: settings.device,
        graphs: settings.exchanged.graphs_mark(),
        hardware: exchanged::hardware(settings),
        unix: Vec::new(),
        tcp: Vec::new(),
    }
}

/// Pins the calling thread, if that was asked for, as which of the ranks of its host.
fn pinned(process: &Process, rank: Rank, size: u32, settings: &Settings) -> Result<(Local, Pinned)> {
    if settings.pinning == Pinning::None {
        return Ok((Local { rank, size }, Pinned::thread(Pinning::None, Local { rank, size })));
    }
    // A launcher that is misunderstood says nothing here; who needs it hears of it.
    let launch = Launch::detect().ok().flatten();
    let said = launch.map_or((None, None), |launch| (launch.local_rank, launch.local_size));
    let local = Local::or_all(rank, size, said);
    // Threads inherit their maker's cores.
    if size > 1 {
        process.ensure_thread()?;
    }
    Ok((local, Pinned::thread(settings.pinning, local)))
}

/// Says so if ranks may have been pinned to the same cores, as the table of ranks shows.
fn pin_is_doubtful(member: &Member, local: Local, size: u32) {
    // Of the ranks on this machine, whose cores they share.
    let machine = member.table[member.rank as usize].machine;
    let here = member.table.iter().filter(|of| of.machine == machine).count() as u32;
    if here != size && local.size == size || here > local.size {
        pin::complain(&format!(
            "CONSORT_PIN: {here} ranks are on this host and were pinned as {}, perhaps to the same cores: set \
             CONSORT_LOCAL_RANK and CONSORT_LOCAL_SIZE with CONSORT_RANK and CONSORT_SIZE",
            local.size
        ));
    }
}

/// Makes the control links of a rank that has just learned who the others are, and hands on to others who they are.
fn link_up(
    process: &Process,
    rank: Rank,
    table: Table,
    patience: Patience<'_>,
    timeout: Duration,
) -> Result<Arc<Member>> {
    let shared = &process.shared;
    let members = shared.one_table(&table);
    let member = Member::new(shared, table.job, table.key, rank, members.clone());
    let size = member.table.len() as u32;
    if size == 1 {
        return Ok(member);
    }
    process.ensure_thread()?;
    shared.relay(&table, &members, rank);
    shared.enlist(&member);
    link_all(shared, &member, patience)
        .and_then(|unlinked| match unlinked {
            None => Ok(()),
            Some(_) if patience.is_cancelled() => Err(bootstrap::cancelled(rank)),
            Some((missing, why)) => Err(Error::MissingRanks {
                missing,
                size,
                waited: timeout,
                address: format!(
                    "each other at the ports of their control connections (they joined, then {why}: a firewall, or \
                     they stopped or died)"
                ),
            }),
        })
        .inspect_err(|error| {
            shared.withdraw(&table.key, rank);
            member.give_up_joining(error);
        })?;
    Ok(member)
}

/// Links a member to all others; returns those to whom it could not be linked in time, and what came of trying.
fn link_all(
    shared: &Arc<Shared>,
    member: &Arc<Member>,
    patience: Patience<'_>,
) -> Result<Option<(Vec<Rank>, String)>> {
    let me = member.rank;
    let is_here = |peer: &Rank| member.table[*peer as usize].process == shared.nonce;
    for peer in (0..member.table.len() as u32).filter(|peer| *peer != me).filter(is_here) {
        if !shared.link_within(member, peer, patience) {
            return Ok(Some((vec![peer], format!("rank {peer} of this process did not go on"))));
        }
    }
    // Each begins with another one: those that are called at the same time answer one after the other.
    let mut called = member.first_linked();
    called.retain(|peer| *peer < me && !is_here(peer));
    called.reverse();
    for peer in called {
        if let Err(error) = dial::dial(shared, member, peer, patience)? {
            return Ok(Some((vec![peer], format!("rank {me} could not connect to rank {peer} ({error})"))));
        }
    }
    let Err(missing) = member.wait_for_links(patience) else { return Ok(None) };
    let at: Vec<String> = member.table[me as usize].tcp.iter().map(ToString::to_string).collect();
    Ok(Some((missing, format!("did not connect to rank {me} at {}", at.join(", ")))))
}

fn root_communicator(process: Arc<Process>, member: Arc<Member>, settings: Settings) -> Communicator {
    let uid = member.world();
    let members: Vec<Rank> = (0..member.table.len() as u32).collect();
    let group = Group::new(member, uid, members.clone(), settings.records);
    trace::joined(&group, &settings);
    let core = Core::new(group, process.shared.clone(), settings);
    let rank = core.group.rank;
    exchanged::joined(rank, &core.group.member.table[rank as usize], &core.settings, &core.planning);
    Communicator::from_core(core, process)
}

/// Cores of this host, whatever this process may use of them: other ranks use the rest.
fn cores() -> u32 {
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online.and_then(|cores| u32::try_from(cores).ok()).unwrap_or(1).max(1)
}
