//! What ranks plan for while a path between hosts is lost and comes back: all-reduces whose bits are checked, until rank 0 finds a file.
//!
//! `scripts/hosts run "0 1" CONSORT_PATH_LOST_AFTER=2 NCCL_SOCKET_IFNAME=eth0,rail0 -- target/release/examples/lost_path FILE [ELEMENTS]`:
//! each rank says in a line what it plans for, at first and whenever that changes, and how fast it takes the way to the next rank to be.

use std::error::Error;
use std::path::Path;

use consort::planning::Collective;
use consort::planning::topology::{NodeId, Routes, Topology};
use consort::{Communicator, ReduceOp};

/// Megabytes a second of the narrowest link from a rank to the next one.
fn speed(topology: &Topology, rank: u32) -> Option<u64> {
    let next = NodeId((rank + 1) % topology.ranks());
    let route = Routes::new(topology).from(NodeId(rank), &[next]).pop().flatten()?;
    let narrowest = route.iter().map(|link| topology.links()[link.index()].bandwidth_bytes_s).min()?;
    Some(narrowest / 1_000_000)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("usage: lost_path FILE [ELEMENTS]")?;
    let elements: usize = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let comm = Communicator::from_launcher()?;
    let (rank, size) = (comm.rank() as usize, comm.size() as usize);
    let (mut buffer, mut planned) = (vec![0f32; elements + 1], String::new());
    for call in 1usize.. {
        let value = |element: usize, rank: usize| ((7 * element + 13 * rank + call) % 1000) as f32;
        for (element, place) in buffer.iter_mut().take(elements).enumerate() {
            *place = value(element, rank);
        }
        // Whether rank 0 has seen enough.
        buffer[elements] = f32::from(rank == 0 && call.is_multiple_of(20) && Path::new(&file).exists());
        comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        // Sums of integers are exact, in whichever order they are taken.
        let wrong = (0..elements)
            .find(|element| buffer[*element] != (0..size).map(|rank| value(*element, rank)).sum::<f32>());
        if let Some(element) = wrong {
            return Err(format!("call {call}: element {element} is wrong").into());
        }
        let topology = comm.planning().topology();
        if planned != topology.name {
            planned.clone_from(&topology.name);
            let explained = comm.explain(Collective::AllReduce, 4 * buffer.len() as u64)?;
            let chosen = explained.candidates.iter().find(|candidate| candidate.chosen);
            println!(
                "call {call}: planned for [{planned}], graph {:016x}, {} MB/s to the next rank, by {}",
                comm.planning().graph_hash(),
                speed(topology, comm.rank()).unwrap_or(0),
                chosen.map_or_else(String::new, |chosen| chosen.algorithm.to_string())
            );
        }
        if buffer[elements] != 0.0 {
            println!("all bits of {call} calls are right");
            let report = comm.report()?;
            println!("report: {}", report.graph.map_or_else(String::new, |graph| graph.to_string()));
            comm.barrier()?;
            return Ok(());
        }
    }
    Ok(())
}
