//! Hostile input for tests: a seeded fuzzer that mutates valid inputs and keeps those that led to something new.
//!
//! ```text
//! originals ─► corpus ─► mutate ─► handle (the target) ─► nothing new: forgotten
//!                 ▲                    │ what it noted: states, texts, counts
//!                 └── new: kept ◄──────┘ panic, too many bytes, too long: minimised, printed with the command that repeats it
//! ```
//!
//! An input is a list of pieces (frames, events, texts): mutations change bytes and numbers within a piece, and the order
//! and number of pieces. What a piece means, and whether it is signed after it was mutated, is the target's affair.
//!
//! `CONSORT_FUZZ_SECONDS` is how long each target runs (by default a second or two), `CONSORT_TEST_SEED` where it begins,
//! `CONSORT_FUZZ_INPUT` one input (hexadecimal as it was printed, pieces separated by dots) to be handled instead.
//!
//! Invariant: the same seed gives the same inputs as long as the target notes the same. Absent: real coverage; what a
//! target notes stands for it.

mod gauge;
mod mutation;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

pub use consort_testing::Random;
pub use gauge::{Counting, live_bytes};

/// Pieces, in order.
pub type Input = Vec<Vec<u8>>;

/// The most bytes of an input: it must fit into an environment variable.
pub const INPUT_BYTES_MAX: usize = 32 << 10;
/// Processor time of one input, at most.
const BUSY_MAX: Duration = Duration::from_secs(1);
/// Time of one input by the clock, at most; longer, because other processes run too.
const TAKEN_MAX: Duration = Duration::from_secs(20);
const CORPUS_MAX: usize = 4000;
const DEFAULT: Duration = Duration::from_millis(1500);

/// What is fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name in what is printed.
    pub name: &'static str,
    /// The arguments of `cargo test` that run it.
    pub command: &'static str,
    /// How many bytes more than before the thread may have allocated at any time while an input is handled.
    pub bytes_max: usize,
    /// Inputs, when no time is given.
    pub inputs: u64,
}

/// What was seen while an input was handled.
#[derive(Debug, Default)]
pub struct Seen {
    features: HashSet<u64>,
}

impl Seen {
    /// Something happened; an input that makes it happen for the first time is kept.
    pub fn note(&mut self, what: impl Hash) {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        self.features.insert(hasher.finish());
    }

    /// The same for a text, whatever numbers are in it.
    pub fn note_text(&mut self, text: &str) {
        let letters: String = text.chars().filter(|c| !c.is_numeric()).take(24).collect();
        self.note(letters);
    }
}

/// How long to go on.
#[derive(Clone, Copy, Debug)]
struct Budget {
    time: Duration,
    inputs: u64,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// Threads of the library that panicked.
static PANICS: AtomicUsize = AtomicUsize::new(0);
static QUIET: AtomicBool = AtomicBool::new(false);

/// Counts panics of the library's own threads.
fn watch_threads() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name().is_some_and(|name| name.starts_with("consort-")) {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            if !QUIET.load(Ordering::SeqCst) {
                before(info);
            }
        }));
    });
}

fn busy() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Handles one input and judges how.
fn attempt<H: FnMut(&Input, &mut Seen)>(
    target: &Target,
    input: &Input,
    handle: &mut H,
    seen: &mut Seen,
) -> Result<(), String> {
    let (panics, busy_before, begun) = (PANICS.load(Ordering::SeqCst), busy(), Instant::now());
    let gauge = gauge::Gauge::start();
    let outcome = catch_unwind(AssertUnwindSafe(|| handle(input, seen)));
    let most = gauge.most();
    let (busy, taken) = (busy() - busy_before, begun.elapsed());
    if let Err(panic) = outcome {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        return Err(format!("panicked: {}", text.unwrap_or("?")));
    }
    if PANICS.load(Ordering::SeqCst) > panics {
        return Err("a thread of the library panicked".into());
    }
    if most > target.bytes_max {
        return Err(format!("{most} bytes were allocated, more than {}", target.bytes_max));
    }
    if busy > BUSY_MAX || taken > TAKEN_MAX {
        return Err(format!("it took {taken:?}, {busy:?} of it on the processor"));
    }
    Ok(())
}

