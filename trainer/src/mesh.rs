//! The ranks of a job as a mesh: an axis for each way to share the work.
//!
//! Invariant: ranks are numbered with the last axis fastest, in the order pipeline, data, expert, context, tensor, so that the
//! ranks which speak the most are neighbours. An axis of one rank has no communicator.

use consort::{Communicator, ReduceOp};

use crate::error::{Error, Result};

/// How many ranks there are along each axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Degrees {
    /// Ranks that have some of the blocks each.
    pub pipeline: usize,
    /// Ranks that have some of the sequences each.
    pub data: usize,
    /// How many of those with some of the sequences have some of the experts each; a divisor of them.
    pub expert: usize,
    /// Ranks that have some of the tokens of each sequence each.
    pub context: usize,
    /// Ranks that have a part of each matrix each.
    pub tensor: usize,
    /// Whether tensor ranks have some of the tokens each between half blocks.
    pub shares_tokens: bool,
}

impl Default for Degrees {
    /// One rank.
    fn default() -> Self {
        Degrees { pipeline: 1, data: 1, expert: 1, context: 1, tensor: 1, shares_tokens: false }
    }
}

impl Degrees {
    /// The ranks of data parallelism alone.
    pub fn data(ranks: usize) -> Self {
        Degrees { data: ranks, ..Degrees::default() }
    }

    /// All ranks.
    pub fn ranks(&self) -> usize {
        let all = [self.pipeline, self.data, self.context, self.tensor];
        all.into_iter().fold(1, usize::saturating_mul)
    }

    /// The axes by name, the slowest first.
    pub fn axes(&self) -> [(&'static str, usize); 5] {
        let outer = self.data / self.expert.max(1);
        [("pp", self.pipeline), ("dp", outer), ("ep", self.expert), ("cp", self.context), ("tp", self.tensor)]
    }

    /// Whether a job of this many ranks has this mesh.
    ///
    /// # Errors
    /// [`Error::Configuration`] with the sizes.
    pub fn check(&self, ranks: u32) -> Result<()> {
        if self.expert == 0 || !self.data.is_multiple_of(self.expert) {
            return Err(Error::configuration(
                format!("{} ranks share the experts, and {} the sequences", self.expert, self.data),
                "ranks that share experts (--ep) are among those of --dp: make --dp a multiple of --ep",
            ));
        }
        if self.ranks() == ranks as usize {
            return Ok(());
        }
        let axes = [("pp", self.pipeline), ("dp", self.data), ("cp", self.context), ("tp", self.tensor)];
        let axes: Vec<String> = axes.iter().map(|(name, size)| format!("{name} {size}")).collect();
        Err(Error::configuration(
            format!("a mesh of {} has {} ranks, and the job has {ranks}", axes.join(" x "), self.ranks()),
            "make the product of --dp, --tp, --pp and --cp the number of ranks (--ranks, or the launcher's); --ep is a part of --dp",
        ))
    }

    /// Where a rank is.
    pub fn place(&self, rank: u32) -> Place {
        let rank = rank as usize;
        let (outer, tensor) = (rank / self.tensor, rank % self.tensor);
        let (outer, context) = (outer / self.context, outer % self.context);
        Place { pipeline: outer / self.data, data: outer % self.data, context, tensor }
    }
}

/// A rank's coordinates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// Along the pipeline.
    pub pipeline: usize,
    /// Among those with other sequences.
    pub data: usize,
    /// Among those with other tokens of the same sequences.
    pub context: usize,
    /// Among those with other parts of the same matrices.
    pub tensor: usize,
}

/// What exchanges along the pipeline are called.
pub const PIPELINE: &str = "pp";
/// Those of the ranks that have the same parameters, or the same experts.
pub const REPLICAS: &str = "dp and cp";
/// Those of the ranks that share the experts.
pub const EXPERTS: &str = "ep";
/// Those of the ranks that share sequences.
pub const CONTEXT: &str = "cp";
/// Those of the ranks that share layers.
pub const TENSOR: &str = "tp";

/// The axes along which ranks have the same parameters.
const OF_REPLICAS: [&str; 3] = ["dp", "ep", "cp"];
/// Those along which they have the same experts.
const OF_EXPERTS: [&str; 2] = ["dp", "cp"];

/// This rank's result if all ranks have come through; else its own error, or that another rank has one. All ranks of `world` call it.
///
/// # Errors
/// Its own; [`Error::Elsewhere`]; [`Error::Library`].
pub fn together<R>(world: Option<&Communicator>, own: Result<R>) -> Result<R> {
    let Some(world) = world else { return own };
    let mut failed = [if own.is_err() { u64::from(world.rank()) + 1 } else { 0 }];
    world.all_reduce(&mut failed, ReduceOp::Max)?;
    let own = own?;
    match failed[0] {
        0 => Ok(own),
        rank => Err(Error::Elsewhere { rank: rank - 1 }),
    }
}

/// A rank in its mesh.
pub struct Mesh<'a> {
    world: Option<&'a Communicator>,
    degrees: Degrees,
    place: Place,
    /// `None` for a rank that is alone.
    ranks: Option<consort::Mesh>,
}

impl<'a> Mesh<'a> {
    /// The mesh of the ranks of `world`, which all make the same one; `None` for a rank that is alone.
    ///
    /// # Errors
    /// [`Error::Configuration`] where the sizes do not give the number of ranks; [`Error::Library`].
    pub fn new(degrees: Degrees, world: Option<&'a Communicator>) -> Result<Self> {
        let (rank, size) = world.map_or((0, 1), |world| (world.rank(), world.size()));
        degrees.check(size)?;
        let axes = degrees.axes().map(|(name, ranks)| (name, ranks as u32));
        let groups: &[&[&str]] =
            if degrees.expert > 1 { &[&OF_REPLICAS, &OF_EXPERTS] } else { &[&OF_REPLICAS] };
        let ranks = world.map(|world| world.mesh(&axes, groups)).transpose()?;
        Ok(Mesh { world, degrees, place: degrees.place(rank), ranks })
    }

