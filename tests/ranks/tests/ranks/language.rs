//! Schedules from files and from programs, run by ranks: results, names, lengths, agreement, and files that are wrong.

use std::path::{Path, PathBuf};
use std::time::Duration;

use consort::planning::language::{self, Program, Range, msccl, output};
use consort::planning::{Algorithm, Collective, LowerOptions, Schedule};
use consort::{Communicator, Error, Options, ReduceOp, UniqueId};
use consort_tests::{Links, on_ranks};

const SLOTS: LowerOptions = LowerOptions { slots: 4 };

/// Runs the collective of a schedule by it, on several lengths, and compares the results with what they must be.
fn right(comm: &Communicator, algorithm: Algorithm, collective: Collective) -> consort::Result<()> {
    let (rank, ranks) = (u64::from(comm.rank()), u64::from(comm.size()));
    let by = comm.with_algorithm(algorithm);
    for count in [1, 100, 70_001u64] {
        let value = |from: u64, at: u64| (from + 1) * 1_000_003 + at;
        let sum = |at: u64| (0..ranks).map(|from| value(from, at)).sum::<u64>();
        let own: Vec<u64> = (0..count).map(|at| value(rank, at)).collect();
        match collective {
            Collective::AllReduce => {
                let mut values = own.clone();
                by.all_reduce(&mut values, ReduceOp::Sum)?;
                assert!((0..count).zip(&values).all(|(at, found)| *found == sum(at)), "in place, {count}");
                let mut apart = vec![0; own.len()];
                by.all_reduce_into(&own, &mut apart, ReduceOp::Sum)?;
                assert_eq!(apart, values, "{count}");
            }
            Collective::AllGather => {
                let mut all = vec![0; (ranks * count) as usize];
                by.all_gather(&own, &mut all)?;
                assert!(
                    (0..).zip(&all).all(|(at, found)| *found == value(at / count, at % count)),
                    "{count}"
                );
            }
            Collective::AllToAll => {
                let input: Vec<u64> = (0..ranks * count).map(|at| value(rank, at)).collect();
                let mut all = vec![0; input.len()];
                by.all_to_all(&input, &mut all)?;
                let expected = |at: u64| value(at / count, rank * count + at % count);
                assert!((0..).zip(&all).all(|(at, found)| *found == expected(at)), "{count}");
            }
            other => panic!("no test of {other}"),
        }
    }
    Ok(())
}

/// A directory of its own, which goes with the value.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("consort-language-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("it is made");
        Directory(path)
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).expect("it is written");
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn ring(name: &str, ranks: u32) -> Schedule {
    Schedule { name: name.into(), ..Algorithm::RING.schedule(Collective::AllReduce, ranks) }
}

#[test]
fn files_of_others_run_on_as_many_ranks_as_they_name() {
    let shared = std::env::var_os("CONSORT_SHARED").map(PathBuf::from);
    let shared = shared.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    for folder in ["msccl-xml", "mscclpp-plans"] {
        let Ok(entries) = std::fs::read_dir(shared.join("msccl").join(folder)) else {
            println!("skipped: {} has no msccl/{folder}", shared.display());
            continue;
        };
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            let bytes = std::fs::read(&path).expect("it is readable");
            let read =
                language::read(&bytes, &SLOTS).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            if read.schedule.switches > 0 {
                continue;
            }
            let name =
                language::name_of(&format!("shared.{}", path.file_stem().unwrap_or_default().display()));
            let schedule = Schedule { name: name.clone(), ..read.schedule };
            let (ranks, collective) = (schedule.ranks, schedule.collective);
            let options = Options::default().schedule(schedule).expect("it is proved");
            let algorithm: Algorithm = name.parse().expect("it is known");
            on_ranks(ranks, Links::Local, &options, |comm| right(comm, algorithm, collective));
            println!("{name}: {collective} over {ranks} ranks is right");
        }
    }
}

