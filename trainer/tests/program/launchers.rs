//! Ranks that others than the program have started.

use std::net::TcpListener;
use std::process::{Child, Stdio};

use crate::{chart, trainer};

/// Ranks that were started one by one, not by the program: an error of one that writes the pictures is one of all.
#[test]
fn a_rank_that_could_not_write_the_pictures_ends_all_before_they_train() {
    let job = format!("pictures-{}", std::process::id());
    let start = |rank: &str, chart: &str| {
        let mut command = trainer(&format!("--steps 1000000000 --chart {chart} --timeline unused.svg"));
        let names = [
            ("CONSORT_RANK", rank),
            ("CONSORT_SIZE", "2"),
            ("CONSORT_LOCAL_RANK", rank),
            ("CONSORT_LOCAL_SIZE", "2"),
        ];
        command.envs(names).env("CONSORT_JOB", &job).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program")
    };
    let ranks = [start("0", "nowhere/loss.svg"), start("1", "unused.svg")];
    let errors = ranks.map(|rank| {
        let output = rank.wait_with_output().expect("it ends");
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    });
    assert!(errors[0].contains("--chart is nowhere/loss.svg, which cannot be written"), "{errors:?}");
    assert!(errors[1].contains("rank 0 could not go on"), "{errors:?}");
}

/// Ranks that are started as torchrun starts them are those of its job. Where a launcher has started one alone, --ranks says how many there are.
#[test]
fn ranks_of_a_launcher_are_those_of_its_job() {
    // torchrun's own agent holds the port.
    let agent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (port, job) =
        (agent.local_addr().expect("bound").port().to_string(), format!("trainer-{}", std::process::id()));
    let pictures = [chart("launched"), chart("launched-step")];
    let start = |rank: &str, size: &str, arguments: &str| {
        let [losses, step] = pictures.each_ref().map(|picture| picture.display());
        let mut command = trainer(&format!("--chart {losses} --timeline {step} --steps {arguments}"));
        let names = [
            ("RANK", rank),
            ("WORLD_SIZE", size),
            ("LOCAL_RANK", rank),
            ("LOCAL_WORLD_SIZE", size),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", &port),
            ("TORCHELASTIC_RUN_ID", &job),
        ];
        command.envs(names).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program")
    };
    let end = |ranks: [Child; 2]| ranks.map(|rank| rank.wait_with_output().expect("it ends"));
    let said = |output: &[u8]| String::from_utf8_lossy(output).into_owned();
    let [first, second] = end(["0", "1"].map(|rank| start(rank, "2", "2")));
    assert!(first.status.success() && said(&first.stdout).contains("64 a step, 2 ranks"), "{first:?}");
    assert!(second.status.success() && second.stdout.is_empty(), "{second:?}");
    // Ranks that would make other calls between steps are named before the first.
    let door = format!("2 --elastic --door {}", chart("launched-door").display());
    for other in ["3", "2 --elastic", "2 --checkpoint unused", &door] {
        let errors = end([start("0", "2", "2"), start("1", "2", other)]).map(|rank| said(&rank.stderr));
        for (rank, error) in errors.iter().enumerate() {
            assert!(error.contains("rank 1 has other options"), "{errors:?}");
            assert!(error.contains(&format!("(started as rank {rank})")), "{errors:?}");
        }
    }
    let alone = start("0", "1", "2 --ranks 2").wait_with_output().expect("it ends");
    assert!(alone.status.success() && said(&alone.stdout).contains("64 a step, 2 ranks"), "{alone:?}");
    pictures.into_iter().for_each(|picture| drop(std::fs::remove_file(picture)));
}
