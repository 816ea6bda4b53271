//! Every gradient of every layer, in f64, beside the difference that a small change of its input makes.

use super::attention::{Attention, InputGradients, Inputs, Part, Scratch};
use super::cross_entropy::Columns;
use super::linear::Linear;
use super::rms_norm::RmsNorm;
use super::rope::{Rope, Turn};
use super::{cross_entropy, embedding, router, swiglu};
use crate::number::Number;
use crate::products::{Into, Products};
use crate::random::Random;
use crate::ranks::Tensor;

const SEED: u64 = 20_261_129;

fn values(name: &str, len: usize) -> Vec<f64> {
    let random = Random::new(SEED, name);
    (0..len as u64).map(|index| random.normal(index)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Whether `gradient` is that of `loss` at `at`, element by element.
fn check(what: &str, at: &[f64], gradient: &[f64], loss: impl Fn(&[f64]) -> f64) {
    check_by(1e-5, what, at, gradient, loss);
}

/// As [`check`], by changes of `change`: large ones where the loss is rounded much.
fn check_by(change: f64, what: &str, at: &[f64], gradient: &[f64], loss: impl Fn(&[f64]) -> f64) {
    assert_eq!(at.len(), gradient.len(), "{what}");
    for index in 0..at.len() {
        let moved = |change: f64| {
            let mut at = at.to_vec();
            at[index] += change;
            loss(&at)
        };
        let difference = (moved(change) - moved(-change)) / (2.0 * change);
        let error = (difference - gradient[index]).abs();
        assert!(
            error <= 0.01 * change * (1.0 + difference.abs()),
            "seed {SEED}: {what}[{index}]: {} and by difference {difference}",
            gradient[index]
        );
    }
}

#[test]
fn router_weights() {
    for (experts, top_k) in [(5, 2), (5, 1), (3, 3), (1, 1)] {
        let (logits, biases) = (values("logits", 4 * experts), values("biases", experts));
        let d_weights = values("dw", 4 * top_k);
        let chosen = |logits: &[f64]| {
            let (mut choices, mut weights) = (vec![-1; 4 * top_k], vec![0.0; 4 * top_k]);
            router::forward(logits, &biases, (experts, top_k), &mut choices, &mut weights);
            (choices, weights)
        };
        let (choices, weights) = chosen(&logits);
        for (token, choices) in choices.chunks(top_k).enumerate() {
            let score = |expert: i32| logits[token * experts + expert as usize] + biases[expert as usize];
            assert!(choices.is_sorted_by(|one, next| score(*one) >= score(*next)), "{choices:?}");
            let others = (0..experts as i32).filter(|expert| !choices.contains(expert));
            assert!(others.clone().count() == experts - top_k, "each is chosen once: {choices:?}");
            assert!(others.clone().all(|other| score(other) <= score(choices[top_k - 1])), "{choices:?}");
        }
        let mut d_logits = vec![7.0; 4 * experts];
        router::backward(&logits, (&choices, &weights), &d_weights, (experts, top_k), &mut d_logits);
        check("logits", &logits, &d_logits, |logits| dot(&chosen(logits).1, &d_weights));
        assert!(experts == 1 || d_logits.iter().any(|gradient| *gradient != 0.0), "{experts} {top_k}");
    }
}

#[test]
fn router_choices() {
    let chosen = |logits: [f64; 4], biases: [f64; 4]| {
        let (mut choices, mut weights) = ([-1; 2], [0.0; 2]);
        router::forward(&logits, &biases, (4, 2), &mut choices, &mut weights);
        (choices, weights)
    };
    assert_eq!(chosen([1.0, 2.0, 2.0, 2.0], [0.0; 4]).0, [1, 2], "of equal ones the first");
    assert_eq!(chosen([0.0; 4], [0.0; 4]), ([0, 1], [0.5; 2]));
    // A bias chooses, and the weights are those of the logits.
    let (choices, weights) = chosen([1.0, 0.0, 3.0, 0.0], [0.0, 0.0, 0.0, 9.0]);
    assert_eq!(choices, [3, 2]);
    assert!((weights[1] / weights[0] - 3f64.exp()).abs() < 1e-9, "{weights:?}");
    // What is no number is an expert's number all the same.
    let (mut choices, _) = chosen([f64::NAN, 1.0, f64::NAN, 2.0], [0.0; 4]);
    choices.sort_unstable();
    assert!(choices[0] < choices[1] && choices[0] >= 0 && choices[1] < 4, "{choices:?}");
}

#[test]
fn linear() {
    let layer = Linear { inputs: 5, outputs: 3, products: Products::Exact };
    let (w, x, dy) = (values("w", 15), values("x", 20), values("dy", 12));
    let loss = |w: &[f64], x: &[f64]| {
        let mut y = vec![1.0; 12];
        layer.forward(w, x, &mut y, Into::Add);
        dot(&y, &dy)
    };
    let (mut dx, mut dw) = (vec![7.0; 20], vec![0.0; 15]);
    layer.backward_input(&w, &dy, &mut dx, Into::Replace);
    layer.backward_weight(&x, &dy, &mut dw);
    check("dx", &x, &dx, |x| loss(&w, x));
    check("dw", &w, &dw, |w| loss(w, &x));
}

#[test]
fn linear_of_bfloat16() {
    let (exact, tokens) = (Linear { inputs: 37, outputs: 23, products: Products::Exact }, 9);
    let layer = Linear { products: Products::Bf16, ..exact };
    let values = |name, len| values(name, len).into_iter().map(|value| value as f32).collect::<Vec<f32>>();
    let (w, x, dy) = (values("w", 37 * 23), values("x", tokens * 37), values("dy", tokens * 23));
    let rounded = |values: &[f32]| -> Vec<f64> {
        values.iter().map(|value| consort::bf16::from_f32(*value).to_f64()).collect()
    };
    let check = |what: &str, found: &[f32], expected: &[f64]| {
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 2e-5, "seed {SEED}: {what}[{index}]: {found}, of rounded operands {expected}");
        }
    };
    // What is there has more bits than a bfloat16, and keeps them.
    let there = 1.0 + 1.0 / 4096.0;
    let (mut y, mut expected) = (vec![there as f32; tokens * 23], vec![there; tokens * 23]);
    layer.forward(&w, &x, &mut y, Into::Add);
    exact.forward(&rounded(&w), &rounded(&x), &mut expected, Into::Add);
    check("y", &y, &expected);
    let (mut dx, mut expected) = (vec![f32::NAN; tokens * 37], vec![0.0; tokens * 37]);
    layer.backward_input(&w, &dy, &mut dx, Into::Replace);
    exact.backward_input(&rounded(&w), &rounded(&dy), &mut expected, Into::Replace);
    check("dx", &dx, &expected);
    let (mut dw, mut expected) = (vec![there as f32; 37 * 23], vec![there; 37 * 23]);
    layer.backward_weight(&x, &dy, &mut dw);
    exact.backward_weight(&rounded(&x), &rounded(&dy), &mut expected);
    check("dw", &dw, &expected);
}

