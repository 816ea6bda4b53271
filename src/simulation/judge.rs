//! Whether every rank of a simulated job ended as it must.

use std::time::Duration;

use super::faults::Fault;
use super::process::{Failed, Outcome};
use super::world::World;
use crate::error::Error;
use crate::{Guilty, Rank};

/// After its deadline an operation's error may take so long: the looks at the clock and the word of all others.
const SLACK: Duration = Duration::from_millis(700);

/// What a job came to, in words; or what is wrong.
pub(super) fn judge(world: &mut World) -> Result<String, String> {
    let mut failed: Vec<(Rank, Failed)> = Vec::new();
    let mut completed: Vec<Rank> = Vec::new();
    for rank in 0..world.ranks {
        if !world.lives(rank) {
            continue;
        }
        let process = &mut world.processes[rank as usize];
        let buffer = process.buffer();
        match process.outcome.take() {
            Some(Outcome::Completed) => completed.push(rank),
            Some(Outcome::Left) | None => {}
            Some(Outcome::Failed(failure)) => {
                if let Some(buffer) = buffer
                    && buffer != failure.buffer
                {
                    return Err(format!("rank {rank}: its buffer changed after the call had returned"));
                }
                failed.push((rank, failure));
            }
        }
    }
    let slow = |rank: Rank| match world.fault {
        // Who is slow itself may be late, and who waits for its word a little.
        Fault::Slow { .. } => true,
        Fault::Freeze { rank: stopped, .. } => stopped == rank,
        _ => false,
    };
    for (rank, failure) in &failed {
        let took = failure.ended - failure.began;
        let joining = failure.on.is_none();
        let most = if joining { Duration::from_secs(4) } else { world.timeout + SLACK };
        if took > most && !slow(*rank) {
            return Err(format!("rank {rank} failed only after {took:?}: {}", failure.error));
        }
    }
    let all = || {
        let mut text = format!("completed {completed:?}");
        for (rank, failure) in &failed {
            text += &format!(
                "\n      rank {rank} on {:?} after {:?}: {} {:?}",
                failure.on,
                failure.ended - failure.began,
                failure.error,
                failure.report.as_ref().map(|report| &report.guilty)
            );
        }
        let report = failed.iter().find_map(|(_, failure)| failure.report.as_ref());
        text + &report.map(|report| format!("\n{report}")).unwrap_or_default()
    };
    for (rank, failure) in &failed {
        if let Err(wrong) = fits(world, *rank, failure) {
            return Err(format!("rank {rank}: {wrong}\n    {}", all()));
        }
    }
    same(world, &failed).map_err(|wrong| format!("{wrong}\n    {}", all()))?;
    if let Some(wrong) = must_go_on(world, &failed) {
        return Err(format!("{wrong}\n    {}", all()));
    }
    if let Some(wrong) = must_have_failed(world, &failed, &completed) {
        return Err(format!("{wrong}\n    {}", all()));
    }
    let fault = format!("{:?}", world.fault);
    let fault = fault.split([' ', '{']).next().unwrap_or_default().to_owned();
    let mut kinds: Vec<String> = failed.iter().map(|(_, failure)| kind(failure)).collect();
    kinds.sort();
    kinds.dedup();
    Ok(format!("{fault}: {}", if kinds.is_empty() { "completed".into() } else { kinds.join(", ") }))
}

fn kind(failure: &Failed) -> String {
    let text = format!("{:?}", failure.error);
    let variant = text.split([' ', '{', '(']).next().unwrap_or_default();
    match &failure.report {
        _ if failure.went_on == Some(Ok(())) => format!("{variant}/went on"),
        Some(report) if matches!(failure.error, Error::Timeout { .. }) => {
            let guilty = format!("{:?}", report.guilty);
            format!("{variant}/{}", guilty.split([' ', '{', '(']).next().unwrap_or_default())
        }
        _ => variant.to_owned(),
    }
}

