//! Pipelines: each rank has some of the blocks, and micro-batches go from rank to rank.
//!
//! Invariant: a rank does what its [`Order`] says, one thing after the other. There is room for the activations of as many
//! micro-batches as are in flight at once, and which room is whose is settled before the first step. A stage's
//! gradients are finished in its last micro-batch. A rank that is alone is a pipeline of one rank.

mod hops;
mod order;

use std::time::{Duration, Instant};

use consort::Communicator;

use self::hops::Hops;
use self::order::program;
pub use self::order::{Action, Doing, Order, Plan};
use crate::error::Result;
use crate::model::{Activations, Model, Ranks, Workspace};
use crate::number::Number;
use crate::parameters::{Gradients, Pass, Unfinished, Weights};
use crate::routes::Routes;
use crate::timeline::{Activity, Span};

/// A step's way through a rank's stages.
#[derive(Clone, PartialEq, Debug)]
pub struct Passage {
    /// The sum of the losses of this rank's tokens, where the last stage is; otherwise 0.
    pub loss: f64,
    /// The time that this rank waited for rows of its neighbours.
    pub idle: Duration,
    /// The bytes of rows that it sent to them.
    pub sent_bytes: usize,
    /// The bytes that it sent to the ranks of the experts.
    pub routed_bytes: usize,
    /// What it did when.
    pub spans: Vec<Span>,
}

/// The rank's part of a pipeline.
pub struct Pipeline<T: Number> {
    plan: Plan,
    doings: Vec<Doing>,
    /// Tokens of a micro-batch.
    tokens: usize,
    /// For each stage of the rank, and each micro-batch in it, the number of its room.
    slots: Vec<usize>,
    rooms: Vec<Activations<T>>,
    workspace: Workspace<T>,
    hops: Hops<T>,
}

/// What a step goes through the stages with.
pub struct Through<'a, T: Number> {
    /// The model, as far as this rank has it.
    pub model: &'a Model<T>,
    /// Its weights.
    pub weights: &'a mut dyn Weights<T>,
    /// The ranks that compute each layer together.
    pub ranks: &'a Ranks<'a>,
    /// The ranks of the pipeline.
    pub neighbours: Option<&'a Communicator>,
    /// The tokens of all micro-batches, and the targets of each.
    pub tokens: [&'a [u32]; 2],
    /// What the losses are multiplied by.
    pub factor: T,
    /// When the step began.
    pub begun: Instant,
}

/// The ranks of a pipeline of several.
fn neighbours<'a, T: Number>(through: &Through<'a, T>) -> &'a Communicator {
    through.neighbours.expect("a pipeline of one rank has no messages")
}

impl Passage {
    /// Does what is nothing but waiting for other stages, in a step that began at `step`.
    ///
    /// # Errors
    /// What that ends with.
    pub fn idle(&mut self, step: Instant, wait: impl FnOnce() -> Result<()>) -> Result<()> {
        let begun = Instant::now();
        wait()?;
        let end = Instant::now();
        self.idle += end - begun;
        self.spans.push(Span::new(Activity::Idle, step, begun, end));
        Ok(())
    }
}

/// Rooms for what `actions`, those of one rank, have in flight: for each of its stages and micro-batches in it the number of a room, and
/// for each room what it is for. Stages for which `kind` is the same share rooms; a room is used again when its backward is over.
fn rooms(plan: &Plan, actions: &[Action], kind: impl Fn(usize) -> usize) -> (Vec<usize>, Vec<usize>) {
    let mut slots = vec![0; plan.order.chunks() * plan.micro_batches];
    let (mut kinds, mut free) = (Vec::new(), Vec::new());
    for action in actions {
        let chunk = action.stage / plan.ranks;
        let slot = &mut slots[chunk * plan.micro_batches + action.micro];
        match action.pass {
            Pass::Backward => free.push(*slot),
            Pass::Forward => {
                let fits = free.iter().position(|room: &usize| kinds[*room] == kind(chunk));
                *slot = fits.map_or(kinds.len(), |place| free.swap_remove(place));
                if *slot == kinds.len() {
                    kinds.push(kind(chunk));
                }
            }
        }
    }
    (slots, kinds)
}

impl<T: Number> Pipeline<T> {
    /// The part of rank `rank`, which has the stages of `model`; a micro-batch has `sequences` sequences. `routes` lead to the
    /// experts, if there are any.
    pub fn new(
        model: &Model<T>,
        plan: Plan,
        rank: usize,
        sequences: usize,
        routes: Option<Box<dyn Routes<T>>>,
    ) -> Self {
        let (stages, layers) = (&model.own().stages, model.shape().layers);
        let lengths = |chunk: usize| (stages[chunk].len(), stages[chunk].end == layers);
        // Stages of the same lengths are of the kind of the first of them.
        let kind = |chunk| (0..chunk).find(|other| lengths(*other) == lengths(chunk)).unwrap_or(chunk);
        let (slots, kinds) = rooms(&plan, &plan.actions(rank), kind);
        let rooms: Vec<Activations<T>> =
            kinds.into_iter().map(|chunk| model.activations(chunk, sequences)).collect();
        let elements = rooms.first().map_or(0, |room| room.output().len());
        let doings = program(&plan).swap_remove(rank);
        Pipeline {
            tokens: sequences * model.lengths().sequence,
            workspace: model.workspace(sequences).with_routes(routes),
            hops: Hops::new(plan, &doings, elements),
            doings,
            plan,
            slots,
            rooms,
        }
    }

