//! A rank from its arguments to the sample: what the program does between the command line and the exit status.

mod checks;

use std::time::{Duration, Instant};

use consort::{Communicator, Launch, Rank};

use crate::arguments::{Arguments, Precision};
use crate::chart::{Losses, draw, draw_step};
use crate::checkpoint::Checkpoints;
use crate::door::{self, Door};
use crate::elastic::{self, Role, Source, World, each_has_all, fit};
use crate::error::{Error, Result};
use crate::launch;
use crate::mesh::{Degrees, together};
use crate::model::Model;
use crate::number::Number;
use crate::parallel::replica::Memory;
use crate::progress::Progress;
use crate::sample::{Drawing, write};
use crate::text::Text;
use crate::timeline::{Span, gather};
use crate::train::{ByAxis, Kept, Run, Trainer, fingerprint};
use crate::vocabulary::Vocabulary;
use checks::{between_steps, check_alike, check_elastic, check_memory, check_places};

/// The pause between two looks at the door of ranks that wait there.
const LOOK: Duration = Duration::from_millis(5);

/// Trains: alone, as a rank of a job, or by starting ranks.
///
/// # Errors
/// Whatever the run ends with.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(parent) = arguments.started_by {
        launch::enter(parent)?;
    }
    // Before ranks are started: what is wrong is said once. A launcher that has started one rank alone, as a shell of Slurm's, has not
    // said how many there are to be.
    let job = if arguments.join { None } else { Launch::detect()?.filter(|job| job.size > 1) };
    if let Some(job) = &job
        && arguments.ranks > 1
        && arguments.ranks != job.size
    {
        return Err(Error::configuration(
            format!("--ranks is {}, and the launcher started {} ranks", arguments.ranks, job.size),
            "leave --ranks out under a launcher of several ranks",
        ));
    }
    let vocabulary = arguments.vocabulary()?;
    let (ranks, size) = (job.as_ref().map_or(arguments.ranks, |job| job.size), vocabulary.size());
    let run = if arguments.join { arguments.asked(ranks, size)? } else { arguments.run(ranks, size)? };
    check_elastic(arguments, &run, job.is_some())?;
    let text = Text::open(arguments.text.as_deref(), &vocabulary, run.shape.sequence)?;
    // What a run has that goes on is not measured again by a rank that joins it.
    if job.is_none() && !arguments.join {
        check_places(arguments)?;
        check_memory(arguments, &run, 0..arguments.ranks)?;
    }
    if job.is_none() && arguments.ranks > 1 && !arguments.join {
        let Arguments { ranks, elastic, restart, least_ranks, .. } = *arguments;
        return launch::run(ranks, elastic, (restart, least_ranks), arguments.door.as_deref());
    }
    let comm = match &job {
        Some(_) => Some(Communicator::from_launcher()?),
        // A rank that is alone and lets others in.
        None if arguments.door.is_some() && !arguments.join => Communicator::local(1)?.pop(),
        None => None,
    };
    // Rank 0 writes, and with lost ranks another may be it. The process that started this one has looked already.
    let writes = comm.as_ref().is_some_and(|comm| comm.rank() == 0 || arguments.elastic);
    let is_looked_at = arguments.started_by.is_some();
    let places = if is_looked_at || !writes { Ok(()) } else { check_places(arguments) };
    let memory = job.filter(|_| !is_looked_at).map_or(Ok(()), |job| {
        // Those of this host are as this one, nearly.
        let here = job.local_size.unwrap_or(1).min(job.size);
        let first = job.rank.saturating_sub(job.local_rank.unwrap_or(0)).min(job.size - here);
        check_memory(arguments, &run, first..first + here)
    });
    together(comm.as_ref(), places.and(memory))?;
    check_alike(arguments, comm.as_ref())?;
    match arguments.precision {
        Precision::F32 | Precision::Bf16 => train::<f32>(arguments, run, (&text, vocabulary), comm),
        Precision::F64 => train::<f64>(arguments, run, (&text, vocabulary), comm),
    }
}

