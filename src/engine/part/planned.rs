//! The phases of a part that runs by a plan: its links are made and the plan is bound, once for each shape of call;
//! then the executor runs it.

use std::sync::Arc;

use consort_algorithms::Rank as Relative;
use consort_kernels::{Reducer, Store};
use consort_memory::pool::POOL_BITS;
use consort_memory::{SpanMut, ticks};

use super::local::Letter;
use super::{Context, Phase, Turn, TurnResult};
use crate::Rank;
use crate::eager;
use crate::engine::bound::{Bearings, Bound};
use crate::engine::executor::{Executor, Progress, Sizes, Stop};
use crate::engine::pairing::Pairing;
use crate::engine::real_io::RealIo;
use crate::engine::{Buffers, Engine};
use crate::planner::{Choice, Proved};
use consort_types::call::Kind;
use consort_types::error::Result;

/// Loads of the awaited counter between two full turns: far below a microsecond.
const GLANCES: u32 = 32;

/// How rank 0 says that bytes are staged, and when that was heard.
#[derive(Clone, Copy)]
pub(super) struct Staged {
    pub(super) store: Store,
    pub(super) since: u64,
}

/// Links on their way, and the plan that is bound to them; a message needs none.
pub(super) struct Linking {
    pub(super) numbers: Vec<usize>,
    plan: Option<Box<Unbound>>,
}

/// A plan, whose links are those of its [`Pairing`].
struct Unbound {
    choice: Choice,
    staged: Option<Staged>,
    proved: Proved,
    bearings: Bearings,
}

/// A bound plan that runs.
pub(super) struct Running {
    pub(super) bound: Arc<Bound>,
    sizes: Sizes<'static>,
    reducer: Reducer,
    staged: Option<Staged>,
    /// Whether mailboxes at peers have slots of the plan's length; the link of one that is not empty yet.
    pub(super) is_drained: bool,
    pub(super) draining: Option<usize>,
    /// Whether its steps are done, so that it only waits for its sources.
    pub(super) is_settled: bool,
}

impl Context<'_> {
    /// Goes on with the plan of the chosen program: bound before, or once its links are made.
    pub(super) fn find_plan(&mut self, choice: Choice, staged: Option<Staged>) -> TurnResult {
        let (call, engine) = (&self.request.call, &mut *self.engine);
        let compiled = engine.operations.compile(self.request)?;
        if let Some(bound) = &compiled.programs.plan {
            let (bound, reducer) = (bound.clone(), compiled.reducer_for(call));
            return Ok(self.start(bound, reducer, staged));
        }
        let (me, size) = (engine.group.rank, engine.group.size());
        let (bearings, relative) = match call.kind {
            Kind::Send => (Bearings::Pair { sender: me, receiver: call.root }, 0),
            Kind::Receive => (Bearings::Pair { sender: call.root, receiver: me }, 1),
            _ => (Bearings::Rotated { root: call.root, size }, (me + size - call.root) % size),
        };
        let ranks = (0..choice.program.ranks).map(|rank| bearings.rank(Relative(rank)));
        let mapped = ranks.map(|rank| engine.links.is_mapped(&engine.group, rank)).collect();
        let proved = engine.planner.plan(choice.program, relative, mapped)?;
        let is_mapped = |rank| engine.links.is_mapped(&engine.group, rank);
        let keys = Pairing::new(&proved.plan, bearings, choice.channel_base, &is_mapped).keys();
        let numbers = engine.links.request(&keys, &engine.group)?;
        let plan = Some(Box::new(Unbound { choice, staged, proved, bearings }));
        Ok(Turn::Next(Phase::Link(Linking { numbers, plan })))
    }

    /// Goes on with a bound plan.
    fn start(&mut self, bound: Arc<Bound>, reducer: Reducer, staged: Option<Staged>) -> Turn {
        let (request, links) = (self.request, &self.engine.links);
        let (call, group) = (&request.call, &self.engine.group);
        let sizes = Sizes {
            extents: call.extents(bound.plan.partition, group.size()),
            slot_bytes: bound.slot_bytes,
            // A pool names slots in the low bits.
            tag: request.mark(group.rank, bound.path ^ bound.slot_bytes as u64) << POOL_BITS,
        };
        self.executor.start(
            &bound.plan,
            &sizes,
            |counter| bound.counter_base(counter, links),
            |region| bound.slot_base(region, links),
        );
        let (is_drained, draining, is_settled) = (false, None, false);
        Turn::Next(Phase::Run(Running { bound, sizes, reducer, staged, is_drained, draining, is_settled }))
    }
}

