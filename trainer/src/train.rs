//! One rank's training: steps over a text, what they took, and the loss on what is held out.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::time::{Duration, Instant};

use consort::experts::ExpertOptions;
use consort::{Communicator, ReduceOp};

use crate::error::{Error, Result};
use crate::layers::ring::{Ring, positions};
use crate::mesh::{CONTEXT, Degrees, EXPERTS, Mesh, PIPELINE, Place, REPLICAS, TENSOR};
use crate::model::{Cut, Experts, Model, Ranks, Shape, Workspace};
use crate::number::Number;
use crate::optimizer::{AdamW, Balance, Moments, Portion, Schedule, Share, clipping};
use crate::parallel::data::{Exchange, Replicas, share};
use crate::parallel::pipeline::{Order, Passage, Pipeline, Plan, Through};
use crate::parallel::replica::{Gathered, Memory, Replica, STATE};
use crate::parallel::whole::gather;
use crate::parallel::zero::Zero;
use crate::parameters::{Gradients, Layout, Parameter, Present, Values, Weights};
use crate::products::Products;
use crate::ranks::{Account, Overlap, Tensor};
use crate::routes::Routes;
use crate::text::{Batch, Text};
use crate::timeline::{Activity, Span};

/// What a run is: equal on all ranks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Run {
    /// The model.
    pub shape: Shape,
    /// What linear layers multiply.
    pub products: Products,
    /// How the ranks share the work.
    pub degrees: Degrees,
    /// Of what the ranks that have the same parameters keep shares.
    pub zero: Zero,
    /// Sequences of a step, over all ranks.
    pub batch: usize,
    /// Parts of a rank's sequences that go through the model one after the other.
    pub micro_batches: usize,
    /// In which order these go through the stages of a pipeline.
    pub order: Order,
    /// Bytes at which a bucket of gradients is closed.
    pub bucket_bytes: usize,
    /// Whether exchanges go on beside what is computed.
    pub overlap: Overlap,
    /// How parameters change.
    pub adamw: AdamW,
    /// How fast.
    pub schedule: Schedule,
    /// How fast the biases of experts follow their load: [`Balance::rate`].
    pub balance: f64,
    /// The largest norm of a gradient; 0 is no bound.
    pub clip: f64,
    /// From which the parameters' beginning and the order of the text follow.
    pub seed: u64,
}

impl Run {
    /// Whether a job of this many ranks can share its model and its batches.
    ///
    /// # Errors
    /// [`Error::Configuration`] with the numbers that do not fit each other.
    pub fn check(&self, ranks: u32) -> Result<()> {
        let Degrees { data, context, tensor, shares_tokens, .. } = self.degrees;
        self.degrees.check(ranks)?;
        self.shape.check()?;
        let widest = self.shape.width.saturating_add(self.shape.hidden).saturating_add(self.shape.vocabulary);
        let lengths = [self.batch, self.shape.sequence, widest, self.shape.layers, 64];
        if lengths
            .iter()
            .try_fold(1isize, |all, length| all.checked_mul(isize::try_from(*length).ok()?))
            .is_none()
        {
            return Err(Error::configuration(
                format!(
                    "{} sequences of {} tokens have more activations than can be counted",
                    self.batch, self.shape.sequence
                ),
                "give a smaller --batch, --sequence, --width or --layers",
            ));
        }
        let plan = self.plan();
        plan.check()?;
        let (stages, layers) = (plan.stages(), self.shape.layers);
        if stages > layers {
            return Err(Error::configuration(
                format!("a pipeline of {stages} stages has more than the {layers} blocks of the model"),
                "give a model of more --layers, or a shorter --pp, or fewer --chunks",
            ));
        }
        self.cut(0).check(&self.shape)?;
        positions(self.shape.sequence, 0, context as u32)?;
        let (batch, parts) = (self.batch, self.micro_batches);
        let fault = if batch < data {
            Some((
                format!("{batch} sequences a step are fewer than {data} ranks that share them"),
                "give --batch at least one sequence for each rank of --dp",
            ))
        } else if parts == 0 || (parts > 1 && !batch.is_multiple_of(data * parts)) {
            Some((
                format!("{batch} sequences of {data} ranks are not {parts} equal parts on each"),
                "make --batch a multiple of --dp times --micro-batches",
            ))
        } else if shares_tokens && tensor == 1 {
            Some((
                "tokens are shared by tensor ranks, and there is one".into(),
                "give --tp, or leave --sp out",
            ))
        } else if self.shape.tied && self.degrees.pipeline > 1 && self.zero != Zero::Nothing {
            Some((
                "two ranks of the pipeline have the embedding, and shares by --zero are of what one has"
                    .into(),
                "leave out --zero, --tied or --pp",
            ))
        } else if self.zero != Zero::Nothing && ranks > 1 && data * context == 1 {
            Some((
                format!("{ranks} ranks have no parameters in common that they could share by --zero"),
                "give --dp or --cp more than one rank, or leave --zero out",
            ))
        } else if shares_tokens && !(self.shape.sequence / context).is_multiple_of(tensor) {
            let sequence = self.shape.sequence / context;
            Some((
                format!(
                    "{sequence} tokens of a sequence on a rank are not shared evenly by {tensor} tensor ranks"
                ),
                "make --sequence a multiple of --tp times --cp",
            ))
        } else {
            None
        };
        fault.map_or(Ok(()), |(what, hint)| Err(Error::configuration(what, hint)))
    }