/// Which of several ranks this process was started as, for what it says at its end; nothing where it is alone.
pub fn whose() -> String {
    let job = Launch::detect().ok().flatten().filter(|job| job.size > 1);
    job.map_or_else(String::new, |job| format!(" (started as rank {})", job.rank))
}

/// What a run has come to, whichever ranks it is on.
struct Course<T: Number> {
    /// The steps before it, which the checkpoint has that it went on from.
    taken: usize,
    losses: Vec<f64>,
    progress: Progress,
    /// What a token is.
    vocabulary: Vocabulary,
    /// The state that an earlier trainer has left, if its ranks have lost some.
    kept: Option<Kept<T>>,
    /// What has happened since to the ranks.
    change: Option<Change>,
    /// The next step comes before another look at the door, as ranks that waited there did not stay.
    steps_first: bool,
    /// When the last whole step was over.
    stepped: Instant,
    /// Where new ranks ask, on the first rank.
    door: Option<Door>,
}

/// What happens to the ranks of a run.
enum Change {
    /// Some were lost, which was seen at this time, so long after the last whole step.
    Lost { ranks: Vec<Rank>, seen: Instant, after: Duration },
    /// Others came than there were before, a number; they had asked at this time or before.
    Grown { from: u32, seen: Instant },
    /// Ranks that came did not stay.
    Same,
    /// This one came, and had asked at this time.
    Joined { asked: Instant },
}

/// What a rank did in its last step.
#[derive(Default)]
struct Last {
    spans: Vec<Span>,
    /// The bytes that it sent, by axis.
    sent: ByAxis,
}

/// The elements of the whole model.
fn parameters<T: Number>(trainer: &Trainer<'_, T>) -> Result<usize> {
    let run = trainer.run();
    Ok(Model::<T>::new(run.shape, run.bucket_bytes)?.layout().elements())
}

/// Begins, or goes on from the newest checkpoint.
fn begin<T: Number>(
    arguments: &Arguments,
    trainer: &mut Trainer<'_, T>,
    checkpoints: Option<&Checkpoints>,
) -> Result<()> {
    let (Some(directory), Some(checkpoints)) = (&arguments.checkpoint, checkpoints) else { return Ok(()) };
    let world = trainer.mesh().world();
    let newest = checkpoints.newest(world)?;
    let shown = directory.display();
    match newest {
        Some(step) if !arguments.resume => {
            return Err(Error::configuration(
                format!("{shown} has checkpoints, the newest of step {step}"),
                "give --resume to go on from it, or name another directory",
            ));
        }
        Some(step) if step >= arguments.steps => {
            return Err(Error::configuration(
                format!(
                    "the newest checkpoint of {shown} is of step {step}, and --steps is {}",
                    arguments.steps
                ),
                "give more --steps",
            ));
        }
        Some(step) => checkpoints.load(trainer, step)?,
        None => {}
    }
    if is_first(world) && arguments.resume {
        match newest {
            Some(step) => println!("goes on from the checkpoint of step {step} in {shown}"),
            None => println!("begins, as there is no checkpoint in {shown}"),
        }
    }
    Ok(())
}

fn is_first(world: Option<&Communicator>) -> bool {
    world.is_none_or(|world| world.rank() == 0)
}

