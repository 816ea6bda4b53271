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
//! | `backend`, `group` | the library, and what the rest needs of it |
//! | `measure` | one rank's run |
//! | `cut`, `data`, `values`, `pattern`, `buffers` | what goes in, what must come out, and the comparison |
//! | `report`, `table`, `statistics`, `progress`, `clock` | what is told |
//! | `trace` | the subcommand that merges traces |
//! | `environment` | the subcommand that shows settings |
//! | `plan`, `simulate`, `tune`, `planned`, `samples` | the subcommands that ask and teach the planner |

#![forbid(unsafe_code)]

mod arguments;
mod backend;
mod bounds;
mod buffers;
mod clock;
mod collective;
mod cut;
mod data;
mod environment;
mod failure;
mod group;
mod launch;
mod measure;
mod operator;
mod pattern;
mod plan;
mod planned;
mod progress;
mod report;
mod samples;
mod simulate;
mod sizes;
mod statistics;
mod table;
mod trace;
mod tune;
mod values;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use arguments::Settings;
use backend::Member;
use bounds::Limits;
use failure::{Exit, Failure};
use measure::Output;
use progress::Way;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some("trace") => return ended(trace::run(&arguments[2..])),
        Some("plan") => return ended(plan::run(&arguments[1..])),
        Some("simulate") => return ended(simulate::run(&arguments[1..])),
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
    if let Some(place) = settings.place {
        let id = launch::enter(place)?;
        let member = backend::join(place.rank, place.size, &id, &backend::options(&settings))?;
        let member = member.told(settings.algorithm);
        let way = if place.progress { Way::Parent } else { Way::Nowhere };
        return one_rank(&settings, &member, arguments, way);
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
            let member = backend::launched(&backend::options(&settings))?.told(settings.algorithm);
            return one_rank(&settings, &member, arguments, Way::Nowhere);
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

/// How many ranks to start, and why.
fn choose(settings: &Settings) -> Result<(u32, String), Failure> {
    let limits = Limits::of_this_process();
    match settings.ranks {
        None => limits.choose(rank_bytes(settings, 2)),
        Some(ranks) => {
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

/// Runs as one rank, and says who it was if that fails.
fn one_rank(
    settings: &Settings,
    member: &Member,
    arguments: &[OsString],
    progress: Way,
) -> Result<Exit, Failure> {
    use group::Group;
    let arguments = arguments.iter().map(|argument| argument.to_string_lossy().into_owned());
    let arguments = arguments.filter(|argument| !argument.starts_with("--as-rank")).collect();
    let output = Output { out: Box::new(std::io::stdout()), arguments, progress };
    measure::run(settings, member, output)
        .map_err(|failure| Failure::new(failure.exit, format!("rank {}: {failure}", member.rank())))
}

/// All ranks as threads of this process.
fn threads(settings: &Settings, ranks: u32, arguments: &[OsString]) -> Result<Exit, Failure> {
    let way = if std::io::stderr().is_terminal() { Way::Terminal } else { Way::Nowhere };
    let members = backend::local(ranks, &backend::options(settings))?;
    let results: Vec<Result<Exit, Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = members
            .into_iter()
            .map(|member| member.told(settings.algorithm))
            .map(|member| scope.spawn(move || one_rank(settings, &member, arguments, way)))
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
