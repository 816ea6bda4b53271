//! How calls are planned, for people and tools: what an algorithm is called, which one a call would take and why,
//! the machine it is priced on, and tables of measurements.
//!
//! Invariant: looking changes nothing; what is shown is what communicators use. Absent: data, and links.
//!
//! ```
//! use consort::planning::{Algorithm, Collective, Planning, simulate};
//!
//! let planning = Planning::for_host(8, 8, &consort::Options::default())?;
//! println!("{}", planning.explain(Collective::AllReduce, 1 << 20)?);
//!
//! let tree = Algorithm::Tree.schedule(Collective::AllReduce, 8);
//! println!("{} rounds", tree.cost().rounds);
//! # consort::Result::Ok(())
//! ```

use std::marker::PhantomData;
use std::ops::Deref;

pub use consort_algorithms::bounds;
pub use consort_algorithms::catalogue::{Algorithm, Family, UnknownAlgorithm};
pub use consort_algorithms::comparison;
pub use consort_algorithms::export;
pub use consort_algorithms::hardware;
pub use consort_algorithms::language;
pub use consort_algorithms::search;
pub use consort_algorithms::simulate;
pub use consort_algorithms::synthesize;
pub use consort_algorithms::topology::{self, Topology};
pub use consort_algorithms::workload;
pub use consort_algorithms::{
    Channel, Chunk, Collective, Cost, LowerOptions, Partition, Place, Plan, Proof, Rank, Refusal, Round,
    Schedule, Transfer, lower, lower_all, verify,
};
pub use consort_probing as probing;

pub use crate::planner::{
    Candidate, Carrier, Connections, Explanation, Origin, Path, Planning, ProvableBound,
};
pub use consort_settings::options::{
    Determinism, Tuning, TuningError, TuningLine, read_topology, read_topology_for,
};

use crate::communicator::Communicator;
use consort_types::error::Result;

/// A communicator whose collectives run by one algorithm; made by [`Communicator::with_algorithm`].
pub struct WithAlgorithm<'a> {
    view: Communicator,
    of: PhantomData<&'a Communicator>,
}

impl Deref for WithAlgorithm<'_> {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        &self.view
    }
}

impl std::fmt::Debug for WithAlgorithm<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view.fmt(f)
    }
}

impl Communicator {
    /// This communicator, with one algorithm for the collectives called through what is returned, whatever the
    /// planner would choose. Every rank must name the same; a difference is
    /// [`Error::Mismatch`](crate::Error::Mismatch).
    ///
    /// ```
    /// use consort::planning::Algorithm;
    /// use consort::{Communicator, ReduceOp};
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// let mut gradients = [1.0f32; 8];
    /// comm.with_algorithm(Algorithm::Tree).all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// A call for which it is not defined returns [`Error::InvalidArgument`](crate::Error::InvalidArgument), which
    /// lists what is possible.
    pub fn with_algorithm(&self, algorithm: Algorithm) -> WithAlgorithm<'_> {
        WithAlgorithm { view: self.view_with(None, Some(algorithm)), of: PhantomData }
    }

    /// What this communicator's choices depend on, the same on all ranks: by now, as ranks that have lost a path between hosts plan for
    /// another machine from a call on.
    pub fn planning(&self) -> &Planning {
        self.core().plannings.current()
    }

    /// Why a collective on blocks of `block_bytes` runs as it does.
    ///
    /// # Errors
    /// As [`Planning::explain`].
    pub fn explain(&self, collective: Collective, block_bytes: u64) -> Result<Explanation> {
        self.planning().explain(collective, block_bytes)
    }
}
