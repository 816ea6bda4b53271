//! `consort-check FILE`: accepts a certificate or says which of its lines is wrong.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::process::ExitCode;

/// What comes after is not read, and the certificate then lacks its end.
const BYTES_MAX: u64 = 256 << 20;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [path] = &arguments[..] else {
        eprintln!("usage: consort-check FILE\nexit status: 0 accepted, 1 refused, 2 not read");
        return ExitCode::from(2);
    };
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
    if let Err(error) = read {
        eprintln!("{}: {error}", path.display());
        return ExitCode::from(2);
    }
    let checked = consort_checker::check(&text);
    println!("{}", checked.as_ref().map_or_else(ToString::to_string, ToString::to_string));
    if checked.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
