//! The phases of a part between ranks that share memory: messages that carry their flag, and mapped buffers.

use consort_kernels::Reducer;
use consort_memory::ticks;

use super::planned::Staged;
use super::{Context, Phase, Turn, TurnResult};
use crate::Rank;
use crate::engine::Engine;
use crate::engine::executor::Progress;
use crate::engine::packets::{Direct, Exchange};
use crate::engine::trouble::Fault;
use crate::engine::zero_copy::{Reach, Run, Step};
use crate::planner::Choice;
use consort_control::report::evidence::Want;
use consort_types::call::Kind;

/// Ranks on their way to mailboxes for eager messages.
pub(super) struct Meet {
    choice: Choice,
    /// The rank that this one waits for, and what it wants of that rank.
    pub(super) waits_for: Option<(Rank, Want)>,
}

/// A direct exchange of eager messages.
pub(super) struct Exchanging {
    pub(super) exchange: Exchange,
    pub(super) wanted: Option<(Rank, Want)>,
}

/// An eager message from one rank to another.
#[derive(Default)]
pub(super) struct Letter {
    /// Bytes of the message that have gone.
    pub(super) done: usize,
    pub(super) wanted: Option<(Rank, Want)>,
}

/// A collective on mapped buffers.
pub(super) struct Mapped {
    choice: Choice,
    run: Run,
    reducer: Reducer,
    pub(super) wanted: Option<(Rank, Want)>,
}

impl Meet {
    pub(super) fn new(choice: Choice) -> Self {
        Meet { choice, waits_for: None }
    }

    /// Where there are mailboxes the exchange begins, or the meeting; otherwise the plan is looked for.
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> TurnResult {
        let (choice, request) = (self.choice, context.request);
        let Engine { packets, peer_memory, links, group, tuner, operations, planner, .. } =
            &mut *context.engine;
        if packets.poll(group, links)?.is_pending() {
            self.waits_for = packets.missing(links);
            return Ok(Turn::Stays(Progress::Blocked));
        }
        let Some(board) = packets.board() else { return context.find_plan(choice, None) };
        let shape = operations.compile(request)?.shape_number();
        if !choice.meets || choice.packets && board.skips_meeting(shape) {
            return context.begin_exchange(choice);
        }
        let reducer = operations.compile(request)?.reducer_for(&request.call);
        let sample = tuner.sample(&request.call);
        let lender = links.memory().filter(|_| choice.mapped);
        let plan = &mut || operations.mapped(request, planner);
        let reach = Reach { memory: peer_memory, board, lender, plan };
        let run = Run::begin(reach, request, group.rank, context.buffers, sample);
        Ok(Turn::Next(Phase::Mapped(Mapped { choice, run, reducer, wanted: None })))
    }
}

impl Context<'_> {
    /// Goes on with the direct exchange of the chosen program, which is compiled if it has not run before.
    fn begin_exchange(&mut self, choice: Choice) -> TurnResult {
        let (request, call) = (self.request, &self.request.call);
        let Engine { operations, packets, planner, group, .. } = &mut *self.engine;
        let compiled = operations.compile(request)?;
        let reducer = compiled.reducer_for(call);
        let direct = match &compiled.programs.exchange {
            Some(direct) => direct.clone(),
            None => {
                let moves = planner.direct(choice.program)?;
                let direct = std::sync::Arc::new(Direct::new(
                    call,
                    &moves,
                    &reducer,
                    group.rank,
                    choice.program.algorithm.is_two_shot(),
                ));
                operations.keep(request, direct.clone())?;
                direct
            }
        };
        let mark = self.request.mark(group.rank, 0);
        let bytes = call.count * call.data_type.size();
        let exchange = Exchange::begin(packets.up(), direct, reducer, bytes, mark);
        Ok(Turn::Next(Phase::Exchange(Exchanging::new(exchange))))
    }
}

impl Exchanging {
    pub(super) fn new(exchange: Exchange) -> Self {
        Exchanging { exchange, wanted: None }
    }

    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> Result<Progress, Fault> {
        let board = context.engine.packets.up();
        let progress = self.exchange.advance(board, context.buffers)?;
        if progress != Progress::Done {
            self.wanted = self.exchange.wanted();
        }
        Ok(progress)
    }
}

impl Letter {
    /// None where there are no mailboxes to the other rank yet.
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> Result<Option<Progress>, Fault> {
        let Context { request, engine, buffers, .. } = context;
        let (call, peer) = (&request.call, request.call.root);
        let Some(letters) = engine.links.letters(peer) else { return Ok(None) };
        let mark = request.mark(engine.group.rank, 0);
        let progress = letters.go_on(call.kind, mark, buffers, &mut self.done)?;
        if progress != Progress::Done {
            self.wanted = Some((peer, if call.kind == Kind::Send { Want::Room } else { Want::Data }));
        }
        Ok(Some(progress))
    }
}

impl Mapped {
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> TurnResult {
        let Mapped { run, reducer, choice, wanted } = self;
        let Engine { packets, peer_memory, links, tuner, operations, planner, .. } = &mut *context.engine;
        let board = packets.up();
        let plan = &mut || operations.mapped(context.request, planner);
        let reach = Reach { memory: peer_memory, board, lender: links.memory(), plan };
        let step = run.advance(reach, reducer, context.buffers)?;
        if let Step::Progress(progress @ (Progress::Moved | Progress::Blocked)) = step {
            *wanted = run.wanted(board);
            return Ok(Turn::Stays(progress));
        }
        let store = tuner.agree(run.samples());
        board.has_met(operations.compile(context.request)?.shape_number(), step == Step::Declined);
        if step == Step::Declined {
            return match choice.packets {
                true => context.begin_exchange(*choice),
                false => context.find_plan(*choice, Some(Staged { store, since: ticks() })),
            };
        }
        Ok(Turn::Over)
    }

    /// It is over, or goes on otherwise: its tables are kept.
    pub(super) fn end(self, engine: &mut Engine) {
        self.run.end(&mut engine.peer_memory);
    }

    /// Whether ranks still tell each other where their buffers are.
    pub(super) fn is_entering(&self) -> bool {
        self.run.is_entering()
    }

    /// See [`Task::withdraw`](crate::engine::Task::withdraw).
    pub(super) fn withdraw(&mut self, engine: &mut Engine, at_last: bool) -> bool {
        let Engine { packets, group, .. } = engine;
        packets.board().is_none_or(|board| self.run.withdraw(board, group, at_last))
    }

    /// See [`Run::disown`].
    pub(super) fn disown(&mut self) {
        self.run.disown();
    }
}
