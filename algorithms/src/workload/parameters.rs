//! How many parameters a model has, and how many of them a rank.

use super::Workload;

/// Numbers of parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// Outside of experts.
    pub dense: u64,
    /// Of all experts.
    pub expert: u64,
}

impl Parameters {
    /// Both.
    pub fn total(self) -> u64 {
        self.dense + self.expert
    }
}

impl Workload {
    /// The parameters of the model, the embedding counted once.
    ///
    /// Source: D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC
    /// 2021, equation 2: `12 l h^2 (1 + 13/12h + (V + s)/12lh)`, which leaves out the `2 h` of the last layer norm. A layer has
    /// `3h^2 + 3h` (query, key, value), `h^2 + h` (projection), `4h^2 + 4h` and `4h^2 + h` (feed forward), and two layer
    /// norms of `2h`; an expert is a feed-forward layer, and the router has `h` for each.
    pub fn parameters(&self) -> Parameters {
        let [l, h, v, s, e] =
            [self.layers, self.hidden, self.vocabulary, self.sequence, self.experts].map(u64::from);
        let feed_forward = 8 * h * h + 5 * h;
        let rest = 4 * h * h + 8 * h;
        let ends = (v + s) * h + 2 * h;
        match e {
            0 => Parameters { dense: l * (rest + feed_forward) + ends, expert: 0 },
            _ => Parameters { dense: l * (rest + h * e) + ends, expert: l * e * feed_forward },
        }
    }

    /// The parameters of a rank of that stage: its part of the matrices, and whole vectors where the tensor ranks have
    /// copies. The last stage has a copy of the embedding.
    ///
    /// Source: M. Shoeybi et al., "Megatron-LM", 2019, section 3: matrices of query, key and value and the first of the
    /// feed-forward layer are cut by columns, with their bias; the other two by rows, their bias is whole.
    pub fn parameters_of_stage(&self, stage: u32) -> Parameters {
        let layers = u64::from(self.layers / self.pipeline);
        let [h, v, s, e, t] =
            [self.hidden, self.vocabulary, self.sequence, self.experts, self.tensor].map(u64::from);
        let feed_forward = (8 * h * h + 4 * h) / t + h;
        // Cut matrices, the projection's bias and two layer norms.
        let rest = (4 * h * h + 3 * h) / t + 5 * h;
        let is_first = stage == 0;
        let is_last = stage + 1 == self.pipeline;
        let embedding = if is_first || is_last { v / t * h } else { 0 };
        let ends = embedding + if is_first { s * h } else { 0 } + if is_last { 2 * h } else { 0 };
        match e {
            0 => Parameters { dense: layers * (rest + feed_forward) + ends, expert: 0 },
            _ => {
                let experts = e / u64::from(self.expert);
                Parameters { dense: layers * (rest + h * e) + ends, expert: layers * experts * feed_forward }
            }
        }
    }

    /// Elements of the vectors of a stage that every tensor rank has a copy of: two layer norms and two biases a layer, and the
    /// last layer norm.
    pub(super) fn copied_elements(&self, stage: u32) -> u64 {
        let last = if stage + 1 == self.pipeline { 2 } else { 0 };
        (6 * u64::from(self.layers / self.pipeline) + last) * u64::from(self.hidden)
    }
}
