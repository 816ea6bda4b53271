//! Schedules that people write, and those of others' files.
//!
//! [`Program`] is a language: chunks are values, which copies and folds move between ranks. [`msccl`] reads and
//! writes the XML of MSCCL, [`mscclpp`] reads the execution plans of MSCCL++. All of them come to one list of moves
//! (`trace`), which is run with symbolic values, placed into rounds and proved.
//!
//! Invariant: what leaves this module as a [`Schedule`] was proved by the verifier, or, over switches in forms that
//! have no plans, by the symbolic run; what is refused names the statement, or the step and its line. Any text is
//! read in bounded memory and without panics. Absent: files, and which communicator uses what (see
//! `Options::schedule`).

mod chains;
pub mod msccl;
mod msccl_write;
pub mod mscclpp;
mod program;
mod rounds;
mod threads;
mod trace;
mod values;

pub use program::{Program, ProgramError, Value, input, output, scratch};

pub use crate::catalogue::Range;
pub use crate::hardware::exchange::ReadError;
use crate::{Channel, LowerError, LowerOptions, Plan, Rank, Schedule, catalogue, lower_switch, verify};
use trace::{Fault, Trace};

/// What a file of a schedule holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Read {
    /// The schedule, proved. Its name is the file's, with "-" for what a name cannot have.
    pub schedule: Schedule,
    /// The calls that the file is meant for.
    pub range: Range,
}

/// The longest file: 16 MiB.
pub const BYTES_MAX: usize = 16 << 20;

/// Reads a file of either format: XML of MSCCL, or a plan of MSCCL++, which is JSON.
///
/// # Errors
/// Those of [`msccl::read`] and [`mscclpp::read`].
pub fn read(bytes: &[u8], options: &LowerOptions) -> Result<Read, ReadError> {
    let line = |end: usize| 1 + bytes[..end].iter().filter(|byte| **byte == b'\n').count() as u32;
    let wrong = |line: u32, reason: &str| {
        let remedy = "name a file of MSCCL (XML) or MSCCL++ (JSON)".to_owned();
        ReadError { format: None, line: Some(line), reason: reason.to_owned(), remedy }
    };
    if bytes.len() > BYTES_MAX {
        return Err(wrong(1, "it is longer than 16 MiB"));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| wrong(line(error.valid_up_to()), "it is no text in UTF-8"))?;
    match text.trim_start_matches('\u{feff}').trim_start().chars().next() {
        Some('<') => msccl::read(text, options),
        Some('{') => mscclpp::read(text, options),
        _ => Err(wrong(1, "it begins as no schedule does")),
    }
}

/// A name that lists of algorithms can hold.
pub fn name_of(text: &str) -> String {
    let letter = |letter: char| {
        if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '-' }
    };
    let name: String = text.chars().take(catalogue::NAME_MAX).map(letter).collect();
    if name.is_empty() { "schedule".into() } else { name }
}

/// The schedule of a trace, proved.
fn proved(name: String, trace: &Trace, options: &LowerOptions) -> Result<Schedule, Fault> {
    let ordered;
    let (mut trace, mut resolved) = (trace, values::resolve(trace)?);
    if resolved.differ.is_some() {
        ordered = chains::in_rank_order(trace, &resolved.firsts);
        (trace, resolved) = (&ordered, values::resolve(&ordered)?);
    }
    if let Some((one, other, chunk)) = resolved.differ {
        return Err(Fault::of_whole(format!(
            "ranks {one} and {other} fold chunk {chunk} in different orders, so that their bits would differ"
        )));
    }
    let mut first = None;
    for (apart, on_one_channel) in [(0, false), (1, false), (1, true)] {
        let mut schedule = rounds::schedule(name.clone(), &trace.shape, resolved.clone(), apart);
        if on_one_channel {
            // What races in place alone, as channels know nothing of each other, has an order on one channel.
            let transfers = schedule.rounds.iter_mut().flat_map(|round| &mut round.transfers);
            transfers.for_each(|transfer| transfer.channel = Channel(0));
        }
        match prove(&schedule, options) {
            Ok(()) => return Ok(schedule),
            Err(why) => first = first.or(Some(why)),
        }
    }
    Err(Fault::of_whole(first.unwrap_or_default()))
}

fn prove(schedule: &Schedule, options: &LowerOptions) -> Result<(), String> {
    if schedule.switches == 0 {
        return catalogue::prove(schedule, options).map(|_| ());
    }
    let plans: Result<Vec<Plan>, _> =
        (0..schedule.ranks).map(|rank| lower_switch(schedule, Rank(rank))).collect();
    match plans {
        Ok(plans) => verify(&plans).map(|_| ()).map_err(|refusal| refusal.to_string()),
        // There are no plans of other forms over switches. The symbolic run has shown that the values are right.
        Err(
            LowerError::NotOfGroup { .. } | LowerError::NotMulticast { .. } | LowerError::Switches { .. },
        ) => Ok(()),
        Err(other) => Err(other.to_string()),
    }
}
