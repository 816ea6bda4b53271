//! One rank of a job in which something goes wrong. The scripts in `cases/` start it; see `cases/README.md`.

mod calls;
mod ends;
mod several;
mod stray;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use consort::{Communicator, Error, ReduceOp, Result};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    // A case must end, whatever happens.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(90));
        println!("this process does not end by itself");
        std::process::exit(9);
    });
    let result = match word(0) {
        "skipped" => calls::skipped(word(1)),
        "differs" => calls::differs(word(1)),
        "order" => calls::order(word(1)),
        "messages" => calls::messages(word(1)),
        "killed" => ends::killed(word(1)),
        "joins" => ends::joins(),
        "slow" => ends::slow(word(1), word(2)),
        "early" => ends::early(word(1)),
        "several" => several::several(word(1), word(2)),
        "train" => stray::train(),
        "stray" => stray::attack(&words[1..]),
        other => panic!("no case {other:?}"),
    };
    if let Err(error) = result {
        say(&format!("ends with {}: {error}", variant(&error)));
    }
}

/// A line of this rank.
pub(crate) fn say(text: &str) {
    println!("{text}");
}

/// The name of an error's variant.
pub(crate) fn variant(error: &impl Debug) -> String {
    let text = format!("{error:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// Joins the job that the script started.
pub(crate) fn join() -> Result<Communicator> {
    let comm = Communicator::from_launcher()?;
    say(&format!("joined as rank {} of {}, process {}", comm.rank(), comm.size(), std::process::id()));
    Ok(comm)
}

/// Prints how a call ended and after how long; rank 0 prints the report when a deadline passed.
pub(crate) fn tell<T>(comm: &Communicator, what: &str, call: impl FnOnce() -> Result<T>) -> Option<T> {
    let began = Instant::now();
    let result = call();
    let took = began.elapsed().as_secs_f64();
    match result {
        Ok(value) => {
            say(&format!("{what}: done after {took:.2} s"));
            Some(value)
        }
        Err(error) => {
            say(&format!("{what}: {} after {took:.2} s: {error}", variant(&error)));
            if matches!(error, Error::Timeout { .. }) && comm.rank() == 0 {
                show_report(comm);
            }
            None
        }
    }
}

/// The report that the library made by itself.
pub(crate) fn show_report(comm: &Communicator) {
    match comm.last_report() {
        Some(report) => say(&report.to_string()),
        None => say("no report was made"),
    }
}

/// An all-reduce of ones.
pub(crate) fn sum_ones(comm: &Communicator, elements: usize) -> Result<Vec<f32>> {
    let mut buffer = vec![1.0f32; elements];
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    Ok(buffer)
}

/// Stays in the program's own code until the communicator has failed: the deadline of the others has passed.
pub(crate) fn stay_until_failed(comm: &Communicator) {
    say("is busy elsewhere until the others give up");
    while comm.status().is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Stays in the program's own code.
pub(crate) fn stay(seconds: f64) {
    say(&format!("is busy elsewhere for {seconds} s"));
    std::thread::sleep(Duration::from_secs_f64(seconds));
}
