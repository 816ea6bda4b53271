//! The program itself: what it prints and leaves, alone and as processes, and how it ends when a rank is killed.

mod launchers;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use consort_trainer::random::Random;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SMALL: &str =
    "--sequence 16 --width 16 --layers 1 --heads 2 --batch 4 --sample 20 --precision f64 --bucket-kib 4";

/// A model without experts, with an embedding and a head of its own.
const DENSE: &str = "--kv-heads 2";

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
        assert!(step.contains("rank 0"), "{step}");
        (text, step.matches("#D7D7D7").count())
    });
    // The colour of idle time: of the legend alone, and of spans too.
    assert!(pipeline.1 > alone.1 && alone.1 > 0, "{} {}", alone.1, pipeline.1);
    let (alone, pipeline) = (alone.0, pipeline.0);
    let result = |text: &str| text.lines().find(|line| line.starts_with("after 10 steps")).map(str::to_owned);
    assert!(result(&alone).is_some() && result(&alone) == result(&pipeline), "{alone}{pipeline}");
    // Three times 64 rows of 16 numbers: forward of both stages, backward of the second.
    let sent = "rank 0 sent 24576 bytes a step";
    assert!(pipeline.contains(sent) && !alone.contains("rank 0 sent"), "{pipeline}");
}

#[test]
fn a_rank_that_is_killed_is_named_and_the_others_end() {
    for options in ["--zero 0", "--zero 3", "--pp 3 --layers 3", "--experts 6 --ep 3"] {
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
    let children = children(&parent);
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

/// The processes that it has started.
fn children(parent: &Child) -> Vec<i32> {
    let id = parent.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("children");
    children.split_whitespace().map(|id| id.parse().expect("an id")).collect()
}

/// A directory that is not there.
fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&path));
    path
}

/// Random numbers of a seed that is new each time, and is said.
fn random(name: &str) -> Random {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_nanos() as u64;
    println!("{name}: seed {seed}");
    Random::new(seed, name)
}

/// Its next line that has `part`.
fn line_with(output: &mut impl BufRead, part: &str) -> String {
    let mut line = String::new();
    while !line.contains(part) {
        line.clear();
        assert!(output.read_line(&mut line).expect("a line") > 0, "it ended before {part}");
    }
    line
}

/// Starts it with pipes, and waits for a line.
fn started(arguments: &str, part: &str) -> (Child, BufReader<std::process::ChildStdout>, String) {
    started_as(&mut trainer(arguments), part)
}

/// The same.
fn started_as(command: &mut Command, part: &str) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let line = line_with(&mut output, part);
    (child, output, line)
}

/// The process that started the ranks is killed, and all of them with it, wherever they are in writing.
#[test]
fn what_is_killed_goes_on_from_a_whole_checkpoint() {
    let (directory, random) = (scratch("killed"), random("what_is_killed_goes_on_from_a_whole_checkpoint"));
    let shown = directory.display();
    let line =
        format!("--ranks 2 --steps 1000000000 --checkpoint {shown} --every 1 --resume --chart unused.svg");
    let mut last = 0;
    for round in 0..6 {
        let (mut parent, _output, said) = started(&line, if round == 0 { "begins" } else { "goes on" });
        if round > 0 {
            let step = said.split("step ").nth(1).and_then(|rest| rest.split(' ').next());
            let step: u64 = step.expect("a step").parse().expect("a number");
            assert!(step >= last, "{step} after {last}");
            last = step;
        }
        // The first one is waited for; then any moment will do.
        while !std::fs::read_dir(&directory).expect("a directory").flatten().any(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with("step-") && !name.ends_with(".tmp"))
        }) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.below(round, 60_000) as u64));
        let ranks = children(&parent);
        parent.kill().expect("it runs");
        parent.wait().expect("it ends");
        while ranks.iter().any(|rank| Path::new(&format!("/proc/{rank}/cwd")).exists()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(last > 0, "steps were taken");
    drop(std::fs::remove_dir_all(&directory));
}