#[test]
fn rms_norm() {
    let layer = RmsNorm { width: 21, epsilon: 0.1 };
    let (w, x, dy) = (values("w", 21), values("x", 63), values("dy", 63));
    let forward = |w: &[f64], x: &[f64]| {
        let (mut y, mut factors) = (vec![0.0; 63], vec![0.0; 3]);
        layer.forward(w, x, &mut y, &mut factors);
        (dot(&y, &dy), factors)
    };
    let factors = forward(&w, &x).1;
    let (mut dx, mut dw) = (vec![0.0; 63], vec![0.0; 21]);
    layer.backward_input(&w, &x, &factors, &dy, &mut dx);
    layer.backward_weight(&x, &factors, &dy, &mut dw);
    check("dx", &x, &dx, |x| forward(&w, x).0);
    check("dw", &w, &dw, |w| forward(w, &x).0);
}

#[test]
fn rotary_positions_turn_back_and_see_distances_alone() {
    let (rope, positions) = (Rope::<f64>::new(8, 6, 100.0), [0, 1, 2, 3, 4, 5, 6, 7]);
    let original = values("x", 2 * 8 * 12);
    let mut turned = original.clone();
    rope.turn(&mut turned, 12, &positions, Turn::On);
    let (first, second) = (&turned[..12], &turned[8 * 12..9 * 12]);
    assert_eq!((first, second), (&original[..12], &original[8 * 12..9 * 12]), "position 0 of both sequences");
    // The gradient of a rotation is the rotation back, since it keeps lengths.
    let mut back = turned.clone();
    rope.turn(&mut back, 12, &positions, Turn::Back);
    assert!(back.iter().zip(&original).all(|(a, b)| (a - b).abs() < 1e-12));
    // The product of a query and a key depends on how far apart they are.
    let (query, key) = (values("q", 6), values("k", 6));
    let product = |q: usize, k: usize| {
        let mut rows = vec![0.0; 8 * 12];
        rows[q * 12..q * 12 + 6].copy_from_slice(&query);
        rows[k * 12 + 6..k * 12 + 12].copy_from_slice(&key);
        rope.turn(&mut rows, 12, &positions, Turn::On);
        dot(&rows[q * 12..q * 12 + 6], &rows[k * 12 + 6..k * 12 + 12])
    };
    assert!((product(5, 3) - product(7, 5)).abs() < 1e-12);
    assert!((product(5, 3) - product(5, 4)).abs() > 1e-3);
}

