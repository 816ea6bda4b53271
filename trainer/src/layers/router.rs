//! Which experts a token goes to: those with the largest logits, weighted by the softmax of these (Shazeer and others, 2017). A
//! single one is weighted by the softmax over all experts (Fedus and others, 2022), as that of one logit is 1 and teaches nothing.
//!
//! Invariant: of equal logits the first is chosen, so that the same logits give the same choices. Biases choose, and have no part in
//! the weights. The gradient goes through the weights, not through the choice.

use crate::number::Number;

/// The largest of some logits, and the sum of the exponentials of their distances from it.
fn sum<T: Number>(logits: impl Iterator<Item = T> + Clone) -> (T, T) {
    let largest = logits.clone().reduce(|largest, other| if other > largest { other } else { largest });
    let largest = largest.expect("a token has experts");
    let mut total = T::ZERO;
    logits.for_each(|logit| total += (logit - largest).exp());
    (largest, total)
}

/// The numbers of the largest `logits` plus `biases`, the largest first.
fn choose<T: Number>(logits: &[T], biases: &[T], choices: &mut [i32]) {
    let top_k = choices.len();
    let score = |expert: usize| logits[expert] + biases[expert];
    for expert in 0..logits.len() {
        // Behind all that are as large.
        let mut place = expert.min(top_k);
        while place > 0 && score(expert) > score(choices[place - 1] as usize) {
            place -= 1;
            if place + 1 < top_k {
                choices[place + 1] = choices[place];
            }
        }
        if place < top_k {
            choices[place] = expert as i32;
        }
    }
}

/// Chooses `top_k` of `experts` experts for each token, by its logits and the `biases` of the experts: their numbers, the largest
/// sum first, and their weights.
///
/// # Panics
/// If there are fewer experts than a token goes to.
pub fn forward<T: Number>(
    logits: &[T],
    biases: &[T],
    (experts, top_k): (usize, usize),
    choices: &mut [i32],
    weights: &mut [T],
) {
    assert!((1..=experts).contains(&top_k), "{top_k} of {experts} experts");
    let tokens = choices.chunks_exact_mut(top_k).zip(weights.chunks_exact_mut(top_k));
    for (logits, (choices, weights)) in logits.chunks_exact(experts).zip(tokens) {
        choose(logits, biases, choices);
        let chosen = choices.iter().map(|choice| logits[*choice as usize]);
        let (largest, total) = if top_k == 1 { sum(logits.iter().copied()) } else { sum(chosen.clone()) };
        weights.iter_mut().zip(chosen).for_each(|(weight, logit)| *weight = (logit - largest).exp() / total);
    }
}

/// The gradient of the logits, in the place of `d_logits`, from that of the weights: w (dw − Σ w dw) for each choice, and with one
/// choice w dw (1 − p) for it and −w dw p for each other, p being an expert's softmax.
pub fn backward<T: Number>(
    logits: &[T],
    (choices, weights): (&[i32], &[T]),
    d_weights: &[T],
    (experts, top_k): (usize, usize),
    d_logits: &mut [T],
) {
    d_logits.fill(T::ZERO);
    let tokens =
        choices.chunks_exact(top_k).zip(weights.chunks_exact(top_k)).zip(d_weights.chunks_exact(top_k));
    let rows = logits.chunks_exact(experts).zip(d_logits.chunks_exact_mut(experts));
    for ((logits, d_logits), ((choices, weights), d_weights)) in rows.zip(tokens) {
        let mut common = T::ZERO;
        weights.iter().zip(d_weights).for_each(|(weight, gradient)| common += *weight * *gradient);
        if top_k == 1 {
            let (largest, total) = sum(logits.iter().copied());
            for (d_logit, logit) in d_logits.iter_mut().zip(logits) {
                *d_logit = -(common * (*logit - largest).exp() / total);
            }
            d_logits[choices[0] as usize] += common;
            continue;
        }
        for ((choice, weight), gradient) in choices.iter().zip(weights).zip(d_weights) {
            d_logits[*choice as usize] = *weight * (*gradient - common);
        }
    }
}