/// Fuzzes `handle`, which panics when something is wrong.
///
/// # Panics
/// When an input was handled wrongly; before, it prints the seed, the input and the command that repeats it.
pub fn fuzz<H: FnMut(&Input, &mut Seen)>(target: &Target, originals: Vec<Input>, mut handle: H) {
    gauge::check();
    watch_threads();
    if let Ok(text) = std::env::var("CONSORT_FUZZ_INPUT") {
        let input =
            parse(&text).expect("CONSORT_FUZZ_INPUT is hexadecimal digits with dots between the pieces");
        let mut seen = Seen::default();
        if let Err(why) = attempt(target, &input, &mut handle, &mut seen) {
            panic!("fuzz {}: {why}", target.name);
        }
        println!("fuzz {}: handled, {} things noted", target.name, seen.features.len());
        return;
    }
    let seed = number("CONSORT_TEST_SEED").unwrap_or_else(|| {
        let mut bytes = [0; 6];
        getrandom::fill(&mut bytes).expect("randomness");
        bytes.iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte))
    });
    let budget = match number("CONSORT_FUZZ_SECONDS") {
        Some(seconds) => Budget { time: Duration::from_secs(seconds), inputs: u64::MAX },
        None => Budget { time: DEFAULT, inputs: target.inputs },
    };
    run(target, originals, seed, budget, handle);
}

fn run<H: FnMut(&Input, &mut Seen)>(
    target: &Target,
    originals: Vec<Input>,
    seed: u64,
    budget: Budget,
    mut handle: H,
) {
    let (mut noise, begun) = (Random::new(seed), Instant::now());
    let kept = originals.len();
    let mut corpus = originals.clone();
    let mut known = HashSet::new();
    let mut waiting = originals.into_iter();
    let mut inputs = 0;
    while inputs < budget.inputs && begun.elapsed() < budget.time {
        let input = match waiting.next() {
            Some(original) => original,
            None => mutation::mutant(&mut noise, &corpus),
        };
        inputs += 1;
        let mut seen = Seen::default();
        if let Err(why) = attempt(target, &input, &mut handle, &mut seen) {
            let least = minimise(target, input.clone(), &mut handle);
            let Target { name, command, .. } = target;
            println!("fuzz {name}: {why}\n    seed {seed}, input {inputs}: {}", text(&input));
            println!("    again: CONSORT_FUZZ_INPUT={} cargo test {command} -- --nocapture", text(&least));
            println!(
                "    from the beginning: CONSORT_TEST_SEED={seed} CONSORT_FUZZ_SECONDS=600 cargo test {command}"
            );
            resume_unwind(Box::new(format!("fuzz {name}: {why}")));
        }
        let new = seen.features.iter().filter(|feature| !known.contains(*feature)).count();
        if new > 0 && inputs > kept as u64 {
            if corpus.len() < CORPUS_MAX {
                corpus.push(input);
            } else {
                let at = kept + noise.below(corpus.len() - kept);
                corpus[at] = input;
            }
        }
        known.extend(seen.features);
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "fuzz {}: {inputs} inputs in {seconds:.1} s ({:.0} a second), corpus {} ({kept} original), noted {}, seed {seed}",
        target.name,
        inputs as f64 / seconds,
        corpus.len(),
        known.len()
    );
}

