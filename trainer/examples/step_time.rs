//! How long a step takes on one rank, beside PyTorch's: the processor's time, the best of several.
//!
//! `cargo run --release -p consort-trainer --example step_time [WIDTH LAYERS HEADS HIDDEN SEQUENCE BATCH STEPS]`; then
//! `trainer/scripts/step-time.py` with the same numbers.

use std::error::Error;

use consort_trainer::model::{Model, Ranks, Shape};
use consort_trainer::optimizer::{AdamW, Moments, Portion, clipping, square_norm};
use consort_trainer::parameters::{Local, Present, Values};
use consort_trainer::text::{Text, VOCABULARY};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};

/// Milliseconds that this process has computed.
fn now() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("every process has this clock");
    time.num_microseconds() as f64 / 1e3
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = [256, 4, 4, 1024, 256, 8, 8];
    for (number, text) in numbers.iter_mut().zip(std::env::args().skip(1)) {
        *number = text.parse()?;
    }
    let [width, layers, heads, hidden, sequence, batch, steps] = numbers;
    let shape = Shape {
        vocabulary: VOCABULARY,
        width,
        layers,
        heads,
        kv_heads: heads,
        hidden,
        sequence,
        experts: None,
        tied: false,
        rope_base: 10_000.0,
        norm_epsilon: 1e-5,
    };
    let model = Model::<f32>::new(shape, 1 << 18)?;
    let (layout, text) = (model.layout(), Text::bundled(sequence)?);
    let (mut weights, mut gradients) = (Values::begin(layout, 1)?, Values::zeros(layout)?);
    let (mut kept, mut room) = (model.activations(0, batch), model.workspace(batch));
    let (mut moments, alone) = (Moments::new(layout, Portion::WHOLE)?, Ranks::alone(sequence));
    let mut best = [f64::INFINITY; 4];
    for step in 0..steps {
        let data = text.batch(1, step, 0..batch, sequence);
        let begun = now();
        gradients.buckets_mut().for_each(|bucket| bucket.fill(0.0));
        let mut present = Present::new(layout, &weights);
        model.forward(0, (&mut present, &alone), &data.tokens, &mut kept, &mut room)?;
        model.loss(&alone, &data.targets, &mut kept)?;
        let forward = now();
        let mut local = Local::new(layout, &mut gradients, alone.tensor);
        let given = (&data.tokens[..], &data.targets[..], 1.0 / data.tokens.len() as f32);
        model.backward(0, (&mut present, &alone), given, (&mut kept, &mut room), &mut local)?;
        let backward = now();
        let norm = square_norm(layout, Portion::WHOLE, 0, |bucket| gradients.bucket(bucket)).sqrt();
        let mut update = moments.step(&AdamW::default(), 1e-3, clipping(norm, 1.0));
        for bucket in 0..layout.buckets() {
            update.bucket(layout, bucket, weights.bucket_mut(bucket), gradients.bucket(bucket));
        }
        let end = now();
        let times = [forward - begun, backward - forward, end - backward, end - begun];
        best.iter_mut().zip(times).for_each(|(best, time)| *best = best.min(time));
    }
    let operations = shape.operations_per_token() * (batch * sequence) as f64;
    println!(
        "best of {steps}: forward {:.1} ms, backward {:.1} ms, optimizer {:.1} ms, step {:.1} ms: {:.0} GFLOP/s",
        best[0],
        best[1],
        best[2],
        best[3],
        operations / best[3] / 1e6
    );
    Ok(())
}
