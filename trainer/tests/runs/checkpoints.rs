//! Checkpoints: written on one mesh and read on others, and what becomes of them when something is wrong.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use consort::Communicator;
use consort_trainer::checkpoint::{Checkpoints, format};
use consort_trainer::error::{Error, Result};
use consort_trainer::mesh::Degrees;
use consort_trainer::model::{Experts, Shape};
use consort_trainer::number::Number;
use consort_trainer::optimizer::Schedule;
use consort_trainer::parallel::pipeline::Order;
use consort_trainer::parallel::zero::Zero;
use consort_trainer::parameters::Parameter;
use consort_trainer::text::Text;
use consort_trainer::train::{Run, Trainer};

fn run(degrees: Degrees) -> Run {
    let run = crate::common::run();
    let shape = Shape { width: 16, kv_heads: 4, hidden: 32, sequence: 16, ..run.shape };
    Run { shape, degrees, schedule: Schedule { rate: 3e-3, least: 3e-4, warmup: 2, steps: 20 }, ..run }
}

fn mesh(data: usize, tensor: usize) -> Degrees {
    Degrees { data, tensor, shares_tokens: tensor > 1, ..Degrees::default() }
}

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        Scratch(path)
    }

    fn steps(&self) -> Vec<usize> {
        format::list(&self.0).expect("a directory").0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// What `rank` gives on each rank of a mesh.
fn ranks<R: Send>(degrees: Degrees, rank: impl Fn(Option<&Communicator>) -> R + Sync) -> Vec<R> {
    if degrees.ranks() == 1 {
        return vec![rank(None)];
    }
    let (comms, rank) = (Communicator::local(degrees.ranks() as u32).expect("ranks"), &rank);
    std::thread::scope(|threads| {
        let threads: Vec<_> = comms.iter().map(|comm| threads.spawn(move || rank(Some(comm)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

/// Trains `steps` steps, beginning with the newest checkpoint if there is one, with a checkpoint after each `every`.
fn train<T: Number>(
    run: Run,
    comm: Option<&Communicator>,
    text: &Text,
    (directory, every): (&Path, usize),
    steps: usize,
) -> Result<(Vec<f64>, State)> {
    let mut trainer = Trainer::<T>::new(run, text, comm)?;
    let mut checkpoints = Checkpoints::open(directory, every, 2, comm)?;
    if let Some(step) = checkpoints.newest(comm)? {
        checkpoints.load(&mut trainer, step)?;
    }
    let mut losses = Vec::new();
    while losses.len() < steps {
        losses.push(trainer.step()?.loss);
        checkpoints.step(&mut trainer)?;
    }
    if steps > 0 {
        checkpoints.end(&mut trainer)?;
    }
    Ok((losses, state(&mut trainer)?))
}

/// The bits of a state by name, as whole tensors; those of other ranks are missing.
type State = BTreeMap<String, Vec<Option<u64>>>;

/// What a rank saves, and all weights with which it computes.
fn state<T: Number>(trainer: &mut Trainer<'_, T>) -> Result<State> {
    let mut all = State::new();
    let mut put = |state: &str, parameter: &Parameter, elements: Range<usize>, values: &[T]| {
        let missing = || vec![None; parameter.whole[0] * parameter.whole[1]];
        let whole = all.entry(format!("{state}.{}", parameter.name)).or_insert_with(missing);
        let numbers = parameter.numbers().skip(elements.start).take(elements.len());
        for (number, value) in numbers.zip(values) {
            let bits = value.wide().to_bits();
            assert!(whole[number].replace(bits).is_none_or(|other| other == bits), "what is saved is used");
        }
    };
    trainer.state(&mut put)?;
    let layout = trainer.model().layout().clone();
    let weights = trainer.weights()?;
    for (id, parameter) in layout.parameters() {
        put("weights", parameter, 0..parameter.elements(), weights.of(&layout, id));
    }
    Ok(all)
}

/// The elements of all ranks, which have the same bits where they have the same ones.
fn whole(ranks: impl Iterator<Item = State>) -> State {
    let mut all = State::new();
    for (name, values) in ranks.flatten() {
        let whole = all.entry(name).or_insert_with(|| vec![None; values.len()]);
        for (whole, value) in whole.iter_mut().zip(values).filter(|(_, value)| value.is_some()) {
            assert!(whole.is_none() || *whole == value, "ranks differ");
            *whole = value;
        }
    }
    assert!(all.values().flatten().all(Option::is_some), "every element is on some rank");
    all
}

fn text() -> Text {
    Text::bundled(run(mesh(1, 1)).shape.sequence).expect("text")
}

/// Trains three steps as `from` is shared, and then goes on as each of `others`: with the bits of the checkpoint, and two steps
/// with the losses of `from`.
fn check_bits(name: &str, from: Run, others: &[Run]) {
    let (scratch, text) = (Scratch::new(name), text());
    let on = |run: Run, every, steps| {
        let (directory, text) = (&scratch.0, &text);
        let all = ranks(run.degrees, move |comm| {
            train::<f64>(run, comm, text, (directory, every), steps).expect("training")
        });
        let losses = all[0].0.clone();
        (losses, whole(all.into_iter().map(|(_, state)| state)))
    };
    let (_, saved) = on(from, 3, 3);
    let expected = on(from, 100, 2).0;
    std::fs::remove_dir_all(format::directory(&scratch.0, 5)).expect("the checkpoint of the end");
    for run in others {
        let (_, loaded) = on(*run, 100, 0);
        assert!(loaded == saved, "{:?} {:?} has other bits", run.degrees, run.zero);
        let (losses, _) = on(*run, 100, 2);
        for (loss, expected) in losses.iter().zip(&expected) {
            assert!((loss / expected - 1.0).abs() < 1e-12, "{:?}: {loss} {expected}", run.degrees);
        }
        std::fs::remove_dir_all(format::directory(&scratch.0, 5)).expect("the checkpoint of the end");
    }
}

#[test]
fn any_mesh_goes_on_with_the_same_bits() {
    let others = [mesh(2, 2), mesh(4, 1), mesh(3, 1), mesh(1, 4), mesh(1, 2), mesh(1, 1)];
    check_bits("meshes", run(mesh(2, 2)), &others.map(run));
}

#[test]
fn shares_of_moments_and_weights_go_on_as_any_others() {
    let of = |zero, degrees| Run { zero, ..run(degrees) };
    let context = Degrees { context: 2, ..Degrees::default() };
    let (alone, [one, two, three]) =
        (run(mesh(1, 1)), [Zero::Moments, Zero::Gradients, Zero::Weights].map(|zero| of(zero, mesh(2, 1))));
    check_bits("zero1", one, &[alone, one, three]);
    check_bits("zero3", three, &[alone, three, two, of(Zero::Weights, mesh(3, 1))]);
    check_bits("zero0", run(mesh(3, 1)), &[one, three, of(Zero::Weights, context)]);
    check_bits("zero3-tp", of(Zero::Weights, mesh(2, 2)), &[of(Zero::Moments, context), run(mesh(1, 2))]);
}

#[test]
fn stages_of_a_pipeline_go_on_as_any_mesh() {
    let degrees = Degrees { pipeline: 2, ..Degrees::default() };
    let pipeline = Run { micro_batches: 2, ..run(degrees) };
    let shared = Degrees { data: 2, ..degrees };
    let shared = Run { zero: Zero::Weights, micro_batches: 2, ..run(shared) };
    let gpipe = Run { order: Order::GPipe, ..pipeline };
    check_bits("pp", pipeline, &[run(mesh(1, 2)), shared, run(mesh(1, 1)), gpipe]);
    check_bits("tp-to-pp", run(mesh(1, 2)), &[pipeline, shared]);
    // Two stages have the embedding, and one of them saves it.
    let tied = |run: Run| Run { shape: Shape { tied: true, ..run.shape }, ..run };
    check_bits("pp-tied", tied(pipeline), &[run(mesh(1, 2)), run(mesh(1, 1)), gpipe].map(tied));
    check_bits("tp-to-pp-tied", tied(run(mesh(1, 2))), &[tied(pipeline)]);
}

#[test]
fn experts_go_on_however_many_ranks_share_them() {
    let of = |zero, data, expert| {
        let run = run(Degrees { expert, ..Degrees::data(data) });
        Run { shape: Shape { experts: Some(Experts { count: 4, top_k: 2 }), ..run.shape }, zero, ..run }
    };
    let [nothing, moments, gradients, weights] =
        [Zero::Nothing, Zero::Moments, Zero::Gradients, Zero::Weights];
    let others = [of(nothing, 4, 4), of(nothing, 2, 1), of(nothing, 1, 1), of(weights, 4, 2)];
    check_bits("experts", of(nothing, 4, 2), &others);
    check_bits("expert-zero1", of(moments, 2, 2), &[of(nothing, 4, 2), of(weights, 2, 2)]);
    check_bits(
        "expert-zero3",
        of(weights, 4, 2),
        &[of(nothing, 1, 1), of(gradients, 4, 4), of(moments, 4, 2)],
    );
    let staged = |run: Run| Run { degrees: Degrees { pipeline: 2, ..run.degrees }, micro_batches: 2, ..run };
    check_bits("expert-pp", staged(of(nothing, 2, 2)), &[of(nothing, 1, 1), staged(of(nothing, 1, 1))]);
}

#[test]
fn a_run_that_was_interrupted_ends_with_the_bits_of_one_that_was_not() {
    let text = text();
    for degrees in [mesh(1, 1), mesh(2, 2)] {
        let [at_once, in_parts] = [&[9][..], &[4, 3, 2]].map(|parts| {
            let scratch = Scratch::new(&format!("parts{}-{}", parts.len(), degrees.ranks()));
            let mut last = None;
            let mut losses = Vec::new();
            for steps in parts {
                let all = ranks(degrees, |comm| {
                    train::<f32>(run(degrees), comm, &text, (&scratch.0, 2), *steps).expect("training")
                });
                losses.extend(all[0].0.iter().map(|loss| loss.to_bits()));
                last = Some(whole(all.into_iter().map(|(_, state)| state)));
            }
            assert_eq!(scratch.steps(), [8, 9], "the newest two are kept");
            (losses, last)
        });
        assert!(at_once == in_parts, "{degrees:?}");
    }
}

/// One rank's run of three steps with a checkpoint after each.
fn three(scratch: &Scratch) -> Result<()> {
    train::<f64>(run(mesh(1, 1)), None, &text(), (&scratch.0, 1), 3).map(drop)
}

fn load(run: Run, scratch: &Scratch) -> Result<()> {
    train::<f64>(run, None, &text(), (&scratch.0, 1), 0).map(drop)
}

#[test]
fn what_is_wrong_with_a_checkpoint_is_said_with_the_file() {
    let scratch = Scratch::new("damaged");
    three(&scratch).expect("training");
    let directory = format::directory(&scratch.0, 3);
    let (index, data) = (directory.join(format::INDEX), directory.join(format::file(0)));
    let (good_index, good_data) =
        (std::fs::read(&index).expect("an index"), std::fs::read(&data).expect("a file"));
    let text = String::from_utf8(good_index.clone()).expect("text");
    let given = run(mesh(1, 1));
    let refused = |run: Run, file: &Path, said: &str| {
        let error = load(run, &scratch).expect_err(said).to_string();
        assert!(error.contains(said) && error.contains(&file.display().to_string()), "{said}: {error}");
    };
    refused(Run { seed: 8, ..given }, &index, "its seed is 7, and this run's is 8");
    refused(Run { batch: 5, ..given }, &index, "its batch is 4");
    let shape = Shape { width: 32, ..given.shape };
    refused(Run { shape, ..given }, &index, "its model is ");
    let error = train::<f32>(given, None, &self::text(), (&scratch.0, 1), 0).expect_err("other numbers");
    assert!(error.to_string().contains("its number is F64, and this run's is F32"), "{error}");
    for (from, to, said) in [
        ("\"version\":1", "\"version\":2", "it has version 2, and this program reads version 1"),
        ("\"step\":3", "\"step\":4", "it is of step 4"),
        ("weights.embedding", "weights.other", "it has no weights.embedding"),
        ("{\"version\"", "[\"version\"", "it is no index"),
        ("\"file\":\"rank", "\"file\":\"../rank", "cannot be"),
    ] {
        assert!(text.contains(from), "{from}: {text}");
        std::fs::write(&index, text.replacen(from, to, usize::MAX)).expect("written");
        refused(given, &index, said);
    }
    let mut less: format::Index = serde_json::from_str(&text).expect("an index");
    less.tensors.values_mut().for_each(|tensor| tensor.chunks.clear());
    std::fs::write(&index, serde_json::to_vec(&less).expect("JSON")).expect("written");
    refused(given, &index, "it has 0 of ");
    std::fs::write(&index, &good_index[..good_index.len() / 2]).expect("written");
    refused(given, &index, "it is no index");
    std::fs::write(&index, &good_index).expect("written");
    std::fs::write(&data, &good_data[..good_data.len() - 1]).expect("written");
    refused(given, &data, "it ends before the end of square.");
    for at in [good_data.len() - 1, good_data.len() / 2] {
        let mut bad = good_data.clone();
        bad[at] ^= 1;
        std::fs::write(&data, bad).expect("written");
        refused(given, &data, "is not what was written");
    }
    std::fs::remove_file(&data).expect("removed");
    refused(given, &data, "could not be read");
    // The one before it is as it was.
    std::fs::remove_dir_all(&directory).expect("removed");
    load(given, &scratch).expect("the checkpoint of step 2");
    assert_eq!(scratch.steps(), [2]);
}

#[test]
fn what_a_crash_leaves_is_never_taken_for_a_checkpoint() {
    let scratch = Scratch::new("torn");
    let degrees = mesh(2, 1);
    let text = text();
    let go = |steps| {
        let all =
            ranks(degrees, |comm| train::<f64>(run(degrees), comm, &text, (&scratch.0, 2), steps).map(drop));
        all.into_iter().for_each(|rank| rank.expect("training"));
    };
    go(2);
    let whole = format::directory(&scratch.0, 2);
    let files: Vec<(PathBuf, Vec<u8>)> = [format::file(0), format::file(1), format::INDEX.to_owned()]
        .map(|name| (PathBuf::from(&name), std::fs::read(whole.join(name)).expect("a file")))
        .into();
    // The next one after each write, and in the middle of it: files of ranks in both orders, and the index last.
    let torn = format::unfinished(&scratch.0, 4, 0);
    for order in [[0, 1, 2], [1, 0, 2]] {
        for count in 0..=2 * files.len() {
            std::fs::create_dir_all(&torn).expect("made");
            for (number, at) in order.iter().enumerate() {
                let (name, bytes) = &files[*at];
                let length = bytes.len() * (count.saturating_sub(2 * number)).min(2) / 2;
                if length > 0 {
                    std::fs::write(torn.join(name), &bytes[..length]).expect("written");
                }
            }
            assert_eq!(scratch.steps(), [2], "{count}");
            go(0);
            assert!(!torn.exists(), "what a crash has left is removed");
        }
    }
    // Removing one is two steps, too.
    std::fs::rename(&whole, format::unfinished(&scratch.0, 2, 0)).expect("renamed");
    go(2);
    assert_eq!(scratch.steps(), [2]);
}

#[test]
fn a_checkpoint_that_cannot_be_written_ends_all_ranks_and_leaves_the_one_before() {
    let scratch = Scratch::new("failing");
    let degrees = mesh(2, 1);
    let text = text();
    let go = |steps| {
        ranks(degrees, |comm| train::<f64>(run(degrees), comm, &text, (&scratch.0, 2), steps).map(drop))
    };
    go(2).into_iter().for_each(|rank| rank.expect("training"));
    // Rank 1's file of the next one cannot be made: it is there, as if other ranks wrote there at the same time.
    let results = ranks(degrees, |comm| {
        let comm = comm.expect("two ranks");
        let mut trainer = Trainer::<f64>::new(run(degrees), &text, Some(comm))?;
        let mut checkpoints = Checkpoints::open(&scratch.0, 1, 2, Some(comm))?;
        checkpoints.load(&mut trainer, 2)?;
        trainer.step()?;
        if comm.rank() == 1 {
            let unfinished = checkpoints.unfinished(3);
            std::fs::create_dir_all(&unfinished).expect("made");
            std::fs::write(unfinished.join(format::file(1)), "").expect("written");
        }
        comm.barrier()?;
        checkpoints.step(&mut trainer)?;
        checkpoints.end(&mut trainer)
    });
    let errors: Vec<Error> = results.into_iter().map(|result| result.expect_err("a failed save")).collect();
    assert!(matches!(errors[0], Error::Elsewhere { rank: 1 }), "{errors:?}");
    assert!(errors[1].to_string().contains(&format::file(1)), "{errors:?}");
    assert_eq!(scratch.steps(), [2]);
    go(2).into_iter().for_each(|rank| rank.expect("training"));
    assert_eq!(scratch.steps(), [2, 4]);
}

#[test]
fn what_a_rank_writes_that_others_have_left_behind_is_not_in_the_way() {
    let scratch = Scratch::new("left");
    let (degrees, text) = (mesh(2, 1), text());
    let results = ranks(degrees, |comm| {
        let comm = comm.expect("two ranks");
        let mut trainer = Trainer::<f64>::new(run(degrees), &text, Some(comm))?;
        let before = Checkpoints::open(&scratch.0, 1, 2, Some(comm))?;
        let mut checkpoints = Checkpoints::open(&scratch.0, 1, 2, Some(comm))?;
        trainer.step()?;
        if comm.rank() == 1 {
            // As a rank does that was stopped while it saved, and goes on late.
            std::fs::create_dir_all(before.unfinished(1)).expect("made");
            std::fs::write(before.unfinished(1).join(format::file(1)), "").expect("written");
        }
        comm.barrier()?;
        checkpoints.end(&mut trainer)
    });
    results.into_iter().for_each(|rank| rank.expect("a checkpoint"));
    assert_eq!(scratch.steps(), [1]);
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let scratch = Scratch::new("unwritable");
    std::fs::create_dir_all(&scratch.0).expect("made");
    // A file where the directory should be stops root, too.
    let file = scratch.0.join("file");
    std::fs::write(&file, "").expect("written");
    let error = train::<f64>(run(mesh(1, 1)), None, &text(), (&file, 1), 1).expect_err("no directory");
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
    if nix::unistd::geteuid().is_root() {
        println!("skipped: root may write everywhere");
        return;
    }
    let closed = scratch.0.join("closed");
    std::fs::create_dir(&closed).expect("made");
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o500)).expect("closed");
    let error = train::<f64>(run(mesh(1, 1)), None, &text(), (&closed, 1), 1).expect_err("no permission");
    assert!(error.to_string().contains("closed"), "{error}");
}
