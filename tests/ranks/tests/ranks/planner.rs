//! Settings of the planner: restrictions, tables of measurements, and ranks that disagree about them.

use std::path::PathBuf;

use consort::planning::{Algorithm, Collective, Origin, Tuning, TuningLine};
use consort::{Communicator, Error, Options, ReduceOp, group};
use consort_tests::job::{Job, Start, alone};
use consort_tests::{Links, on_ranks};

use crate::RANK;

/// An all-reduce of 4096 bytes, by the communicator's choice.
fn sum(comm: &Communicator) -> consort::Result<()> {
    let mut values = vec![1i64; 512];
    comm.all_reduce(&mut values, ReduceOp::Sum)?;
    assert_eq!(values, vec![i64::from(comm.size()); 512]);
    Ok(())
}

/// The algorithm of all-reduces of 4096 bytes, and the reason.
fn chosen(comm: &Communicator) -> (Algorithm, Origin) {
    let explanation = comm.explain(Collective::AllReduce, 4096).expect("an explanation");
    (explanation.chosen().expect("one is chosen").algorithm, explanation.origin)
}

#[test]
fn options_restrict_the_choice() {
    for (text, wanted) in [
        ("tree", Algorithm::Tree),
        ("all_reduce:doubling;all_gather:ring", Algorithm::Doubling),
        ("^ring,tree,doubling,halving-doubling,direct,swing,blueconnect,pat", Algorithm::TwoShot),
    ] {
        let options = Options::default().algorithms(text);
        on_ranks(4, Links::Local, &options, |comm| {
            assert_eq!(chosen(comm), (wanted, Origin::Priced), "{text}");
            // A collective that the list does not name works.
            let mut all = [0u8; 4];
            comm.all_to_all(&[comm.rank() as u8; 4], &mut all)?;
            assert_eq!(all, [0, 1, 2, 3]);
            sum(comm)
        });
    }
}

#[test]
fn what_is_impossible_is_refused_with_what_is_possible() {
    // A pairwise exchange folds nothing.
    let options = Options::default().algorithms("all_reduce:pairwise;all_gather:tree");
    on_ranks(3, Links::Local, &options, |comm| {
        let mut values = [1.0f32; 4];
        for _ in 0..2 {
            let error = comm.all_reduce(&mut values, ReduceOp::Sum).expect_err("impossible");
            assert!(matches!(error, Error::InvalidArgument { .. }) && !error.is_fatal(), "{error:?}");
            let text = error.to_string();
            let words =
                ["Options::algorithms", "all_reduce:pairwise", "over 3 ranks", "ring", "tree", "two-shot"];
            assert!(words.iter().all(|word| text.contains(word)), "{words:?} must be in: {text}");
        }
        assert!(comm.start_all_reduce(vec![1.0f32; 4], ReduceOp::Sum).is_err());
        assert!(comm.all_gather(&[1u8], &mut [0u8; 3]).is_err());
        assert!(comm.explain(Collective::AllReduce, 8).is_err());
        assert_eq!(values, [1.0; 4]);
        comm.status()?;
        comm.barrier()?;
        let part = comm.split(Some(0), 0)?.expect("a colour was given");
        part.broadcast(&mut values, 1)?;
        comm.barrier()
    });
}

#[test]
fn a_named_algorithm_that_is_not_defined_is_refused_with_what_is_possible() {
    on_ranks(3, Links::Local, &Options::default(), |comm| {
        for algorithm in [
            Algorithm::Pairwise,
            Algorithm::Pair,
            Algorithm::Hierarchical { per_box: 2 },
            Algorithm::BlueConnect { dimensions: [2, 2, 1, 1] },
            Algorithm::Direct { first: 1 },
            Algorithm::Ring { channels: 0, bidirectional: false },
        ] {
            let named = comm.with_algorithm(algorithm);
            let mut values = [2u32; 9];
            let error = named.all_reduce(&mut values, ReduceOp::Max).expect_err("not defined");
            let text = error.to_string();
            let name = algorithm.to_string();
            let words = [&name, "all_reduce over 3 ranks", "possible: ", "ring", "doubling"];
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
            assert!(words.iter().all(|word| text.contains(word)), "{words:?} must be in: {text}");
            // In every form of the call.
            assert!(named.start_all_reduce(vec![1u32], ReduceOp::Max).is_err());
            assert!(named.scope(|scope| scope.all_reduce(&mut values, ReduceOp::Max).map(drop)).is_err());
            let mut grouped = [1u32];
            assert!(group(|group| group.all_reduce(&named, &mut grouped, ReduceOp::Max)).is_err());
            assert!(named.reduce_scatter_v(&[1u32; 3], &mut [0], &[1; 3], ReduceOp::Max).is_err());
            // Barriers are the library's own.
            named.barrier()?;
            sum(comm)?;
        }
        Ok(())
    });
}

