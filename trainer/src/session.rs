//! A rank from its arguments to the sample: what the program does between the command line and the exit status.

use std::fs::OpenOptions;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use consort::{Communicator, Launch, Rank, ReduceOp};

use crate::arguments::{Arguments, Precision};
use crate::chart::{Losses, draw, draw_step};
use crate::checkpoint::Checkpoints;
use crate::demand::{Available, Demand};
use crate::elastic::{self, Source};
use crate::error::{Error, Result};
use crate::launch;
use crate::mesh::together;
use crate::model::Model;
use crate::number::Number;
use crate::parallel::replica::Memory;
use crate::progress::Progress;
use crate::sample::{Drawing, write};
use crate::text::Text;
use crate::timeline::{Span, gather};
use crate::train::{ByAxis, Kept, Run, Trainer};
use crate::vocabulary::Vocabulary;

/// Trains: alone, as a rank of a job, or by starting ranks.
///
/// # Errors
/// Whatever the run ends with.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(parent) = arguments.started_by {
        launch::enter(parent)?;
    }
    // Before ranks are started: what is wrong is said once.
    let job = Launch::detect()?;
    if let Some(job) = &job
        && arguments.ranks > 1
        && arguments.ranks != job.size
    {
        return Err(Error::configuration(
            format!("--ranks is {}, and the launcher started {} ranks", arguments.ranks, job.size),
            "leave --ranks out under a launcher",
        ));
    }
    let vocabulary = arguments.vocabulary()?;
    let run = arguments.run(job.as_ref().map_or(arguments.ranks, |job| job.size), vocabulary.size())?;
    let text = Text::open(arguments.text.as_deref(), &vocabulary, run.shape.sequence)?;
    if job.is_none() {
        check_places(arguments)?;
        check_memory(arguments, &run, 0..arguments.ranks)?;
    }
    if run.degrees.expert > 1 && (arguments.checkpoint.is_some() || arguments.elastic) {
        return Err(Error::configuration(
            "experts that ranks share are not in checkpoints yet".into(),
            "leave out --checkpoint and --elastic, or --ep",
        ));
    }
    if job.is_none() && arguments.ranks > 1 {
        return launch::run(arguments.ranks, arguments.elastic);
    }
    let comm = job.is_some().then(Communicator::from_launcher).transpose()?;
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
    match arguments.precision {
        Precision::F32 | Precision::Bf16 => train::<f32>(arguments, run, (&text, vocabulary), comm),
        Precision::F64 => train::<f64>(arguments, run, (&text, vocabulary), comm),
    }
}

/// Whether this host holds what some ranks need.
fn check_memory(arguments: &Arguments, run: &Run, ranks: Range<u32>) -> Result<()> {
    let (number, saves) =
        (if arguments.precision == Precision::F64 { 8 } else { 4 }, arguments.checkpoint.is_some());
    let all = ranks.clone().map(|rank| Demand::of(run, rank, number, saves));
    all.fold(Demand::default(), Demand::and).check(ranks.len(), Available::now())
}

/// Whether all files that are written at the end can be: after the last step it would be late to say that they cannot.
fn check_places(arguments: &Arguments) -> Result<()> {
    let files = [(Some(&arguments.chart), "--chart"), (Some(&arguments.timeline), "--timeline")];
    let mut all = files.into_iter().chain([(arguments.losses.as_ref(), "--losses")]);
    all.try_for_each(|(file, option)| file.map_or(Ok(()), |file| check_place(file, option)))
}

