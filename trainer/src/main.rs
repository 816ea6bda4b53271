//! `consort-trainer`: see `--help`.

use std::process::ExitCode;

use clap::Parser;
use consort_trainer::arguments::Arguments;
use consort_trainer::{config, session};

fn main() -> ExitCode {
    let arguments = config::expand(std::env::args_os().collect());
    match arguments.and_then(|arguments| session::run(&Arguments::parse_from(arguments))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("consort-trainer: {error}{}", session::whose());
            ExitCode::FAILURE
        }
    }
}
