//! One rank's training: steps over a text, what they took, and the loss on what is held out.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use consort::{Communicator, ReduceOp};

use crate::error::{Error, Result};
use crate::model::{Activations, Model, Shape};
use crate::number::Number;
use crate::optimizer::{AdamW, Moments, Schedule, clipping, square_norm};
use crate::parallel::data::{Exchange, exchange, share};
use crate::parameters::{Local, Values};
use crate::text::Text;
use crate::timeline::{Activity, Span};

/// What a run is: equal on all ranks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Run {
    /// The model.
    pub shape: Shape,
    /// Sequences of a step, over all ranks.
    pub batch: usize,
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
    /// Whether a job of this many ranks can share its batches.
    ///
    /// # Errors
    /// [`Error::Configuration`] where there are fewer sequences than ranks.
    pub fn check(&self, ranks: u32) -> Result<()> {
        if self.batch >= ranks as usize {
            return Ok(());
        }
        Err(Error::configuration(
            format!("{} sequences a step are fewer than {ranks} ranks", self.batch),
            "give --batch at least one sequence for each rank",
        ))
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
    pub computed: [Span; 3],
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
    /// `None` for a rank that is alone.
    comm: Option<&'a Communicator>,
    model: Model<T>,
    weights: Values<T>,
    gradients: Values<T>,
    moments: Moments<T>,
    activations: Activations<T>,
    /// This rank's sequences of each batch.
    share: std::ops::Range<usize>,
    steps: usize,
}

impl<'a, T: Number> Trainer<'a, T> {
    /// A rank of `comm`, before the first step.
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
        let share = share(run.batch, rank, size);
        let model = Model::new(run.shape, run.bucket_bytes / size_of::<T>())?;
        let layout = model.layout();
        Ok(Trainer {
            weights: Values::begin(layout, run.seed)?,
            gradients: Values::zeros(layout)?,
            moments: Moments::new(layout)?,
            activations: Activations::new(&run.shape, share.len()),
            run,
            text,
            comm,
            model,
            share,
            steps: 0,
        })
    }

    /// The model.
    pub fn model(&self) -> &Model<T> {
        &self.model
    }

    /// The parameters.
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
        self.model.forward(&self.weights, &data.tokens, &mut self.activations);
        let own = self.model.loss(&data.targets, &mut self.activations);
        let forward = Instant::now();
        let (exchange, backward) =
            self.backward((&data.tokens, &data.targets), T::of(1.0 / tokens as f64), begun)?;
        let mut total = [own];
        if let Some(comm) = self.comm {
            comm.all_reduce(&mut total, ReduceOp::Sum)?;
        }
        let exchanged = Instant::now();
        let loss = total[0] / tokens as f64;
        let norm = square_norm(self.model.layout(), &self.gradients).sqrt();
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
        let computed = [
            Span::new(Activity::Forward, begun, begun, forward),
            Span::new(Activity::Backward, begun, forward, backward),
            Span::new(Activity::Optimizer, begun, exchanged, end),
        ];
        Ok(Step { loss, norm, rate, tokens, elapsed: end - begun, exchange, computed })
    }

    /// The gradients, and when this rank's own were ready.
    fn backward(&mut self, data: (&[u32], &[u32]), factor: T, step: Instant) -> Result<(Exchange, Instant)> {
        let Trainer { model, weights, gradients, activations, .. } = self;
        let layout = model.layout();
        let Some(comm) = self.comm else {
            let mut local = Local::new(layout, gradients);
            model.backward(weights, data, factor, activations, &mut local)?;
            return Ok((Exchange::default(), Instant::now()));
        };
        let mut end = step;
        let exchange = exchange(comm, layout, gradients, step, |sums| {
            model.backward(weights, data, factor, activations, sums)?;
            end = Instant::now();
            Ok(())
        })?;
        Ok((exchange, end))
    }

    /// The mean loss of the tokens that are held out, in nats. Every rank computes all of it, without the others.
    pub fn held_out_loss(&self) -> f64 {
        let sequence = self.run.shape.sequence;
        let mut activations = Activations::new(&self.run.shape, 1);
        let count = self.text.held_out_sequences(sequence);
        let losses = (0..count).map(|index| {
            let data = self.text.held_out(index, sequence);
            self.model.forward(&self.weights, &data.tokens, &mut activations);
            self.model.loss(&data.targets, &mut activations)
        });
        losses.sum::<f64>() / (count * sequence) as f64
    }
}
