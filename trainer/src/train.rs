//! One rank's training: steps over a text, what they took, and the loss on what is held out.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use consort::{Communicator, ReduceOp};

use crate::error::{Error, Result};
use crate::mesh::{Degrees, Mesh};
use crate::model::{Activations, Cut, Model, Shape, Workspace};
use crate::number::Number;
use crate::optimizer::{AdamW, Moments, Schedule, Share, clipping, square_norm};
use crate::parallel::data::{Exchange, exchange, share};
use crate::parallel::tensor::Tensor;
use crate::parallel::whole::gather;
use crate::parameters::{Gradients, Layout, Local, Parameter, Present, Unfinished, Values};
use crate::text::{Batch, Text};
use crate::timeline::{Activity, Span};

/// What a run is: equal on all ranks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Run {
    /// The model.
    pub shape: Shape,
    /// How the ranks share the work.
    pub degrees: Degrees,
    /// Sequences of a step, over all ranks.
    pub batch: usize,
    /// Parts of a rank's sequences that go through the model one after the other.
    pub micro_batches: usize,
    /// Bytes at which a bucket of gradients is closed.
    pub bucket_bytes: usize,
    /// How parameters change.
    pub adamw: AdamW,
    /// How fast.
    pub schedule: Schedule,
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
        let Degrees { data, tensor, shares_tokens, .. } = self.degrees;
        self.degrees.check(ranks)?;
        self.cut(0).check(&self.shape)?;
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
        } else if shares_tokens && !self.shape.sequence.is_multiple_of(tensor) {
            let sequence = self.shape.sequence;
            Some((
                format!("{sequence} tokens of a sequence are not shared evenly by {tensor} tensor ranks"),
                "make --sequence a multiple of --tp",
            ))
        } else {
            None
        };
        fault.map_or(Ok(()), |(what, hint)| Err(Error::configuration(what, hint)))
    }

    /// What of the model the rank with this number has.
    fn cut(&self, rank: u32) -> Cut {
        let (degrees, place) = (self.degrees, self.degrees.place(rank));
        Cut {
            tensor: place.tensor,
            tensors: degrees.tensor,
            shares_tokens: degrees.shares_tokens && degrees.tensor > 1,
            replicas: degrees.data * degrees.context,
            ..Cut::whole(&self.shape)
        }
    }
}

/// Ranks that were given other options or another text would train apart without a word: all of them have the error.
fn agree<T: Number>(run: &Run, text: &Text, comm: &Communicator) -> Result<()> {
    let mut hasher = DefaultHasher::new();
    (format!("{run:?}"), size_of::<T>(), text).hash(&mut hasher);
    let mut all = vec![0u64; comm.size() as usize];
    comm.all_gather(&[hasher.finish()], &mut all)?;
    match all.iter().position(|word| *word != all[0]) {
        None => Ok(()),
        Some(rank) => Err(Error::configuration(
            format!("rank {rank} has other options or another text than rank 0"),
            "start all ranks with the same arguments, file and program",
        )),
    }
}

/// The names of what a rank has between two steps.
const STATE: [&str; 3] = ["weights", "mean", "square"];

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
    /// What this rank computed when.
    pub computed: Vec<Span>,
}

impl Step {
    /// All that this rank did, and when.
    pub fn spans(&self) -> Vec<Span> {
        [&self.computed, &self.exchange.spans[..]].concat()
    }
}

