//! The schedule, run with what each chunk is made of in the place of numbers.
//!
//! A value is an input chunk's number and the set of ranks whose contributions are in it, each once. All transfers of
//! a round read what was there before it, and a rank's place takes part in one write of a round. A switch that folds
//! takes all that arrives in the order of the list.
//!
//! Invariant: each input chunk is folded with contributions to the same chunk, at most once; a place is read after it
//! was written; inputs are not written. Absent: slots, and which rank waits for which.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::parse::{Certificate, Place, Transfer};
use crate::{Refused, refused};

/// Words of sets in memory, at most: 512 MiB.
const WORDS_MAX: usize = 1 << 26;

#[derive(PartialEq, Eq, Debug)]
struct Value {
    chunk: u32,
    /// A bit for each rank.
    ranks: Vec<u64>,
}

struct Machine<'a> {
    of: &'a Certificate,
    /// Ranks and switches that transfers may name.
    ends: u32,
    held: HashMap<(u32, Place), Rc<Value>>,
    words: usize,
}

/// Runs the schedule and looks at all outputs.
pub(crate) fn run(certificate: &Certificate) -> Result<(), Refused> {
    let ends = certificate.ranks + certificate.switches().count() as u32;
    let mut machine = Machine { of: certificate, ends, held: HashMap::new(), words: 0 };
    for round in &certificate.rounds {
        machine.round(round)?;
    }
    machine.outputs()
}

impl Machine<'_> {
    fn round(&mut self, round: &[Transfer]) -> Result<(), Refused> {
        let mut sources = Vec::with_capacity(round.len());
        for transfer in round {
            let Transfer { line, from, to, .. } = *transfer;
            if let Some(end) = [from, to].into_iter().find(|end| *end >= self.ends) {
                return refused(line, format!("there is no rank {end}"));
            }
            sources.push(self.read(line, from, transfer.source)?);
        }
        let mut written: HashSet<(u32, Place)> = HashSet::new();
        for (transfer, arriving) in round.iter().zip(sources) {
            self.write(transfer, arriving, &mut written)?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        transfer: &Transfer,
        arriving: Rc<Value>,
        written: &mut HashSet<(u32, Place)>,
    ) -> Result<(), Refused> {
        let Transfer { line, to, target, fold, .. } = *transfer;
        let is_switch = to >= self.of.ranks;
        if !is_switch
            && [Some(target), fold].into_iter().flatten().any(|place| written.contains(&(to, place)))
        {
            return refused(line, "another transfer writes the same place in this round");
        }
        let value = match fold {
            None => arriving,
            Some(fold) => {
                let own = self.read(line, to, fold)?;
                Rc::new(self.folded(line, &arriving, &own)?)
            }
        };
        let Certificate { collective, ranks, root, parts, .. } = *self.of;
        let may_be_written = match target {
            Place::Input(_) => false,
            Place::Output(chunk) => {
                to < ranks
                    && collective.has_output(to, root)
                    && chunk < collective.output_blocks(ranks) * parts
            }
            Place::Scratch(_) => true,
        };
        if !may_be_written {
            return refused(line, format!("rank {to} has no such output, or it is an input that is written"));
        }
        written.insert((to, target));
        self.held.insert((to, target), value);
        Ok(())
    }

    fn read(&mut self, line: usize, rank: u32, place: Place) -> Result<Rc<Value>, Refused> {
        if let Some(value) = self.held.get(&(rank, place)) {
            return Ok(Rc::clone(value));
        }
        let Certificate { collective, ranks, root, parts, .. } = *self.of;
        let Place::Input(chunk) = place else {
            return refused(line, format!("rank {rank} reads {place:?} before it is written"));
        };
        let exists = rank < ranks && collective.has_input(rank, root);
        if !exists || chunk >= collective.input_blocks(ranks) * parts {
            return refused(line, format!("rank {rank} has no input {chunk}"));
        }
        let mut of = self.set(line)?;
        of[rank as usize / 64] |= 1 << (rank % 64);
        let value = Rc::new(Value { chunk, ranks: of });
        self.held.insert((rank, place), Rc::clone(&value));
        Ok(value)
    }

    fn folded(&mut self, line: usize, arriving: &Value, own: &Value) -> Result<Value, Refused> {
        if arriving.chunk != own.chunk {
            return refused(line, format!("input {} is folded with input {}", arriving.chunk, own.chunk));
        }
        let mut ranks = self.set(line)?;
        for (into, (one, other)) in ranks.iter_mut().zip(arriving.ranks.iter().zip(&own.ranks)) {
            if one & other != 0 {
                return refused(line, "the contribution of a rank is folded twice");
            }
            *into = one | other;
        }
        Ok(Value { chunk: own.chunk, ranks })
    }

    /// An empty set of ranks.
    fn set(&mut self, line: usize) -> Result<Vec<u64>, Refused> {
        let words = (self.of.ranks as usize).div_ceil(64);
        self.words += words;
        if self.words <= WORDS_MAX { Ok(vec![0; words]) } else { refused(line, "too many folds") }
    }

    fn outputs(&self) -> Result<(), Refused> {
        let Certificate { collective, ranks, root, parts, .. } = *self.of;
        for rank in (0..ranks).filter(|rank| collective.has_output(*rank, root)) {
            for chunk in 0..collective.output_blocks(ranks) * parts {
                let (input, required) = collective.required(rank, chunk, root, parts);
                let is_right = |value: &Rc<Value>| {
                    let bit = |rank: u32| value.ranks[rank as usize / 64] >> (rank % 64) & 1 == 1;
                    let count: u32 = value.ranks.iter().map(|word| word.count_ones()).sum();
                    let is_whole = required.map_or(count == ranks, |one| count == 1 && bit(one));
                    value.chunk == input && is_whole
                };
                if !self.held.get(&(rank, Place::Output(chunk))).is_some_and(is_right) {
                    let what = format!(
                        "output {chunk} of rank {rank} does not end with what {} requires",
                        collective.0
                    );
                    return Err(Refused { line: None, what });
                }
            }
        }
        Ok(())
    }
}
