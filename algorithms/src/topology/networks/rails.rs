//! Networks whose switches join the adapters of equal number of all boxes.

use super::draft::{Draft, End};
use super::words::{Boxes, Family, Key, Values};

/// Rail-optimised: boxes in units; in each unit a leaf for each adapter of a box, and spines of `ports` ports that join
/// all leaves. A leaf has a cable down to each box of its unit and ports up for `1/R` as many
/// as a whole unit has; the last unit may have fewer boxes.
///
/// Source: NVIDIA, "DGX SuperPOD: next generation scalable infrastructure for AI leadership", RA-11333-001 (DGX H100,
/// units of 32 boxes): 8 leaves a unit; 4, 8 and 16 spines for 1, 2 and 4 units; as many cables between leaves and spines
/// as between boxes and leaves. Diameter 6 from GPU to GPU of different boxes; a cut between two halves of the units
/// severs `boxes * adapters / 2R` cables.
pub(super) const OPTIMISED: Family = Family {
    name: "rail-optimised",
    keys: &[
        Key::needed("boxes", "BOXES", 1..=16_384),
        Key::or("unit", "BOXES_A_UNIT", 32, 1..=1024),
        Key::or("oversubscription", "R", 1, 1..=64),
        Key::or("ports", "PORTS_A_SPINE", 64, 2..=1024),
    ],
    boxes: Boxes::Always,
    draft: optimised,
};

/// Rail-only: each rail is a network of its own, one switch here; what changes rails does so over the box's NVLink, for
/// which ranks forward messages.
///
/// Source: W. Wang et al., "Rail-only: a low-cost high-performance network for training LLMs with trillion parameters",
/// HOTI 2024 (arXiv 2307.12169): the rail-optimised network without spines. Diameter 6, two of them NVLink.
/// A cut between two halves of the boxes severs `boxes * adapters / 2` cables.
pub(super) const ONLY: Family = Family {
    name: "rail-only",
    keys: &[Key::needed("boxes", "BOXES", 1..=16_384)],
    boxes: Boxes::Always,
    draft: only,
};

fn optimised(values: &Values) -> Result<Draft, String> {
    let [boxes, unit, oversubscription, ports] = values.numbers();
    let rails = values.adapters();
    let unit = unit.min(boxes);
    if !unit.is_multiple_of(oversubscription) {
        return Err(format!(
            "oversubscription={oversubscription} does not divide the {unit} boxes of a unit"
        ));
    }
    let ups = unit / oversubscription;
    let leaves = boxes.div_ceil(unit) * rails;
    let enough = |spines: &u32| {
        ups.is_multiple_of(*spines)
            && u64::from(*spines) * u64::from(ports) >= u64::from(leaves) * u64::from(ups)
    };
    let Some(spines) = (1..=ups).find(enough) else {
        return Err(format!(
            "{leaves} leaves with {ups} cables up need spines of at least {leaves} ports: more units take a third tier"
        ));
    };
    let [b, r, l, s] = [boxes, rails, leaves, spines].map(u64::from);
    let mut draft = Draft::announce(b * r, l + s, b * r + l * s)?;
    let first = draft.switches("leaf", leaves);
    let spine = draft.switches("spine", spines);
    for host in 0..boxes * rails {
        let leaf = host / rails / unit * rails + host % rails;
        draft.cable(End::Host(host), End::Switch(first + leaf));
    }
    for number in 0..leaves * spines {
        let [leaf, above] = [first + number / spines, spine + number % spines].map(End::Switch);
        draft.trunk(leaf, above, ups / spines);
    }
    Ok(draft)
}

fn only(values: &Values) -> Result<Draft, String> {
    let [boxes] = values.numbers();
    let rails = values.adapters();
    let hosts = u64::from(boxes) * u64::from(rails);
    let mut draft = Draft::announce(hosts, rails.into(), hosts)?;
    draft.forwards = true;
    draft.switches("rail", rails);
    for host in 0..boxes * rails {
        draft.cable(End::Host(host), End::Switch(host % rails));
    }
    Ok(draft)
}
