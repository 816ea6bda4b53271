//! What of a data-parallel step's communication should be exposed, by the planner's prices: with sums beside backward, and after it.
//!
//! `cargo run --release -p consort-trainer --example exposed -- TOPOLOGY [--batch 4 and other options of the trainer]`, with a topology
//! as `collbench plan` takes it, such as the file that `collbench probe -o` wrote; `--batch` is that of one rank. Backward runs here, alone, for the moments at which buckets are complete: medians of several steps, by the wall. Sums go one after the other, as
//! those of one communicator do, each for the price of the algorithm that the planner chooses. Absent: the core that sums take from
//! backward.

use std::error::Error;
use std::time::Instant;

use clap::Parser;
use consort::Options;
use consort::planning::{Collective, Planning, read_topology};
use consort_trainer::arguments::Arguments;
use consort_trainer::error::Result;
use consort_trainer::model::{Model, Ranks};
use consort_trainer::parameters::{Gradients, Layout, Local, ParameterId, Present, Values};
use consort_trainer::text::Text;

const STEPS: usize = 9;

/// Gradients of one rank, and when the last of each bucket was finished.
struct Watched<'a, G> {
    gradients: G,
    layout: &'a Layout,
    unfinished: Vec<usize>,
    /// Seconds since `begun`, by bucket.
    complete_s: Vec<f64>,
    begun: Instant,
}

impl<G: Gradients<f32>> Gradients<f32> for Watched<'_, G> {
    fn place(&mut self, id: ParameterId) -> &mut [f32] {
        self.gradients.place(id)
    }

    fn finished(&mut self, id: ParameterId) -> Result<()> {
        self.gradients.finished(id)?;
        let bucket = self.layout.bucket(id);
        self.unfinished[bucket] -= 1;
        if self.unfinished[bucket] == 0 {
            self.complete_s[bucket] = self.begun.elapsed().as_secs_f64();
        }
        Ok(())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The moments at which buckets are complete, and the end of backward: seconds from its beginning.
fn moments(model: &Model<f32>, sequences: usize) -> Result<(Vec<f64>, f64)> {
    let sequence = model.shape().sequence;
    let (layout, text) = (model.layout(), Text::bundled(sequence)?);
    let (weights, mut gradients) = (Values::begin(layout, 1)?, Values::zeros(layout)?);
    let (mut kept, mut room) = (model.activations(0, sequences), model.workspace(sequences));
    let alone = Ranks::alone(sequence);
    let (mut all, mut ends) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let data = text.batch(1, step, 0..sequences, sequence);
        gradients.buckets_mut().for_each(|bucket| bucket.fill(0.0));
        let mut present = Present::new(layout, &weights);
        model.forward(0, (&mut present, &alone), &data.tokens, &mut kept, &mut room)?;
        model.loss(&alone, &data.targets, &mut kept)?;
        let gradients = Local::new(layout, &mut gradients, alone.tensor);
        let (unfinished, begun) = (layout.members(), Instant::now());
        let complete_s = vec![0.0; layout.buckets()];
        let mut watched = Watched { gradients, layout, unfinished, complete_s, begun };
        let given = (&data.tokens[..], &data.targets[..], 1.0 / data.tokens.len() as f32);
        model.backward(0, (&mut present, &alone), given, (&mut kept, &mut room), &mut watched)?;
        ends.push(begun.elapsed().as_secs_f64());
        all.push(watched.complete_s);
    }
    let bucket = |bucket: usize| median(all.iter().map(|complete_s| complete_s[bucket]).collect());
    Ok(((0..layout.buckets()).map(bucket).collect(), median(ends)))
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let name = words.next().ok_or("the topology is missing: a name or a file, as collbench plan takes it")?;
    let arguments = Arguments::try_parse_from(std::iter::once("exposed".to_owned()).chain(words))?;
    let run = arguments.run(1, arguments.vocabulary()?.size())?;
    let model = Model::<f32>::new(run.shape, run.bucket_bytes / size_of::<f32>())?;
    let planning = Planning::for_topology(&read_topology(&name)?, &Options::default().topology(name))?;
    let (complete_s, end_s) = moments(&model, run.batch)?;
    let (mut free_s, mut together_s) = (0.0f64, 0.0);
    println!("bucket      KiB  complete ms   price ms     over ms");
    for (bucket, complete_s) in complete_s.iter().enumerate() {
        let bytes = (model.layout().bucket_elements(bucket) * size_of::<f32>()) as u64;
        let price_s =
            planning.price(planning.algorithm(Collective::AllReduce, bytes)?, Collective::AllReduce, bytes);
        free_s = free_s.max(*complete_s) + price_s;
        together_s += price_s;
        let ms = [*complete_s, price_s, free_s].map(|seconds| seconds * 1e3);
        println!("{bucket:>6} {:>8} {:>12.2} {:>10.2} {:>11.2}", bytes / 1024, ms[0], ms[1], ms[2]);
    }
    println!(
        "backward {:.2} ms; exposed communication {:.2} ms with sums beside it, {:.2} ms with sums behind it",
        end_s * 1e3,
        (free_s - end_s).max(0.0) * 1e3,
        together_s * 1e3
    );
    Ok(())
}
