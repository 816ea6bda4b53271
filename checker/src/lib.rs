//! Checks certificates of schedules, for a reader who trusts neither the library that made them nor its proofs.
//!
//! A certificate is a text: a machine, a schedule, the rate that the schedule is said to reach and the bound that no
//! schedule is said to exceed (`docs/adr/0026-certificates.md` has its lines). [`check`] runs the schedule with sets
//! of contributions in the place of numbers (`run`), counts chunks on links (`load`), and adds up the
//! bound's cut (`bound`).
//!
//! Invariant: no code of the library is used, and no crate; numbers are whole, and one that does not fit is refused;
//! any text ends in an answer, in time and memory that its length bounds. Absent: whether the machine of the
//! certificate is the machine at hand; time, as latency and the work of ranks only make schedules slower.

#![forbid(unsafe_code)]

mod bound;
mod collective;
mod load;
mod network;
mod number;
mod parse;
mod run;

use std::fmt;

use number::Fraction;

/// What was checked and found right; its text is one line for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    collective: &'static str,
    machine: String,
    rate: Fraction,
    share: Fraction,
}

impl fmt::Display for Accepted {
    /// The percentage is cut after its second digit, so that 100.00 is the bound itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Accepted { collective, machine, rate, share } = self;
        let parts = share.parts_of(10_000).unwrap_or(0);
        let gb_s = rate.value() / 1e9;
        let (whole, rest) = (parts / 100, parts % 100);
        write!(f, "accepted: {collective} on {machine}, {gb_s:.2} GB/s, {whole}.{rest:02} % of the bound")
    }
}

/// What is wrong, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The line, counted from 1; none where something is missing.
    pub line: Option<usize>,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "refused: line {line}: {}", self.what),
            None => write!(f, "refused: {}", self.what),
        }
    }
}

impl std::error::Error for Refused {}

fn refused<T>(line: usize, what: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { line: Some(line), what: what.into() })
}

/// Checks the text of a certificate.
///
/// # Errors
///
/// [`Refused`] with the first fault.
pub fn check(text: &str) -> Result<Accepted, Refused> {
    let certificate = parse::parse(text)?;
    run::run(&certificate)?;
    let network = network::Network::new(&certificate);
    let rate = claimed("rate", load::rate(&certificate, &network)?, certificate.rate)?;
    let bound = claimed("bound", bound::bound(&certificate, &network)?, certificate.bound)?;
    let line = certificate.bound.1;
    let too_large = || Refused { line: Some(line), what: "the numbers are too large to be compared".into() };
    if bound.is_below(rate).ok_or_else(too_large)? {
        return refused(line, "the rate is above the bound: one of them is wrong");
    }
    let share = claimed("share", rate.through(bound).ok_or_else(too_large)?, certificate.share)?;
    Ok(Accepted { collective: certificate.collective.0, machine: certificate.machine.name, rate, share })
}

/// What was found, where that is what was claimed.
fn claimed(name: &str, found: Fraction, (claimed, line): (Fraction, usize)) -> Result<Fraction, Refused> {
    if found == claimed { Ok(found) } else { refused(line, format!("the {name} is {found}, not {claimed}")) }
}
