//! BiGraph: two layers of switches, both with hosts.

use super::draft::{Draft, End};
use super::words::{Boxes, Family, Key, Values};

/// A BiGraph: `switches` in each of two layers, every switch with `hosts` hosts and a cable to every switch of the other
/// layer. Hosts of different layers have one shortest path, so that no route has to be chosen.
///
/// Source: J. Dong et al., "EFLOPS: algorithm and system co-design for a high performance distributed training platform",
/// HPCA 2020. Counted here, with `m` switches a layer: `2 m hosts` hosts, `m^2 + 2 m hosts` cables, diameter 4; the least
/// cut has half of both layers on each side, `m^2/2` cables between switches for even `m`.
pub(super) const FAMILY: Family = Family {
    name: "bigraph",
    keys: &[
        Key::needed("switches", "SWITCHES_A_LAYER", 1..=1024),
        Key::needed("hosts", "HOSTS_A_SWITCH", 1..=1024),
    ],
    boxes: Boxes::Allowed,
    draft,
};

fn draft(values: &Values) -> Result<Draft, String> {
    let [switches, hosts] = values.numbers();
    let [m, h] = [switches, hosts].map(u64::from);
    let mut draft = Draft::announce(2 * m * h, 2 * m, m * m + 2 * m * h)?;
    let upper = draft.switches("upper", switches);
    let lower = draft.switches("lower", switches);
    for host in 0..2 * switches * hosts {
        draft.cable(End::Host(host), End::Switch(upper + host / hosts));
    }
    for number in 0..switches * switches {
        draft.cable(End::Switch(upper + number / switches), End::Switch(lower + number % switches));
    }
    Ok(draft)
}
