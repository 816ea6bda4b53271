//! `consort-trainer`: see `--help`.

use std::process::ExitCode;

use clap::Parser;
use consort_trainer::arguments::Arguments;
use consort_trainer::session;

fn main() -> ExitCode {
    match session::run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("consort-trainer: {error}");
            ExitCode::FAILURE
        }
    }
}