/// Goes on with what ranks have that were there before.
fn go_on<T: Number>(
    trainer: &mut Trainer<'_, T>,
    checkpoints: Option<&Checkpoints>,
    course: &mut Course<T>,
) -> Result<()> {
    let source = elastic::restore(trainer, course.kept.as_ref(), checkpoints)?;
    let (world, steps) = (trainer.mesh().world(), trainer.steps());
    if let Some(world) = world {
        // A rank that had not seen the end of the last step does not know its loss, and one that came knows none.
        let own = [course.taken as u64, (course.taken + course.losses.len()) as u64];
        let mut all = vec![0u64; 2 * world.size() as usize];
        world.all_gather(&own, &mut all)?;
        let known = all.chunks_exact(2).enumerate().max_by_key(|(rank, known)| (known[1], usize::MAX - rank));
        let (root, known) = known.expect("ranks");
        course.taken = known[0] as usize;
        course.losses.resize((known[1] - known[0]) as usize, f64::NAN);
        world.broadcast(&mut course.losses, root as Rank)?;
    }
    course.taken = course.taken.min(steps);
    course.losses.truncate(steps - course.taken);
    course.progress.learn(&course.losses);
    let from = match source {
        Source::Memory => "with what they have",
        Source::Checkpoint => "from the checkpoint",
        Source::Beginning => "from the beginning",
    };
    let ranks = world.map_or(1, Communicator::size);
    match course.change.take() {
        Some(Change::Lost { ranks: lost, seen, after }) if is_first(world) => println!(
            "lost ranks {lost:?}, known {:.3} s after the last whole step; {ranks} go on after step {steps}, {from}, {:.3} s later",
            after.as_secs_f64(),
            seen.elapsed().as_secs_f64()
        ),
        Some(Change::Grown { from: before, seen }) if is_first(world) => println!(
            "ranks {:?} came; {ranks} go on after step {steps}, {from}, {:.3} s later",
            (before..ranks).collect::<Vec<Rank>>(),
            seen.elapsed().as_secs_f64()
        ),
        Some(Change::Joined { asked }) => eprintln!(
            "consort-trainer: process {} is rank {} after step {steps}, {:.3} s after it asked",
            std::process::id(),
            world.map_or(0, Communicator::rank),
            asked.elapsed().as_secs_f64()
        ),
        _ => {}
    }
    Ok(())
}

/// What a rank has come to with the others.
enum End {
    /// The run is over.
    Over(Last),
    /// Others wait to be taken in: how many there will be.
    Grows(u32),
}

/// Trains with these ranks, to the end, until they fail, or until others come: then how many there will be.
fn attempt<T: Number>(
    arguments: &Arguments,
    asked: &Run,
    text: &Text,
    comm: Option<&Communicator>,
    course: &mut Course<T>,
) -> Result<Option<u32>> {
    let run = comm.and_then(|comm| fit(asked, comm.size() as usize)).unwrap_or(*asked);
    let path = arguments.door.as_deref().filter(|_| is_first(comm) && course.door.is_none());
    let door = path
        .map(|path| Door::open(path, mark::<T>(arguments, asked, text), course.change.is_some()))
        .transpose();
    if course.change.is_none() {
        // A door that another run has ends all ranks.
        course.door = together(comm, door)?;
    } else if path.is_some() {
        course.door = door.unwrap_or_else(|error| {
            eprintln!("consort-trainer: no new ranks can come: {error}");
            None
        });
    }
    let mut trainer = Trainer::<T>::new(run, text, comm)?;
    let open = |directory| Checkpoints::open(directory, arguments.every, arguments.keep, comm);
    let mut checkpoints = arguments.checkpoint.as_deref().map(open).transpose()?;
    course.steps_first = matches!(course.change, Some(Change::Same));
    if course.change.is_some() {
        go_on(&mut trainer, checkpoints.as_ref(), course)?;
        course.kept = None;
    } else {
        begin(arguments, &mut trainer, checkpoints.as_ref())?;
        course.taken = trainer.steps();
        let parameters = parameters(&trainer)?;
        if is_first(comm) {
            println!(
                "{parameters} parameters, on rank 0 {} in {} buckets, {} tokens of text, {} a step, {} ranks",
                trainer.model().layout().elements(),
                trainer.model().layout().buckets(),
                text.training_tokens(),
                run.batch * run.shape.sequence,
                comm.map_or(1, Communicator::size)
            );
        }
    }
    course.progress.go_on(trainer.steps(), is_first(comm));
    course.stepped = Instant::now();
    let ended =
        steps(arguments, asked, (&mut trainer, checkpoints.as_mut()), course).and_then(|end| match end {
            End::Over(last) => report(arguments, &mut trainer, &last, course).map(|()| None),
            End::Grows(size) => {
                // What no rank has all of comes to the new ones by the disk.
                let grown = fit(asked, size as usize).unwrap_or(run);
                let is_needed = !(each_has_all(&run) && each_has_all(&grown)) && trainer.steps() > 0;
                if let Some(checkpoints) = checkpoints.as_mut().filter(|_| is_needed) {
                    checkpoints.end(&mut trainer)?;
                }
                Ok(Some(size))
            }
        });
    course.kept = trainer.keep();
    ended
}