    /// The ranks along some axes, if there are others.
    fn along(&self, axes: &[&str]) -> Option<&Communicator> {
        let ranks = self.ranks.as_ref()?;
        let comm = match axes {
            [axis] => ranks.axis(axis),
            _ => ranks.along(axes),
        };
        Some(comm.expect("the mesh was made with these axes")).filter(|comm| comm.size() > 1)
    }

    /// All ranks of the job.
    pub fn world(&self) -> Option<&'a Communicator> {
        self.world
    }

    /// How many ranks there are along each axis.
    pub fn degrees(&self) -> Degrees {
        self.degrees
    }

    /// This rank's coordinates.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The ranks that have the other blocks for the same tokens.
    pub fn pipeline(&self) -> Option<&Communicator> {
        self.along(&["pp"])
    }

    /// The ranks that have the same parameters: with other sequences, or other tokens of the same ones.
    pub fn replicas(&self) -> Option<&Communicator> {
        self.along(&OF_REPLICAS)
    }

    /// The ranks that have the other experts.
    pub fn experts(&self) -> Option<&Communicator> {
        self.along(&["ep"])
    }

    /// The ranks that have the same experts, where not all replicas have.
    pub fn replicas_of_experts(&self) -> Option<&Communicator> {
        if self.degrees.expert > 1 { self.along(&OF_EXPERTS) } else { None }
    }

    /// The ranks that have the other tokens of the same sequences.
    pub fn context(&self) -> Option<&Communicator> {
        self.along(&["cp"])
    }

    /// The ranks that have the other parts of the same matrices.
    pub fn tensor(&self) -> Option<&Communicator> {
        self.along(&["tp"])
    }

    /// The bytes that this rank has sent to ranks on other hosts, by the axes along which it did, where the system counts them:
    /// over TCP.
    ///
    /// # Errors
    /// As [`Communicator::wires`].
    pub fn carried(&self) -> Result<Vec<(&'static str, u64)>> {
        let axes = [
            (PIPELINE, self.pipeline()),
            (REPLICAS, self.replicas()),
            ("dp and cp of experts", self.replicas_of_experts()),
            (EXPERTS, self.experts()),
            (CONTEXT, self.context()),
            (TENSOR, self.tensor()),
            ("all axes", self.world),
        ];
        let mut carried = Vec::new();
        for (name, comm) in axes {
            if let Some(comm) = comm {
                carried.push((name, comm.wires()?.iter().map(|wire| wire.bytes).sum()));
            }
        }
        Ok(carried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_ranks_are_neighbours() {
        let degrees = Degrees { pipeline: 2, data: 3, context: 2, tensor: 2, ..Degrees::default() };
        assert_eq!(degrees.place(0), Place::default());
        assert_eq!(degrees.place(1), Place { tensor: 1, ..Place::default() });
        assert_eq!(degrees.place(2), Place { context: 1, ..Place::default() });
        assert_eq!(degrees.place(4), Place { data: 1, ..Place::default() });
        assert_eq!(degrees.place(23), Place { pipeline: 1, data: 2, context: 1, tensor: 1 });
    }

    /// The ranks of a group by their numbers in the job.
    fn members(comm: &Communicator, group: Option<&Communicator>) -> Vec<u32> {
        let group = group.expect("a group");
        let mut all = vec![0u32; group.size() as usize];
        group.all_gather(&[comm.rank()], &mut all).unwrap();
        all
    }

    /// What holds on each of eight ranks, given its mesh, its number, and who is in a group.
    fn on_eight(
        degrees: Degrees,
        holds: impl Fn(&Mesh<'_>, u32, &dyn Fn(Option<&Communicator>) -> Vec<u32>) + Sync,
    ) {
        let comms = Communicator::local(8).unwrap();
        std::thread::scope(|threads| {
            for comm in &comms {
                threads.spawn(|| {
                    let mesh = Mesh::new(degrees, Some(comm)).unwrap();
                    holds(&mesh, comm.rank(), &|group| members(comm, group));
                });
            }
        });
    }

    #[test]
    fn groups_are_the_ranks_that_differ_along_their_axes() {
        on_eight(Degrees { pipeline: 2, data: 2, tensor: 2, ..Degrees::default() }, |mesh, rank, members| {
            assert_eq!(members(mesh.tensor()), [rank & !1, rank | 1]);
            assert_eq!(members(mesh.replicas()), [rank & !2, rank | 2]);
            assert_eq!(members(mesh.pipeline()), [rank & !4, rank | 4]);
            assert!(mesh.context().is_none());
        });
    }

    #[test]
    fn ranks_with_the_same_experts_are_a_share_of_the_replicas() {
        on_eight(Degrees { expert: 2, context: 2, ..Degrees::data(4) }, |mesh, rank, members| {
            assert_eq!(members(mesh.experts()), [rank & !2, rank | 2]);
            let first = rank & 2;
            assert_eq!(members(mesh.replicas_of_experts()), [first, first + 1, first + 4, first + 5]);
            assert_eq!(members(mesh.replicas()), [0, 1, 2, 3, 4, 5, 6, 7]);
        });
    }

    #[test]
    fn sizes_that_do_not_give_the_ranks_are_named() {
        let degrees = Degrees { data: 3, tensor: 2, ..Degrees::default() };
        let error = degrees.check(4).unwrap_err().to_string();
        assert!(error.contains("dp 3") && error.contains("tp 2") && error.contains("6 ranks"), "{error}");
        degrees.check(6).unwrap();
    }
}