#[test]
fn gated_unit() {
    let (gate, up, d_out) = (values("gate", 40), values("up", 40), values("dy", 40));
    let loss = |gate: &[f64], up: &[f64]| {
        let mut out = vec![0.0; 40];
        swiglu::forward(gate, up, &mut out);
        dot(&out, &d_out)
    };
    let (mut d_gate, mut d_up) = (vec![0.0; 40], vec![0.0; 40]);
    swiglu::backward(&gate, &up, &d_out, &mut d_gate, &mut d_up);
    check("d_gate", &gate, &d_gate, |gate| loss(gate, &up));
    check("d_up", &up, &d_up, |up| loss(&gate, up));
}

#[test]
fn embedding_of_a_token_that_comes_twice() {
    let (table, d_out, tokens) = (values("table", 5 * 3), values("dy", 4 * 3), [2, 0, 2, 4]);
    let loss = |table: &[f64]| {
        let mut out = vec![0.0; 12];
        embedding::forward(table, 0, &tokens, 3, &mut out);
        dot(&out, &d_out)
    };
    let mut d_table = vec![0.0; 15];
    embedding::backward_weight(&tokens, 0, 3, &d_out, &mut d_table);
    check("d_table", &table, &d_table, loss);
}

#[test]
fn cross_entropy_of_logits() {
    let (logits, targets) = (values("logits", 3 * 19), [4, 18, 0]);
    let (columns, alone) = (Columns { first: 0, count: 19 }, Tensor::default());
    let loss = |logits: &[f64], logs: &mut [f64]| {
        cross_entropy::forward(logits, &targets, columns, &alone, logs).expect("no other rank")
    };
    let mut logs = vec![0.0; 3];
    let found = loss(&logits, &mut logs);
    let by_definition: f64 = (0..3)
        .map(|row| {
            let row_logits = &logits[row * 19..][..19];
            let total: f64 = row_logits.iter().map(|logit| logit.exp()).sum();
            total.ln() - row_logits[targets[row] as usize]
        })
        .sum();
    assert!((found - by_definition).abs() < 1e-12);
    let mut gradient = logits.clone();
    cross_entropy::backward(&mut gradient, &targets, columns, &logs, 0.25);
    check("d_logits", &logits, &gradient, |logits| 0.25 * loss(logits, &mut [0.0; 3]));
}

/// What attention is by its definition, one query after the other.
fn attend(layer: &Attention, q: &[f64], k: &[f64], v: &[f64]) -> Vec<f64> {
    let Attention { heads, kv_heads, head, sequence } = *layer;
    let mut out = vec![0.0; q.len()];
    for token in 0..q.len() / (heads * head) {
        let first = token / sequence * sequence;
        for number in 0..heads {
            let q = &q[(token * heads + number) * head..][..head];
            let of = |values: &'_ [f64], token: usize| {
                values[(token * kv_heads + number / (heads / kv_heads)) * head..][..head].to_vec()
            };
            let scores: Vec<f64> =
                (first..=token).map(|key| dot(q, &of(k, key)) / (head as f64).sqrt()).collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (key, weight) in (first..=token).zip(&weights) {
                let out = &mut out[(token * heads + number) * head..][..head];
                out.iter_mut().zip(of(v, key)).for_each(|(out, v)| *out += weight / total * v);
            }
        }
    }
    out
}

