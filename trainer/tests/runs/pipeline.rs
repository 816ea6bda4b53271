//! Pipelines: they train what one rank trains, with its bits where nothing else is shared, and send what the formula says.

use crate::common::{Trained, bits, check_parity, losses, run, trained};
use consort::Communicator;
use consort_trainer::mesh::Degrees;
use consort_trainer::model::Shape;
use consort_trainer::parallel::pipeline::Order;
use consort_trainer::parallel::zero::Zero;
use consort_trainer::text::Text;
use consort_trainer::timeline::{Activity, gather};
use consort_trainer::train::{Run, Step, Trainer};

const INTERLEAVED: Order = Order::Interleaved { chunks: 2 };
const ORDERS: [Order; 3] = [Order::GPipe, Order::OneForwardOneBackward, INTERLEAVED];

/// One rank, four blocks, short sequences.
fn deep() -> Run {
    Run { shape: Shape { layers: 4, sequence: 16, ..run().shape }, ..run() }
}

fn pipeline(ranks: usize) -> Degrees {
    Degrees { pipeline: ranks, ..Degrees::default() }
}

#[test]
fn a_pipeline_trains_the_model_of_one() {
    let alone = trained::<f64>(deep(), 20).remove(0);
    let two = pipeline(2);
    for (degrees, order, micro_batches) in [
        (two, Order::GPipe, 1),
        (two, Order::GPipe, 4),
        (two, Order::OneForwardOneBackward, 1),
        (two, Order::OneForwardOneBackward, 2),
        (two, INTERLEAVED, 2),
        (two, INTERLEAVED, 4),
        (pipeline(3), Order::OneForwardOneBackward, 4),
        (pipeline(4), Order::OneForwardOneBackward, 4),
        (Degrees { data: 2, ..two }, Order::OneForwardOneBackward, 2),
        (Degrees { data: 2, ..two }, INTERLEAVED, 2),
        (Degrees { context: 2, ..two }, Order::OneForwardOneBackward, 2),
        (Degrees { tensor: 2, ..two }, Order::GPipe, 2),
        (Degrees { tensor: 2, shares_tokens: true, ..two }, INTERLEAVED, 2),
        (Degrees { data: 2, tensor: 2, ..two }, Order::OneForwardOneBackward, 2),
    ] {
        check_parity(&Run { degrees, order, micro_batches, ..deep() }, &alone);
    }
    for zero in [Zero::Moments, Zero::Gradients, Zero::Weights] {
        let degrees = Degrees { data: 2, ..two };
        check_parity(&Run { degrees, zero, micro_batches: 2, order: INTERLEAVED, ..deep() }, &alone);
    }
    // Three sequences on two ranks.
    let run = Run { batch: 3, ..deep() };
    let alone = trained::<f64>(run, 5).remove(0);
    check_parity(&Run { degrees: Degrees { data: 2, ..two }, ..run }, &alone);
}

#[test]
fn a_pipeline_trains_a_tied_model_as_one_rank_does() {
    let shape = Shape { tied: true, ..deep().shape };
    let alone = trained::<f64>(Run { shape, ..deep() }, 10).remove(0);
    let two = pipeline(2);
    for (degrees, order, micro_batches) in [
        (two, Order::OneForwardOneBackward, 2),
        (two, INTERLEAVED, 2),
        (pipeline(3), Order::GPipe, 2),
        (Degrees { data: 2, ..two }, Order::OneForwardOneBackward, 2),
        (Degrees { tensor: 2, shares_tokens: true, ..two }, Order::OneForwardOneBackward, 1),
        (Degrees { context: 2, ..two }, Order::OneForwardOneBackward, 1),
    ] {
        let run = Run { shape, degrees, order, micro_batches, ..deep() };
        check_parity(&run, &alone);
        // Both ends have the same bits of what both have.
        let text = Text::bundled(shape.sequence).expect("text");
        let comms = Communicator::local(degrees.ranks() as u32).expect("ranks");
        let embedding = |comm: &Communicator| {
            let mut trainer = Trainer::<f64>::new(run, &text, Some(comm)).expect("a trainer");
            (0..3).for_each(|_| drop(trainer.step().expect("a step")));
            let layout = trainer.model().layout().clone();
            let own = trainer.weights().expect("weights");
            let of = |(id, _)| (degrees.place(comm.rank()).tensor, bits(own.of(&layout, id)));
            layout.parameters().filter(|(_, parameter)| parameter.twin.is_some()).map(of).next()
        };
        let twins: Vec<_> = std::thread::scope(|threads| {
            let threads: Vec<_> = comms.iter().map(|comm| threads.spawn(|| embedding(comm))).collect();
            threads.into_iter().filter_map(|thread| thread.join().expect("a rank")).collect()
        });
        assert_eq!(twins.len(), 2 * degrees.data * degrees.context * degrees.tensor);
        for (tensor, values) in &twins {
            let (_, other) = twins.iter().find(|(other, _)| other == tensor).expect("itself");
            assert_eq!(values, other, "{degrees:?}");
        }
    }
}

