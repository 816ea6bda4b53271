//! Which experts a token goes to: those with the largest logits, weighted by the softmax of these (Shazeer and others, 2017).
//!
//! Invariant: of equal logits the first is chosen, so that every rank chooses alike. The gradient goes through the weights, not
//! through the choice.

use crate::number::Number;

/// Chooses `top_k` of `experts` experts for each token: their numbers, the largest logit first, and weights whose sum is 1.
pub fn forward<T: Number>(
    logits: &[T],
    (experts, top_k): (usize, usize),
    choices: &mut [i32],
    weights: &mut [T],
) {
    let tokens = choices.chunks_exact_mut(top_k).zip(weights.chunks_exact_mut(top_k));
    for (logits, (choices, weights)) in logits.chunks_exact(experts).zip(tokens) {
        for place in 0..top_k {
            let is_free = |expert: &usize| !choices[..place].contains(&(*expert as i32));
            let free = (0..experts).filter(is_free);
            let best = free.reduce(|best, other| if logits[other] > logits[best] { other } else { best });
            choices[place] = best.map_or(-1, |best| best as i32);
        }
        let largest = logits[choices[0].max(0) as usize];
        let mut total = T::ZERO;
        for (weight, choice) in weights.iter_mut().zip(&*choices) {
            *weight = (logits[(*choice).max(0) as usize] - largest).exp();
            total += *weight;
        }
        weights.iter_mut().for_each(|weight| *weight = *weight / total);
    }
}

/// The gradient of the logits, in the place of `d_logits`, from that of the weights: w (dw − Σ w dw) for each choice.
pub fn backward<T: Number>(
    (choices, weights): (&[i32], &[T]),
    d_weights: &[T],
    (experts, top_k): (usize, usize),
    d_logits: &mut [T],
) {
    d_logits.fill(T::ZERO);
    let tokens =
        choices.chunks_exact(top_k).zip(weights.chunks_exact(top_k)).zip(d_weights.chunks_exact(top_k));
    for (d_logits, ((choices, weights), d_weights)) in d_logits.chunks_exact_mut(experts).zip(tokens) {
        let mut common = T::ZERO;
        weights.iter().zip(d_weights).for_each(|(weight, gradient)| common += *weight * *gradient);
        for ((choice, weight), gradient) in choices.iter().zip(weights).zip(d_weights) {
            d_logits[(*choice).max(0) as usize] = *weight * (*gradient - common);
        }
    }
}
