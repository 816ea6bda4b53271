//! What tests of whole runs have in common.

use consort::{CallReport, Communicator, Options};
use consort_trainer::mesh::Degrees;
use consort_trainer::model::{Experts, Shape};
use consort_trainer::number::Number;
use consort_trainer::optimizer::{AdamW, Schedule};
use consort_trainer::parallel::pipeline::Order;
use consort_trainer::parallel::zero::Zero;
use consort_trainer::products::Products;
use consort_trainer::ranks::Overlap;
use consort_trainer::text::{Text, VOCABULARY};
use consort_trainer::train::{Run, Step, Trainer, Whole};

/// A small run of one rank.
pub(crate) fn run() -> Run {
    let shape = Shape {
        vocabulary: VOCABULARY,
        width: 32,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        hidden: 64,
        sequence: 32,
        experts: None,
        tied: false,
        rope_base: 10_000.0,
        norm_epsilon: 1e-5,
    };
    Run {
        shape,
        degrees: Degrees::default(),
        zero: Zero::Nothing,
        products: Products::Exact,
        micro_batches: 1,
        order: Order::default(),
        batch: 4,
        bucket_bytes: 16 << 10,
        overlap: Overlap::default(),
        adamw: AdamW::default(),
        schedule: Schedule { rate: 3e-3, least: 3e-4, warmup: 5, steps: 20 },
        balance: 1e-3,
        clip: 1.0,
        seed: 7,
    }
}

/// A rank's steps, its parameters at the end, and on rank 0 all parameters.
pub(crate) struct Trained<T> {
    pub(crate) steps: Vec<Step>,
    pub(crate) own: Vec<T>,
    pub(crate) whole: Vec<T>,
}

/// What each rank of a mesh trained.
pub(crate) fn trained<T: Number>(run: Run, steps: usize) -> Vec<Trained<T>> {
    trained_with(run, steps, &Options::default())
}

/// What each rank of a mesh trained, with options of the library.
pub(crate) fn trained_with<T: Number>(run: Run, steps: usize, options: &Options) -> Vec<Trained<T>> {
    let text = Text::bundled(run.shape.sequence).expect("text");
    let rank = |comm: Option<&Communicator>| {
        let mut trainer = Trainer::<T>::new(run, &text, comm).expect("a trainer");
        let steps = (0..steps).map(|_| trainer.step().expect("a step")).collect();
        let whole = trainer.whole().expect("all parameters");
        let named = |whole: &Whole<T>| {
            let of = |(id, _)| whole.weights.of(whole.model.layout(), id).to_vec();
            whole.model.layout().parameters().flat_map(of).collect()
        };
        let own = trainer.weights().expect("weights").buckets().flatten().copied().collect();
        Trained { steps, own, whole: whole.as_ref().map(named).unwrap_or_default() }
    };
    if run.degrees.ranks() == 1 {
        return vec![rank(None)];
    }
    let comms = Communicator::local_with(run.degrees.ranks() as u32, options).expect("ranks");
    std::thread::scope(|threads| {
        let threads: Vec<_> = comms.iter().map(|comm| threads.spawn(|| rank(Some(comm)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

/// A run of data parallelism alone.
pub(crate) fn data_parallel(ranks: usize) -> Run {
    Run { degrees: Degrees::data(ranks), ..run() }
}

/// A run of `data` ranks; runs of `expert` neighbours share the experts.
pub(crate) fn with_experts(data: usize, expert: usize) -> Run {
    let shape = Shape { experts: Some(Experts { count: 4, top_k: 2 }), hidden: 32, ..run().shape };
    Run { shape, degrees: Degrees { expert, ..Degrees::data(data) }, ..run() }
}

/// Whether ranks trained what one rank trains, to 1e-12 of the loss, and parameters to 1e-9.
pub(crate) fn check_parity(ranks: &Run, alone: &Trained<f64>) {
    let all = trained::<f64>(*ranks, alone.steps.len());
    for (rank, of_rank) in all.iter().enumerate() {
        for (number, (step, expected)) in of_rank.steps.iter().zip(&alone.steps).enumerate() {
            for (what, found, expected) in
                [("loss", step.loss, expected.loss), ("norm", step.norm, expected.norm)]
            {
                let error = (found / expected - 1.0).abs();
                let bound = if what == "loss" { 1e-12 } else { 1e-10 };
                assert!(
                    error < bound,
                    "{:?}, {:?}, rank {rank}, step {number}: {what} {found} {expected}",
                    ranks.degrees,
                    ranks.order
                );
            }
        }
        assert_eq!(bits(&losses(&of_rank.steps)), bits(&losses(&all[0].steps)), "rank {rank}");
    }
    let worst = all[0].whole.iter().zip(&alone.whole).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(all[0].whole.len() == alone.whole.len() && worst < 1e-9, "{:?}: {worst:e}", ranks.degrees);
}

/// The loss of each step.
pub(crate) fn losses(steps: &[Step]) -> Vec<f64> {
    steps.iter().map(|step| step.loss).collect()
}

/// The bits of each number.
pub(crate) fn bits<T: Number>(values: &[T]) -> Vec<u64> {
    values.iter().map(|value| value.wide().to_bits()).collect()
}

/// The bytes that the float32 calls on `comm` have its rank send around a ring, by the library's own record of them.
pub(crate) fn recorded(comm: &Communicator) -> usize {
    let record = comm.flight_record().expect("a record");
    assert_eq!(record.dropped, 0, "the record has all calls");
    let (others, size) = (comm.size() as usize - 1, comm.size() as usize);
    let of = |call: &CallReport| match (&call.name[..], call.count as usize) {
        // These count a rank's block.
        ("reduce_scatter" | "all_gather", count) => others * count,
        ("all_reduce", count) => 2 * others * (count / size),
        (name, _) => panic!("{name} is none of the trainer's calls"),
    };
    let calls = record.operations.iter().map(|entry| &entry.call);
    4 * calls.filter(|call| call.data_type == "float").map(of).sum::<usize>()
}

/// What `of` finds on each rank.
pub(crate) fn on_ranks<R: Send>(
    run: Run,
    of: impl Fn(&mut Trainer<'_, f32>, &Communicator) -> R + Sync,
) -> Vec<R> {
    let text = Text::bundled(run.shape.sequence).expect("text");
    let options = Options::default().trace_events(1 << 12);
    let comms = Communicator::local_with(run.degrees.ranks() as u32, &options).expect("ranks");
    let rank = |comm: &Communicator| of(&mut Trainer::new(run, &text, Some(comm)).expect("a trainer"), comm);
    std::thread::scope(|threads| {
        let threads: Vec<_> = comms.iter().map(|comm| threads.spawn(|| rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}
