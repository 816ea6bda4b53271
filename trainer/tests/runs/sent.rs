//! What a step says that its rank sent along each axis is what the calls of the axis send, by the library's record of them.

use consort_trainer::mesh::Degrees;
use consort_trainer::model::{Experts, Shape};
use consort_trainer::train::{Run, Step};

use crate::common::{data_parallel, on_ranks, recorded, run};

/// The second step of each rank, and what its tensor ranks have recorded in it.
fn steps(run: Run) -> Vec<(Step, usize)> {
    on_ranks(run, |trainer, _| {
        trainer.step().expect("a step");
        let tensor = trainer.run().degrees.tensor > 1;
        let of = |mesh: &consort_trainer::mesh::Mesh<'_>| {
            if tensor { recorded(mesh.tensor().expect("ranks")) } else { 0 }
        };
        let before = of(trainer.mesh());
        let step = trainer.step().expect("a step");
        (step, of(trainer.mesh()) - before)
    })
}

#[test]
fn ranks_that_share_layers_send_what_their_calls_send() {
    for shares_tokens in [false, true] {
        let degrees = Degrees { tensor: 2, shares_tokens, ..Degrees::default() };
        for (step, recorded) in steps(Run { degrees, ..run() }) {
            assert_eq!(step.sent, [("tp", recorded)], "{shares_tokens}");
            assert!(recorded > 0, "{shares_tokens}");
        }
    }
}

#[test]
fn ranks_that_share_sequences_send_keys_and_their_gradients() {
    let Shape { width, layers, heads, kv_heads, sequence, .. } = run().shape;
    let (ranks, batch) = (2, run().batch);
    let keys = 2 * batch * (sequence / ranks) * (width / heads * kv_heads) * size_of::<f32>();
    let degrees = Degrees { context: ranks, ..Degrees::default() };
    for (step, _) in steps(Run { degrees, ..run() }) {
        // Keys and values forward and backward, and the sums of their gradients.
        assert_eq!(step.sent_along("cp"), layers * keys * (2 * (ranks - 1) + ranks));
        assert!(step.sent_along("dp and cp") > 0 && step.sent.len() == 2, "{:?}", step.sent);
    }
}

#[test]
fn ranks_that_share_experts_send_rows_of_tokens() {
    let top_k = 2;
    let shape = Shape { experts: Some(Experts { count: 4, top_k }), hidden: 32, ..run().shape };
    let alone = steps(Run { shape, ..data_parallel(2) });
    assert!(alone.iter().all(|(step, _)| step.sent_along("ep") == 0));
    let degrees = Degrees { expert: 2, ..Degrees::data(2) };
    let sent: Vec<usize> =
        steps(Run { shape, degrees, ..run() }).iter().map(|(step, _)| step.sent_along("ep")).collect();
    // Rows go there and back, forward and backward, and with one of the four missing it would be a quarter less. The first messages are
    // slots for all tokens; the others have the tokens with one of their 2 choices among the 2 experts of the other rank, which are 5 of 6
    // where choices are even.
    let tokens = run().batch / 2 * shape.sequence;
    let all = 4 * shape.layers * tokens * shape.width * size_of::<f32>();
    assert!(sent.iter().all(|bytes| (all * 84 / 100..all * 103 / 100).contains(bytes)), "{sent:?} of {all}");
    // Rows of twice the width are too long for slots, so only those of chosen experts go all four ways.
    let wide = Shape { width: 2 * shape.width, ..shape };
    let wide = steps(Run { shape: wide, degrees, ..run() });
    let sent: Vec<usize> = wide.iter().map(|(step, _)| step.sent_along("ep")).collect();
    assert!(
        sent.iter().all(|bytes| (all * 150 / 100..all * 186 / 100).contains(bytes)),
        "{sent:?} of {}",
        2 * all
    );
}