/// By what a rank that comes shows that it would train the same, with however many others, and make the same calls between steps.
fn mark<T: Number>(arguments: &Arguments, asked: &Run, text: &Text) -> u64 {
    let degrees = Degrees { data: 1, ..asked.degrees };
    fingerprint::<T>(&Run { degrees, ..*asked }, text) ^ between_steps(arguments)
}

/// How many ranks there will be if some are to be taken in before the next step. Waits where too few are there.
fn look<T: Number>(
    arguments: &Arguments,
    asked: &Run,
    world: Option<&Communicator>,
    course: &mut Course<T>,
) -> Result<Option<u32>> {
    let Some(comm) = world.filter(|_| arguments.door.is_some()) else { return Ok(None) };
    let mut is_said = false;
    loop {
        let more = World::look(comm, asked, course.door.as_mut())?;
        if more.is_some() || comm.size() >= arguments.least_ranks {
            return Ok(more);
        }
        if !std::mem::replace(&mut is_said, true) && comm.rank() == 0 {
            println!("{} ranks wait until {} are there", comm.size(), arguments.least_ranks);
        }
        std::thread::sleep(LOOK);
    }
}

/// What a rank sent to other hosts in `steps` steps, if it did.
fn say_carried(before: &[(&str, u64)], after: &[(&str, u64)], steps: usize) {
    let sent =
        before.iter().zip(after).map(|((axis, before), (_, after))| (axis, after.saturating_sub(*before)));
    for (axis, bytes) in sent.filter(|(_, bytes)| *bytes > 0) {
        println!("rank 0 sent {} bytes a step to other hosts along {axis}", bytes / steps as u64);
    }
}

