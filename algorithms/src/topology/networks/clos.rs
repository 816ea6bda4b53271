//! Two tiers: leaves with hosts, and spines that join all leaves.

use super::draft::{Draft, End};
use super::words::{Boxes, Family, Key, Values};

/// A folded Clos network of two tiers: every leaf has `hosts` hosts and one cable to each spine.
///
/// Source: C. Clos, "A study of non-blocking switching networks", Bell System Technical Journal 1953; folded, and with
/// fewer spines than hosts a leaf oversubscribed `hosts : spines`. Diameter 4; a cut through the middle of the leaves
/// severs `leaves * min(hosts, spines) / 2` cables.
pub(super) const FAMILY: Family = Family {
    name: "clos",
    keys: &[
        Key::needed("leaves", "L", 2..=4096),
        Key::needed("hosts", "HOSTS_A_LEAF", 1..=4096),
        Key::needed("spines", "S", 1..=4096),
    ],
    boxes: Boxes::Allowed,
    draft,
};

fn draft(values: &Values) -> Result<Draft, String> {
    let [leaves, hosts, spines] = values.numbers();
    let [l, h, s] = [leaves, hosts, spines].map(u64::from);
    let mut draft = Draft::announce(l * h, l + s, l * h + l * s)?;
    let leaf = draft.switches("leaf", leaves);
    let spine = draft.switches("spine", spines);
    for host in 0..leaves * hosts {
        draft.cable(End::Host(host), End::Switch(leaf + host / hosts));
    }
    for number in 0..leaves * spines {
        draft.cable(End::Switch(leaf + number / spines), End::Switch(spine + number % spines));
    }
    Ok(draft)
}