    /// What of the model the rank with this number has.
    pub(crate) fn cut(&self, rank: u32) -> Cut {
        let (degrees, place, plan) = (self.degrees, self.degrees.place(rank), self.plan());
        let (all, layers) = (plan.stages(), self.shape.layers);
        let own = (place.pipeline..all).step_by(degrees.pipeline);
        let stages = own.map(|stage| layers * stage / all..layers * (stage + 1) / all).collect();
        Cut {
            tensor: place.tensor,
            tensors: degrees.tensor,
            shares_tokens: degrees.shares_tokens && degrees.tensor > 1,
            contexts: degrees.context,
            expert: place.data % degrees.expert,
            experts: degrees.expert,
            replicas: degrees.data * degrees.context,
            stages,
        }
    }

    /// How the micro-batches go through the pipeline.
    fn plan(&self) -> Plan {
        Plan { order: self.order, ranks: self.degrees.pipeline, micro_batches: self.micro_batches }
    }
}

/// A number that is another one for other options or another text.
pub fn fingerprint<T: Number>(run: &Run, text: &Text) -> u64 {
    let mut hasher = DefaultHasher::new();
    (format!("{run:?}"), size_of::<T>(), text).hash(&mut hasher);
    hasher.finish()
}

/// Ranks that were given other options or another text, and so have another `word`, would train apart or wait for each other without a
/// word: all of them have the error.
pub(crate) fn agree(word: u64, comm: &Communicator) -> Result<()> {
    let mut all = vec![0u64; comm.size() as usize];
    comm.all_gather(&[word], &mut all)?;
    match all.iter().position(|word| *word != all[0]) {
        None => Ok(()),
        Some(rank) => Err(Error::configuration(
            format!("rank {rank} has other options or another text than rank 0"),
            "start all ranks with the same arguments, file and program",
        )),
    }
}

/// Bytes by the names of axes.
pub type ByAxis = Vec<(&'static str, usize)>;

/// What a step came to.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// The mean loss of the tokens of all ranks before the step, in nats.
    pub loss: f64,
    /// The gradient's norm before clipping.
    pub norm: f64,
    /// The rate.
    pub rate: f64,
    /// Tokens of all ranks.
    pub tokens: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// How the gradients were exchanged.
    pub exchange: Exchange,
    /// The time that this rank waited for other stages: for rows of its neighbours, and at the end.
    pub idle: Duration,
    /// The bytes that this rank sent along each axis along which there are other ranks: rows of a pipeline, keys and the rows of experts
    /// as they were, sums and gathers as where the ranks are in a ring. Gathers of weights are those since the sums of the last step.
    pub sent: ByAxis,
    /// What this rank computed when, and when it was idle.
    pub computed: Vec<Span>,
}

impl Step {
    /// All that this rank did, and when.
    pub fn spans(&self) -> Vec<Span> {
        [&self.computed, &self.exchange.spans[..]].concat()
    }

    /// The bytes that this rank sent along an axis, by the names in [`Step::sent`].
    pub fn sent_along(&self, axis: &str) -> usize {
        self.sent.iter().filter(|(name, _)| *name == axis).map(|(_, bytes)| bytes).sum()
    }
}

/// A rank that trains.
pub struct Trainer<'a, T: Number> {
    run: Run,
    text: &'a Text,
    mesh: Mesh<'a>,
    model: Model<T>,
    replica: Replica<T>,
    /// This rank's sequences of each batch.
    share: Range<usize>,
    /// Its tokens of each sequence.
    positions: Vec<usize>,
    pipeline: Pipeline<T>,
    steps: usize,
}

