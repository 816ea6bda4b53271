//! Profiles by name, for command lines and configuration: `dgx-h100:2`, `tcp:4x2`, `torus:4x4`, `fat-tree:k=8`.
//!
//! Invariant: a profile's topology has the name by which it was found. Absent: files (see the text form).

use std::error::Error;
use std::fmt;

use super::{
    Topology, dgx_a100, dgx_a100_flat, dgx_h100, dgx_h100_flat, dgx_h200, host, host_of_cores,
    host_of_domains, networks, pcie, rdma, tcp, torus,
};

/// A name, the meaning of its numbers, how many there are, and the function that makes its topology.
struct Profile {
    name: &'static str,
    numbers: &'static str,
    count: std::ops::RangeInclusive<usize>,
    make: fn(&[u32]) -> Topology,
}

const PROFILES: [Profile; 11] = [
    Profile { name: "host", numbers: "RANKS[xCORES]", count: 1..=2, make: make_host },
    Profile { name: "domains", numbers: "DOMAINSxRANKS[xCORES]", count: 2..=3, make: make_domains },
    Profile { name: "dgx-a100", numbers: "BOXES", count: 1..=1, make: |n| dgx_a100(n[0]) },
    Profile { name: "dgx-h100", numbers: "BOXES", count: 1..=1, make: |n| dgx_h100(n[0]) },
    Profile { name: "dgx-h200", numbers: "BOXES", count: 1..=1, make: |n| dgx_h200(n[0]) },
    Profile { name: "dgx-a100-flat", numbers: "BOXES", count: 1..=1, make: |n| dgx_a100_flat(n[0]) },
    Profile { name: "dgx-h100-flat", numbers: "BOXES", count: 1..=1, make: |n| dgx_h100_flat(n[0]) },
    Profile { name: "pcie", numbers: "BOXES", count: 1..=1, make: |n| pcie(n[0]) },
    Profile { name: "tcp", numbers: "HOSTSxRANKS", count: 2..=2, make: |n| tcp(n[0], n[1]) },
    Profile { name: "rdma", numbers: "HOSTSxRANKS", count: 2..=2, make: |n| rdma(n[0], n[1]) },
    Profile { name: "torus", numbers: "DIMxDIM...", count: 1..=8, make: |n| torus(n) },
];

fn make_host(numbers: &[u32]) -> Topology {
    match numbers {
        [ranks, cores] => host_of_cores(*ranks, *cores),
        _ => host(numbers[0]),
    }
}

fn make_domains(numbers: &[u32]) -> Topology {
    let cores = numbers.get(2).copied().unwrap_or(u32::MAX);
    host_of_domains(numbers[0], numbers[1], cores)
}

/// More ranks than any profile has; a larger number is taken for a typing error.
const RANKS_MAX: u64 = 1 << 17;

/// No profile has this name, or not with these numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoSuchProfile {
    /// The name that was asked for.
    pub name: String,
    /// What is wrong with the parameters, where the name begins with that of a network.
    pub fault: Option<String>,
}

impl fmt::Display for NoSuchProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fault) = &self.fault {
            return write!(f, "no topology is called {:?}: {fault}", self.name);
        }
        let known = PROFILES.map(|profile| format!("{}:{}", profile.name, profile.numbers));
        let known: Vec<String> = known.into_iter().chain(networks::usages()).collect();
        write!(f, "no topology is called {:?}; there are {}", self.name, known.join(", "))
    }
}

impl Error for NoSuchProfile {}

/// The profile of that name with its numbers, for example `dgx-h100:2`, or the network with its parameters, for example
/// `fat-tree:k=8,oversubscription=2` or `rail-optimised:boxes=64,box=dgx-h100`.
///
/// # Errors
///
/// [`NoSuchProfile`], which lists the profiles, or says what is wrong with a network's parameters.
pub fn profile(name: &str) -> Result<Topology, NoSuchProfile> {
    let fault = || NoSuchProfile { name: name.to_owned(), fault: None };
    let (word, numbers) = name.split_once(':').ok_or_else(fault)?;
    if let Some(found) = networks::network(word, numbers) {
        return found.map_err(|why| NoSuchProfile { fault: Some(why), ..fault() });
    }
    let profile = PROFILES.iter().find(|profile| profile.name == word).ok_or_else(fault)?;
    let numbers: Vec<u32> =
        numbers.split('x').map(str::parse).collect::<Result<_, _>>().map_err(|_| fault())?;
    let ranks = numbers.iter().try_fold(1u64, |product, &number| product.checked_mul(u64::from(number)));
    let fits = ranks.is_some_and(|ranks| (1..=RANKS_MAX).contains(&ranks));
    if !profile.count.contains(&numbers.len()) || !fits {
        return Err(fault());
    }
    Ok((profile.make)(&numbers))
}