/// The lines of two ranks that are processes about their all-reduce; asserts that nothing failed besides.
fn said(job: &mut Job, begin: &str) -> String {
    let said = [0, 1].map(|rank| job.line(rank, begin));
    assert_eq!(said[0], said[1], "{}", job.output());
    said[0].clone()
}

#[test]
fn the_environment_restricts_the_choice() {
    for (name, text, wanted) in [
        ("CONSORT_ALGO", "tree", "tree Priced"),
        ("CONSORT_ALGO", "all_reduce:two-shot", "two-shot Priced"),
        ("NCCL_ALGO", "Tree", "tree Priced"),
        ("NCCL_ALGO", "allreduce:ring", "ring Priced"),
    ] {
        let _alone = alone();
        let start = Start::new(RANK, "planned", 2).env(name, text).env("NCCL_PROTO", "Simple");
        let mut job = start.env("CONSORT_TIMEOUT", 20).go();
        assert_eq!(said(&mut job, "chosen "), wanted, "{name}={text}: {}", job.output());
        assert_eq!(said(&mut job, "passed"), "");
        job.all_end_well();
    }
    let _alone = alone();
    for (named, why) in [("all_reduce:bruck", "possible: ring"), ("rails", "need CONSORT_TOPOLOGY to name")] {
        let start = Start::new(RANK, "planned", 2).env("CONSORT_ALGO", named);
        let mut job = start.env("CONSORT_TIMEOUT", 20).go();
        for _ in ["explained", "called"] {
            let text = said(&mut job, "failed InvalidArgument:");
            assert!(text.contains(&format!("CONSORT_ALGO is {named:?}")) && text.contains(why), "{text}");
        }
        job.all_end_well();
    }
}

#[test]
fn nonsense_in_the_environment_is_refused_before_anything_starts() {
    for (name, text, says) in [
        ("CONSORT_ALGO", "rings", "known: pair, ring"),
        ("NCCL_ALGO", "NVLS", "possible: Ring, Tree, PAT"),
        ("NCCL_PROTO", "LL128", "possible: Simple"),
        ("CONSORT_TUNING", "/nonexistent/table", "/nonexistent/table cannot be read"),
        ("CONSORT_DETERMINISM", "always", "run or invariant"),
    ] {
        let _alone = alone();
        let mut job = Start::new(RANK, "only-join", 2).env(name, text).env("CONSORT_JOIN_TIMEOUT", 20).go();
        for rank in [0, 1] {
            let text = job.failure(rank, "InvalidArgument");
            assert!(text.contains(name) || text.contains("tuning table"), "{text}");
            assert!(text.contains(says), "{says} must be in: {text}");
        }
    }
}

/// A file that is deleted when the test is over.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("consort-planner-{}-{name}", std::process::id());
        let file = File(std::env::temp_dir().join(name));
        std::fs::write(&file.0, text).expect("a temporary file");
        file
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A table for two ranks on this machine, which differs from prices for small all-reduces.
fn table(algorithm: Algorithm) -> Tuning {
    let comm = Communicator::local(2).expect("two ranks").remove(0);
    let line = TuningLine {
        collective: Collective::AllReduce,
        ranks: 2,
        bytes: 1 << 16,
        algorithm,
        slot_bytes: 0,
        fold_hash: comm.planning().fold_hash(algorithm, Collective::AllReduce).expect("a proof"),
        nanoseconds: 1234,
    };
    Tuning { machine: comm.planning().machine(), lines: vec![line] }
}

/// An algorithm that prices do not choose for 4096 bytes on two ranks.
fn unlikely() -> Algorithm {
    let comm = Communicator::local(2).expect("two ranks").remove(0);
    let priced = chosen(&comm).0;
    let others = [Algorithm::Tree, Algorithm::Ring { channels: 1, bidirectional: false }];
    others.into_iter().find(|other| *other != priced).expect("one of two")
}

