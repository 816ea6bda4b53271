//! Networks of data centres by their parameters: `fat-tree:k=8,oversubscription=2`, `dragonfly:hosts=2,routers=4,global=2,groups=9`.
//!
//! Invariant: the same words give the same graph; a number that a network cannot have is refused before memory is
//! taken. A family is one file: its keys, and a function that drafts hosts, switches and cables. A rank is a host with
//! one adapter for each of its cables, or, with `box=dgx-h100`, a GPU of a box whose adapters are the hosts of the draft,
//! adapter `i` of box `b` the host `b * adapters + i`. Cables between the same two nodes are one link.
//! Deliberately absent: routing (a [`Topology`] has one shortest route for two nodes, and no network here spreads its
//! traffic over equal ones), cable lengths, and the torus, which is a [profile](super::torus).

mod bcube;
mod bigraph;
mod boxes;
mod clos;
mod dcell;
mod draft;
mod dragonfly;
mod fat_tree;
mod hamming_mesh;
mod hpn;
mod jellyfish;
mod nvlink;
mod rails;
mod words;

use draft::Draft;
use words::{Family, Values};

use super::Topology;

const FAMILIES: [&Family; 13] = [
    &clos::FAMILY,
    &fat_tree::FAMILY,
    &rails::OPTIMISED,
    &rails::ONLY,
    &hpn::FAMILY,
    &dragonfly::FAMILY,
    &dragonfly::PLUS,
    &hamming_mesh::FAMILY,
    &bcube::FAMILY,
    &dcell::FAMILY,
    &jellyfish::FAMILY,
    &bigraph::FAMILY,
    &nvlink::FAMILY,
];

/// The network of that family with these parameters, `None` where there is no such family. `rail` is `rail-optimised`.
///
/// # Errors
///
/// What is wrong with the parameters, and which there are.
pub(super) fn network(word: &str, parameters: &str) -> Option<Result<Topology, String>> {
    let full = if word == "rail" { rails::OPTIMISED.name } else { word };
    let family = FAMILIES.into_iter().find(|family| family.name == full)?;
    Some(make(word, family, parameters).map_err(|fault| format!("{fault}; {}", family.usage())))
}

/// How each family is written.
pub(super) fn usages() -> impl Iterator<Item = String> {
    FAMILIES.into_iter().map(|family| family.usage())
}

fn make(word: &str, family: &Family, parameters: &str) -> Result<Topology, String> {
    let values = Values::read(family, parameters)?;
    let name = format!("{word}:{parameters}");
    match values.kind {
        Some(kind) => boxes::compose(name, kind, values.gbit, &(family.draft)(&values)?),
        None => Ok((family.draft)(&values)?.hosts_as_ranks(name, values.gbit.unwrap_or(draft::CABLE_GBIT))),
    }
}