#[test]
fn a_run_goes_on_from_its_checkpoint_and_only_where_that_is_asked_for() {
    let directory = scratch("resumed");
    let given = |more: &str| format!("--checkpoint {} {more}", directory.display());
    let whole = run("whole", "--steps 12 --ranks 2").0;
    let said = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    said(&run("first", &given("--steps 12 --ranks 2 --resume --every 7")).0);
    std::fs::remove_dir_all(directory.join("step-00000012")).expect("the last one");
    let second = said(&run("second", &given("--steps 12 --resume --ranks 2")).0);
    assert!(second.contains("goes on from the checkpoint of step 7"), "{second}");
    // The mean loss is of other steps; what it has learned is the same.
    let learned = |text: &str| {
        let (_, rest) = text.split_once("nats a byte, ").expect("the result");
        let (held_out, rest) = rest.split_once("charts").expect("the charts");
        (held_out.to_owned(), rest.split_once("\n\n").expect("the sample").1.to_owned())
    };
    assert_eq!(learned(&second), learned(&said(&whole)));
    for (more, why) in [
        ("--steps 20", "give --resume to go on from it"),
        ("--steps 12 --resume", "give more --steps"),
        ("--steps 20 --resume --seed 2", "its seed is 1, and this run's is 2"),
    ] {
        let (output, _) = run("refused", &given(more));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(why), "{errors}");
    }
    drop(std::fs::remove_dir_all(&directory));
}

/// The losses that a run has written.
fn losses(file: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(file).expect("losses");
    drop(std::fs::remove_file(file));
    text.lines().map(|line| line.parse().expect("a number")).collect()
}

/// What is done to ranks.
#[derive(Clone, Copy)]
struct Blows {
    /// Runs of the program.
    rounds: u64,
    /// How often in a run.
    times: usize,
    /// How many ranks at the same time.
    at_once: usize,
    signal: Signal,
}

impl Blows {
    /// Ranks that are killed one by one.
    fn kills(rounds: u64, times: usize) -> Self {
        Blows { rounds, times, at_once: 1, signal: Signal::SIGKILL }
    }
}

/// The options of a run of `model` whose losses go to a file, and what they are without failures, on one rank.
fn undisturbed(name: &str, model: &str, file: &Path, steps: usize) -> (String, Vec<f64>) {
    let all = format!("--steps {steps} --batch 12 {model} --elastic --losses {} --sample 0", file.display());
    let (output, _) = run(name, &all);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = losses(file);
    assert_eq!(expected.len(), steps);
    (all, expected)
}

/// Asserts that a run that has said `said` has written the losses of one without failures.
fn assert_losses(file: &Path, expected: &[f64], said: &str) {
    let found = losses(file);
    assert_eq!(found.len(), expected.len(), "{said}");
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found / expected - 1.0).abs() < 1e-12, "{step}: {found} {expected}\n{said}");
    }
}

/// The ranks of a launcher that are there.
fn ranks_of(parent: &Child) -> Vec<i32> {
    let mut alive = children(parent);
    alive.retain(|rank| Path::new(&format!("/proc/{rank}/cwd")).exists());
    alive
}

