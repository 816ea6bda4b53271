//! What is found and made for a machine's links, by ranks on devices.
//!
//! Invariant: a call names its schedule, and the library's event says that this one ran. Absent: prices.

use consort::planning::{Algorithm, Collective, topology};
use consort::{Communicator, Result};

use super::devices::{join, on_each};
use crate::devices::{Case, Seat, cases, check_alone, each};
use crate::heard;
use crate::rank::Context;
use crate::system::Random;

/// The collectives of trees and rings, and exchanges of blocks.
const COLLECTIVES: [Collective; 6] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
];
/// Bytes of a block for which candidates are listed.
const LISTED_BYTES: usize = 1 << 16;
/// Cases of a schedule.
const CASES: usize = 3;

/// For each of the machines `fabrics=NAME,...` and each collective: one of the schedules that are found and made for
/// it, drawn by `seed`, among ranks of this process. Prints a line for each schedule that ran.
pub(crate) fn made(context: &Context) -> Result<()> {
    heard::listen();
    let mut random = Random::new(context.text("seed").parse().expect("a seed"));
    for fabric in context.text("fabrics").split(',') {
        let topology = topology::profile(fabric).expect("a profile");
        let joined = join(context)?;
        let here = joined.len() as u32;
        assert_eq!(here, topology.ranks(), "{fabric}");
        let planned: Vec<Communicator> =
            each(&joined, |comm| comm.planned_on(&topology)).into_iter().collect::<Result<_>>()?;
        let seats: Vec<Seat> =
            each(planned, |comm| Seat::new(comm, here)).into_iter().collect::<Result<_>>()?;
        println!("path {}", seats[0].comm.path());
        for collective in COLLECTIVES {
            let (fitting, refused) = listed(&seats[0], collective)?;
            refused.iter().for_each(|why| println!("refused {fabric} {why}"));
            let draw = random.draw() as usize;
            let Some(algorithm) = fitting.get(draw % fitting.len().max(1)) else { continue };
            let seed = random.draw();
            on_each(&seats, |seat| runs(seat, collective, *algorithm, seed))?;
            println!("made {fabric} {collective}: {algorithm} of {}", fitting.len());
        }
    }
    Ok(())
}

/// What is found and made for a collective: what runs on these devices, and the reasons against the rest.
fn listed(seat: &Seat, collective: Collective) -> Result<(Vec<Algorithm>, Vec<String>)> {
    let planning = seat.host().planning();
    let (mut fitting, mut refused) = (Vec::new(), Vec::new());
    for candidate in seat.comm.explain(collective, LISTED_BYTES)?.candidates {
        if planning.sources(candidate.algorithm, collective).is_empty() {
            continue;
        }
        match candidate.excluded {
            None => fitting.push(candidate.algorithm),
            Some(why) => refused.push(format!("{collective} {}: {why}", candidate.algorithm)),
        }
    }
    Ok((fitting, refused))
}

/// Some calls of a schedule, and what the events say of them.
fn runs(seat: &Seat, collective: Collective, algorithm: Algorithm, seed: u64) -> Result<()> {
    let (rank, size) = seat.place();
    heard::of(rank);
    let drawn = cases(size, seed, 1).into_iter().filter(|case| case.collective() == Some(collective));
    let mut all: Vec<Case> = drawn.collect();
    let mut random = Random::new(seed);
    for _ in 0..CASES {
        let case = all.swap_remove(random.draw() as usize % all.len()).by(algorithm);
        check_alone(seat, &[case])?;
        let ran = heard::of(rank);
        // A schedule of another root is made by the same maker, and named for what it is.
        let maker = |name: &str| name.rsplit_once('-').map_or(name.to_owned(), |(maker, _)| maker.to_owned());
        let name = algorithm.to_string();
        assert!(ran.iter().any(|ran| maker(ran) == maker(&name)), "{case:?} by {name}: {ran:?} ran");
    }
    Ok(())
}
