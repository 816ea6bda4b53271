//! `collbench`: measures consort's collectives and checks their results, in nccl-tests' language.
//!
//! Invariant: it uses the library's public interface alone, contains no `unsafe`, and its exit status says
//! how the run went (see [`failure::Exit`]).
//!
//! | module | subject |
//! |---|---|
//! | `arguments`, `sizes` | the command line |
//! | `bounds` | how many ranks this host carries |
//! | `launch` | ranks as processes: starting, relaying, waiting, killing |
//! | `backend`, `device`, `group` | the library, in the host's memory and on devices, and what the rest needs of it |
//! | `measure` | one rank's run |
//! | `cut`, `data`, `values`, `pattern`, `buffers` | what goes in, what must come out, and the comparison |
//! | `report`, `table`, `statistics`, `progress`, `clock` | what is reported |
//! | `trace` | the subcommand that merges traces |
//! | `environment` | the subcommand that shows settings |
//! | `traffic` | the subcommand that counts what a training job moves |
//! | `bound` | the subcommand that says what no schedule can exceed |
//! | `topo`, `inventory`, `described` | the subcommand that shows a machine, and machines that files describe or a probe finds |
//! | `probe` | the subcommand that measures the wires between ranks |
//! | `experts` | the subcommand that measures dispatch and combine of a mixture of experts |
//! | `plan`, `simulate`, `tune`, `planned`, `samples`, `schedule` | the subcommands that ask and teach the planner |

#![forbid(unsafe_code)]

mod arguments;
mod backend;
mod bound;
mod bounds;
mod buffers;
mod clock;
mod collective;
mod cut;
mod data;
mod described;
mod device;
mod environment;
mod experts;
mod failure;
mod group;
mod inventory;
mod launch;
mod matrix;
mod measure;
mod operator;
mod pattern;
mod plan;
mod planned;
mod probe;
mod progress;
mod report;
mod samples;
mod schedule;
mod simulate;
mod sizes;
mod statistics;
mod table;
mod topo;
mod trace;
mod traffic;
mod tune;
mod values;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use arguments::Settings;
use backend::Member;
use bounds::Limits;
use device::{Seated, Team, teams};
use failure::{Exit, Failure};
use measure::Output;
use progress::Way;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some("trace") => return ended(trace::run(&arguments[2..])),
        Some("traffic") => return ended(traffic::run(&arguments[1..])),
        Some("plan") => return ended(plan::run(&arguments[1..])),
        Some("topo") => return ended(topo::run(&arguments[1..])),
        Some("bound") => return ended(bound::run(&arguments[1..])),
        Some("simulate") => return ended(simulate::run(&arguments[1..])),
        Some("probe") => return ended(probe::run(&arguments)),
        Some("experts") => return ended(experts::run(&arguments)),
        Some("tune") => return ended(tune::run(&arguments)),
        Some("env") => return ended(environment::run(&arguments[1..])),
        _ => {}
    }
    let settings = match arguments::parse(arguments.clone()) {
        Ok(settings) => settings,
        Err((text, true)) => {
            eprint!("{text}");
            return ExitCode::from(Exit::Usage as u8);
        }
        Err((text, false)) => {
            print!("{text}");
            return ExitCode::from(Exit::Done as u8);
        }
    };
    ended(run(settings, &arguments))
}

fn ended(result: Result<Exit, Failure>) -> ExitCode {
    let exit = result.unwrap_or_else(|failure| {
        eprintln!("collbench: {failure}");
        failure.exit
    });
    ExitCode::from(exit as u8)
}

fn run(mut settings: Settings, arguments: &[OsString]) -> Result<Exit, Failure> {
    if let Some(devices) = &settings.devices {
        device::take_path(devices, arguments)?;
    }
    if let Some(place) = settings.place {
        let id = launch::enter(place)?;
        let member = backend::join(place.rank, place.size, &id, &backend::options(&settings))?;
        let way = if place.progress { Way::Parent } else { Way::Nowhere };
        return one_rank(&settings, member, place.rank, Team::new(1), arguments, way);
    }
    if let Some(launch) = backend::detect()? {
        // A batch script of one task that asks for several ranks wants them started here.
        if launch.size > 1 || settings.ranks.is_none() {
            if settings.threads || settings.ranks.is_some_and(|ranks| ranks != launch.size) {
                return Err(Failure::usage(format!(
                    "{} started this process as rank {} of {}; leave out --ranks and --threads",
                    launch.launcher, launch.rank, launch.size
                )));
            }
            let here = launch.local_size.unwrap_or(1);
            Limits::of_this_process().check_memory(here, rank_bytes(&settings, launch.size))?;
            settings.note = Some(format!("{} ranks: as {} says", launch.size, launch.launcher));
            let member = backend::launched(&backend::options(&settings))?;
            let local = launch.local_rank.unwrap_or(launch.rank);
            return one_rank(&settings, member, local, Team::new(1), arguments, Way::Nowhere);
        }
    }
    let (ranks, note) = choose(&settings)?;
    check_root(&settings, ranks)?;
    settings.collective.check_ranks(ranks)?;
    report::check_files(&settings)?;
    settings.note = Some(note.clone());
    if settings.threads {
        return threads(&settings, ranks, arguments);
    }
    let (id, _root) = backend::create()?;
    launch::run(settings.verbose, ranks, &note, &id, arguments)
}