impl<'a, T: Number> Trainer<'a, T> {
    /// A rank of `comm`, `None` for one that is alone, before the first step.
    ///
    /// # Errors
    /// [`Error::Configuration`] for lengths that do not fit, fewer sequences than ranks, or ranks with other options or another text;
    /// [`Error::Memory`]; [`Error::Library`].
    pub fn new(run: Run, text: &'a Text, comm: Option<&'a Communicator>) -> Result<Self> {
        let (rank, size) = comm.map_or((0, 1), |comm| (comm.rank(), comm.size()));
        if let Some(comm) = comm {
            agree(fingerprint::<T>(&run, text), comm)?;
        }
        run.check(size)?;
        let mesh = Mesh::new(run.degrees, comm)?;
        let share = share(run.batch, mesh.place().data, run.degrees.data);
        let at_once = share.len() / run.micro_batches;
        let model = Model::cut(run.shape, run.bucket_bytes / size_of::<T>(), run.cut(rank))?;
        let model = model.with_products(run.products);
        let Degrees { data, context, .. } = run.degrees;
        let Place { data: rank_of_data, context: rank_of_context, .. } = mesh.place();
        let of = |rank: usize, ranks: usize| Share {
            rank: rank * context + rank_of_context,
            ranks: ranks * context,
        };
        let expert = run.degrees.expert;
        let portion =
            Portion { all: of(rank_of_data, data), experts: of(rank_of_data / expert, data / expert) };
        let tokens = run.batch.div_ceil(data) / run.micro_batches * (run.shape.sequence / context)
            / model.lengths().sharers;
        let routes = run.shape.experts.map(|_| routes(&run.shape, mesh.experts(), tokens)).transpose()?;
        Ok(Trainer {
            replica: Replica::new(model.layout(), run.seed, (run.zero, run.overlap), portion)?,
            pipeline: Pipeline::new(&model, run.plan(), mesh.place().pipeline, at_once, routes),
            run,
            text,
            model,
            share,
            positions: positions(
                run.shape.sequence,
                mesh.place().context as u32,
                run.degrees.context as u32,
            )?,
            mesh,
            steps: 0,
        })
    }

