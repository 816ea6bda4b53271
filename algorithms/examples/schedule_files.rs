//! Reads files of schedules (MSCCL's XML, MSCCL++'s plans), proves them, and prints what they are, how fast that
//! went, and whether their XML form means the same.
//!
//! `cargo run -p consort-algorithms --example schedule_files -- FILE...`

use consort_algorithms::language::{self, Read, msccl};
use consort_algorithms::{LowerOptions, Schedule};

const SLOTS: LowerOptions = LowerOptions { slots: 4 };

fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read(&path).map_err(|error| error.to_string());
        let said =
            text.and_then(|bytes| describe(&bytes)).unwrap_or_else(|error| format!("refused: {error}"));
        println!("{path}: {said}");
    }
}

fn describe(bytes: &[u8]) -> Result<String, String> {
    let begun = std::time::Instant::now();
    let Read { schedule, range } = language::read(bytes, &SLOTS).map_err(|error| error.to_string())?;
    let took = begun.elapsed();
    let Schedule { collective, ranks, partition, switches, .. } = schedule;
    let again = match msccl::write(&schedule, range) {
        None => "not written: it has switches".to_owned(),
        Some(xml) => match msccl::read(&xml, &SLOTS) {
            Ok(again) if (again.schedule.messages(), again.range) == (schedule.messages(), range) => {
                format!("again {} rounds", again.schedule.rounds.len())
            }
            Ok(again) => format!("again {} messages", again.schedule.messages()),
            Err(error) => format!("again: {error}"),
        },
    };
    let (rounds, messages, channels) = (schedule.rounds.len(), schedule.messages(), schedule.channels());
    Ok(format!(
        "{} of {ranks} ranks, {switches} switches, {} parts, {rounds} rounds, {messages} messages, {channels} channels, \
         {} to {} bytes, {} ms, {again}",
        collective.name(),
        partition.parts,
        range.least,
        range.most,
        took.as_millis()
    ))
}
