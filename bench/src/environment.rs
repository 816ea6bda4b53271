//! `collbench env`: every setting, its value now, and where that came from.
//!
//! Invariant: what is shown is what a communicator made now would take; secrets are not shown. Absent: changing
//! anything.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write;

use clap::Parser;
use consort::Options;
use consort_nccl::environment::{Environment, Origin, Setting, find, ours, settings, variables};

use crate::failure::{Exit, Failure};
use crate::planned::{self, refused};

/// Variables of nccl-tests, which are this program's own business.
const TESTS: &str = "NCCL_TESTS_";

/// Shows every setting that acts (CONSORT_* and NCCL_*), its value now and where it came from, then the variables of
/// NCCL's that are set and do nothing, with the reason.
///
/// What counts, first things first: the call, CONSORT_*, NCCL_*, the program's options or config struct, a file
/// (NCCL_CONF_FILE or else ~/.nccl.conf, then /etc/nccl.conf), what was tuned, the default. Exit status 6 when a value
/// makes no sense.
#[derive(Parser, Debug)]
#[command(name = "collbench env", bin_name = "collbench env", max_term_width = 110)]
struct Arguments {
    /// Also the variables of NCCL's that are not set and would do nothing
    #[arg(long)]
    all: bool,
}

/// Runs the subcommand; its name is the first word.
pub(crate) fn run(words: &[OsString]) -> Result<Exit, Failure> {
    let Some(arguments) = planned::parse::<Arguments>(words)? else { return Ok(Exit::Done) };
    let environment = Environment::of_process();
    let known = settings(&Options::default(), &environment).map_err(refused)?;
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    planned::write(&text(&environment, &known, set, arguments.all), None)?;
    Ok(Exit::Done)
}

fn text(
    environment: &Environment<'_>,
    settings: &[Setting],
    set: impl Iterator<Item = String>,
    all: bool,
) -> String {
    let mut acting = Vec::new();
    for variable in ours() {
        match settings.iter().find(|setting| setting.name == variable.name) {
            Some(setting) => acting.push([setting.name.into(), setting.value.clone(), origin(setting)]),
            None => {
                let (value, from) = said(environment, variable.name, variable.default);
                let secret = variable.name == "CONSORT_SECRET" && !value.is_empty();
                let value = if secret { "(hidden)".into() } else { value };
                acting.push([variable.name.into(), value, from.to_string()]);
            }
        }
    }
    let mut idle = Vec::new();
    for variable in variables() {
        let (value, from) = said(environment, variable.name, variable.default);
        match variable.state.reason() {
            None => acting.push([variable.name.into(), value, from.to_string()]),
            Some(why) if all || from != Origin::Default => {
                idle.push([variable.name.into(), value, format!("{from}; {why}")]);
            }
            Some(_) => {}
        }
    }
    let unknown: BTreeSet<String> = set
        .filter(|name| name.starts_with("NCCL_") && !name.starts_with(TESTS) && find(name).is_none())
        .collect();
    idle.extend(unknown.into_iter().map(|name| {
        let (value, from) = said(environment, &name, "");
        [name, value, format!("{from}; not a variable of NCCL's that is known here")]
    }));
    let mut out = table(["setting", "value", "origin"], &acting);
    if !idle.is_empty() {
        out += "\nWithout effect:\n\n";
        out += &table(["variable", "value", "origin and reason"], &idle);
    }
    out
}

/// Where a setting came from, and by which variable if not its own.
fn origin(setting: &Setting) -> String {
    match setting.variable {
        Some(name) if name != setting.name => format!("{}: {name}", setting.origin),
        _ => setting.origin.to_string(),
    }
}

fn said(environment: &Environment<'_>, name: &str, default: &str) -> (String, Origin) {
    environment.text(name).unwrap_or_else(|| (default.to_owned(), Origin::Default))
}

/// Columns as wide as what is in them; a value of no length is a dash, and one of several lines stays one.
fn table(head: [&str; 3], rows: &[[String; 3]]) -> String {
    let shown = |value: &str| if value.is_empty() { "-".to_owned() } else { value.replace('\n', " ") };
    let rows: Vec<[String; 3]> = [head.map(str::to_owned)]
        .iter()
        .chain(rows)
        .map(|row| row.each_ref().map(|cell| shown(cell)))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    // One long path must not push everything to the right.
    let (first, second) = (width(0), width(1).min(24));
    let mut out = String::new();
    for [name, value, origin] in &rows {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name:first$}  {value:second$}  {origin}");
    }
    out
}
