//! Which program runs a call, how long its slots are, and which links it uses.
//!
//! Invariant: a choice is made once per kind of call and size class, and found again without a lock or an
//! allocation. It is the same on all ranks because [`Planning`] is. Absent: prices.

use std::collections::HashMap;
use std::sync::Arc;

use consort_algorithms::Collective;
use consort_algorithms::catalogue::Algorithm;

use super::Program;
use super::planning::{Chosen, MESSAGE_SLICE_BYTES, Planning, WIDE_SLOT_BYTES_MAX, size_class};
use crate::call::{Call, Kind};
use crate::eager::{MESSAGE_BYTES_MAX, Moves, point_to_point};
use crate::error::{Error, Result};
use crate::options::{SLOT_BYTES_MAX, SLOT_BYTES_MIN, SLOTS};

/// Channels of links with few peers and long slots; those of the others follow. Programs that are used side by
/// side on short and long messages have links of their own, so that neither waits for the other's slots to
/// empty, and a link to each of many ranks is small.
const LONG_CHANNELS: u16 = 0;
const WIDE_CHANNELS: u16 = 0x4000;
const SHORT_CHANNELS: u16 = 0x8000;
/// Short ones where every message goes through the kernel: a longer slot costs nothing there.
const MESSAGE_CHANNELS: u16 = 0xa000;
/// Point-to-point messages.
const PAIR_CHANNELS: u16 = 0xc000;

/// Plans write outputs of at least this many bytes past the caches: from 4 to 8 MiB on that took up to 1.7 times as long
/// (`docs/measurements/host.md`).
const STREAMING_BYTES_MIN: usize = 16 << 20;

/// What was chosen for a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    pub(crate) program: Program,
    pub(crate) slot_bytes: usize,
    /// Whether outputs are written past the caches.
    pub(crate) streaming: bool,
    /// The first of the channels that its links use.
    pub(crate) channel_base: u16,
    /// A small number for the algorithm.
    pub(crate) id: u16,
    /// Whether it is run in messages that carry their flag, where all ranks can.
    pub(crate) packets: bool,
    /// Whether ranks that share memory meet before it, and agree how its bytes cross.
    pub(crate) meets: bool,
    /// Whether it is run on the callers' buffers then, where all ranks can map them.
    pub(crate) mapped: bool,
}

/// The choices of one communicator.
pub(crate) struct Choices {
    pub(crate) planning: Arc<Planning>,
    /// By kind of call and size class.
    known: Vec<Option<Box<Classes>>>,
    /// Of calls that name their algorithm, by size class.
    named: HashMap<(Kind, Algorithm, usize), Choice>,
    algorithms: Vec<Algorithm>,
}

type Classes = [Option<Choice>; 64];

impl Choices {
    pub(crate) fn new(planning: Arc<Planning>) -> Self {
        Choices { planning, known: Vec::new(), named: HashMap::new(), algorithms: Vec::new() }
    }

    /// The choice for a call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that lists what is possible, when the restriction leaves nothing.
    #[inline]
    pub(crate) fn choose(&mut self, call: &Call) -> Result<Choice> {
        let block_bytes = call.count * call.data_type.size();
        let class = size_class(block_bytes as u64).trailing_zeros() as usize;
        let known = match call.algorithm {
            None => self.known.get(call.kind as usize).and_then(Option::as_ref).and_then(|of| of[class]),
            Some(algorithm) => self.named.get(&(call.kind, algorithm, class)).copied(),
        };
        let choice = match known {
            Some(choice) => choice,
            None => self.make(call, class)?,
        };
        let Program { collective, ranks, .. } = choice.program;
        let blocks = collective.output_blocks(ranks).max(collective.input_blocks(ranks)) as usize;
        let choice = Choice { streaming: block_bytes * blocks >= STREAMING_BYTES_MIN, ..choice };
        match choice.program.algorithm {
            Algorithm::Direct { first: 0 } if call.root != 0 && call.kind == Kind::Reduce => {
                self.beginning_at_rank_zero(choice, call)
            }
            _ => Ok(choice),
        }
    }

