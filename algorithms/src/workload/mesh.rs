//! Where a rank stands in the mesh, and with which others it forms groups.

use super::Workload;
use crate::Rank;

/// An axis of the mesh: the members of a group are `length` ranks, each `stride` after the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Distance of neighbours, in ranks.
    pub stride: u32,
    /// Ranks of a group.
    pub length: u32,
}

impl Axis {
    /// The position of a rank in its group.
    pub fn position(self, rank: Rank) -> u32 {
        rank.0 / self.stride % self.length
    }

    /// All groups of a mesh of `ranks` ranks, in the order of their first members.
    pub fn groups(self, ranks: u32) -> impl Iterator<Item = Vec<Rank>> {
        let first = (0..ranks).map(Rank).filter(move |rank| self.position(*rank) == 0);
        first.map(move |rank| (0..self.length).map(|at| Rank(rank.0 + at * self.stride)).collect())
    }
}

impl Workload {
    /// Ranks of the mesh.
    pub fn ranks(&self) -> u32 {
        self.tensor * self.context * self.data * self.pipeline
    }

    /// Ranks that share matrices.
    pub fn tensor_axis(&self) -> Axis {
        Axis { stride: 1, length: self.tensor }
    }

    /// Ranks that share sequences.
    pub fn context_axis(&self) -> Axis {
        Axis { stride: self.tensor, length: self.context }
    }

    /// Ranks that share the experts of a layer.
    pub fn expert_axis(&self) -> Axis {
        Axis { stride: self.tensor, length: self.expert }
    }

    /// Ranks with the same parameters outside of experts: those of the data and the context axis.
    pub fn data_axis(&self) -> Axis {
        Axis { stride: self.tensor, length: self.context * self.data }
    }

    /// Ranks with the same experts.
    pub fn expert_data_axis(&self) -> Axis {
        Axis { stride: self.tensor * self.expert, length: self.context * self.data / self.expert }
    }

    /// The stages, as ranks of equal positions on the other axes.
    pub fn pipeline_axis(&self) -> Axis {
        Axis { stride: self.tensor * self.context * self.data, length: self.pipeline }
    }
}
