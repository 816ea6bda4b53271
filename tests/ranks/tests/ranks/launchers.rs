//! Jobs that a launcher started: its variables are enough on one host, and jobs do not interfere.

use std::net::{Ipv4Addr, TcpListener};

use consort_tests::job::{Job, Start, alone};
use consort_tests::system::{SOON, eventually};

use crate::RANK;

fn job(size: u32, value: u64) -> Start {
    Start::new(RANK, "launched", size).with("value", value).env("CONSORT_JOIN_TIMEOUT", 20)
}

fn assert_sums(mut job: Job, sum: u64) {
    for rank in job.ranks() {
        assert_eq!(job.line(rank, "sum "), sum.to_string());
    }
    job.all_end_well();
}

/// Variables of a launcher for two ranks on this host; `@` stands for the rank, `#` for this test's process.
fn launched_by(variables: &str) {
    let _alone = alone();
    let mut start = job(2, 3);
    for (name, value) in variables.split_whitespace().filter_map(|word| word.split_once('=')) {
        let value = value.replace('#', &std::process::id().to_string());
        for rank in 0..2 {
            start = start.env_of(rank, name, value.replace('@', &rank.to_string()));
        }
    }
    assert_sums(start.go(), 6);
}

#[test]
fn torchrun() {
    // torchrun's agent holds MASTER_PORT: the ranks must not need it.
    let agent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = agent.local_addr().expect("bound").port();
    launched_by(&format!(
        "RANK=@ WORLD_SIZE=2 LOCAL_RANK=@ LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=localhost MASTER_PORT={port} \
         TORCHELASTIC_RUN_ID=test-# TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=True"
    ));
}

#[test]
fn open_mpi() {
    launched_by(
        "OMPI_COMM_WORLD_RANK=@ OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=@ OMPI_COMM_WORLD_LOCAL_SIZE=2 \
         OMPI_COMM_WORLD_NODE_RANK=@ PMIX_RANK=@ PMIX_NAMESPACE=test# OMPI_MCA_ess_base_jobid=#",
    );
}

#[test]
fn mpich() {
    launched_by("PMI_RANK=@ PMI_SIZE=2 PMI_FD=8 MPI_LOCALRANKID=@ MPI_LOCALNRANKS=2 CONSORT_JOB=mpich-#");
}

#[test]
fn slurm() {
    launched_by(
        "SLURM_PROCID=@ SLURM_NTASKS=2 SLURM_LOCALID=@ SLURM_NODEID=0 SLURM_JOB_ID=# SLURM_STEP_ID=0 SLURM_NNODES=1 \
         SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2",
    );
}

fn named(name: &str, value: u64) -> Start {
    let mut start = job(2, value).env("CONSORT_JOB", format!("{name}-{}", std::process::id()));
    for rank in 0..2 {
        start = start.env_of(rank, "CONSORT_RANK", rank).env_of(rank, "CONSORT_SIZE", 2);
    }
    start
}

#[test]
fn two_jobs_at_once_do_not_meet() {
    let _alone = alone();
    // Interleaved on purpose: rank 0 of both, then rank 1 of both.
    let (one, other) = (named("one", 10).only(&[0]).go(), named("other", 100).only(&[0]).go());
    let (one_more, other_more) = (named("one", 10).only(&[1]).go(), named("other", 100).only(&[1]).go());
    for (job, sum) in [(one, 20), (other, 200), (one_more, 20), (other_more, 200)] {
        assert_sums(job, sum);
    }
}

#[test]
fn a_second_job_on_the_same_port() {
    let _alone = alone();
    // An address of this process's own, so that no other process takes the port.
    let own = Ipv4Addr::from(std::process::id() | 0x7f80_0000);
    let free = TcpListener::bind((own, 0)).and_then(|free| free.local_addr()).expect("a port");
    let start = |secret: &str, value, ranks: &[u32], timeout| {
        let start = named("port", value).env("CONSORT_ADDRESS", free);
        start.env("CONSORT_SECRET", secret).env("CONSORT_JOIN_TIMEOUT", timeout).only(ranks).go()
    };
    let first = start("the first job's own secret", 1, &[0], 30);
    // Read only: an attempt to bind it could keep the rank from it.
    let entry = format!(" {:08X}:{:04X} 00000000:0000 0A ", u32::from_ne_bytes(own.octets()), free.port());
    let is_listening = || std::fs::read_to_string("/proc/net/tcp").is_ok_and(|text| text.contains(&entry));
    assert!(eventually(SOON, is_listening));
    let mut second = start("the second job's own secret", 100, &[0, 1], 2);
    let text = second.failure(0, "InvalidArgument");
    assert!(text.contains(&format!("{free} is in use")), "{text}");
    // Its rank 1 reaches the first job's root, whose key it does not have.
    let line = second.line(1, "failed ");
    assert!(line.starts_with("Join:") || line.starts_with("MissingRanks:"), "{line}");
    let rest = start("the first job's own secret", 1, &[1], 30);
    assert_sums(rest, 2);
    assert_sums(first, 2);
}