/// Runs `model` undisturbed on one rank, and then on several with `options`, and deals `blows` to some at some moment of their steps; where new
/// ones are to come, each time when they have.
fn check_losses(name: &str, (model, options): (&str, &str), blows: Blows) {
    let (file, random, directory) = (chart(&format!("{name}-losses")), random(name), scratch(name));
    let (all, expected) = undisturbed(name, model, &file, 160);
    for round in 0..blows.rounds {
        let pictures = [chart(&format!("{name}-a")), chart(&format!("{name}-b"))];
        let [losses_picture, step] = pictures.each_ref().map(|picture| picture.display());
        let line = format!("{all} {options} --chart {losses_picture} --timeline {step}");
        let line = line.replace("DIR", &directory.display().to_string());
        let mut command = trainer(&line);
        if blows.signal == Signal::SIGSTOP {
            // After these seconds ranks look whether one of them is stopped.
            command.env("CONSORT_TIMEOUT", "5");
        }
        let (mut parent, mut output, _) = started_as(&mut command, "parameters, on rank 0");
        let mut text = String::new();
        for time in 0..blows.times {
            // One of ten lines, and a moment after it.
            let number = round * 10 + time as u64;
            let until = time * 4 + random.below(7 * number, 3);
            while text.lines().filter(|line| line.starts_with("step ")).count() < until {
                assert!(output.read_line(&mut text).expect("a line") > 0, "{text}");
            }
            std::thread::sleep(Duration::from_micros(random.below(7 * number + 1, 3000) as u64));
            // While they stand still none can end.
            let mut alive = ranks_of(&parent);
            let to_all = |ranks: &[i32], signal| {
                // A process that has ended is there until it is waited for.
                ranks.iter().for_each(|rank| _ = kill(Pid::from_raw(*rank), signal));
            };
            to_all(&alive, Signal::SIGSTOP);
            let victims: Vec<i32> = (0..blows.at_once as u64)
                .map(|at| alive.swap_remove(random.below(7 * number + 2 + at, alive.len())))
                .collect();
            let (begun, before) = (Instant::now(), text.len());
            victims.iter().for_each(|victim| kill(Pid::from_raw(*victim), blows.signal).expect("it runs"));
            to_all(&alive, Signal::SIGCONT);
            let lost = |text: &str| {
                let lost =
                    text.lines().filter_map(|line| line.split("lost ranks [").nth(1)?.split(']').next());
                lost.map(|ranks| ranks.split(',').count()).sum::<usize>()
            };
            while lost(&text[before..]) < blows.at_once {
                line_with_all(&mut output, &mut text, "lost ranks");
            }
            println!("the others go on {:.3} s after {}", begun.elapsed().as_secs_f64(), blows.signal);
            if blows.signal == Signal::SIGSTOP {
                victims
                    .iter()
                    .for_each(|victim| kill(Pid::from_raw(*victim), Signal::SIGCONT).expect("it is"));
            }
            if options.contains("--least-ranks") && !text[before..].contains(" came; ") {
                line_with_all(&mut output, &mut text, " came; ");
            }
        }
        output.read_to_string(&mut text).expect("text");
        let mut errors = String::new();
        parent.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("text");
        assert!(parent.wait().expect("it ends").success(), "{text}{errors}");
        text.lines().filter(|line| line.contains(" go on after ")).for_each(|line| println!("{line}"));
        errors.lines().filter(|line| line.contains("it asked")).for_each(|line| println!("{line}"));
        assert_losses(&file, &expected, &format!("{text}{errors}"));
        pictures.iter().for_each(|picture| drop(std::fs::remove_file(picture)));
        drop(std::fs::remove_dir_all(&directory));
    }
}

/// Reads on to a line with `part`.
fn line_with_all(output: &mut impl BufRead, text: &mut String, part: &str) {
    let before = text.len();
    while !text[before..].contains(part) {
        assert!(output.read_line(text).expect("a line") > 0, "it ended before {part}: {text}");
    }
}

#[test]
fn ranks_that_are_left_have_the_losses_of_a_run_without_failures() {
    check_losses("elastic", (DENSE, "--ranks 4"), Blows::kills(1, 2));
    check_losses("elastic-tp", (DENSE, "--ranks 4 --tp 2 --checkpoint DIR --every 2"), Blows::kills(1, 1));
    check_losses(
        "elastic-zero",
        (DENSE, "--ranks 4 --zero 3 --checkpoint DIR --every 2"),
        Blows::kills(1, 2),
    );
}