    /// Ranks of a plan are counted from the root; the fold begins at rank 0 all the same.
    #[cold]
    fn beginning_at_rank_zero(&mut self, choice: Choice, call: &Call) -> Result<Choice> {
        let first = choice.program.ranks - call.root;
        let program = Program { algorithm: Algorithm::Direct { first }, ..choice.program };
        Ok(Choice { program, id: self.number(program.algorithm)?, ..choice })
    }

    #[cold]
    fn make(&mut self, call: &Call, class: usize) -> Result<Choice> {
        let (collective, bytes) = (call.kind.collective(), 1u64 << class);
        let chosen = match call.algorithm {
            None if call.kind.is_own() => self.planning.choose_freely(collective, bytes),
            None => self.planning.choose(collective, bytes)?,
            Some(algorithm) => self.planning.demand(algorithm, collective, bytes)?,
        };
        let Chosen { algorithm, slot_bytes, short, packets, meets, mapped } = chosen;
        let ranks = if collective == Collective::SendReceive { 2 } else { self.planning.ranks() };
        // Where it takes no mapped buffers there is only the way to be found.
        let is_worth_it = call.algorithm.is_none() || bytes > MESSAGE_BYTES_MAX as u64;
        let choice = Choice {
            program: Program { collective, ranks, algorithm },
            slot_bytes,
            streaming: false,
            channel_base: match algorithm {
                Algorithm::Pair => PAIR_CHANNELS,
                _ if short && self.planning.by_messages() => MESSAGE_CHANNELS,
                _ if short => SHORT_CHANNELS,
                _ if self.planning.longest_slot(algorithm) == SLOT_BYTES_MAX => LONG_CHANNELS,
                _ => WIDE_CHANNELS,
            },
            id: self.number(algorithm)?,
            packets: packets && Moves::are_defined(call.kind),
            meets: meets && Moves::are_defined(call.kind) && is_worth_it,
            mapped: mapped && call.algorithm.is_none(),
        };
        if call.algorithm.is_some() {
            self.named.insert((call.kind, algorithm, class), choice);
        } else {
            let kind = call.kind as usize;
            if self.known.len() <= kind {
                self.known.resize_with(kind + 1, || None);
            }
            self.known[kind].get_or_insert_with(|| Box::new([None; 64]))[class] = Some(choice);
        }
        Ok(choice)
    }

    fn number(&mut self, algorithm: Algorithm) -> Result<u16> {
        if let Some(at) = self.algorithms.iter().position(|known| *known == algorithm) {
            return Ok(at as u16);
        }
        self.algorithms.push(algorithm);
        let id = self.algorithms.len() - 1;
        if id >= super::cache::ALGORITHMS_MAX {
            return Err(Error::internal("too many algorithms in one communicator"));
        }
        Ok(id as u16)
    }

    /// Bytes of the tables.
    pub(crate) fn memory_bytes(&self) -> usize {
        let classes = self.known.iter().flatten().count() * size_of::<Classes>();
        let named = self.named.capacity() * size_of::<((Kind, Algorithm, usize), Choice)>();
        classes
            + named
            + self.known.capacity() * size_of::<usize>()
            + self.algorithms.capacity() * size_of::<Algorithm>()
    }
}

/// Whether slots on a channel always have the same length.
pub(crate) fn has_one_length(channel: u16) -> bool {
    (SHORT_CHANNELS..PAIR_CHANNELS).contains(&channel)
}

/// Bytes of each side's mailbox on a channel.
pub(crate) fn mailbox_bytes(channel: u16) -> usize {
    if channel == point_to_point::CHANNEL {
        return point_to_point::MAILBOX_BYTES;
    }
    let slot_bytes = match channel {
        SHORT_CHANNELS..MESSAGE_CHANNELS => SLOT_BYTES_MIN,
        MESSAGE_CHANNELS..PAIR_CHANNELS => MESSAGE_SLICE_BYTES,
        WIDE_CHANNELS..SHORT_CHANNELS => WIDE_SLOT_BYTES_MAX,
        _ => SLOT_BYTES_MAX,
    };
    SLOTS as usize * slot_bytes
}
