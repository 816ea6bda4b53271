//! What a training step moves, collective by collective. `docs/TRAFFIC.md` has the formulas and their sources.

use super::{Kind, Traffic, Workload};

/// Bytes of an element of the loss, which is computed in float32.
const LOSS_BYTES: u64 = 4;

impl Workload {
    /// Bytes from rank to rank in one step, by rings; tokens go to experts directly.
    ///
    /// # Panics
    ///
    /// May panic, or count wrongly, where [`check`](Workload::check) refuses the workload.
    pub fn traffic(&self) -> Traffic {
        let mut traffic = Traffic::new(self.ranks());
        self.add_tensor(&mut traffic);
        self.add_context(&mut traffic);
        self.add_experts(&mut traffic);
        self.add_data(&mut traffic);
        self.add_pipeline(&mut traffic);
        traffic
    }

    /// Tokens of a micro-batch on a rank.
    fn tokens(&self) -> u64 {
        u64::from(self.sequence / self.context) * u64::from(self.micro_batch)
    }

    /// Bytes of the activation of a micro-batch.
    fn activation(&self) -> u64 {
        self.tokens() * u64::from(self.hidden) * u64::from(self.element_bytes)
    }

    /// How often a rank passes a layer in one direction.
    fn passes(&self) -> u64 {
        u64::from(self.layers / self.pipeline) * u64::from(self.micro_batches)
    }

    /// Shoeybi et al. 2019, figure 4; Korthikanti et al. 2022, section 4.2.2, where tokens are shared.
    fn add_tensor(&self, traffic: &mut Traffic) {
        let (activation, passes, batches) = (self.activation(), self.passes(), u64::from(self.micro_batches));
        let kind = Kind::Tensor;
        for ring in self.tensor_axis().groups(self.ranks()) {
            let stage = self.pipeline_axis().position(ring[0]);
            let (is_first, is_last) = (stage == 0, stage + 1 == self.pipeline);
            if self.sequence_parallel {
                traffic.all_gather(kind, &ring, activation, 4 * passes);
                traffic.reduce_scatter(kind, &ring, activation, 4 * passes);
                // Only parts of the inputs of the two matrices that are cut by columns are kept for the way back.
                traffic.all_gather(kind, &ring, activation, 2 * passes);
                let copied = self.copied_elements(stage) * u64::from(self.element_bytes);
                traffic.all_reduce(kind, &ring, copied, 1);
            } else {
                // After attention and after the feed-forward layer, forward and backward.
                traffic.all_reduce(kind, &ring, activation, 4 * passes);
            }
            match (is_first, self.sequence_parallel) {
                (true, false) => traffic.all_reduce(kind, &ring, activation, batches),
                (true, true) => {
                    traffic.reduce_scatter(kind, &ring, activation, batches);
                    traffic.all_gather(kind, &ring, activation, batches);
                }
                _ => {}
            }
            match (is_last, self.sequence_parallel) {
                (true, false) => traffic.all_reduce(kind, &ring, activation, batches),
                (true, true) => {
                    traffic.all_gather(kind, &ring, activation, 2 * batches);
                    traffic.reduce_scatter(kind, &ring, activation, batches);
                }
                _ => {}
            }
            if is_last {
                // The largest logit, the target's, and the sum of exponentials, of each token.
                traffic.all_reduce(kind, &ring, self.tokens() * LOSS_BYTES, 3 * batches);
            }
        }
    }

    /// Liu et al. 2023: keys and values go around once forward and once backward; their gradients go with them and one
    /// link farther, home.
    fn add_context(&self, traffic: &mut Traffic) {
        let block = 2 * self.activation() / u64::from(self.tensor);
        let around = u64::from(self.context) - 1;
        for ring in self.context_axis().groups(self.ranks()) {
            traffic.pass(Kind::Context, &ring, block, (2 * around + u64::from(self.context)) * self.passes());
        }
    }

    /// Lepikhin et al. 2020: tokens to their experts and back, forward and backward; experts get equal numbers.
    fn add_experts(&self, traffic: &mut Traffic) {
        if self.experts == 0 {
            return;
        }
        let bytes = self.activation() * u64::from(self.top_k);
        for group in self.expert_axis().groups(self.ranks()) {
            traffic.all_to_all(Kind::Expert, &group, bytes, 4 * self.passes());
        }
    }

    /// Rajbhandari et al. 2020, section 7.
    fn add_data(&self, traffic: &mut Traffic) {
        let batches = u64::from(self.micro_batches);
        let kind = Kind::Data;
        for (axis, is_expert) in [(self.data_axis(), false), (self.expert_data_axis(), true)] {
            for ring in axis.groups(self.ranks()) {
                let stage = self.pipeline_axis().position(ring[0]);
                let parameters = self.parameters_of_stage(stage);
                let elements = if is_expert { parameters.expert } else { parameters.dense };
                let bytes = elements * u64::from(self.element_bytes);
                match self.zero {
                    0 => traffic.all_reduce(kind, &ring, bytes, 1),
                    1 => {
                        traffic.reduce_scatter(kind, &ring, bytes, 1);
                        traffic.all_gather(kind, &ring, bytes, 1);
                    }
                    // No rank keeps all gradients until the last micro-batch.
                    2 => {
                        traffic.reduce_scatter(kind, &ring, bytes, batches);
                        traffic.all_gather(kind, &ring, bytes, 1);
                    }
                    // No rank keeps all parameters either, between forward and backward.
                    _ => {
                        traffic.reduce_scatter(kind, &ring, bytes, batches);
                        traffic.all_gather(kind, &ring, bytes, 2 * batches);
                    }
                }
            }
        }
    }

    /// Narayanan et al. 2021, section 2.2; the embedding's gradient as Megatron-LM does it.
    fn add_pipeline(&self, traffic: &mut Traffic) {
        if self.pipeline == 1 {
            return;
        }
        let shared = if self.sequence_parallel { u64::from(self.tensor) } else { 1 };
        let bytes = self.activation() / shared;
        let embedding =
            u64::from(self.vocabulary / self.tensor) * u64::from(self.hidden) * u64::from(self.element_bytes);
        for stages in self.pipeline_axis().groups(self.ranks()) {
            for pair in stages.windows(2) {
                traffic.send(Kind::Pipeline, pair[0], pair[1], bytes, self.micro_batches.into());
                traffic.send(Kind::Pipeline, pair[1], pair[0], bytes, self.micro_batches.into());
            }
            let ends = [stages[0], stages[stages.len() - 1]];
            traffic.all_reduce(Kind::Embedding, &ends, embedding, 1);
        }
    }
}
