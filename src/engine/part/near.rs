//! What a part does between ranks that share memory: messages that carry their flag, and mapped buffers.

use std::task::Poll;

use consort_kernels::{ReduceOp, Reducer, Store};
use consort_memory::ticks;

use super::{Part, Phase, pair_neutral};
use crate::Rank;
use crate::call::{Call, Kind};
use crate::engine::executor::Progress;
use crate::engine::packets::{self, Board, Exchange, Wanted, letters};
use crate::engine::task::Request;
use crate::engine::trouble::Trouble;
use crate::engine::zero_copy::{self, Run, Step};
use crate::engine::{Buffers, Engine};
use crate::error::Error;

impl Part {
    /// Its messages are on their way already.
    pub(in crate::engine) fn adopt(&mut self, exchange: Exchange, reducer: Reducer) {
        self.exchange = Some((exchange, reducer));
        self.phase = Phase::Exchange;
    }

    /// So many bytes of its message have gone.
    pub(in crate::engine) fn adopt_message(&mut self, done: usize) {
        self.letter_bytes = done;
        self.phase = Phase::Letter;
    }

    /// Whether there is a board; then the exchange begins, and otherwise the plan is looked for.
    pub(super) fn meet(
        &mut self,
        engine: &mut Engine,
        buffers: Buffers<'_>,
    ) -> std::result::Result<Poll<()>, Trouble> {
        let request = self.request()?;
        let choice = engine.choices.choose(&request.call)?;
        let Engine { packets, peer_memory, links, group, tuner, .. } = engine;
        match packets.poll(group, links.routes()) {
            Ok(Poll::Pending) => {
                self.met = packets.missing();
                return Ok(Poll::Pending);
            }
            Ok(Poll::Ready(_)) => {}
            Err(packets::Trouble::Own(error)) => return Err(error.into()),
            Err(packets::Trouble::Broken(broken)) => return Err(self.fault(broken)),
        }
        match packets.board() {
            Some(board) if choice.meets => {
                let sample = tuner.sample(&request.call);
                let shm = links.memory().filter(|_| choice.mapped);
                let run = Run::begin(peer_memory, board, shm, &request, group.rank, buffers, sample);
                self.mapped = Some((run, reducer_of(&request.call, group.size())));
                self.phase = Phase::Mapped;
            }
            Some(board) => self.begin_exchange(board, &request, group.size()),
            None => self.find_bound(engine, &request, &choice)?,
        }
        Ok(Poll::Ready(()))
    }

    fn begin_exchange(&mut self, board: &mut Board, request: &Request, ranks: u32) {
        let exchange = Exchange::of(board, request);
        self.exchange = Some((exchange, reducer_of(&request.call, ranks)));
        self.staged = Some((Store::Cached, ticks()));
        self.phase = Phase::Exchange;
    }

    /// None when some buffer is not mapped, or none may be; it has found its plan then, or makes it.
    pub(super) fn run_mapped(
        &mut self,
        engine: &mut Engine,
        buffers: Buffers<'_>,
    ) -> std::result::Result<Option<Progress>, Trouble> {
        let request = self.request()?;
        let Engine { packets, peer_memory, links, tuner, .. } = engine;
        let (Some((run, reducer)), Some(board)) = (&mut self.mapped, packets.board()) else {
            return Err(Error::internal("mapped buffers without a board").into());
        };
        let step = run.advance(peer_memory, board, links.memory(), reducer, buffers);
        match step {
            Ok(Step::Progress(progress)) => {
                self.wanted = run.wanted(board);
                if progress == Progress::Done {
                    if let Some((run, _)) = self.mapped.take() {
                        tuner.agree(run.samples());
                        run.end(peer_memory);
                    }
                    self.phase = Phase::Done;
                }
                Ok(Some(progress))
            }
            Ok(Step::Declined) => {
                if let Some((run, _)) = self.mapped.take() {
                    self.staged = Some((tuner.agree(run.samples()), ticks()));
                    run.end(peer_memory);
                }
                let choice = engine.choices.choose(&request.call)?;
                if choice.packets
                    && let Some(board) = engine.packets.board()
                {
                    self.begin_exchange(board, &request, engine.group.size());
                } else {
                    self.find_bound(engine, &request, &choice)?;
                }
                Ok(None)
            }
            Err(zero_copy::Stop::Mismatch(peer)) => Err(Trouble::Mismatch { request, peer }),
            Err(zero_copy::Stop::Broken(broken)) => Err(self.fault(broken)),
            Err(zero_copy::Stop::Failed(error)) => Err(error.into()),
        }
    }

    /// See [`Task::withdraw`](crate::engine::Task::withdraw).
    pub(in crate::engine) fn withdraw(&mut self, engine: &mut Engine, at_last: bool) -> bool {
        let Engine { packets, group, .. } = engine;
        match (&mut self.mapped, packets.board()) {
            (Some((run, _)), Some(board)) => run.withdraw(board, group, at_last),
            _ => true,
        }
    }

    pub(super) fn exchange(
        &mut self,
        engine: &mut Engine,
        buffers: Buffers<'_>,
    ) -> std::result::Result<Progress, Trouble> {
        let (Some((exchange, reducer)), Some(board)) = (&mut self.exchange, engine.packets.board()) else {
            return Err(Error::internal("an exchange without a board").into());
        };
        match exchange.advance(board, reducer, buffers) {
            Ok(Progress::Done) => {
                if let Some(request) = &self.request {
                    board.remember(&request.call, reducer);
                }
                let took = self.staged.map(|(_, since)| ticks().saturating_sub(since));
                board.note(exchange, took);
                self.phase = Phase::Done;
                Ok(Progress::Done)
            }
            Ok(progress) => {
                self.wanted = exchange.wanted(board);
                Ok(progress)
            }
            Err(peer) => Err(Trouble::Mismatch { request: self.request()?, peer }),
        }
    }

    pub(super) fn letter(
        &mut self,
        engine: &mut Engine,
        buffers: Buffers<'_>,
    ) -> std::result::Result<Progress, Trouble> {
        let request = self.request()?;
        let (call, peer) = (request.call, request.call.root);
        let mark = letter_mark(&request, engine.group.rank);
        let Some(letters) = engine.links.letters(peer) else {
            return Err(Error::internal("a message without slots").into());
        };
        let sends = call.kind == Kind::Send;
        let progress = if sends {
            Ok(letters.send(mark, buffers.input, &mut self.letter_bytes))
        } else {
            letters.receive(mark, buffers.output, &mut self.letter_bytes)
        };
        match progress {
            Ok(Progress::Done) => {
                self.phase = Phase::Done;
                Ok(Progress::Done)
            }
            Ok(progress) => {
                self.wanted = Some(Wanted { peer, room: sends });
                Ok(progress)
            }
            Err(letters::Differs) => Err(Trouble::Mismatch { request, peer }),
        }
    }
}

/// How a call's values are folded.
fn reducer_of(call: &Call, ranks: u32) -> Reducer {
    match call.scalar {
        Some(scalar) => Reducer::pre_mul_sum(scalar),
        None => Reducer::new(call.data_type, call.op.unwrap_or(ReduceOp::Sum), ranks),
    }
}

/// What a short message is told from others by.
fn letter_mark(request: &Request, me: Rank) -> u64 {
    let Request { call, sequence, .. } = request;
    pair_neutral(call.descriptor(), call.kind, me).digest(*sequence, 0)
}