/// First three ranks share the experts of four, then two: each has none of another's.
#[test]
fn ranks_that_are_left_share_the_experts() {
    let model = "--experts 12 --hidden 16";
    let options = "--ranks 4 --ep 4 --checkpoint DIR --every 2";
    check_losses("elastic-ep", (model, options), Blows::kills(1, 2));
    // Neither 2 nor 4 ranks of 3: each has all of them from there on.
    let options = "--ranks 4 --ep 2 --zero 3 --checkpoint DIR --every 2";
    check_losses("elastic-ep-zero", (model, options), Blows::kills(1, 1));
}

#[test]
fn ranks_that_are_lost_at_the_same_time_are_left_out_together() {
    check_losses("elastic-two", (DENSE, "--ranks 5"), Blows { at_once: 2, ..Blows::kills(3, 1) });
}

/// Where there is a door a rank that goes on comes back as a new one.
#[test]
fn ranks_that_are_stopped_are_left_out_and_come_back() {
    let door = scratch("stopped-door");
    let options = format!("--ranks 3 --least-ranks 3 --door {}", door.display());
    check_losses("stopped", (DENSE, &options), Blows { signal: Signal::SIGSTOP, ..Blows::kills(1, 1) });
    drop(std::fs::remove_file(&door));
}

/// The one that is left over where two share each matrix comes back with the one that is started.
#[test]
fn processes_are_started_in_the_place_of_killed_ones() {
    check_losses("restart", (DENSE, "--ranks 3 --restart 2 --least-ranks 3"), Blows::kills(1, 2));
    let sharing = "--ranks 4 --restart 1 --least-ranks 4 --checkpoint DIR --every 2";
    check_losses("restart-tp", (DENSE, &format!("{sharing} --tp 2")), Blows::kills(1, 1));
    check_losses("restart-zero", (DENSE, &format!("{sharing} --zero 3")), Blows::kills(1, 1));
}

#[test]
#[ignore = "a minute: fifty ranks are killed"]
fn fifty_ranks_are_killed() {
    check_losses("elastic-fifty", (DENSE, "--ranks 4"), Blows::kills(20, 2));
    check_losses(
        "elastic-fifty-tp",
        (DENSE, "--ranks 4 --tp 2 --checkpoint DIR --every 2"),
        Blows::kills(10, 1),
    );
}

#[test]
#[ignore = "a minute: fifty ranks are killed"]
fn fifty_ranks_are_killed_and_fifty_come() {
    check_losses("restart-fifty", (DENSE, "--ranks 3 --restart 2 --least-ranks 3"), Blows::kills(21, 2));
    let sharing = "--ranks 4 --tp 2 --restart 1 --least-ranks 4 --checkpoint DIR --every 2";
    check_losses("restart-fifty-tp", (DENSE, sharing), Blows::kills(8, 1));
}