#[test]
fn attention_of_several_blocks_and_shared_keys() {
    // 70 tokens are a block of 64 queries and one of 6.
    for (kv_heads, sequence, sequences) in [(2, 5, 2), (1, 5, 2), (1, 70, 1)] {
        let layer = Attention { heads: 2, kv_heads, head: 2, sequence };
        let tokens = sequence * sequences;
        let (q, d_out) = (values("q", tokens * 4), values("dy", tokens * 4));
        let (k, v) = (values("k", tokens * kv_heads * 2), values("v", tokens * kv_heads * 2));
        let mut scratch = Scratch::new(sequence);
        let (mut out, mut logs) = (vec![0.0; tokens * 4], vec![0.0; tokens * 2]);
        layer.forward(Inputs { q: &q, k: &k, v: &v }, &mut out, &mut logs, &mut scratch);
        let by_definition = attend(&layer, &q, &k, &v);
        let worst = out.iter().zip(&by_definition).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-12, "{kv_heads} {sequence}: {worst:e}");

        let (mut d_q, mut d_k, mut d_v) = (vec![5.0; q.len()], vec![5.0; k.len()], vec![5.0; v.len()]);
        let gradients = InputGradients { q: &mut d_q, k: &mut d_k, v: &mut d_v };
        layer.backward(Inputs { q: &q, k: &k, v: &v }, (&out, &d_out, &logs), gradients, &mut scratch);
        check("d_q", &q, &d_q, |q| dot(&attend(&layer, q, &k, &v), &d_out));
        check("d_k", &k, &d_k, |k| dot(&attend(&layer, &q, k, &v), &d_out));
        check("d_v", &v, &d_v, |v| dot(&attend(&layer, &q, &k, v), &d_out));
    }
}

/// Rows of 3 elements with a fourth.
fn extended(rows: &[f64], fourth: impl Fn(usize) -> f64) -> Vec<f64> {
    let rows = rows.chunks_exact(3).enumerate();
    rows.flat_map(|(row, of)| of.iter().copied().chain([fourth(row)]).collect::<Vec<_>>()).collect()
}

/// What backward writes of rows of 4 elements, without the fourth.
fn first_three<T: Number>(rows: &[T]) -> Vec<f64> {
    rows.chunks_exact(4)
        .flat_map(|row| row[..3].iter().map(|value| value.wide()).collect::<Vec<_>>())
        .collect()
}

/// Outputs, and gradients of queries, keys and values, of rows in f64 that are computed in `T`.
fn attended<T: Number>(layer: &Attention, rows: [&[f64]; 4]) -> [Vec<T>; 4] {
    let [q, k, v, d_out] = rows.map(|rows| rows.iter().map(|value| T::of(*value)).collect::<Vec<T>>());
    let inputs = Inputs { q: &q, k: &k, v: &v };
    let mut scratch = Scratch::new(layer.sequence);
    let mut logs = vec![T::ZERO; q.len() / layer.head];
    let [mut out, mut d_q, mut d_k, mut d_v] = [&q, &q, &k, &v].map(|rows| vec![T::ZERO; rows.len()]);
    layer.forward(inputs, &mut out, &mut logs, &mut scratch);
    let gradients = InputGradients { q: &mut d_q, k: &mut d_k, v: &mut d_v };
    layer.backward(inputs, (&out, &d_out, &logs), gradients, &mut scratch);
    [out, d_q, d_k, d_v]
}

