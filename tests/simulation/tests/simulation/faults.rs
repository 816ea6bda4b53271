//! The faults of a simulated job.

use std::time::Duration;

use consort_kernels::{DataType, ReduceOp};

use super::program::{Item, Program};
use super::random::Random;
use consort_types::Rank;
use consort_types::call::{Call, Kind};

/// When: at a moment of the virtual time, or before the rank's turn with this number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moment {
    At(Duration),
    Turn(u64),
}

/// How a call of one rank differs from what the others call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deviation {
    Count,
    Op,
    Kind,
    DataType,
}

impl Deviation {
    /// Makes another call of it.
    pub(super) fn apply_to(self, call: &mut Call) {
        match self {
            Deviation::Count => call.count += 1,
            Deviation::Op if call.op == Some(ReduceOp::Max) => call.op = Some(ReduceOp::Min),
            Deviation::Op if call.op.is_some() => call.op = Some(ReduceOp::Max),
            Deviation::DataType => call.data_type = DataType::Int64,
            Deviation::Kind | Deviation::Op if call.kind == Kind::AllGather => {
                (call.kind, call.op) = (Kind::AllReduce, Some(ReduceOp::Sum));
            }
            Deviation::Kind | Deviation::Op => (call.kind, call.op, call.root) = (Kind::AllGather, None, 0),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    None,
    /// The process dies.
    Kill {
        rank: Rank,
        when: Moment,
    },
    /// The process stops, and goes on after a while if one is given.
    Freeze {
        rank: Rank,
        when: Moment,
        pause: Option<Duration>,
    },
    /// Everything that the process does takes longer.
    Slow {
        rank: Rank,
        factor: u32,
    },
    /// Nothing travels between two ranks any more, or for a while.
    Cut {
        one: Rank,
        other: Rank,
        when: Duration,
        pause: Option<Duration>,
    },
    /// Nothing travels between these ranks and all others.
    Partition {
        side: Vec<Rank>,
        when: Duration,
    },
    /// The data of one rank does not reach another.
    Blackhole {
        from: Rank,
        to: Rank,
        when: Duration,
    },
    /// All connections between two ranks break.
    Reset {
        one: Rank,
        other: Rank,
        when: Duration,
    },
    /// The data connection of two ranks is lost and made again.
    Remake {
        one: Rank,
        other: Rank,
        when: Duration,
        outage: Duration,
    },
    /// A rank's memory for connections gives out.
    Deny {
        rank: Rank,
        after: u32,
    },
    /// A rank leaves out an item of the program.
    Skip {
        rank: Rank,
        item: usize,
    },
    /// A rank makes another call.
    Deviate {
        rank: Rank,
        item: usize,
        how: Deviation,
    },
    /// A rank stays in its own code before an item, beyond the deadline or not.
    Sleep {
        rank: Rank,
        item: usize,
        time: Duration,
    },
    /// A rank closes its communicators before an item.
    Leave {
        rank: Rank,
        item: usize,
    },
    /// Two ranks use two communicators in different orders.
    Swap {
        rank: Rank,
        item: usize,
    },
    /// Two ranks send each other more than fits on the way, and receive afterwards.
    BothSend {
        one: Rank,
        other: Rank,
    },
    Abort {
        rank: Rank,
        when: Moment,
    },
    Revoke {
        rank: Rank,
        when: Moment,
    },
    NeverJoin {
        rank: Rank,
    },
    Settings {
        rank: Rank,
    },
}

impl Fault {
    /// A fault for a job, or none; it may change the program (of all ranks).
    pub(super) fn random(ranks: u32, timeout: Duration, program: &mut Program, random: &mut Random) -> Fault {
        if ranks == 1 {
            return Fault::None;
        }
        let rank = random.below(ranks as usize) as Rank;
        let other = (rank + 1 + random.below(ranks as usize - 1) as Rank) % ranks;
        // Most jobs take some milliseconds; joining takes the first of them.
        let when = Duration::from_micros(1 << random.below(15));
        let moment = if random.once_in(2) { Moment::At(when) } else { Moment::Turn(1 << random.below(9)) };
        let short = timeout / (4 + random.below(8) as u32);
        let item = random.below(program.items.len());
        let collective = |items: &[Item]| {
            let collectives = items
                .iter()
                .enumerate()
                // A barrier has no parameter that could differ.
                .filter(|(_, item)| {
                    matches!(item, Item::Collective { count, kind, .. } if *count > 0 && *kind != Kind::Barrier)
                });
            collectives.map(|(at, _)| at).collect::<Vec<_>>()
        };
        match random.below(24) {
            0..=1 => Fault::None,
            2..=4 => Fault::Kill { rank, when: moment },
            5 => Fault::Freeze { rank, when: moment, pause: None },
            6 => Fault::Freeze { rank, when: moment, pause: Some(short) },
            7 => Fault::Freeze { rank, when: moment, pause: Some(timeout * 2) },
            8 => Fault::Slow { rank, factor: 2 + random.below(200) as u32 },
            9 => Fault::Cut { one: rank, other, when, pause: None },
            10 => Fault::Cut { one: rank, other, when, pause: Some(short) },
            11 => {
                let mut side: Vec<Rank> = (0..ranks).filter(|_| random.once_in(2)).collect();
                side.retain(|member| *member != other);
                side.extend((!side.contains(&rank)).then_some(rank));
                side.sort_unstable();
                Fault::Partition { side, when }
            }
            12 => Fault::Blackhole { from: rank, to: other, when },
            13 => Fault::Reset { one: rank, other, when },
            14 => Fault::Remake { one: rank, other, when, outage: short },
            15 => Fault::Deny { rank, after: random.below(3) as u32 },
            16 => Fault::Skip { rank, item },
            17 => {
                let hows = [Deviation::Count, Deviation::Op, Deviation::Kind, Deviation::DataType];
                let collectives = collective(&program.items);
                let how = hows[random.below(hows.len())];
                match collectives.get(random.below(collectives.len().max(1))) {
                    Some(item) => Fault::Deviate { rank, item: *item, how },
                    None => Fault::None,
                }
            }
            18 => Fault::Sleep { rank, item, time: if random.once_in(3) { short } else { timeout * 2 } },
            19 => Fault::Leave { rank, item },
            20 => {
                program.colors = vec![0; ranks as usize];
                let all = |on: usize| Item::Collective {
                    on,
                    kind: Kind::AllReduce,
                    op: ReduceOp::Sum,
                    root: 0,
                    count: 77,
                    started: false,
                };
                program.items = vec![Item::Split { colors: program.colors.clone() }, all(0), all(1)];
                Fault::Swap { rank, item: 1 }
            }
            21 => {
                let at = random.below(program.items.len() + 1);
                // More than the slots between two ranks hold.
                program.items.insert(at, Item::BothSend { one: rank, other, count: 400_000 });
                Fault::BothSend { one: rank, other }
            }
            22 if random.once_in(2) => Fault::Abort { rank, when: moment },
            22 => Fault::Revoke { rank, when: moment },
            _ if random.once_in(2) => Fault::NeverJoin { rank },
            _ => Fault::Settings { rank },
        }
    }
}
