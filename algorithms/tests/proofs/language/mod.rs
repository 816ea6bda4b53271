//! The schedule language, and files of schedules of others.

mod damaged;
mod files;
mod plans;
mod programs;

use std::collections::BTreeMap;

use consort_algorithms::language::{Range, ReadError, msccl, mscclpp};
use consort_algorithms::{LowerOptions, Schedule, lower_all, verify};

use crate::common::execute_often;

pub(crate) const SLOTS: LowerOptions = LowerOptions { slots: 4 };

/// What must be equal where two schedules mean the same: the shape, how many messages go from whom to whom on which channel,
/// and the order in which outputs are folded.
fn meaning(schedule: &Schedule) -> (String, BTreeMap<(u32, u32, u16), usize>, u64) {
    let Schedule { collective, ranks, partition, .. } = schedule;
    let mut messages = BTreeMap::new();
    for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers).filter(|of| of.from != of.to) {
        *messages.entry((transfer.from.0, transfer.to.0, transfer.channel.0)).or_default() += 1;
    }
    let plans = lower_all(schedule, &SLOTS).expect("it is lowered");
    let proof = verify(&plans).expect("it is proved");
    (format!("{collective} {ranks} {}", partition.parts), messages, proof.fold_hash)
}

/// Runs a schedule on numbers, by an executor that shares no code with the verifier.
fn runs(schedule: &Schedule) {
    let plans = lower_all(schedule, &SLOTS).expect("it is lowered");
    execute_often(&plans, 2, 3).unwrap_or_else(|fault| panic!("{}: {fault}", schedule.name));
}

/// Writes a schedule as XML and reads it again: the same meaning.
fn survives(schedule: &Schedule, range: Range) {
    let xml = msccl::write(schedule, range).expect("MSCCL has it");
    let again = msccl::read(&xml, &SLOTS).unwrap_or_else(|error| panic!("{}: {error}\n{xml}", schedule.name));
    assert_eq!(meaning(&again.schedule), meaning(schedule), "{}", schedule.name);
    assert_eq!(again.range, range, "{}", schedule.name);
}

fn xml_fault(text: &str) -> ReadError {
    let error = msccl::read(text, &SLOTS).map(|read| read.schedule).expect_err("it is wrong");
    assert!(error.line.is_some() && !error.remedy.is_empty(), "{error}");
    error
}

fn plan_fault(text: &str) -> ReadError {
    let error = mscclpp::read(text, &SLOTS).map(|read| read.schedule).expect_err("it is wrong");
    assert!(error.line.is_some() && !error.remedy.is_empty(), "{error}");
    error
}
