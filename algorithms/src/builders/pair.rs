//! One message between two ranks.
//!
//! Cost: 1 round, 1 message, the whole input over one port. There are no options; the schedule exists so that
//! point-to-point calls run through the same plan, verifier and executors as collectives.

use crate::{Channel, Chunk, Collective, Partition, Place, Rank, Round, Schedule, Transfer};

/// A copy of the input of rank 0 to the output of rank 1.
pub fn pair() -> Schedule {
    let transfer = Transfer {
        from: Rank(0),
        to: Rank(1),
        channel: Channel(0),
        source: Place::Input(Chunk(0)),
        target: Place::Output(Chunk(0)),
        fold: None,
        own_first: false,
    };
    Schedule {
        name: "pair".into(),
        collective: Collective::SendReceive,
        ranks: 2,
        switches: 0,
        partition: Partition { parts: 1 },
        rounds: vec![Round { transfers: vec![transfer] }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_in_one_round() {
        let schedule = pair();
        assert_eq!((schedule.rounds.len(), schedule.messages(), schedule.channels()), (1, 1, 1));
    }
}