/// Whether an error is one that the fault may cause, and names what the fault broke.
fn fits(world: &World, rank: Rank, failure: &Failed) -> Result<(), String> {
    let joining = failure.on.is_none();
    // Names on communicator 1 are ranks of the part.
    let name = |of_job: Rank| -> Option<Rank> {
        let members = world.program.members(failure.on.unwrap_or(0), rank, world.ranks);
        members.iter().position(|member| *member == of_job).map(|rank| rank as Rank)
    };
    let is = |named: Rank, of_job: Rank| name(of_job) == Some(named);
    let guilty = failure.report.as_ref().map(|report| &report.guilty);
    let names = |of_job: Rank| match guilty {
        Some(Guilty::Ranks(ranks) | Guilty::Unreachable(ranks)) => ranks.iter().any(|rank| is(*rank, of_job)),
        Some(Guilty::Link { from, to }) => is(*from, of_job) || is(*to, of_job),
        // The other communicator is that of all ranks.
        Some(Guilty::Elsewhere { rank, .. }) => {
            let process = format!("process {}", 100 + of_job);
            failure.on == Some(1) && (*rank == of_job || failure.error.to_string().contains(&process))
        }
        _ => false,
    };
    let error = &failure.error;
    let missing = |of_job: Rank| match error {
        Error::MissingRanks { missing, .. } => missing.contains(&of_job),
        Error::PeerLost { rank, .. } => *rank == of_job,
        // The root lives with rank 0, and whoever it did not hear in time cannot tell more.
        Error::Join { rank: named, .. } => of_job == 0 || *named == of_job || rank == of_job,
        _ => false,
    };
    let timeout = matches!(error, Error::Timeout { .. });
    let lost = |of_job: Rank| matches!(error, Error::PeerLost { rank, .. } if is(*rank, of_job));
    let left = |of_job: Rank| matches!(error, Error::PeerLeft { rank, .. } if is(*rank, of_job));
    // Whoever saw an error elsewhere closes all its communicators.
    let follows = failure.on == Some(1) || !world.program.colors.is_empty();
    let gone = matches!(error, Error::PeerLost { .. }) && failure.on == Some(1);
    let absent = ["closed the", "not made the communicator yet"];
    let closed = absent.iter().any(|words| error.to_string().contains(words));
    let closed = closed && timeout;
    let follows =
        follows && (gone || closed || matches!(error, Error::PeerLeft { .. } | Error::Aborted { .. }));
    let ok = match &world.fault {
        Fault::None | Fault::Slow { .. } | Fault::Remake { .. } => false,
        Fault::Cut { pause: Some(_), .. } => joining && matches!(error, Error::Join { .. }),
        Fault::Freeze { pause: Some(pause), .. } if *pause < world.timeout / 2 => false,
        Fault::Kill { rank: dead, .. } if joining => missing(*dead),
        // One rank alone cannot tell a reset by a dead process from one on the way.
        Fault::Kill { rank: dead, .. } => {
            let reset = matches!(error, Error::Link { from, to, .. } if is(*from, *dead) || is(*to, *dead));
            lost(*dead) || reset || missing(*dead) || follows
        }
        // Who was stopped and goes on has missed everything itself.
        // With rank 0 the root was, and nobody was heard meanwhile.
        Fault::Freeze { rank: stopped, .. } if joining => {
            missing(*stopped) || rank == *stopped || *stopped == 0
        }
        Fault::Freeze { rank: stopped, .. } => {
            (timeout && names(*stopped)) || missing(*stopped) || follows || rank == *stopped
        }
        Fault::Cut { one, other, .. } if joining => missing(*one) || missing(*other),
        Fault::Cut { one, other, .. } => {
            let unlinked = matches!(error, Error::MissingRanks { .. }) && (missing(*one) || missing(*other));
            // In a large job the report does not come by detours.
            let bare = failure.report.is_none() && world.ranks > 32;
            // Who gives up closes its data connections too, and its reason does not get through.
            let shut = matches!(error, Error::Link { from, to, .. } if [*one, *other].map(|end| is(*from, end) || is(*to, end)) == [true; 2]);
            (timeout && (bare || names(*one) || names(*other))) || unlinked || shut || follows
        }
        Fault::Partition { side, .. } => {
            let other_side = |other: &Rank| side.contains(other) != side.contains(&rank);
            let across = (0..world.ranks).filter(other_side);
            if joining {
                across.clone().any(missing)
            } else {
                let link = |other: Rank| matches!(error, Error::Link { to, .. } if is(*to, other));
                let named = across.clone().any(|other| missing(other) || link(other));
                (timeout && across.clone().any(names)) || named || follows
            }
        }
        Fault::Blackhole { from, to, .. } => {
            let link =
                matches!(guilty, Some(Guilty::Link { from: f, to: t }) if is(*f, *from) && is(*t, *to));
            // Seen from a communicator that has not both ends.
            let abroad = failure.on == Some(1) && matches!(guilty, Some(Guilty::Elsewhere { .. }));
            (timeout && (link || abroad)) || follows
        }
        Fault::Reset { one, other, .. } if joining => missing(*one) || missing(*other),
        Fault::Reset { one, other, .. } => match error {
            Error::Link { from, to, .. } => {
                (is(*from, *one) && is(*to, *other)) || (is(*from, *other) && is(*to, *one))
            }
            // One of them could not join after all.
            Error::MissingRanks { .. } | Error::PeerLost { .. } => {
                missing(*one) || missing(*other) || follows
            }
            Error::Timeout { .. } => names(*one) || names(*other),
            _ => follows,
        },
        Fault::Deny { rank: poor, .. } => {
            matches!(error, Error::OutOfMemory { rank, .. } if is(*rank, *poor)) || follows
        }
        Fault::Skip { rank: absent, .. } => {
            let cycle = matches!(guilty, Some(Guilty::Cycle(_)));
            let found = matches!(error, Error::Mismatch { .. }) || left(*absent);
            found || (timeout && (names(*absent) || cycle)) || follows
        }
        Fault::Deviate { .. } => {
            // A rank that has closed since can no longer say what it called.
            let difference = |text: &str| text.contains("rank") && text.contains(" of ");
            matches!(error, Error::Mismatch { difference: text, .. } if difference(text))
                || left_any(world, failure)
                || matches!(error, Error::Aborted { .. })
        }
        Fault::Sleep { time, .. } if *time < world.timeout / 2 => false,
        Fault::Sleep { rank: late, .. } => (timeout && names(*late)) || follows,
        // What it had started is not finished any more.
        Fault::Leave { rank: gone, .. } => {
            left(*gone) || matches!(error, Error::Aborted { rank, .. } if is(*rank, *gone)) || follows
        }
        Fault::Swap { .. } => (timeout && matches!(guilty, Some(Guilty::Cycle(_)))) || follows,
        Fault::BothSend { one, other } => {
            // It is on the first communicator, whoever waits for them and where.
            let cycle = matches!(guilty, Some(Guilty::Cycle(steps)) if steps.iter().all(|step| step.rank == *one || step.rank == *other));
            (timeout && cycle) || follows
        }
        Fault::Abort { rank: by, .. } => {
            matches!(error, Error::Aborted { rank, .. } if is(*rank, *by)) || follows
        }
        Fault::Revoke { rank: by, .. } => {
            matches!(error, Error::Revoked { rank, .. } if is(*rank, *by)) || follows
        }
        Fault::NeverJoin { rank: absent } => joining && missing(*absent),
        Fault::Settings { rank: other } => {
            joining
                && matches!(error, Error::Settings { difference } if difference.contains(&format!("rank {other}")))
        }
    };
    if ok { Ok(()) } else { Err(format!("this fault cannot cause: {error}")) }
}

