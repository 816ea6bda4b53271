//! The program itself: what it prints and leaves, alone and as processes, and how it ends when a rank is killed.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SMALL: &str =
    "--sequence 16 --width 16 --layers 1 --heads 2 --batch 4 --sample 20 --precision f64 --bucket-kib 4";

fn trainer(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_consort-trainer"));
    command.args(SMALL.split(' ')).args(arguments.split(' '));
    for name in ["CONSORT_RANK", "CONSORT_SIZE", "CONSORT_LOCAL_RANK", "CONSORT_LOCAL_SIZE", "CONSORT_JOB"] {
        command.env_remove(name);
    }
    command
}

fn chart(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.svg", std::process::id()))
}

/// Runs it to the end; its pictures are of the losses and of a step.
fn run(name: &str, arguments: &str) -> (Output, [String; 2]) {
    let charts = [chart(name), chart(&format!("{name}-step"))];
    let [losses, step] = charts.each_ref().map(|chart| chart.display());
    let output =
        trainer(&format!("{arguments} --chart {losses} --timeline {step}")).output().expect("the program");
    let pictures = charts.each_ref().map(|chart| std::fs::read_to_string(chart).unwrap_or_default());
    charts.into_iter().for_each(|chart| drop(std::fs::remove_file(chart)));
    (output, pictures)
}

#[test]
fn processes_report_what_one_rank_reports() {
    let lines = [(1, 0), (2, 0), (2, 3)].map(|(ranks, zero)| {
        let arguments = format!("--ranks {ranks} --zero {zero} --steps 20");
        let (output, [picture, step]) = run(&format!("ranks{ranks}-zero{zero}"), &arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(picture.contains("<polyline") && picture.contains(&format!("{ranks} ranks")), "{picture}");
        let lanes = (0..4).filter(|rank| step.contains(&format!("rank {rank}"))).count();
        assert!(lanes == ranks && step.contains("sums of gradients"), "{step}");
        assert!(text.contains(&format!("64 a step, {ranks} ranks")), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("step ")).count(), 10, "{text}");
        let begin = text.find("after 20 steps").expect("the result");
        // Both write the same sample, too.
        let (result, sample) = text[begin..].split_once("charts: ").expect("the charts");
        (result.to_owned(), sample.split_once("\n\n").expect("the sample").1.to_owned())
    });
    assert!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
    assert!(lines[0].1.starts_with("A rank ") && lines[0].1.len() >= 27, "{lines:?}");
}

#[test]
fn a_pipeline_reports_what_one_rank_reports_and_what_it_sent() {
    let options = "--layers 4 --micro-batches 2 --steps 10";
    let [alone, pipeline] = ["", "--ranks 2 --pp 2 --schedule interleaved "].map(|pipeline| {
        let (output, [_, step]) =
            run(&format!("pipeline{}", pipeline.len()), &format!("{pipeline}{options}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(step.contains("rank 0") && step.contains("idle"), "{step}");
        text
    });
    let result = |text: &str| text.lines().find(|line| line.starts_with("after 10 steps")).map(str::to_owned);
    assert!(result(&alone).is_some() && result(&alone) == result(&pipeline), "{alone}{pipeline}");
    // Three times 64 rows of 16 numbers: forward of both stages, backward of the second.
    let sent = "rank 0 sent 24576 bytes a step";
    assert!(pipeline.contains(sent) && !alone.contains("rank 0 sent"), "{pipeline}");
}

#[test]
fn a_rank_that_is_killed_is_named_and_the_others_end() {
    for options in ["--zero 0", "--zero 3", "--pp 3 --layers 3"] {
        check_killed(options);
    }
}

/// Kills rank 1 of three: in a pipeline it is a neighbour of both others.
fn check_killed(options: &str) {
    let mut parent = trainer(&format!("--ranks 3 {options} --steps 1000000000 --chart unused.svg"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut output = BufReader::new(parent.stdout.take().expect("a pipe"));
    let mut line = String::new();
    // It comes when all ranks have joined.
    output.read_line(&mut line).expect("a line");
    assert!(line.contains("3 ranks"), "{line}");
    let id = parent.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("children");
    let children: Vec<i32> = children.split_whitespace().map(|id| id.parse().expect("an id")).collect();
    assert_eq!(children.len(), 3, "{children:?}");
    kill(Pid::from_raw(children[1]), Signal::SIGKILL).expect("rank 1 runs");
    let status = parent.wait().expect("it ends");
    let mut errors = String::new();
    parent.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("text");
    assert_eq!(status.code(), Some(1), "{errors}");
    let last = errors.lines().last().unwrap_or_default();
    assert!(
        last.contains("rank 1 was killed by signal 9") || last.contains("ended with exit status"),
        "{errors}"
    );
    // The ranks that are left name the one that is lost.
    assert!(
        errors.lines().any(|line| line.contains("rank 1") && line.contains("consort-trainer: ")),
        "{errors}"
    );
    for child in children {
        assert!(!std::path::Path::new(&format!("/proc/{child}/cwd")).exists(), "process {child} is left");
    }
}

#[test]
fn what_is_wrong_is_said_once_and_before_ranks_start() {
    for (arguments, said) in [
        ("--ranks 2 --heads 3", "a width of 16 is not shared evenly by 3 heads"),
        ("--ranks 2 --text missing.txt", "missing.txt could not be read"),
        ("--ranks 2 --sequence 5000", "give a longer text or a smaller --sequence"),
        ("--ranks 3 --batch 2", "2 sequences a step are fewer than 3 ranks"),
        ("--ranks 2 --pp 2", "a pipeline of 2 stages has more than the 1 blocks of the model"),
        ("--ranks 2 --chart nowhere/loss.svg", "--chart is nowhere/loss.svg"),
    ] {
        let output = trainer(arguments).output().expect("the program");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.matches("consort-trainer: ").count() == 1, "{errors}");
        assert!(errors.contains(said), "{errors}");
    }
}
