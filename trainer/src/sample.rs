//! Text that a model writes.

use crate::error::Result;
use crate::model::Ranks;
use crate::number::Number;
use crate::parameters::Present;
use crate::random::Random;
use crate::train::Whole;

/// How text is drawn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Drawing {
    /// Tokens to write.
    pub tokens: usize,
    /// What logits are divided by; towards 0 the likeliest token is always taken.
    pub temperature: f64,
    /// From which the choices follow.
    pub seed: u64,
}

/// Goes on after `prompt`; where it is empty, as after token 0. A model sees one sequence of tokens: when it is full, its first half is forgotten.
///
/// # Errors
/// None that a model with all of its parameters has.
pub fn write<T: Number>(whole: &Whole<T>, prompt: &[u32], drawing: Drawing) -> Result<Vec<u32>> {
    let Whole { model, weights } = whole;
    let (sequence, vocabulary) = (model.shape().sequence, model.shape().vocabulary);
    let (mut activations, mut room) = (model.activations(0, 1), whole.workspace()?);
    let ranks = Ranks::alone(sequence);
    let random = Random::new(drawing.seed, "sample");
    let mut seen: Vec<u32> = prompt[prompt.len().saturating_sub(sequence)..].to_vec();
    if seen.is_empty() {
        seen.push(0);
    }
    let mut written = Vec::new();
    for index in 0..drawing.tokens as u64 {
        if seen.len() > sequence {
            seen.drain(..seen.len() - sequence.div_ceil(2));
        }
        let mut window = seen.clone();
        // What stands behind the last token changes nothing before it.
        window.resize(sequence, 0);
        let mut present = Present::new(model.layout(), weights);
        model.forward(0, (&mut present, &ranks), &window, &mut activations, &mut room)?;
        let last = &activations.logits()[(seen.len() - 1) * vocabulary..][..vocabulary];
        let token = choose(last, drawing.temperature, random.uniform(index));
        written.push(token);
        seen.push(token);
    }
    Ok(written)
}

/// The token at a share of all probabilities, added up from the first.
fn choose<T: Number>(logits: &[T], temperature: f64, share: f64) -> u32 {
    let largest = logits.iter().map(|logit| logit.wide()).fold(f64::NEG_INFINITY, f64::max);
    let weight = |logit: &T| ((logit.wide() - largest) / temperature.max(1e-6)).exp();
    let total: f64 = logits.iter().map(weight).sum();
    let mut left = share * total;
    let chosen = (0u32..).zip(logits).find(|(_, logit)| {
        left -= weight(logit);
        left < 0.0
    });
    chosen.map_or(logits.len() as u32 - 1, |(token, _)| token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_chosen_by_their_probability() {
        let logits = [0.0, 3f64.ln(), f64::NEG_INFINITY, 0.0];
        let chosen = [0.1, 0.21, 0.79, 0.81].map(|share| choose(&logits, 1.0, share));
        assert_eq!(chosen, [0, 1, 1, 3]);
        assert_eq!(choose(&logits, 0.0, 0.0), 1);
    }
}