    /// This rank and the others.
    pub fn mesh(&self) -> &Mesh<'a> {
        &self.mesh
    }

    /// The model, as far as this rank has it.
    pub fn model(&self) -> &Model<T> {
        &self.model
    }

    /// All elements of the parameters that this rank computes with. All ranks call it.
    ///
    /// # Errors
    /// [`Error::Memory`]; [`Error::Library`].
    pub fn weights(&mut self) -> Result<Gathered<'_, T>> {
        self.replica.weights(Replicas::new(&self.mesh), self.model.layout())
    }

    /// The parameters, to be changed before the first step, on all ranks alike, and the gradients of the last: summed over the
    /// ranks, and not clipped. `None` where this rank has its share alone.
    pub fn all_mut(&mut self) -> Option<(&mut Values<T>, &Values<T>)> {
        self.replica.all_mut()
    }

    /// What parameters, gradients and moments take of this rank's memory.
    pub fn memory(&self) -> Memory {
        self.replica.memory()
    }

    /// What all ranks of the run have alike.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// What it is trained on.
    pub fn text(&self) -> &'a Text {
        self.text
    }

    /// The steps that were taken.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Shows `each` what of the state between two steps this rank saves: the [state](STATE)'s name, the parameter, which of the
    /// elements that this rank has of it, and these. Together all ranks show every element of the whole model once.
    ///
    /// # Errors
    /// [`Error::Library`] where weights were still on their way.
    pub fn state(
        &mut self,
        mut each: impl FnMut(&'static str, &Parameter, Range<usize>, &[T]),
    ) -> Result<()> {
        let tensor = self.mesh.place().tensor;
        self.replica.state(self.model.layout(), |state, parameter, elements, values| {
            if parameter.is_counted(tensor) {
                each(state, parameter, elements, values);
            }
        })
    }

    /// Goes on after `steps` steps that this run or another one has taken, with what `fill` writes of each parameter: it is
    /// given the [state](STATE)'s name, the parameter, which of the elements that this rank has of it are wanted, and their place.
    ///
    /// # Errors
    /// What `fill` ends with, and [`Error::Library`]: the trainer is of no use then.
    pub fn resume(
        &mut self,
        steps: usize,
        fill: impl FnMut(&'static str, &Parameter, Range<usize>, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        self.replica.resume(self.model.layout(), steps, fill)?;
        self.steps = steps;
        Ok(())
    }

    /// Takes the next step.
    ///
    /// # Errors
    /// [`Error::Diverged`] when the loss or the norm is no number, on all ranks alike; [`Error::Library`].
    pub fn step(&mut self) -> Result<Step> {
        let begun = Instant::now();
        let Run { shape, batch, seed, clip, adamw, schedule, .. } = self.run;
        let number = self.steps;
        let whole = self.text.batch(seed, number, self.share.clone(), shape.sequence);
        let data = whole.at(shape.sequence, &self.positions);
        let tokens = batch * shape.sequence;

        let (passage, mut exchange, sent) = self.exchange(&data, T::of(1.0 / tokens as f64), begun)?;
        let place = self.mesh.place();
        let Passage { loss: own, mut idle, spans: mut computed, .. } = passage;
        // The loss is the same on all ranks of a layer: the first says it.
        let own = if place.tensor == 0 { own } else { 0.0 };
        let squares = self.replica.square_norm(self.model.layout(), place.tensor);
        let mut totals = [own, squares];
        let summed = Instant::now();
        if let Some(world) = self.mesh.world() {
            world.all_reduce(&mut totals, ReduceOp::Sum)?;
        }
        let exchanged = Instant::now();
        if self.mesh.pipeline().is_some() {
            // Here a rank waits for the stages that are the last to end.
            idle += exchanged - summed;
            computed.push(Span::new(Activity::Idle, begun, summed, exchanged));
        } else if self.mesh.world().is_some() {
            exchange.exposed += exchanged - summed;
        }
        let (loss, norm) = (totals[0] / tokens as f64, totals[1].sqrt());
        // Both are the same bits on all ranks, so all ranks end here or none does.
        for (quantity, value) in [("the loss", loss), ("the gradient's norm", norm)] {
            if !value.is_finite() {
                return Err(Error::Diverged { step: number + 1, quantity, value });
            }
        }
        let rate = schedule.at(number);
        let (ranks, layout) = (Replicas::new(&self.mesh), self.model.layout());
        let balance = Balance { rate: self.run.balance, tokens };
        let factors = (rate, clipping(norm, clip), balance);
        self.replica.update(ranks, layout, &adamw, factors, (begun, &mut exchange))?;
        self.steps += 1;
        let end = Instant::now();
        computed.push(Span::new(Activity::Optimizer, begun, exchanged, end));
        Ok(Step { loss, norm, rate, tokens, elapsed: end - begun, exchange, idle, sent, computed })
    }

    /// This rank's way through its stages, and its gradients summed over the ranks that have the same parameters; and what it sent.
    fn exchange(&mut self, data: &Batch, factor: T, step: Instant) -> Result<(Passage, Exchange, ByAxis)> {
        let Trainer { model, replica, pipeline, mesh, run, .. } = self;
        let [of_tensor, of_ring, of_routes] = [(); 3].map(|()| Account::default());
        let tensor = Tensor::new(mesh.tensor()).overlapping(run.overlap).counted(&of_tensor);
        let ring = Ring::new(mesh.context(), model.shape().sequence)?;
        let ring = ring.overlapping(run.overlap).counted(&of_ring);
        let ranks = Ranks { tensor, ring, routed: mesh.experts().map(|_| &of_routes) };
        let tokens = [&data.tokens[..], &data.targets[..]];
        let neighbours = mesh.pipeline();
        let (model, ranks, mut passage) = (&*model, &ranks, None);
        let mut exchange = replica.exchange(
            Replicas::new(mesh),
            (model.layout(), tensor),
            step,
            |weights: &mut dyn Weights<T>, gradients: &mut dyn Gradients<T>| {
                let through = Through { model, weights, ranks, neighbours, tokens, factor, begun: step };
                passage = Some(pipeline.run(through, gradients)?);
                Ok(())
            },
        )?;
        exchange.exposed += of_tensor.waited() + of_ring.waited() + of_routes.waited();
        let mut passage = passage.expect("it was run");
        if let Some(neighbours) = neighbours.filter(|_| model.shape().tied) {
            let mut sent = 0;
            passage.idle(step, || {
                sent = replica.join_twins(neighbours, model.layout())?;
                Ok(())
            })?;
            passage.sent_bytes += sent;
        }
        let sent = [
            (PIPELINE, passage.sent_bytes),
            (REPLICAS, exchange.sent),
            (EXPERTS, passage.routed_bytes),
            (CONTEXT, of_ring.sent()),
            (TENSOR, of_tensor.sent()),
        ];
        let sent = sent.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        Ok((passage, exchange, sent))
    }

    /// The largest load of an expert in the last step, over all blocks, as a multiple of the mean; `None` for a model without experts.
    /// All ranks call it, after a step.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn largest_load(&self) -> Result<Option<f64>> {
        let Run { shape, batch, .. } = self.run;
        let mut largest = [self.replica.largest_load(self.model.layout(), batch * shape.sequence)];
        if let Some(world) = self.mesh.world() {
            world.all_reduce(&mut largest, ReduceOp::Max)?;
        }
        Ok(shape.experts.map(|_| largest[0]))
    }

    /// What is left of it when its ranks cannot go on together; `None` where a rank has its share alone, or some of the experts.
    pub fn keep(self) -> Option<Kept<T>> {
        if self.run.degrees.expert > 1 {
            return None;
        }
        let layout = self.model.layout().clone();
        let (weights, moments) = self.replica.into_all()?;
        Some(Kept { layout, weights, moments, steps: self.steps })
    }

    /// The whole model with all of its parameters, on rank 0. All ranks call it.
    ///
    /// # Errors
    /// [`Error::Memory`]; [`Error::Library`].
    pub fn whole(&mut self) -> Result<Option<Whole<T>>> {
        let model = Model::new(self.run.shape, self.run.bucket_bytes / size_of::<T>())?;
        let model = model.with_products(self.run.products);
        let own = self.replica.weights(Replicas::new(&self.mesh), self.model.layout())?;
        let weights = gather(&self.mesh, self.model.layout(), &own, model.layout())?;
        Ok(weights.map(|weights| Whole { model, weights }))
    }
}