/// Whether a rank is named as gone that has indeed ended well before.
fn left_any(world: &World, failure: &Failed) -> bool {
    let Error::PeerLeft { rank, .. } = &failure.error else { return false };
    failure.on == Some(1)
        || world.processes.get(*rank as usize).is_some_and(super::process::Process::is_closed)
}

/// All that can reach each other have the same error, and the same report.
fn same(world: &World, failed: &[(Rank, Failed)]) -> Result<(), String> {
    let apart = |a: Rank, b: Rank| match &world.fault {
        Fault::Cut { .. } | Fault::Reset { .. } => true,
        Fault::Partition { side, .. } => side.contains(&a) != side.contains(&b),
        _ => false,
    };
    for on in [Some(0), Some(1)] {
        let group: Vec<&(Rank, Failed)> = failed.iter().filter(|(_, failure)| failure.on == on).collect();
        for (a, one) in &group {
            for (b, other) in &group {
                let together =
                    on == Some(0) || world.program.colors[*a as usize] == world.program.colors[*b as usize];
                // Two who abort at the same time each say so.
                let wills = [one, other].iter().any(|failed| matches!(failed.error, Error::Aborted { .. }));
                if a < b && together && !wills && !apart(*a, *b) {
                    if one.error.to_string() != other.error.to_string() {
                        return Err(format!("ranks {a} and {b} have different errors"));
                    }
                    if one.report != other.report && matches!(one.error, Error::Timeout { .. }) {
                        return Err(format!("ranks {a} and {b} have different reports"));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Where all ranks but the dead one learned of its death on the communicator of all, they go on without it.
fn must_go_on(world: &World, failed: &[(Rank, Failed)]) -> Option<String> {
    let Fault::Kill { rank: dead, .. } = &world.fault else { return None };
    let living = (0..world.ranks).filter(|rank| rank != dead).count();
    let all = failed.len() == living && failed.iter().all(|(_, failure)| failure.on == Some(0));
    let went_on = |failure: &Failed| failure.went_on == Some(Ok(()));
    let (rank, failure) = failed.iter().find(|(_, failure)| !went_on(failure))?;
    all.then(|| format!("rank {rank} did not go on without rank {dead}: {:?}", failure.went_on))
}

/// Faults that somebody must have noticed.
fn must_have_failed(world: &World, failed: &[(Rank, Failed)], completed: &[Rank]) -> Option<String> {
    // A collective that one rank calls differently, and others need too.
    if let Fault::Deviate { rank, item, .. } = &world.fault
        && failed.is_empty()
        && completed.len() == world.ranks as usize
    {
        let on = match &world.program.items[*item] {
            super::program::Item::Collective { on, .. } => *on,
            _ => 0,
        };
        if world.program.members(on, *rank, world.ranks).len() > 1 {
            return Some("nobody noticed that a rank called something else".into());
        }
    }
    let needs = match &world.fault {
        Fault::NeverJoin { .. } | Fault::Settings { .. } | Fault::BothSend { .. } => true,
        Fault::Swap { .. } => {
            let cycle = |failure: &Failed| {
                matches!(failure.report.as_ref().map(|report| &report.guilty), Some(Guilty::Cycle(_)))
            };
            if !failed.iter().any(|(_, failure)| cycle(failure)) {
                return Some("nobody found the cycle".into());
            }
            true
        }
        _ => false,
    };
    (needs && failed.is_empty()).then(|| format!("nobody noticed; completed {completed:?}"))
}

/// After everything is dropped, nothing is left in the network.
pub(super) fn nothing_left(mut world: World) -> Result<(), String> {
    let network = world.network.clone();
    // Whom nobody accepted is the system's to close.
    for rank in 0..world.ranks {
        network.kill(consort_transports::simnet::Node(rank));
    }
    world.processes.clear();
    drop(world);
    let (endpoints, streams) = (network.open_endpoints(), network.open_streams());
    if (endpoints, streams) != (0, 0) {
        return Err(format!("left behind: {endpoints} endpoints, {streams} streams"));
    }
    Ok(())
}