/// Ranks of a run stand still while others ask, so that these come between two of its steps.
#[test]
fn ranks_that_are_started_by_hand_come_between_two_steps() {
    let (file, door, pictures) = (chart("hand-losses"), scratch("hand"), [chart("hand-a"), chart("hand-b")]);
    let (all, expected) = undisturbed("hand", DENSE, &file, 400);
    let [losses_picture, step] = pictures.each_ref().map(|picture| picture.display());
    let line = format!("{all} --door {} --chart {losses_picture} --timeline {step}", door.display());
    let (mut parent, mut output, _) = started(&format!("{line} --ranks 2"), "step ");
    let signal = |signal| {
        ranks_of(&parent).into_iter().for_each(|rank| kill(Pid::from_raw(rank), signal).expect("it runs"));
    };
    signal(Signal::SIGSTOP);
    let asking = |more: &str| {
        let mut child = trainer(&format!("{line} --join{more}"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
        line_with(&mut said, "waits at the door");
        (child, said)
    };
    let others = ["", " --seed 2", "", " --least-ranks 2"].map(asking);
    signal(Signal::SIGCONT);
    let mut text = String::new();
    while !text.contains("; 4 go on") {
        line_with_all(&mut output, &mut text, " came; ");
    }
    output.read_to_string(&mut text).expect("text");
    assert!(parent.wait().expect("it ends").success(), "{text}");
    for (number, (mut child, mut said)) in others.into_iter().enumerate() {
        let mut errors = String::new();
        said.read_to_string(&mut errors).expect("text");
        let is_well = child.wait().expect("it ends").success();
        assert_eq!(is_well, number.is_multiple_of(2), "{errors}");
        let part = if is_well { "after it asked" } else { "has other options or another text" };
        assert!(errors.contains(part), "{errors}");
    }
    assert_losses(&file, &expected, &text);
    pictures.iter().for_each(|picture| drop(std::fs::remove_file(picture)));
    drop(std::fs::remove_file(&door));
}

/// A bound on the size of files stands for a disk that is full: the parameters are below it, and a checkpoint is above.
#[test]
fn a_disk_without_room_ends_the_run_and_leaves_the_checkpoint_before() {
    let directory = scratch("full");
    let line = format!("--checkpoint {} --resume --steps", directory.display());
    assert!(run("full", &format!("{line} 2")).0.status.success());
    let whole = trainer(&format!("{line} 4 --chart unused.svg --timeline unused.svg"));
    let arguments: Vec<_> = whole.get_args().map(|argument| argument.to_str().expect("text")).collect();
    let program = whole.get_program().to_str().expect("text");
    let output = Command::new("sh")
        .args(["-c", &format!("trap '' XFSZ; ulimit -f 400; exec {program} {}", arguments.join(" "))])
        .output()
        .expect("a shell");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("rank-00000.safetensors could not be written"),
        "{errors}"
    );
    let (output, _) = run("full", &format!("{line} 4"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("goes on from the checkpoint of step 2"), "{text}");
    drop(std::fs::remove_dir_all(&directory));
}

#[test]
fn what_is_wrong_is_said_once_and_before_ranks_start() {
    for (arguments, said) in [
        ("--ranks 2 --heads 3", "a width of 16 is not shared evenly by 3 heads"),
        ("--ranks 2 --text missing.txt", "missing.txt could not be read"),
        (
            concat!("--ranks 2 --text ", env!("CARGO_BIN_EXE_consort-trainer")),
            "consort-trainer is no text: its byte",
        ),
        ("--ranks 4 --dp 3", "a mesh of pp 1 x dp 3 x cp 1 x tp 1 has 3 ranks, and the job has 4"),
        ("--ranks 4 --dp 2 --ep 2 --experts 4", "--ep is a part of --dp"),
        ("--ranks 2 --sequence 5000", "give a longer text or a smaller --sequence"),
        ("--ranks 3 --batch 2", "2 sequences a step are fewer than 3 ranks"),
        ("--ranks 2 --pp 2", "a pipeline of 2 stages has more than the 1 blocks of the model"),
        ("--ranks 2 --chart nowhere/loss.svg", "--chart is nowhere/loss.svg"),
        ("--ranks 2 --timeline .", "--timeline is ., which cannot be written"),
        ("--ranks 2 --width 65536 --layers 4096", "the 2 ranks of this host need about"),
        ("--width 65536 --layers 4096 --experts 4096 --hidden 1048576", "more than can be counted"),
    ] {
        check_said(arguments, said);
    }
}

fn check_said(arguments: &str, said: &str) {
    let output = trainer(arguments).output().expect("the program");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.matches("consort-trainer: ").count() == 1, "{errors}");
    assert!(errors.contains(said), "{errors}");
}

#[test]
#[cfg(not(feature = "bpe"))]
fn a_program_without_pairs_of_bytes_says_how_to_build_one_with_them() {
    check_said(
        "--ranks 2 --bpe tests/fixtures/small.tiktoken",
        "cargo build -p consort-trainer --features bpe",
    );
}