/// A trainer's state after its last whole step, without its ranks.
pub struct Kept<T: Number> {
    layout: Layout,
    weights: Values<T>,
    moments: Moments<T>,
    steps: usize,
}

impl<T: Number> Kept<T> {
    /// The steps that were taken.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// The state `state`, by the names in [`STATE`], of the parameter with this name.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(&self, state: &str, name: &str) -> &[T] {
        let [mean, square] = self.moments.values();
        let mut all = STATE.into_iter().zip([&self.weights, mean, square]);
        let (_, values) = all.find(|(name, _)| *name == state).expect("a state of a trainer");
        let mut named = self.layout.parameters().filter(|(_, parameter)| parameter.name == name);
        values.of(&self.layout, named.next().expect("a parameter of the model").0)
    }
}

/// The ways of at most `tokens` tokens to the experts that the ranks of `comm` share; `None` is a rank that has all.
fn routes<T: Number>(
    shape: &Shape,
    comm: Option<&Communicator>,
    tokens: usize,
) -> Result<Box<dyn Routes<T>>> {
    let Experts { count, top_k } = shape.experts.expect("a model with experts");
    let options = ExpertOptions::new(count as u32, shape.width, top_k, tokens);
    Ok(match comm {
        Some(comm) => T::routes(comm, options)?,
        None => T::routes(&Communicator::local(1)?[0], options)?,
    })
}

/// A model with all of its parameters.
pub struct Whole<T: Number> {
    /// The model.
    pub model: Model<T>,
    /// The parameters.
    pub weights: Values<T>,
}

impl<T: Number> Whole<T> {
    /// Room for one sequence.
    ///
    /// # Errors
    /// [`Error::Library`], where ways to experts are refused.
    pub fn workspace(&self) -> Result<Workspace<T>> {
        let shape = self.model.shape();
        let routes = shape.experts.map(|_| routes(shape, None, shape.sequence)).transpose()?;
        Ok(self.model.workspace(1).with_routes(routes))
    }

    /// The mean loss of the tokens of `text` that are held out, in nats.
    ///
    /// # Errors
    /// None that a model with all of its parameters has.
    pub fn held_out_loss(&self, text: &Text) -> Result<f64> {
        let sequence = self.model.shape().sequence;
        let (mut kept, mut room) = (self.model.activations(0, 1), self.workspace()?);
        let count = text.held_out_sequences(sequence);
        let mut sum = 0.0;
        for index in 0..count {
            let data = text.held_out(index, sequence);
            let ranks = Ranks::alone(sequence);
            let mut present = Present::new(self.model.layout(), &self.weights);
            self.model.forward(0, (&mut present, &ranks), &data.tokens, &mut kept, &mut room)?;
            sum += self.model.loss(&ranks, &data.targets, &mut kept)?;
        }
        Ok(sum / (count * sequence) as f64)
    }
}