/// A smaller input that is handled wrongly too; what fits into a few seconds.
fn minimise<H: FnMut(&Input, &mut Seen)>(target: &Target, mut input: Input, handle: &mut H) -> Input {
    let begun = Instant::now();
    QUIET.store(true, Ordering::SeqCst);
    let mut fails = |input: &Input| {
        begun.elapsed() < Duration::from_secs(5)
            && attempt(target, input, handle, &mut Seen::default()).is_err()
    };
    let mut at = 0;
    while at < input.len() && input.len() > 1 {
        let mut less = input.clone();
        less.remove(at);
        if fails(&less) {
            input = less;
        } else {
            at += 1;
        }
    }
    QUIET.store(false, Ordering::SeqCst);
    input
}

fn text(input: &Input) -> String {
    input.iter().map(|piece| piece_text(piece)).collect::<Vec<_>>().join(".")
}

/// Hexadecimal digits; a long run of one byte as the byte, `x` and how many.
fn piece_text(piece: &[u8]) -> String {
    let run = |run: &[u8]| match run {
        [byte, ..] if run.len() > 6 => format!("{byte:02x}x{}-", run.len()),
        _ => run.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    piece.chunk_by(|one, two| one == two).map(run).collect()
}

/// The input that was printed so: for tests that contain one.
pub fn parse(text: &str) -> Option<Input> {
    text.trim().split('.').map(parse_piece).collect()
}

fn parse_piece(mut text: &str) -> Option<Vec<u8>> {
    let mut piece = Vec::new();
    while !text.is_empty() {
        let byte = u8::from_str_radix(text.get(..2)?, 16).ok()?;
        text = &text[2..];
        match text.strip_prefix('x').map(|rest| rest.split_once('-')) {
            None => piece.push(byte),
            Some(run) => {
                let (count, rest) = run?;
                let count = count.parse::<usize>().ok().filter(|count| *count <= INPUT_BYTES_MAX)?;
                piece.resize(piece.len() + count, byte);
                text = rest;
            }
        }
    }
    Some(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target =
        Target { name: "itself", command: "-p consort-transports", bytes_max: 1 << 20, inputs: 200_000 };

    fn budget(inputs: u64) -> Budget {
        Budget { time: Duration::from_secs(60), inputs }
    }

    #[test]
    fn what_is_noted_leads_to_what_is_deep() {
        // Six bytes; each counts only after the one before it.
        let secret = b"KEEPER";
        let deep = catch_unwind(|| {
            run(&TARGET, vec![vec![b"......".to_vec()]], 1, budget(2_000_000), |input, seen| {
                let right = input[0].iter().zip(secret).take_while(|(a, b)| a == b).count();
                seen.note(right);
                assert!(right < secret.len(), "found");
            });
        });
        let why = deep.expect_err("found").downcast::<String>().expect("a text");
        assert!(why.contains("found"), "{why}");
    }

    #[test]
    fn the_same_seed_gives_the_same_inputs() {
        let inputs = |seed| {
            let mut all = Vec::new();
            run(&TARGET, vec![vec![vec![1, 2, 3], vec![4; 40]]], seed, budget(500), |input, seen| {
                seen.note(input.len());
                all.push(input.clone());
            });
            all
        };
        assert_eq!(inputs(7), inputs(7));
        assert_ne!(inputs(7), inputs(8));
    }

    #[test]
    fn too_many_bytes_are_a_failure() {
        let greedy = |input: &Input, _: &mut Seen| drop(Vec::<u8>::with_capacity(input[0].len() << 20));
        let outcome = |input: Input| attempt(&TARGET, &input, &mut { greedy }, &mut Seen::default());
        assert!(outcome(vec![vec![0]]).is_ok());
        assert!(outcome(vec![vec![0; 9]]).unwrap_err().contains("allocated"));
    }

    #[test]
    fn inputs_survive_being_printed() {
        let input = vec![vec![0, 255, 16], vec![], vec![7], [&[9; 300][..], &[1]].concat()];
        assert_eq!(text(&input), "00ff10..07.09x300-01");
        assert_eq!(parse("00ff10..07.09x300-01"), Some(input));
        assert_eq!(parse("0"), None);
        assert_eq!(parse("zz"), None);
    }
}
