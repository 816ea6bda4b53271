//! The cost of a schedule, counted from its transfers.
//!
//! Invariant: every figure is counted, none is taken from a formula; tests compare the counts with the formulas that
//! the builders state. All pieces count as equally long. Deliberately absent: nanoseconds and bytes, which need
//! prices and sizes and are the planner's, and what lowering adds (waves, slots, scratch).

use crate::numbers::Numbers;
use crate::{Place, Rank, Schedule};

/// The counts of a [`Schedule`]. Local copies are free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Rounds with a transfer between ranks.
    pub rounds: u32,
    /// The longest chain of messages in which each carries (or is folded into) data of the one before. It is the
    /// measure of pipelined trees, whose rounds only order the transfers of a rank.
    pub depth: u32,
    /// Transfers between different ranks.
    pub messages: usize,
    /// Pieces sent by the rank that sends most.
    pub out_pieces: u32,
    /// Pieces received by the rank that receives most.
    pub into_pieces: u32,
    /// Pieces of the largest buffer of a rank: the `M` of the cost tables.
    pub largest_pieces: u32,
}

impl Schedule {
    /// The cost. Ports are those of ranks; a switch forwards for free.
    pub fn cost(&self) -> Cost {
        let ports = (self.ranks + self.switches) as usize;
        let (mut out, mut into) = (vec![0; ports], vec![0; ports]);
        let mut cost = Cost {
            largest_pieces: self
                .partition
                .input_chunks(self.collective, self.ranks)
                .max(self.partition.output_chunks(self.collective, self.ranks)),
            ..Cost::default()
        };
        // The length in messages of the chain that ends in a place; a place that no transfer wrote has length 0.
        let mut depths: Numbers<(Rank, Place), u32> = Numbers::default();
        for round in &self.rounds {
            let depth = |rank: Rank, place: Place| depths.get(&(rank, place)).copied().unwrap_or(0);
            let mut written = Vec::with_capacity(round.transfers.len());
            let before = cost.messages;
            for transfer in &round.transfers {
                let travels = transfer.from != transfer.to;
                if travels {
                    cost.messages += 1;
                    out[transfer.from.index()] += 1;
                    into[transfer.to.index()] += 1;
                }
                let arriving = depth(transfer.from, transfer.source);
                let own = transfer.fold.map_or(0, |fold| depth(transfer.to, fold));
                let depth = own.max(arriving + u32::from(travels));
                cost.depth = cost.depth.max(depth);
                written.push(((transfer.to, transfer.target), depth));
            }
            cost.rounds += u32::from(cost.messages > before);
            depths.extend(written);
        }
        let busiest = |port: &[u32]| port.iter().take(self.ranks as usize).max().copied().unwrap_or(0);
        (cost.out_pieces, cost.into_pieces) = (busiest(&out), busiest(&into));
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Channel, Chunk, Collective, Partition, Round, Transfer};

    fn message(from: u32, to: u32, source: Place, fold: Option<Place>) -> Transfer {
        Transfer {
            from: Rank(from),
            to: Rank(to),
            channel: Channel(0),
            source,
            target: Place::Output(Chunk(0)),
            fold,
            own_first: false,
        }
    }

    #[test]
    fn a_chain_follows_values_not_rounds() {
        let (input, output) = (Place::Input(Chunk(0)), Place::Output(Chunk(0)));
        // 2 to 1; then 1 to 0, and beside it 1's input to 2 (no chain); 1 folds what 2 sends.
        let rounds = vec![
            Round { transfers: vec![message(0, 0, input, None), message(2, 1, input, Some(input))] },
            Round { transfers: vec![message(1, 0, output, Some(output)), message(1, 2, input, None)] },
            Round { transfers: vec![message(2, 1, output, Some(output))] },
        ];
        let schedule = Schedule {
            name: "by hand".into(),
            collective: Collective::AllGather,
            ranks: 3,
            switches: 0,
            partition: Partition { parts: 2 },
            rounds,
        };
        let expected =
            Cost { rounds: 3, depth: 2, messages: 4, out_pieces: 2, into_pieces: 2, largest_pieces: 6 };
        assert_eq!(schedule.cost(), expected);
        let still = Schedule { rounds: vec![schedule.rounds[0].clone()], ranks: 1, ..schedule };
        let local =
            Schedule { rounds: vec![Round { transfers: still.rounds[0].transfers[..1].to_vec() }], ..still };
        assert_eq!(local.cost(), Cost { largest_pieces: 2, ..Cost::default() });
    }

    #[test]
    fn a_round_reads_what_was_there_before_it() {
        let (input, output) = (Place::Input(Chunk(0)), Place::Output(Chunk(0)));
        let swap = Round { transfers: vec![message(0, 1, input, None), message(1, 0, output, None)] };
        let schedule = Schedule {
            name: "by hand".into(),
            collective: Collective::AllReduce,
            ranks: 2,
            switches: 0,
            partition: Partition { parts: 1 },
            rounds: vec![swap],
        };
        assert_eq!((schedule.cost().depth, schedule.cost().rounds), (1, 1));
    }
}
