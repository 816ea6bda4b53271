//! The content of the callers' outputs, compared with the collective's definition.
//!
//! Invariant: out of place and in place are checked apart, each with a ledger of its own, because a plan may fold in
//! another order in one of them. A fault of the in-place form alone does not end the run.

use super::expression::{Expressions, Id, UNDEFINED};
use super::order::Clocks;
use super::program::Program;
use super::refusal::Refusal;
use super::run::Run;
use crate::{Collective, Rank};

/// The definition of an output chunk: the input chunk of one rank, or of all ranks folded.
pub(crate) fn expected(collective: Collective, parts: u32, rank: u32, chunk: u32) -> (Option<u32>, u32) {
    let (block, piece) = (chunk / parts, chunk % parts);
    let own = rank * parts + piece;
    match collective {
        Collective::AllReduce | Collective::Reduce => (None, chunk),
        Collective::ReduceScatter => (None, own),
        Collective::Broadcast | Collective::SendReceive => (Some(0), chunk),
        Collective::AllGather | Collective::Gather => (Some(block), piece),
        Collective::Scatter => (Some(0), own),
        Collective::AllToAll => (Some(block), own),
        Collective::AllToAllReplicated { group } => {
            let place = rank / group * group + block % group;
            (Some(block / group * group), place * parts + piece)
        }
    }
}

/// The outputs of the first operation.
pub(super) struct Ledger {
    /// For each rank and output chunk.
    outputs: Vec<Option<Id>>,
    /// For each output chunk: an expression that was already found right for an input chunk.
    proved: Vec<(Id, u32)>,
}

impl Ledger {
    pub(super) fn new(program: &Program) -> Self {
        Ledger {
            outputs: vec![None; (program.ranks * program.output_chunks) as usize],
            proved: vec![(UNDEFINED, 0); program.output_chunks as usize],
        }
    }

    /// The content of each rank's output chunks.
    pub(super) fn into_outputs(self) -> Vec<Id> {
        self.outputs.into_iter().map(|output| output.unwrap_or(UNDEFINED)).collect()
    }

    fn check(
        &mut self,
        program: &Program,
        expressions: &mut Expressions,
        (rank, chunk): (u32, u32),
        holds: Id,
    ) -> Result<(), &'static str> {
        let parts = if program.tables { 1 } else { program.partition.parts };
        let (source, input) = expected(program.collective, parts, rank, chunk);
        match source {
            Some(source) if holds == expressions.input(source, input) => {}
            Some(_) if holds == UNDEFINED => return Err("it was never written"),
            Some(_) => return Err("it is not the chunk that belongs there"),
            None if holds != UNDEFINED && self.proved[chunk as usize] == (holds, input) => {}
            None => {
                expressions.check_fold(holds, program.ranks, input)?;
                self.proved[chunk as usize] = (holds, input);
            }
        }
        let first = if program.collective == Collective::AllReduce { 0 } else { rank };
        let expected = &mut self.outputs[(first * program.output_chunks + chunk) as usize];
        if *expected.get_or_insert(holds) != holds {
            return Err("another rank or iteration folds it in another order, so their bits would differ");
        }
        self.outputs[(rank * program.output_chunks + chunk) as usize] = Some(holds);
        Ok(())
    }
}

impl<C: Clocks> Run<'_, C> {
    /// Checks that every chunk of the rank's output is what the collective defines.
    pub(super) fn check_outputs(&mut self, rank: u32) -> Result<(), Refusal> {
        let program = self.program;
        if !program.collective.has_output(Rank(rank)) {
            return Ok(());
        }
        let done = self.lanes[self.rank_lanes[rank as usize] as usize].round;
        let rounds = if program.sliced { 0..program.rounds } else { done - 1..done };
        for round in rounds {
            let iteration = if program.sliced { round } else { 0 };
            for chunk in 0..program.output_chunks {
                let cell = program.output_cell(rank, chunk);
                let found = self.found(cell, iteration, round);
                let memory = program.memory(cell + program.user_stride() * iteration);
                let [apart, in_place] = &mut self.ledgers;
                let mut judge = |ledger: &mut Ledger, holds: Id, in_place: bool| {
                    ledger.check(program, self.expressions, (rank, chunk), holds).map_err(|why| {
                        let holds = self.expressions.text(holds);
                        Refusal::WrongOutput { output: memory, holds, why, in_place }
                    })
                };
                judge(apart, found.apart, false)?;
                if program.has_in_place_form()
                    && self.in_place.refusal.is_none()
                    && let Err(refusal) = judge(in_place, found.in_place, true)
                {
                    self.in_place.refusal = Some(refusal);
                }
            }
        }
        Ok(())
    }
}
