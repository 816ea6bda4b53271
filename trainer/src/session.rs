//! A rank from its arguments to the sample: what the program does between the command line and the exit status.

use std::path::Path;

use consort::{Communicator, Launch};

use crate::arguments::{Arguments, Precision};
use crate::chart::{Losses, draw, draw_step};
use crate::error::{Error, Result};
use crate::launch;
use crate::model::Model;
use crate::number::Number;
use crate::parallel::replica::Memory;
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
        Precision::F32 | Precision::Bf16 => train::<f32>(arguments, run, &text, comm.as_ref()),
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

/// What a rank sent to other hosts in `steps` steps, if it did.
fn say_carried(before: &[(&str, u64)], after: &[(&str, u64)], steps: usize) {
    let sent =
        before.iter().zip(after).map(|((axis, before), (_, after))| (axis, after.saturating_sub(*before)));
    for (axis, bytes) in sent.filter(|(_, bytes)| *bytes > 0) {
        println!("rank 0 sent {} bytes a step to other hosts along {axis}", bytes / steps as u64);
    }
}

fn train<T: Number>(arguments: &Arguments, run: Run, text: &Text, comm: Option<&Communicator>) -> Result<()> {
    let is_first = comm.is_none_or(|comm| comm.rank() == 0);
    let mut trainer = Trainer::<T>::new(run, text, comm)?;
    let parameters = Model::<T>::new(run.shape, run.bucket_bytes)?.layout().elements();
    if is_first {
        println!(
            "{parameters} parameters, on rank 0 {} in {} buckets, {} tokens of text, {} a step, {} ranks",
            trainer.model().layout().elements(),
            trainer.model().layout().buckets(),
            text.training_tokens(),
            run.batch * run.shape.sequence,
            comm.map_or(1, Communicator::size)
        );
    }
    let mut progress = Progress::new(arguments.steps, is_first);
    let before = trainer.mesh().carried()?;
    let mut losses = Vec::new();
    let (mut spans, mut sent, mut sent_bytes) = (Vec::new(), 0, 0);
    for number in 1..=arguments.steps {
        if let Some(comm) = comm.filter(|_| number == arguments.steps) {
            // The last step is drawn: ranks begin it together.
            comm.barrier()?;
        }
        let step = trainer.step()?;
        losses.push(step.loss);
        (spans, sent, sent_bytes) = (step.spans(), step.exchange.sent, step.sent_bytes);
        let line = progress.step(&step);
        if let Some(line) = line.filter(|_| is_first) {
            println!("{line}");
        }
    }
    progress.end();
    if is_first {
        say_carried(&before, &trainer.mesh().carried()?, arguments.steps);
    }
    let ranks = gather(comm, &spans)?;
    let Memory { weights, gradients, moments } = trainer.memory();
    let Some(whole) = trainer.whole()? else { return Ok(()) };
    let [weights, gradients, moments, sent] = [weights, gradients, moments, sent].map(|bytes| bytes / 1024);
    println!(
        "rank 0: {weights} KiB of weights, {gradients} KiB of gradients, {moments} KiB of moments; exchanges of {sent} KiB a step"
    );
    let held_out = whole.held_out_loss(text)?;
    println!(
        "after {} steps: loss {:.3} nats a byte, {held_out:.3} on text that was held out",
        arguments.steps,
        progress.loss()
    );
    if run.degrees.pipeline > 1 {
        println!("rank 0 sent {sent_bytes} bytes a step to its neighbours in the pipeline");
    }
    let title = format!("{parameters} parameters, {} ranks", comm.map_or(1, Communicator::size));
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
