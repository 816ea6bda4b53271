//! Programs of the language: what they become, and what is wrong with those that are refused.

use consort_algorithms::language::{Program, ProgramError, Range, output, scratch};
use consort_algorithms::{Collective, Place, Schedule};

use super::{runs, survives};
use crate::common::{Random, seed};

/// Everyone's part is folded by one rank and handed out.
fn all_pairs(ranks: u32) -> Program {
    let program = Program::new(Collective::AllReduce, ranks).parts(ranks);
    for part in 0..ranks {
        let mut sum = program.input(part, part);
        for other in (0..ranks).filter(|other| *other != part) {
            sum = sum.reduce_to(program.input(other, part), output(part));
        }
        for other in (0..ranks).filter(|other| *other != part) {
            sum.copy_to(other, output(part));
        }
    }
    program
}

#[test]
fn what_does_not_depend_on_each_other_is_in_one_round() {
    let schedule = all_pairs(4).schedule("pairs").expect("it is right");
    // Three folds into one place, one after the other, and one round for all copies.
    assert_eq!((schedule.rounds.len(), schedule.messages()), (4, 24));
    runs(&schedule);
    survives(&schedule, Range::ALL);
    let gather = Program::new(Collective::AllGather, 5);
    for (from, to) in (0..25).map(|pair| (pair / 5, pair % 5)) {
        gather.input(from, 0).copy_to(to, output(from));
    }
    let schedule = gather.schedule("gather").expect("it is right");
    assert_eq!((schedule.rounds.len(), schedule.messages()), (1, 20));
    runs(&schedule);
}

#[test]
fn in_place_ranks_exchange_values_in_one_round() {
    let program = Program::new(Collective::AllReduce, 4).in_place();
    for distance in [1, 2] {
        let values: Vec<_> = (0..4).map(|rank| program.input(rank, 0)).collect();
        let moved: Vec<_> =
            (0..4).map(|rank| values[rank ^ distance].copy_to(rank as u32, scratch(0))).collect();
        for (other, own) in moved.into_iter().zip(&values) {
            own.reduce(other);
        }
    }
    let schedule = program.schedule("doubling").expect("it is right");
    assert_eq!(schedule.messages(), 8);
    runs(&schedule);
    survives(&schedule, Range { least: 8, most: 4096 });
}

#[test]
fn instances_cut_every_chunk_and_have_their_own_channels() {
    let once = all_pairs(3).schedule("once").expect("it is right");
    let twice = all_pairs(3).instances(2).schedule("twice").expect("it is right");
    assert_eq!((twice.partition.parts, twice.channels()), (2 * once.partition.parts, 2));
    assert_eq!((twice.messages(), twice.rounds.len()), (2 * once.messages(), once.rounds.len()));
    runs(&twice);
}

#[test]
fn an_input_that_a_program_writes_stays_as_the_caller_had_it() {
    let program = Program::new(Collective::Reduce, 3);
    let sum = program.input(1, 0).reduce(program.input(2, 0));
    let all = program.input(0, 0).reduce_to(sum, output(0));
    assert_eq!(all.rank(), 0);
    let schedule = program.schedule("chain").expect("it is right");
    let places = schedule.rounds.iter().flat_map(|round| &round.transfers).map(|transfer| transfer.target);
    assert!(places.into_iter().all(|place| !matches!(place, Place::Input(_))));
    runs(&schedule);
    survives(&schedule, Range::ALL);
}

/// The error of a program, whose statement is in this file.
fn refused(program: &Program) -> (u32, String) {
    let ProgramError { statement, reason } = program.schedule("wrong").expect_err("it is wrong");
    let at = statement.map_or(0, |at| {
        assert!(at.file().ends_with("programs.rs"), "{at}");
        at.line()
    });
    (at, reason)
}