/// Whether a file can be written, as it is tried: one that was not there is removed again.
fn check_place(file: &Path, option: &'static str) -> Result<()> {
    let was_there = file.exists();
    OpenOptions::new().create(true).append(true).open(file).map_err(|error| {
        Error::configuration(
            format!("{option} is {}, which cannot be written: {error}", file.display()),
            "name another file",
        )
    })?;
    if !was_there {
        // Another rank may have tried, and removed it.
        drop(std::fs::remove_file(file));
    }
    Ok(())
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
    /// Those that were lost, and when that was seen.
    lost: Option<(Vec<Rank>, Instant)>,
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

/// Goes on with what ranks that are left have.
fn go_on<T: Number>(
    trainer: &mut Trainer<'_, T>,
    checkpoints: Option<&Checkpoints>,
    course: &mut Course<T>,
) -> Result<()> {
    let source = elastic::restore(trainer, course.kept.as_ref(), checkpoints)?;
    let (world, steps) = (trainer.mesh().world(), trainer.steps());
    course.taken = course.taken.min(steps);
    let count = steps - course.taken;
    course.losses.truncate(count);
    if let (Some(world), true) = (world, count > 0) {
        // A rank that had not seen the end of the last step does not know its loss.
        let known = (course.losses.len() == count).then(|| course.losses[count - 1]);
        let mut last = [known.unwrap_or(f64::NEG_INFINITY)];
        world.all_reduce(&mut last, ReduceOp::Max)?;
        course.losses.resize(count, last[0]);
    }
    if let Some((lost, seen)) = course.lost.take()
        && is_first(world)
    {
        let from = match source {
            Source::Memory => "with what they have",
            Source::Checkpoint => "from the checkpoint",
            Source::Beginning => "from the beginning",
        };
        let (ranks, seconds) = (world.map_or(1, Communicator::size), seen.elapsed().as_secs_f64());
        println!("lost ranks {lost:?}; {ranks} go on after step {steps}, {from}, {seconds:.3} s later");
    }
    Ok(())
}

/// Trains with these ranks, to the end or until they fail.
fn attempt<T: Number>(
    arguments: &Arguments,
    run: Run,
    text: &Text,
    comm: Option<&Communicator>,
    course: &mut Course<T>,
) -> Result<()> {
    let mut trainer = Trainer::<T>::new(run, text, comm)?;
    let open = |directory| Checkpoints::open(directory, arguments.every, arguments.keep, comm);
    let mut checkpoints = arguments.checkpoint.as_deref().map(open).transpose()?;
    if course.lost.is_some() {
        go_on(&mut trainer, checkpoints.as_ref(), course)?;
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
    let ended = steps(arguments, &mut trainer, checkpoints.as_mut(), course)
        .and_then(|last| report(arguments, &mut trainer, &last, course));
    course.kept = trainer.keep();
    ended
}

/// What a rank sent to other hosts in `steps` steps, if it did.
fn say_carried(before: &[(&str, u64)], after: &[(&str, u64)], steps: usize) {
    let sent =
        before.iter().zip(after).map(|((axis, before), (_, after))| (axis, after.saturating_sub(*before)));
    for (axis, bytes) in sent.filter(|(_, bytes)| *bytes > 0) {
        println!("rank 0 sent {} bytes a step to other hosts along {axis}", bytes / steps as u64);
    }
}

/// Takes the steps that are left, and returns what this rank did in the last one.
fn steps<T: Number>(
    arguments: &Arguments,
    trainer: &mut Trainer<'_, T>,
    mut checkpoints: Option<&mut Checkpoints>,
    course: &mut Course<T>,
) -> Result<Last> {
    let (world, before, begun) = (trainer.mesh().world(), trainer.mesh().carried()?, trainer.steps());
    let mut last = Last::default();
    for number in begun + 1..=arguments.steps {
        if let Some(comm) = world.filter(|_| number == arguments.steps) {
            // The last step is drawn: ranks begin it together.
            comm.barrier()?;
        }
        let step = trainer.step()?;
        course.losses.push(step.loss);
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
    Ok(last)
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
    let Memory { weights, gradients, moments } = trainer.memory();
    let Some(whole) = trainer.whole()? else { return Ok(()) };
    let [weights, gradients, moments] = [weights, gradients, moments].map(|bytes| bytes / 1024);
    println!("rank 0: {weights} KiB of weights, {gradients} KiB of gradients, {moments} KiB of moments");
    let along: Vec<String> =
        last.sent.iter().map(|(axis, bytes)| format!("{bytes} bytes a step along {axis}")).collect();
    if !along.is_empty() {
        println!("rank 0 sent {}, sums and gathers as in a ring", along.join(", "));
    }
    let (held_out, vocabulary) = (whole.held_out_loss(trainer.text())?, &course.vocabulary);
    println!(
        "after {} steps: loss {:.3} nats a {}, {held_out:.3} on text that was held out",
        arguments.steps,
        course.progress.loss(),
        vocabulary.unit()
    );
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

fn train<T: Number>(
    arguments: &Arguments,
    mut run: Run,
    (text, vocabulary): (&Text, Vocabulary),
    mut comm: Option<Communicator>,
) -> Result<()> {
    let progress = Progress::new(arguments.steps);
    let mut course =
        Course::<T> { taken: 0, losses: Vec::new(), progress, vocabulary, kept: None, lost: None };
    loop {
        let ended = attempt(arguments, run, text, comm.as_ref(), &mut course);
        let error = match (ended, &comm) {
            (Err(error), Some(_)) if arguments.elastic && elastic::is_loss(&error) => error,
            (ended, _) => return ended,
        };
        let (seen, rank) = (Instant::now(), comm.as_ref().map_or(0, Communicator::rank));
        eprintln!("consort-trainer: rank {rank} has to go on without others: {error}");
        let world = comm.as_ref().expect("a rank that has lost others");
        let Some(left) = elastic::survivors(world, &run)? else {
            eprintln!(
                "consort-trainer: rank {rank} leaves: those that are left are more than can share the work"
            );
            return Ok(());
        };
        course.lost = Some((left.lost, seen));
        (run, comm) = (left.run, Some(left.comm));
    }
}