/// What a rank of `ranks` needs in memory.
fn rank_bytes(settings: &Settings, ranks: u32) -> u64 {
    let (send, receive) = settings.buffer_bytes(ranks);
    let footprint = |bytes| buffers::Guarded::footprint(bytes, settings.unalign);
    bounds::rank_bytes(footprint(send).saturating_add(footprint(receive)))
}

/// The number of ranks to start, and its reason.
fn choose(settings: &Settings) -> Result<(u32, String), Failure> {
    let limits = Limits::of_this_process();
    let gpus = settings.devices.as_ref().map(device::gpus).transpose()?;
    match (settings.ranks, gpus) {
        (None, Some(gpus)) => {
            let ranks = (gpus.len() as u32).max(2);
            limits.check_memory(ranks, rank_bytes(settings, ranks))?;
            Ok((ranks, format!("{ranks} ranks: as many as devices ({}), at least 2", gpus.len())))
        }
        (None, None) => limits.choose(rank_bytes(settings, 2)),
        (Some(ranks), _) => {
            limits.check_memory(ranks, rank_bytes(settings, ranks))?;
            Ok((ranks, format!("{ranks} ranks: as asked for")))
        }
    }
}

fn check_root(settings: &Settings, ranks: u32) -> Result<(), Failure> {
    match settings.root {
        Some(root) if settings.collective.has_root() && root >= ranks => {
            Err(Failure::usage(format!("-r {root}: there is no such rank; the last is {}", ranks - 1)))
        }
        _ => Ok(()),
    }
}

/// Runs as one rank, the `local`th of its host. A failure names the rank.
fn one_rank(
    settings: &Settings,
    member: Member,
    local: u32,
    team: Arc<Team>,
    arguments: &[OsString],
    progress: Way,
) -> Result<Exit, Failure> {
    use group::Group;
    let arguments = arguments.iter().map(|argument| argument.to_string_lossy().into_owned());
    let arguments = arguments.filter(|argument| !argument.starts_with("--as-rank")).collect();
    let output = Output { out: Box::new(std::io::stdout()), arguments, progress };
    let rank = member.rank();
    let result = match &settings.devices {
        Some(devices) => Seated::new(settings, devices, member, local, team)
            .and_then(|seated| measure::run(settings, &seated, output)),
        None => measure::run(settings, &member.with_algorithm(settings.algorithm), output),
    };
    result.map_err(|failure| Failure::new(failure.exit, format!("rank {rank}: {failure}")))
}

/// All ranks as threads of this process.
fn threads(settings: &Settings, ranks: u32, arguments: &[OsString]) -> Result<Exit, Failure> {
    let way = if std::io::stderr().is_terminal() { Way::Terminal } else { Way::Nowhere };
    let members = backend::local(ranks, &backend::options(settings))?;
    let per_thread = settings.devices.as_ref().map_or(1, |devices| devices.per_thread);
    let teams = teams(ranks, per_thread);
    let results: Vec<Result<Exit, Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = members
            .into_iter()
            .zip(0..)
            .map(|(member, rank)| {
                let team = teams[(rank / per_thread) as usize].clone();
                scope.spawn(move || one_rank(settings, member, rank, team, arguments, way))
            })
            .collect();
        let panicked = |_| Err(Failure::internal("a rank panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let worst = results.into_iter().fold(Exit::Done, |worst, result| match result {
        Ok(exit) => worst.worse(exit),
        Err(failure) => {
            eprintln!("collbench: {failure}");
            worst.worse(failure.exit)
        }
    });
    Ok(worst)
}