#[test]
fn the_statement_that_is_wrong_is_named() {
    let pair = || Program::new(Collective::AllReduce, 2);
    let program = pair();
    let sum = program.input(0, 0).reduce_to(program.input(1, 0), output(0));
    let (line, again) = (line!() + 1, sum);
    again.reduce(program.input(1, 0));
    assert_eq!(refused(&program), (line, "folds the contribution of rank 1 to chunk 0 twice".into()));

    let program = pair();
    let line = line!() + 1;
    program.at(0, scratch(3)).copy_to(1, output(0));
    assert_eq!(refused(&program), (line, "reads scratch chunk 3 of rank 0 before anything is there".into()));

    let program = pair();
    let old = program.input(0, 0).copy_to(1, scratch(0));
    program.input(1, 0).copy_to(1, scratch(0));
    let line = line!() + 1;
    old.copy_to(0, output(0));
    assert_eq!(
        refused(&program),
        (line, "uses a value of scratch chunk 0 of rank 1 that was overwritten".into())
    );

    let program = pair().parts(2);
    let line = line!() + 1;
    program.input(0, 0).reduce_to(program.input(1, 1), output(0));
    assert_eq!(refused(&program), (line, "folds chunk 0 with chunk 1".into()));

    let program = pair();
    let line = line!() + 1;
    program.input(0, 1).copy_to(1, output(0));
    assert_eq!(refused(&program), (line, "reads input chunk 1 of rank 0, which does not exist".into()));

    let program = pair();
    let line = line!() + 1;
    program.input(0, 0).reduce_to(program.input(1, 0), output(0));
    assert_eq!(refused(&program).1, "all_reduce: nothing writes output chunk 0 of rank 1");
    program.input(0, 0).copy_to(1, output(0));
    let (at, why) = refused(&program);
    assert!(at > line && why.contains("without the contribution of rank 1"), "{at}: {why}");

    let program = Program::new(Collective::AllGather, 2);
    let line = line!() + 1;
    program.input(0, 0).reduce_to(program.input(1, 0), output(0));
    assert_eq!(refused(&program), (line, "folds in an all_gather that only moves".into()));
    assert!(refused(&Program::new(Collective::AllReduce, 0)).1.contains("no ranks"));
    assert!(refused(&Program::new(Collective::SendReceive, 3)).1.contains("two ranks"));
}

/// An all-to-all that sends every block along a random path, and an all-reduce over a random tree with random moves through
/// scratch on the way.
fn random(random: &mut Random) -> Schedule {
    let ranks = 2 + random.below(5) as u32;
    let channel = |random: &mut Random| random.below(3) as u16;
    if random.below(2) == 0 {
        let parts = 1 + random.below(2) as u32;
        let program = Program::new(Collective::AllToAll, ranks).parts(parts);
        for (from, block) in (0..ranks * ranks * parts).map(|at| (at % ranks, at / ranks)) {
            let (to, piece) = (block / parts, block % parts);
            let mut value = program.input(from, block);
            for _ in 0..random.below(3) {
                let through = random.below(ranks as usize) as u32;
                value = value.on(channel(random)).copy_to(through, scratch(from * ranks * parts + block));
            }
            value.copy_to(to, output(from * parts + piece));
        }
        return program.schedule("random").expect("it is right");
    }
    let program = Program::new(Collective::AllReduce, ranks);
    let program = if random.below(2) == 0 { program.in_place() } else { program };
    let mut values: Vec<_> = (0..ranks).map(|rank| program.input(rank, 0)).collect();
    while values.len() > 1 {
        let one = values.swap_remove(random.below(values.len()));
        let at = random.below(values.len());
        values[at] = match random.below(3) {
            0 => values[at].on(channel(random)).reduce(one.on(channel(random))),
            1 => values[at].reduce_to(one, scratch(1)),
            _ => values[at].reduce(one.copy_to(values[at].rank(), scratch(2))),
        };
    }
    for rank in 0..ranks {
        values[0].on(channel(random)).copy_to(rank, output(0));
    }
    program.schedule("random").expect("it is right")
}

#[test]
fn random_programs_do_what_their_statements_do_one_after_the_other() {
    let mut source = Random::new(seed(0x6c61_6e67));
    for _ in 0..60 {
        let schedule = random(&mut source);
        runs(&schedule);
        survives(&schedule, Range::ALL);
    }
}