#[test]
fn a_table_is_preferred_to_prices() {
    let algorithm = unlikely();
    let file = File::new("good", &table(algorithm).to_string());
    on_ranks(2, Links::Local, &Options::default().tuning(file.path()), |comm| {
        assert_eq!(chosen(comm), (algorithm, Origin::Tuned));
        // Other numbers of ranks are not in the table, and a named algorithm stays the same.
        let alone = comm.split(Some(comm.rank()), 0)?.expect("a colour was given");
        assert_eq!(chosen(&alone).1, Origin::Priced);
        sum(&comm.with_algorithm(Algorithm::TwoShot))?;
        sum(comm)
    });
    // A restriction is stronger than the table.
    let options = Options::default().tuning(file.path()).algorithms("all_reduce:two-shot");
    on_ranks(2, Links::Local, &options, |comm| {
        assert_eq!(chosen(comm), (Algorithm::TwoShot, Origin::Priced));
        sum(comm)
    });
    let missing = Options::default().tuning("/nonexistent/table");
    let error = Communicator::local_with(2, &missing).map(|_| ()).expect_err("no such file");
    assert!(
        matches!(&error, Error::InvalidArgument { what, .. } if what.contains("/nonexistent/table")),
        "{error}"
    );
}

#[test]
fn a_table_of_something_else_is_ignored_aloud() {
    let good = table(unlikely());
    let fold = format!("{:016x}", good.lines[0].fold_hash);
    let text = good.to_string();
    let planner = text.lines().find(|line| line.starts_with("planner ")).expect("a version").to_owned();
    for (name, text, says) in [
        ("machine", text.replace("hosts=1", "hosts=9"), "it was measured on \"hosts=9"),
        ("version", text.replace(&planner, "planner 99999"), "this version reads"),
        ("fold", text.replace(&fold, "0123456789abcdef"), "folds in another order"),
        ("nonsense", text.replace("all_reduce", "all_reduced"), "line 5"),
    ] {
        let _alone = alone();
        let file = File::new(name, &text);
        let start = Start::new(RANK, "planned", 2).env("CONSORT_TUNING", file.path());
        let mut job = start.env("CONSORT_TIMEOUT", 20).go();
        let chosen = said(&mut job, "chosen ");
        assert!(chosen.ends_with("Priced"), "{name}: {chosen}");
        job.all_end_well();
        let output = job.output();
        assert!(
            output.contains("is ignored") && output.contains(says),
            "{name}: {says} must be in: {output}"
        );
    }
    // And the same table unchanged.
    let _alone = alone();
    let file = File::new("env", &text);
    let start = Start::new(RANK, "planned", 2).env("CONSORT_TUNING", file.path());
    let mut job = start.env("CONSORT_TIMEOUT", 20).go();
    assert_eq!(said(&mut job, "chosen "), format!("{} Tuned", good.lines[0].algorithm), "{}", job.output());
    job.all_end_well();
    assert!(!job.output().contains("is ignored"), "{}", job.output());
}

#[test]
fn ranks_with_different_settings_are_named_when_they_join() {
    let tables = [Algorithm::Tree, Algorithm::TwoShot].map(|algorithm| table(algorithm).to_string());
    let files = [File::new("one", &tables[0]), File::new("other", &tables[1])];
    let paths = files.each_ref().map(File::path);
    for (name, usual, other, words) in [
        ("CONSORT_ALGO", "ring", "tree", ["algorithms", "ring", "tree"]),
        ("NCCL_ALGO", "Ring", "Tree", ["algorithms", "Ring", "Tree"]),
        ("CONSORT_DETERMINISM", "run", "invariant", ["determinism", "run", "invariant"]),
        ("CONSORT_TUNING", &paths[0], &paths[1], ["tuning table", "rank 1", "ranks 0, 2"]),
        ("CONSORT_TUNING", "", &paths[1], ["tuning table", "none", "rank 1"]),
    ] {
        let _alone = alone();
        let start = Start::new(RANK, "only-join", 3).env("CONSORT_JOIN_TIMEOUT", 20).env(name, usual);
        let mut job = start.env_of(1, name, other).go();
        for rank in 0..3 {
            let text = job.failure(rank, "Settings");
            assert!(text.contains("rank 1"), "{name}: {text}");
            assert!(words.iter().all(|word| text.contains(word)), "{name}: {words:?} must be in: {text}");
        }
    }
}