/// A rank that trains.
pub struct Trainer<'a, T: Number> {
    run: Run,
    text: &'a Text,
    mesh: Mesh<'a>,
    model: Model<T>,
    weights: Values<T>,
    gradients: Values<T>,
    moments: Moments<T>,
    /// This rank's sequences of each batch, and those that go through the model at once.
    share: std::ops::Range<usize>,
    at_once: usize,
    activations: Activations<T>,
    workspace: Workspace<T>,
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
            agree::<T>(&run, text, comm)?;
        }
        run.check(size)?;
        let mesh = Mesh::new(run.degrees, comm)?;
        let share = share(run.batch, mesh.place().data, run.degrees.data);
        let at_once = share.len() / run.micro_batches;
        let model = Model::cut(run.shape, run.bucket_bytes / size_of::<T>(), run.cut(rank))?;
        let layout = model.layout();
        Ok(Trainer {
            weights: Values::begin(layout, run.seed)?,
            gradients: Values::zeros(layout)?,
            moments: Moments::new(layout)?,
            activations: model.activations(0, at_once),
            workspace: model.workspace(at_once),
            run,
            text,
            mesh,
            model,
            share,
            at_once,
            steps: 0,
        })
    }

    /// The model, as far as this rank has it.
    pub fn model(&self) -> &Model<T> {
        &self.model
    }

    /// The parameters that this rank has.
    pub fn weights(&self) -> &Values<T> {
        &self.weights
    }

    /// The parameters, to be changed before the first step. All ranks must change them alike.
    pub fn weights_mut(&mut self) -> &mut Values<T> {
        &mut self.weights
    }

    /// The gradients of the last step: summed over the ranks, and not clipped.
    pub fn gradients(&self) -> &Values<T> {
        &self.gradients
    }

    /// What all ranks of the run have alike.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// What it is trained on.
    pub fn text(&self) -> &'a Text {
        self.text
    }

    /// The ranks.
    pub fn mesh(&self) -> &Mesh<'a> {
        &self.mesh
    }

    /// The steps that were taken.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// What is this rank's of each bucket, where the ranks with the same parameters share them.
    pub fn share_of_buckets(&self) -> Share {
        let (place, Degrees { data, context, .. }) = (self.mesh.place(), self.mesh.degrees());
        Share { rank: place.data * context + place.context, ranks: data * context }
    }

    /// What it has between two steps, each with its name: with the number of steps, all that the next one depends on.
    pub fn state(&self) -> [(&'static str, &Values<T>); 3] {
        let [mean, square] = self.moments.values();
        [(STATE[0], &self.weights), (STATE[1], mean), (STATE[2], square)]
    }

    /// Goes on after `steps` steps that this run or another one has taken, with what `fill` gives of each parameter of the
    /// [state](Trainer::state), by the state's name.
    ///
    /// # Errors
    /// What `fill` ends with: the trainer is of no use then.
    pub fn resume(
        &mut self,
        steps: usize,
        mut fill: impl FnMut(&'static str, &Parameter, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        let layout = self.model.layout();
        let [mean, square] = self.moments.resume(steps);
        for (name, values) in STATE.into_iter().zip([&mut self.weights, mean, square]) {
            for (id, parameter) in layout.parameters() {
                fill(name, parameter, values.of_mut(layout, id))?;
            }
        }
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
        let data = self.text.batch(seed, number, self.share.clone(), shape.sequence);
        let tokens = batch * shape.sequence;

        self.gradients.buckets_mut().for_each(|bucket| bucket.fill(T::ZERO));
        let (own, exchange, mut computed) = self.exchange(&data, T::of(1.0 / tokens as f64), begun)?;
        let place = self.mesh.place();
        let share = self.share_of_buckets();
        // The loss is the same on all ranks of a layer: the first says it.
        let own = if place.tensor == 0 { own } else { 0.0 };
        let squares = square_norm(self.model.layout(), &self.gradients, share, place.tensor);
        let mut totals = [own, squares];
        if let Some(world) = self.mesh.world() {
            world.all_reduce(&mut totals, ReduceOp::Sum)?;
        }
        let exchanged = Instant::now();
        let (loss, norm) = (totals[0] / tokens as f64, totals[1].sqrt());
        // Both are the same bits on all ranks, so all ranks end here or none does.
        for (quantity, value) in [("the loss", loss), ("the gradient's norm", norm)] {
            if !value.is_finite() {
                return Err(Error::Diverged { step: number + 1, quantity, value });
            }
        }
        let rate = schedule.at(number);
        let values = (&mut self.weights, &self.gradients);
        self.moments.step(&adamw, self.model.layout(), values, rate, clipping(norm, clip));
        self.steps += 1;
        let end = Instant::now();
        computed.push(Span::new(Activity::Optimizer, begun, exchanged, end));
        Ok(Step { loss, norm, rate, tokens, elapsed: end - begun, exchange, computed })
    }

    /// This rank's share of the loss and the gradients, summed over the ranks that have the same parameters, and when what was
    /// computed.
    fn exchange(&mut self, data: &Batch, factor: T, step: Instant) -> Result<(f64, Exchange, Vec<Span>)> {
        let Trainer { model, weights, gradients, activations, workspace, mesh, at_once, .. } = self;
        let ranks = Tensor::new(mesh.tensor(), mesh.degrees().shares_tokens);
        let layout = model.layout();
        let mut computed = Vec::new();
        let mut pass = |gradients: &mut dyn Gradients<T>| -> Result<f64> {
            let mut loss = 0.0;
            let tokens = *at_once * model.shape().sequence;
            let mut parts = data.tokens.chunks(tokens).zip(data.targets.chunks(tokens)).peekable();
            while let Some((tokens, targets)) = parts.next() {
                let begun = Instant::now();
                let mut present = Present::new(layout, weights);
                model.forward(0, (&mut present, &ranks), tokens, activations, workspace)?;
                loss += model.loss(&ranks, targets, activations)?;
                let forward = Instant::now();
                let mut unfinished = Unfinished(gradients);
                let is_last = parts.peek().is_none();
                let gradients =
                    if is_last { &mut *unfinished.0 } else { &mut unfinished as &mut dyn Gradients<T> };
                let (given, rooms) = ((tokens, targets, factor), (&mut *activations, &mut *workspace));
                model.backward(0, (&mut present, &ranks), given, rooms, gradients)?;
                computed.push(Span::new(Activity::Forward, step, begun, forward));
                computed.push(Span::new(Activity::Backward, step, forward, Instant::now()));
            }
            Ok(loss)
        };
        let (loss, exchange) = match mesh.replicas() {
            None => (pass(&mut Local::new(layout, gradients, ranks))?, Exchange::default()),
            Some(comm) => {
                let mut loss = 0.0;
                let exchange = exchange((comm, ranks), layout, gradients, step, |sums| {
                    loss = pass(sums)?;
                    Ok(())
                })?;
                (loss, exchange)
            }
        };
        Ok((loss, exchange, computed))
    }

    /// What is left of it when its ranks cannot go on together.
    pub fn keep(self) -> Kept<T> {
        let layout = self.model.layout().clone();
        Kept { layout, weights: self.weights, moments: self.moments, steps: self.steps }
    }

    /// The whole model with all of its parameters, on rank 0. All ranks call it.
    ///
    /// # Errors
    /// [`Error::Memory`]; [`Error::Library`].
    pub fn whole(&self) -> Result<Option<Whole<T>>> {
        let model = Model::new(self.run.shape, self.run.bucket_bytes / size_of::<T>())?;
        let weights = gather(&self.mesh, self.model.layout(), &self.weights, model.layout())?;
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

    /// The state `state`, by the names of [`Trainer::state`], of the parameter with this name.
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

/// A model with all of its parameters.
pub struct Whole<T: Number> {
    /// The model.
    pub model: Model<T>,
    /// The parameters.
    pub weights: Values<T>,
}

impl<T: Number> Whole<T> {
    /// The mean loss of the tokens of `text` that are held out, in nats.
    ///
    /// # Errors
    /// None that a model with all of its parameters has.
    pub fn held_out_loss(&self, text: &Text) -> Result<f64> {
        let sequence = self.model.shape().sequence;
        let (mut kept, mut room) = (self.model.activations(0, 1), self.model.workspace(1));
        let count = text.held_out_sequences(sequence);
        let mut sum = 0.0;
        for index in 0..count {
            let data = text.held_out(index, sequence);
            let ranks = Tensor::default();
            let mut present = Present::new(self.model.layout(), &self.weights);
            self.model.forward(0, (&mut present, &ranks), &data.tokens, &mut kept, &mut room)?;
            sum += self.model.loss(&ranks, &data.targets, &mut kept)?;
        }
        Ok(sum / (count * sequence) as f64)
    }
}