/// Takes the steps that are left, or those until ranks come.
fn steps<T: Number>(
    arguments: &Arguments,
    asked: &Run,
    (trainer, mut checkpoints): (&mut Trainer<'_, T>, Option<&mut Checkpoints>),
    course: &mut Course<T>,
) -> Result<End> {
    let (world, before, begun) = (trainer.mesh().world(), trainer.mesh().carried()?, trainer.steps());
    let are_enough = world.is_none_or(|world| world.size() >= arguments.least_ranks);
    let steps_first = std::mem::take(&mut course.steps_first) && are_enough;
    let mut last = Last::default();
    for number in begun + 1..=arguments.steps {
        let looks = !steps_first || number > begun + 1;
        if let Some(size) = if looks { look(arguments, asked, world, course)? } else { None } {
            return Ok(End::Grows(size));
        }
        if let Some(comm) = world.filter(|_| number == arguments.steps) {
            // The last step is drawn: ranks begin it together.
            comm.barrier()?;
        }
        let step = trainer.step()?;
        course.losses.push(step.loss);
        course.stepped = Instant::now();
        let line = course.progress.step(&step);
        last = Last { spans: step.spans(), sent: step.sent };
        if let Some(line) = line.filter(|_| is_first(world)) {
            println!("{line}");
        }
        if let Some(checkpoints) = &mut checkpoints {
            checkpoints.step(trainer)?;
        }
    }
    course.progress.end();
    if is_first(world) && arguments.steps > begun {
        say_carried(&before, &trainer.mesh().carried()?, arguments.steps - begun);
    }
    if let Some(checkpoints) = checkpoints {
        checkpoints.end(trainer)?;
    }
    Ok(End::Over(last))
}

/// What the first rank says and draws at the end.
fn report<T: Number>(
    arguments: &Arguments,
    trainer: &mut Trainer<'_, T>,
    last: &Last,
    course: &Course<T>,
) -> Result<()> {
    let world = trainer.mesh().world();
    // Ranks that were left after the last step have not taken it together.
    let ranks = if last.spans.is_empty() { Vec::new() } else { gather(world, &last.spans)? };
    let load = if ranks.is_empty() { None } else { trainer.largest_load()? };
    let Memory { weights, gradients, moments } = trainer.memory();
    let Some(whole) = trainer.whole()? else { return Ok(()) };
    let [weights, gradients, moments] = [weights, gradients, moments].map(|bytes| bytes / 1024);
    println!("rank 0: {weights} KiB of weights, {gradients} KiB of gradients, {moments} KiB of moments");
    let along: Vec<String> =
        last.sent.iter().map(|(axis, bytes)| format!("{bytes} bytes a step along {axis}")).collect();
    if !along.is_empty() {
        println!("rank 0 sent {}, sums and gathers as in a ring", along.join(", "));
    }
    if let Some([step, exposed]) = course.progress.medians() {
        let [step, exposed] = [step, exposed].map(|time| time.as_secs_f64() * 1e3);
        println!(
            "a step took {step:.2} ms on rank 0, {exposed:.2} ms of them exposed communication (medians)"
        );
    }
    let (held_out, vocabulary) = (whole.held_out_loss(trainer.text())?, &course.vocabulary);
    println!(
        "after {} steps: loss {:.3} nats a {}, {held_out:.3} on text that was held out",
        arguments.steps,
        course.progress.loss(),
        vocabulary.unit()
    );
    if let Some(load) = load {
        println!("in the last step the fullest expert had {load:.2} times the mean load");
    }
    let since = if course.taken > 0 { format!(", after step {}", course.taken) } else { String::new() };
    let parameters = parameters(trainer)?;
    let title = format!("{parameters} parameters, {} ranks{since}", world.map_or(1, Communicator::size));
    let losses = Losses { steps: &course.losses, held_out, title: &title, unit: vocabulary.unit() };
    draw(&arguments.chart, &losses)?;
    if let Some(file) = &arguments.losses {
        let lines: String = course.losses.iter().map(|loss| format!("{loss:?}\n")).collect();
        std::fs::write(file, lines).map_err(|error| Error::file(file, "written", error))?;
    }
    if !ranks.is_empty() {
        draw_step(&arguments.timeline, &ranks)?;
    }
    println!("charts: {}, {}", arguments.chart.display(), arguments.timeline.display());
    if arguments.sample > 0 {
        // Something has to be gone on after.
        let begun = if arguments.prompt.is_empty() { "\n" } else { &arguments.prompt };
        let prompt = vocabulary.encode(begun.as_bytes());
        let prompt = prompt.of(0..prompt.len());
        let seed = trainer.run().seed;
        let drawing = Drawing { tokens: arguments.sample, temperature: arguments.temperature, seed };
        let written = write(&whole, &prompt, drawing)?;
        println!("\n{}{}", arguments.prompt, String::from_utf8_lossy(&vocabulary.decode(&written)));
    }
    Ok(())
}

/// Asks to be taken in by a run, until this rank is in it; `None` when that has ended, or has no door.
fn enter<T: Number>(
    arguments: &Arguments,
    asked: &Run,
    text: &Text,
    course: &mut Course<T>,
) -> Result<Option<World>> {
    let Some(path) = arguments.door.as_deref() else { return Ok(None) };
    let begun = Instant::now();
    (course.kept, course.door) = (None, None);
    course.losses.clear();
    course.taken = 0;
    loop {
        let Some(place) = door::ask(path, mark::<T>(arguments, asked, text))? else {
            eprintln!("consort-trainer: the run has ended, and takes in no rank");
            return Ok(None);
        };
        match place.join() {
            Ok(comm) => {
                course.change = Some(Change::Joined { asked: begun });
                return Ok(Some(World::new(comm)));
            }
            Err(error) => eprintln!("consort-trainer: process {} asks again: {error}", std::process::id()),
        }
    }
}

fn train<T: Number>(
    arguments: &Arguments,
    asked: Run,
    (text, vocabulary): (&Text, Vocabulary),
    comm: Option<Communicator>,
) -> Result<()> {
    let progress = Progress::new(arguments.steps);
    let mut course = Course::<T> {
        taken: 0,
        losses: Vec::new(),
        progress,
        vocabulary,
        kept: None,
        change: None,
        steps_first: false,
        stepped: Instant::now(),
        door: None,
    };
    let mut world = comm.map(World::new);
    if arguments.join {
        world = enter(arguments, &asked, text, &mut course)?;
        if world.is_none() {
            return Ok(());
        }
    }
    loop {
        let ended = attempt(arguments, &asked, text, world.as_ref().map(World::comm), &mut course);
        let (Some(there), true) = (&mut world, arguments.elastic) else { return ended.map(drop) };
        let changed = match ended {
            Ok(None) => {
                course.door.take().into_iter().for_each(Door::close);
                return Ok(());
            }
            Ok(Some(size)) => {
                let (from, seen) = (there.comm().size(), Instant::now());
                let have_come = there.grow(size, course.door.as_mut());
                have_come.map(|come| if come { Change::Grown { from, seen } } else { Change::Same })
            }
            Err(error) => Err(error),
        };
        course.change = match changed {
            // The others have what this one has not got yet, and need not wait for it.
            Err(error)
                if elastic::is_loss(&error) && matches!(course.change, Some(Change::Joined { .. })) =>
            {
                eprintln!("consort-trainer: process {} asks again: {error}", std::process::id());
                None
            }
            Err(error) if elastic::is_loss(&error) => lose(arguments, there, &asked, error, &course)?,
            changed => Some(changed?),
        };
        if course.change.is_none() {
            drop(world.take());
            world = enter(arguments, &asked, text, &mut course)?;
            if world.is_none() {
                return Ok(());
            }
        }
    }
}

/// Goes on without ranks that were lost, after `error`; `None` for a rank that the others have no work for.
fn lose<T: Number>(
    arguments: &Arguments,
    world: &mut World,
    asked: &Run,
    error: Error,
    course: &Course<T>,
) -> Result<Option<Change>> {
    let (seen, rank) = (Instant::now(), world.comm().rank());
    eprintln!("consort-trainer: rank {rank} has to go on without others: {error}");
    let why = match world.lose(asked, &error)? {
        Role::Goes => {
            let (after, mut ranks) = (seen.duration_since(course.stepped), world.lost());
            let Some(Change::Lost { ranks: before, seen, after }) = &course.change else {
                return Ok(Some(Change::Lost { ranks, seen, after }));
            };
            // Others were lost before, which has not been said yet: the time counts from then.
            ranks.extend(before);
            ranks.sort_unstable();
            ranks.dedup();
            return Ok(Some(Change::Lost { ranks, seen: *seen, after: *after }));
        }
        Role::Idle => "those that are left are more than can share the work",
        Role::LeftOut if arguments.door.is_none() => {
            return Err(Error::configuration(
                format!("rank {rank} did not answer, and the others have gone on without it"),
                "give --door, at which a rank can come back",
            ));
        }
        Role::LeftOut => "the others have gone on without it",
    };
    eprintln!("consort-trainer: rank {rank} leaves: {why}");
    Ok(None)
}