    /// Takes all micro-batches forward and backward, and adds their gradients to `gradients`.
    ///
    /// # Errors
    /// What a message to or from a neighbour ends with, joining the ranks of a layer, bringing weights, or starting the exchange of
    /// a bucket.
    pub fn run(&mut self, mut through: Through<'_, T>, gradients: &mut dyn Gradients<T>) -> Result<Passage> {
        let doings = std::mem::take(&mut self.doings);
        let passage = self.passage(&doings, &mut through, gradients);
        self.doings = doings;
        passage
    }

    fn passage(
        &mut self,
        doings: &[Doing],
        through: &mut Through<'_, T>,
        gradients: &mut dyn Gradients<T>,
    ) -> Result<Passage> {
        self.hops.begin();
        let routed = self.workspace.routed_bytes();
        let (idle, spans) = (Duration::ZERO, Vec::new());
        let mut passage = Passage { loss: 0.0, idle, sent_bytes: 0, routed_bytes: 0, spans };
        let mut received = 0;
        for doing in doings {
            let action = match *doing {
                Doing::Compute(action) => action,
                Doing::Receive(_) => {
                    received += 1;
                    continue;
                }
                // It was started where its rows were made.
                Doing::Send(_) => continue,
            };
            if let Some(comm) = through.neighbours {
                self.hops.ask(comm, received)?;
            }
            if self.plan.source(action).is_some() {
                passage.idle(through.begun, || self.hops.wait(action))?;
            }
            let begun = Instant::now();
            let activity = match action.pass {
                Pass::Forward => {
                    passage.loss += self.forward(action, through)?;
                    Activity::Forward
                }
                Pass::Backward => {
                    self.backward(action, through, gradients)?;
                    Activity::Backward
                }
            };
            passage.spans.push(Span::new(activity, through.begun, begun, Instant::now()));
        }
        if through.neighbours.is_some() {
            passage.idle(through.begun, || self.hops.end())?;
        }
        passage.sent_bytes = self.hops.sent_bytes();
        passage.routed_bytes = self.workspace.routed_bytes() - routed;
        Ok(passage)
    }

    /// The stage's number on this rank, the room of what it keeps, and the micro-batch's tokens and targets.
    fn place<'a>(&self, action: Action, tokens: [&'a [u32]; 2]) -> (usize, usize, [&'a [u32]; 2]) {
        let chunk = action.stage / self.plan.ranks;
        let slot = self.slots[chunk * self.plan.micro_batches + action.micro];
        let own = action.micro * self.tokens..(action.micro + 1) * self.tokens;
        (chunk, slot, tokens.map(|tokens| &tokens[own.clone()]))
    }

    /// Returns the sum of the losses where the stage is the last.
    fn forward(&mut self, action: Action, through: &mut Through<'_, T>) -> Result<f64> {
        let (chunk, slot, [tokens, targets]) = self.place(action, through.tokens);
        let Pipeline { rooms, workspace, hops, plan, .. } = self;
        let (model, ranks, kept) = (through.model, through.ranks, &mut rooms[slot]);
        if plan.source(action).is_some() {
            hops.receive(action, kept.input_mut());
        }
        model.forward(chunk, (&mut *through.weights, ranks), tokens, kept, workspace)?;
        let Some(next) = plan.next(action) else { return model.loss(ranks, targets, kept) };
        hops.send(neighbours(through), next, kept.output())?;
        Ok(0.0)
    }

    fn backward(
        &mut self,
        action: Action,
        through: &mut Through<'_, T>,
        gradients: &mut dyn Gradients<T>,
    ) -> Result<()> {
        let (chunk, slot, [tokens, targets]) = self.place(action, through.tokens);
        let Pipeline { rooms, workspace, hops, plan, .. } = self;
        if plan.source(action).is_some() {
            hops.receive(action, workspace.gradient_mut());
        }
        let mut unfinished = Unfinished(gradients);
        let is_last = action.micro + 1 == plan.micro_batches;
        let gradients = if is_last { &mut *unfinished.0 } else { &mut unfinished as &mut dyn Gradients<T> };
        let (given, rooms) = ((tokens, targets, through.factor), (&mut rooms[slot], &mut *workspace));
        let Through { model, weights, ranks, .. } = &mut *through;
        model.backward(chunk, (&mut **weights, ranks), given, rooms, gradients)?;
        if let Some(next) = plan.next(action) {
            hops.send(neighbours(through), next, workspace.gradient_mut())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