impl Linking {
    /// For a message to or from a rank.
    pub(super) fn of_messages(engine: &mut Engine, peer: Rank) -> Result<Self> {
        let numbers = engine.links.request(&[(peer, eager::MESSAGES_CHANNEL)], &engine.group)?;
        Ok(Linking { numbers, plan: None })
    }

    /// Once all links are up the message goes, or the plan is bound.
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> TurnResult {
        if context.engine.links.poll_up(&self.numbers, &context.engine.group)?.is_pending() {
            return Ok(Turn::Stays(Progress::Blocked));
        }
        let Some(plan) = &self.plan else { return Ok(Turn::Next(Phase::Letter(Letter::default()))) };
        let bound = plan.bind(context, &self.numbers)?;
        let reducer = context.engine.operations.compile(context.request)?.reducer_for(&context.request.call);
        Ok(context.start(bound, reducer, plan.staged))
    }
}

impl Unbound {
    fn bind(&self, context: &mut Context<'_>, numbers: &[usize]) -> Result<Arc<Bound>> {
        let Context { request, engine, .. } = context;
        let call = &request.call;
        let span = tracing::debug_span!("bind", rank = engine.group.rank, call = %call.descriptor());
        let _entered = span.enter();
        let Unbound { choice, proved, bearings, .. } = self;
        let is_mapped = |rank| engine.links.is_mapped(&engine.group, rank);
        let pairing = Pairing::new(&proved.plan, *bearings, choice.channel_base, &is_mapped);
        let bound = Arc::new(Bound::new(proved, choice, &pairing, &engine.links, numbers)?);
        tracing::debug!(algorithm = proved.plan.name, slot_bytes = choice.slot_bytes, "a plan for its links");
        let scratch_bytes = bound.scratch_bytes();
        if engine.scratch.len() < scratch_bytes {
            engine.scratch.resize(scratch_bytes, 0);
        }
        engine.operations.compile(request)?.programs.plan = Some(bound.clone());
        Ok(bound)
    }
}

impl Running {
    /// Looks a few times at the one counter that it waits for.
    pub(super) fn glance(&self, executor: &Executor) {
        if self.is_drained
            && let Some((counter, value)) = executor.awaited(&self.bound.plan)
            && let Some(counter) = self.bound.own_counter(counter)
        {
            for _ in 0..GLANCES {
                if counter.value() >= value {
                    return;
                }
            }
        }
    }

    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> TurnResult {
        let Running { bound, sizes: equal, reducer, staged, is_drained, draining, is_settled } = self;
        context.lent.begin_turn();
        if *is_settled {
            return Ok(over(context));
        }
        if !*is_drained {
            *draining = bound.undrained(&mut context.engine.links);
            if draining.is_some() {
                return Ok(Turn::Stays(Progress::Blocked));
            }
            *is_drained = true;
        }
        let Context { request, engine, executor, lent, blocks, buffers: Buffers { input, output } } = context;
        let varying;
        let sizes = if blocks.is_empty() {
            &*equal
        } else {
            varying = Sizes { extents: equal.extents.of_blocks(blocks, engine.group.rank), ..*equal };
            &varying
        };
        let scratch = SpanMut::of(engine.scratch.as_mut_slice());
        let store = staged.map_or(Store::Cached, |staged| staged.store);
        let (input, output, links) = (*input, *output, &mut engine.links);
        let mut io = RealIo { bound, reducer, links, lent, input, output, scratch, staged: store };
        match executor.advance(&bound.plan, sizes, &mut io) {
            Ok(Progress::Done) => {}
            Ok(progress) => return Ok(Turn::Stays(progress)),
            Err(Stop::Mismatch { peer }) => return Err(bound.bearings.rank(peer).into()),
            Err(Stop::Fault(broken)) => return Err(broken.into()),
        }
        bound.settle(executor.iterations(), &mut engine.links);
        if let Some(Staged { store, since }) = *staged {
            engine.tuner.ended(&request.call, store, ticks().saturating_sub(since));
        }
        *is_settled = true;
        Ok(over(context))
    }
}

/// The end of a plan whose steps are done: once no transport reads the caller's memory any more.
fn over(context: &mut Context<'_>) -> Turn {
    let are_free = context.lent.are_free(&context.engine.links);
    if are_free { Turn::Over } else { Turn::Stays(Progress::Blocked) }
}
