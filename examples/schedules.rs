//! Three algorithms in the schedule language: written, proved, simulated, drawn, and run by threads of this process.
//!
//! `cargo run --example schedules [DIRECTORY]`; with a directory, the drawings are written there.

use consort::planning::language::{Program, ProgramError, output, scratch};
use consort::planning::{Algorithm, Collective, Schedule, export, simulate, topology};
use consort::{Communicator, Options, ReduceOp};

/// All-reduce of any number of ranks in two rounds: each rank folds its part of every rank's vector and hands it out.
fn all_pairs(ranks: u32) -> Result<Schedule, ProgramError> {
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
    program.schedule("example.all-pairs")
}

/// All-reduce of boxes of four: a reduce-scatter in each box, an all-reduce of each part between the boxes along a
/// chain, and an all-gather in each box. Two instances run side by side on channels of their own.
fn hierarchical(boxes: u32) -> Result<Schedule, ProgramError> {
    const BOX: u32 = 4;
    let program = Program::new(Collective::AllReduce, boxes * BOX).parts(BOX).instances(2);
    for part in 0..BOX {
        let owner = |number: u32| number * BOX + part;
        let of_box = |number: u32| {
            let peers = (1..BOX).map(|step| number * BOX + (part + step) % BOX);
            peers.fold(program.input(owner(number), part), |sum, peer| {
                sum.reduce_to(program.input(peer, part), output(part))
            })
        };
        let sums: Vec<_> = (0..boxes).map(of_box).collect();
        let all = sums[1..].iter().fold(sums[0], |sum, other| other.reduce(sum.on(1)));
        for number in (0..boxes).rev() {
            let here = all.on(1).copy_to(owner(number), output(part)).on(0);
            for step in 1..BOX {
                here.copy_to(number * BOX + (part + step) % BOX, output(part));
            }
        }
    }
    program.schedule("example.hierarchical")
}

/// All-to-all of two boxes: what is for the other box goes through the rank of the same number there, so that each
/// pair of such ranks exchanges one message a destination over its own rail.
fn by_rails(in_box: u32) -> Result<Schedule, ProgramError> {
    let ranks = 2 * in_box;
    let program = Program::new(Collective::AllToAll, ranks);
    for from in 0..ranks {
        for to in 0..ranks {
            let block = program.input(from, to);
            let rail = (from + in_box) % ranks;
            if from / in_box == to / in_box || rail == to {
                block.copy_to(to, output(from));
            } else {
                block.on(1).copy_to(rail, scratch(to)).on(0).copy_to(to, output(from));
            }
        }
    }
    program.schedule("example.by-rails")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1);
    for schedule in [all_pairs(4)?, hierarchical(2)?, by_rails(4)?] {
        let Schedule { name, ranks, collective, .. } = &schedule;
        let machine = topology::host(*ranks);
        let outcome = simulate::simulate(&schedule, &machine, &simulate::Options::new(1 << 20))?;
        println!(
            "{name}: {} rounds, {} messages, {:.0} us",
            schedule.rounds.len(),
            schedule.messages(),
            outcome.seconds() * 1e6
        );
        if let Some(directory) = &directory {
            std::fs::write(format!("{directory}/{name}.svg"), export::schedule_svg(&schedule))?;
        }
        let (ranks, collective, name) = (*ranks, *collective, name.clone());
        let options = Options::default().schedule(schedule)?;
        let algorithm: Algorithm = name.parse()?;
        let world = Communicator::local_with(ranks, &options)?;
        std::thread::scope(|threads| {
            for comm in &world {
                threads.spawn(move || run(comm, algorithm, collective).expect("it runs"));
            }
        });
    }
    Ok(())
}

fn run(comm: &Communicator, algorithm: Algorithm, collective: Collective) -> consort::Result<()> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let comm = comm.with_algorithm(algorithm);
    match collective {
        Collective::AllReduce => {
            let mut values = vec![rank + 1; 1000];
            comm.all_reduce(&mut values, ReduceOp::Sum)?;
            assert_eq!(values, vec![ranks * (ranks + 1) / 2; 1000]);
        }
        _ => {
            let input: Vec<u32> = (0..ranks * 100).map(|at| (rank << 16) | (at / 100)).collect();
            let mut values = vec![0; input.len()];
            comm.all_to_all(&input, &mut values)?;
            assert!((0..).zip(&values).all(|(at, value): (u32, _)| *value == ((at / 100) << 16) | rank));
        }
    }
    Ok(())
}