#[test]
fn a_directory_of_schedules_is_candidates_by_the_names_of_its_files() {
    let directory = Directory::new("candidates");
    let range = Range { least: 1024, most: 65_536 };
    directory.put("dir-ring.xml", &msccl::write(&ring("any", 3), range).expect("MSCCL has it"));
    directory.put("dir-cut.xml", "<algo name=\"x\" ngpus=\"3\"\n coll=");
    directory.put("notes.txt", "nothing");
    let options = Options::default().schedule_directory(&directory.0).algorithms("all_reduce:dir-ring,tree");
    on_ranks(3, Links::Joined, &options, |comm| {
        let ours: Algorithm = "dir-ring".parse().expect("it is known");
        right(comm, ours, Collective::AllReduce)?;
        let listed = |bytes: u64| {
            let explained = comm.explain(Collective::AllReduce, bytes)?;
            let found = explained.candidates.iter().find(|of| of.algorithm == ours).expect("listed");
            Ok::<_, Error>(found.excluded.clone())
        };
        assert_eq!(listed(4096)?, None);
        let why = listed(1 << 20)?.expect("too long a call");
        assert!(why.contains("meant for 1024 to 65536 bytes"), "{why}");
        Ok(())
    });
    // Where no other algorithm is left, it runs calls of all lengths.
    let only = Options::default().schedule_directory(&directory.0).algorithms("all_reduce:dir-ring");
    on_ranks(3, Links::Local, &only, |comm| {
        let mut values = [comm.rank() + 1; 3];
        comm.all_reduce(&mut values, ReduceOp::Sum)?;
        assert_eq!(values, [6; 3]);
        Ok(())
    });
    let nowhere = Options::default().schedule_directory(directory.0.join("none"));
    let error = Communicator::local_with(1, &nowhere).map(drop).expect_err("no directory").to_string();
    assert!(error.contains("CONSORT_SCHEDULE_DIR"), "{error}");
}

#[test]
fn ranks_whose_directories_differ_do_not_join() {
    let directory = Directory::new("differ");
    directory.put("dir-lone.xml", &msccl::write(&ring("any", 2), Range::ALL).expect("MSCCL has it"));
    let id = UniqueId::create().expect("an id");
    let without = Options::default().join_timeout(Duration::from_secs(20));
    let with = without.clone().schedule_directory(&directory.0);
    std::thread::scope(|threads| {
        let calls = [(0, &without), (1, &with)].map(|(rank, options)| {
            let id = id.clone();
            threads.spawn(move || Communicator::join_with(rank, 2, &id, options).map(drop))
        });
        for call in calls {
            let error = call.join().expect("no panic").expect_err("they differ");
            let text = error.to_string();
            assert!(matches!(error, Error::Settings { .. }) && text.contains("dir-lone#"), "{text}");
            assert!(text.contains("rank 1"), "{text}");
        }
    });
}

/// Every rank folds all inputs into its own output, in the order of ranks.
fn everyone(name: &str, ranks: u32) -> Schedule {
    let program = Program::new(Collective::AllReduce, ranks);
    for rank in 0..ranks {
        let first = program.input(0, 0).copy_to(rank, language::scratch(0));
        let others = 1..ranks;
        let sum = others.clone().fold(first, |sum, other| {
            let place = if other + 1 == ranks { output(0) } else { language::scratch(0) };
            sum.reduce_to(program.input(other, 0), place)
        });
        assert_eq!(sum.rank(), rank);
    }
    program.schedule(name).expect("it is right")
}

#[test]
fn a_communicator_takes_a_schedule_while_it_lives() {
    let mut world = Communicator::local(3).expect("three ranks");
    std::thread::scope(|threads| {
        for comm in &mut world {
            threads.spawn(move || {
                let mut values = [comm.rank()];
                comm.all_reduce(&mut values, ReduceOp::Sum).expect("before");
                let algorithm = comm.register_schedule(everyone("taken", 3)).expect("all register it");
                right(comm, algorithm, Collective::AllReduce).expect("by it");
                let explained = comm.explain(Collective::AllReduce, 64).expect("a choice");
                assert!(explained.candidates.iter().any(|of| of.algorithm == algorithm));
                let again = comm.register_schedule(everyone("taken", 3)).expect("twice is once");
                assert_eq!(again, algorithm);
                // Another on rank 1 alone: all ranks have the error, and go on.
                let name = if comm.rank() == 1 { "taken.one" } else { "taken.two" };
                let error = comm.register_schedule(everyone(name, 3)).expect_err("they differ");
                let text = error.to_string();
                assert!(matches!(error, Error::Mismatch { .. }) && text.contains('1'), "{text}");
                // For another number of ranks.
                let error = comm.register_schedule(everyone("taken.four", 4)).expect_err("of four ranks");
                assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
                right(comm, algorithm, Collective::AllReduce).expect("after");
            });
        }
    });
}
