//! A rank from its arguments to the sample: what the program does between the command line and the exit status.

use std::path::Path;

use consort::{Communicator, Launch};

use crate::arguments::{Arguments, Precision};
use crate::chart::{Losses, draw, draw_step};
use crate::checkpoint::Checkpoints;
use crate::error::{Error, Result};
use crate::launch;
use crate::number::Number;
use crate::progress::Progress;
use crate::sample::{Drawing, write};
use crate::text::{Text, shown};
use crate::timeline::gather;
use crate::train::{Run, Trainer};

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
    let run = arguments.run(job.as_ref().map_or(arguments.ranks, |job| job.size))?;
    let text = match &arguments.text {
        Some(path) => Text::read(path, run.shape.sequence)?,
        None => Text::bundled(run.shape.sequence)?,
    };
    for (file, option) in [(&arguments.chart, "--chart"), (&arguments.timeline, "--timeline")] {
        check_place(file, option)?;
    }
    if job.is_none() && arguments.ranks > 1 {
        return launch::run(arguments.ranks);
    }
    let comm = job.is_some().then(Communicator::from_launcher).transpose()?;
    match arguments.precision {
        Precision::F32 => train::<f32>(arguments, run, &text, comm.as_ref()),
        Precision::F64 => train::<f64>(arguments, run, &text, comm.as_ref()),
    }
}

/// Whether a picture can be expected to find its place: after the last step it would be late to say that it does not.
fn check_place(file: &Path, option: &'static str) -> Result<()> {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if directory.is_dir() && !file.is_dir() {
        return Ok(());
    }
    Err(Error::configuration(
        format!("{option} is {}, which is no file in a directory that is there", file.display()),
        "name another file",
    ))
}

/// The checkpoints of a run, and its trainer with the state of the newest where it goes on from there.
fn checkpoints<T: Number>(
    arguments: &Arguments,
    trainer: &mut Trainer<'_, T>,
    is_first: bool,
) -> Result<Option<Checkpoints>> {
    let Some(directory) = &arguments.checkpoint else { return Ok(None) };
    let world = trainer.mesh().world();
    let checkpoints = Checkpoints::open(directory, arguments.every, arguments.keep, world)?;
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
    if is_first && arguments.resume {
        match newest {
            Some(step) => println!("goes on from the checkpoint of step {step} in {shown}"),
            None => println!("begins, as there is no checkpoint in {shown}"),
        }
    }
    Ok(Some(checkpoints))
}

fn train<T: Number>(arguments: &Arguments, run: Run, text: &Text, comm: Option<&Communicator>) -> Result<()> {
    let is_first = comm.is_none_or(|comm| comm.rank() == 0);
    let mut trainer = Trainer::<T>::new(run, text, comm)?;
    let parameters = trainer.model().layout().elements();
    if is_first {
        println!(
            "{parameters} parameters in {} buckets, {} tokens of text, {} a step, {} ranks",
            trainer.model().layout().buckets(),
            text.training_tokens(),
            run.batch * run.shape.sequence,
            comm.map_or(1, Communicator::size)
        );
    }
    let mut checkpoints = checkpoints(arguments, &mut trainer, is_first)?;
    let taken = trainer.steps();
    let mut progress = Progress::new(arguments.steps, taken, is_first);
    let mut losses = Vec::new();
    let mut spans = Vec::new();
    for number in taken + 1..=arguments.steps {
        if let Some(comm) = comm.filter(|_| number == arguments.steps) {
            // The last step is drawn: ranks begin it together.
            comm.barrier()?;
        }
        let step = trainer.step()?;
        losses.push(step.loss);
        spans = step.spans();
        let line = progress.step(&step);
        if let Some(line) = line.filter(|_| is_first) {
            println!("{line}");
        }
        if let Some(checkpoints) = &mut checkpoints {
            checkpoints.step(&trainer)?;
        }
    }
    progress.end();
    if let Some(mut checkpoints) = checkpoints {
        checkpoints.end(&trainer)?;
    }
    let ranks = gather(comm, &spans)?;
    let Some(whole) = trainer.whole()? else { return Ok(()) };
    let held_out = whole.held_out_loss(text)?;
    println!(
        "after {} steps: loss {:.3} nats a byte, {held_out:.3} on text that was held out",
        arguments.steps,
        progress.loss()
    );
    let since = if taken > 0 { format!(", after step {taken}") } else { String::new() };
    let title = format!("{parameters} parameters, {} ranks{since}", comm.map_or(1, Communicator::size));
    draw(&arguments.chart, &Losses { steps: &losses, held_out, title: &title })?;
    draw_step(&arguments.timeline, &ranks)?;
    println!("charts: {}, {}", arguments.chart.display(), arguments.timeline.display());
    if arguments.sample > 0 {
        let prompt: Vec<u32> = arguments.prompt.bytes().map(u32::from).collect();
        let drawing =
            Drawing { tokens: arguments.sample, temperature: arguments.temperature, seed: run.seed };
        let written = write(&whole, &prompt, drawing)?;
        println!("\n{}{}", arguments.prompt, shown(&written));
    }
    Ok(())
}