#[test]
fn a_pipeline_alone_has_the_bits_of_one_rank() {
    for micro_batches in [2, 4] {
        // Squares are added up stage by stage, so that a bound on their sum would round.
        let run = Run { micro_batches, clip: 0.0, ..deep() };
        let alone = trained::<f32>(run, 6).remove(0);
        for (order, ranks) in [(ORDERS[0], 2), (ORDERS[1], 2), (ORDERS[2], 2), (ORDERS[1], 4)] {
            let all = trained::<f32>(Run { degrees: pipeline(ranks), order, ..run }, 6);
            for Trained { steps, .. } in &all {
                assert_eq!(bits(&losses(steps)), bits(&losses(&alone.steps)), "{order:?}, {micro_batches}");
            }
            assert_eq!(bits(&all[0].whole), bits(&alone.whole), "{order:?}, {micro_batches}");
        }
    }
}

#[test]
fn a_pipeline_gives_the_same_bits_each_time() {
    let degrees = Degrees { data: 2, ..pipeline(2) };
    let run = Run { degrees, order: INTERLEAVED, micro_batches: 2, ..deep() };
    let [first, second] = [0, 1].map(|_| trained::<f32>(run, 4));
    for (rank, (first, second)) in first.iter().zip(&second).enumerate() {
        assert_eq!(bits(&first.own), bits(&second.own), "rank {rank}");
    }
}

/// One step of each rank, the bytes that its communicator has recorded as sent, and the spans of all ranks.
fn one_step(run: Run) -> Vec<(Step, usize, usize)> {
    let text = Text::bundled(run.shape.sequence).expect("text");
    let comms = Communicator::local(run.degrees.ranks() as u32).expect("ranks");
    let rank = |comm: &Communicator| {
        let mut trainer = Trainer::<f64>::new(run, &text, Some(comm)).expect("a trainer");
        let step = trainer.step().expect("a step");
        let record = trainer.mesh().pipeline().expect("neighbours").flight_record().expect("a record");
        assert_eq!(record.dropped, 0);
        let sends = record.operations.iter().filter(|operation| operation.call.name == "send");
        let recorded = sends.map(|operation| operation.call.count as usize * size_of::<f64>()).sum();
        let all = gather(Some(comm), &step.spans()).expect("the spans of all ranks");
        assert_eq!(all[comm.rank() as usize], step.spans());
        (step, recorded, all.iter().map(Vec::len).sum())
    };
    std::thread::scope(|threads| {
        let threads: Vec<_> = comms.iter().map(|comm| threads.spawn(|| rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

#[test]
fn stages_send_each_token_once_forward_and_once_backward() {
    for (ranks, order, micro_batches) in
        [(2, Order::GPipe, 2), (4, Order::OneForwardOneBackward, 4), (2, INTERLEAVED, 4), (2, INTERLEAVED, 2)]
    {
        let run = Run { degrees: pipeline(ranks), order, micro_batches, ..deep() };
        let all = one_step(run);
        let rows = run.batch * run.shape.sequence * run.shape.width * size_of::<f64>();
        let mut sent = 0;
        for (rank, (step, recorded, spans)) in all.iter().enumerate() {
            // Forward of all of its stages but the model's last, backward of all but its first.
            let ends = usize::from(rank == 0) + usize::from(rank + 1 == ranks);
            assert_eq!(step.sent_along("pp"), (2 * order.chunks() - ends) * rows, "{order:?}, rank {rank}");
            assert_eq!(step.sent_along("pp"), *recorded, "{order:?}, rank {rank}");
            sent += step.sent_along("pp");
            let computed = step
                .computed
                .iter()
                .filter(|span| matches!(span.activity, Activity::Forward | Activity::Backward));
            assert_eq!(computed.count(), 2 * micro_batches * order.chunks());
            assert_eq!(*spans, all.iter().map(|(step, ..)| step.spans().len()).sum::<usize>());
            assert!(step.computed.is_sorted_by(|a, b| a.end_s <= b.begin_s), "{:?}", step.computed);
            let idle = step.computed.iter().filter(|span| span.activity == Activity::Idle);
            let idle_s: f64 = idle.map(|span| span.end_s - span.begin_s).sum();
            assert!(
                idle_s > 0.0 && (idle_s - step.idle.as_secs_f64()).abs() < 1e-3,
                "{idle_s} {:?}",
                step.idle
            );
        }
        assert_eq!(sent, 2 * rows * (ranks * order.chunks() - 1), "{order:?}");
    }
}