#[test]
fn attention_of_scores_near_1000_and_minus_1000() {
    let layer = Attention { heads: 2, kv_heads: 1, head: 4, sequence: 9 };
    let (q, k, v, d_out) = (values("q", 54), values("k", 27), values("v", 36), values("dy", 72));
    // Each third key is large, or none is: a query may see large and small ones, or one kind alone.
    for large in 0..4 {
        let queries = |q: &[f64]| extended(q, |_| 2000.0);
        let keys = |k: &[f64]| extended(k, |token| if token % 3 == large { 1.0 } else { -1.0 });
        let rows = [&queries(&q)[..], &keys(&k), &v, &d_out];
        let [out, d_q, d_k, d_v] = attended::<f64>(&layer, rows);
        let by_definition = attend(&layer, rows[0], rows[1], &v);
        assert!(out.iter().zip(&by_definition).all(|(a, b)| (a - b).abs() < 1e-10), "{large}");
        let loss = |q: &[f64], k: &[f64], v: &[f64]| dot(&attend(&layer, &queries(q), &keys(k), v), &d_out);
        let (d_q, d_k) = (first_three(&d_q), first_three(&d_k));
        check_by(1e-4, "d_q", &q, &d_q, |q| loss(q, &k, &v));
        check_by(1e-4, "d_k", &k, &d_k, |k| loss(&q, k, &v));
        check_by(1e-4, "d_v", &v, &d_v, |v| loss(&q, &k, v));

        // A score of 1000 in float32 is rounded by 3e-5, which is the relative error of its probability.
        let found = attended::<f32>(&layer, rows);
        assert!(found.iter().flatten().all(|value| value.is_finite()), "{large}");
        let wide = |rows: &[f32]| rows.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
        let expected = [&out, &d_q, &d_k, &d_v];
        let found = [wide(&found[0]), first_three(&found[1]), first_three(&found[2]), wide(&found[3])];
        for (found, expected) in found.iter().flatten().zip(expected.into_iter().flatten()) {
            assert!((found - expected).abs() < 2e-3 * (1.0 + expected.abs()), "{large}: {found} {expected}");
        }
    }
}

#[test]
fn parts_of_the_keys_join_in_any_order() {
    let layer = Attention { heads: 4, kv_heads: 2, head: 2, sequence: 11 };
    let [q, k, v, d_out] =
        [("q", 176), ("k", 88), ("v", 88), ("dy", 176)].map(|(name, len)| values(name, len));
    let inputs = Inputs { q: &q, k: &k, v: &v };
    let mut scratch = Scratch::new(11);
    let mut of = |keys: &[(usize, usize)]| {
        let parts = || keys.iter().map(|(begin, end)| Part::Full { queries: 7..10, keys: *begin..*end });
        let into = |number: usize| if number == 0 { Into::Replace } else { Into::Add };
        let (mut out, mut logs) = (vec![0.0; 176], vec![0.0; 88]);
        let mut made = [0; 2];
        for (number, part) in parts().enumerate() {
            let outputs = (&mut out[..], &mut logs[..]);
            made[0] += layer.forward_part(&part, into(number), inputs, outputs, &mut scratch);
        }
        let (mut d_q, mut d_k, mut d_v) = (vec![0.0; 176], vec![0.0; 88], vec![0.0; 88]);
        for (number, part) in parts().enumerate() {
            let gradients = InputGradients { q: &mut d_q, k: &mut d_k, v: &mut d_v };
            let outputs = (&out[..], &d_out[..], &logs[..]);
            made[1] += layer.backward_part(&part, into(number), inputs, outputs, gradients, &mut scratch);
        }
        // Two sequences, four heads, three queries and five keys.
        assert_eq!(made, [120; 2]);
        [out, logs, d_q, d_k, d_v]
    };
    let whole = of(&[(2, 7)]);
    // Elsewhere nothing was written: 3 of 11 tokens have outputs, and 5 have keys.
    let written = whole.each_ref().map(|rows| rows.iter().filter(|value| **value != 0.0).count());
    assert_eq!(written, [48, 24, 48, 40, 40]);
    for keys in [&[(2, 4), (4, 7)][..], &[(4, 7), (2, 4)], &[(6, 7), (2, 3), (3, 6)]] {
        let parts = of(keys);
        let pairs = parts.iter().flatten().zip(whole.iter().flatten());
        assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-12), "seed {SEED}: {keys:?}");
    }
}
