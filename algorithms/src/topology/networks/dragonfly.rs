//! Dragonfly and Dragonfly+: groups, every two joined.

use super::draft::{Draft, End, all_pairs};
use super::words::{Boxes, Family, Key, Values};

/// A dragonfly: groups of `routers` that are all joined, each router with `hosts` hosts and `global` ports to other
/// groups; every two groups are joined by `routers * global / (groups - 1)` cables, rounded down.
///
/// Source: J. Kim, W. Dally, S. Scott, D. Abts, "Technology-driven, highly-scalable dragonfly topology", ISCA 2008
/// (there p, a, h and g): at most `a h + 1` groups, `a p g` hosts, a local, a global and a local hop, so diameter 5. A
/// cut between two halves of the groups severs `(g/2)^2` bundles of cables.
pub(super) const FAMILY: Family = Family {
    name: "dragonfly",
    keys: &[
        Key::needed("hosts", "HOSTS_A_ROUTER", 1..=1024),
        Key::needed("routers", "ROUTERS_A_GROUP", 1..=1024),
        Key::needed("global", "PORTS_A_ROUTER", 1..=1024),
        Key::needed("groups", "GROUPS", 2..=4096),
    ],
    boxes: Boxes::Allowed,
    draft,
};

/// Dragonfly+: a group is `leaves` with `hosts` hosts each and `spines` that join all leaves of the group and have
/// `global` ports to other groups.
///
/// Source: A. Shpiner, Z. Haramaty, S. Eliad, V. Zdornov, B. Gafni, E. Zahavi, "Dragonfly+: low cost topology for scaling
/// datacenters", HiPINEB 2017: with switches of `k` ports, `k/2` leaves and spines a group and `(k/2)^2` global ports
/// there are at most `(k/2)^2 + 1` groups of `(k/2)^2` hosts; leaf, spine, spine, leaf, so diameter 5. A cut between two
/// halves of the groups is that of the dragonfly.
pub(super) const PLUS: Family = Family {
    name: "dragonfly+",
    keys: &[
        Key::needed("hosts", "HOSTS_A_LEAF", 1..=1024),
        Key::needed("leaves", "LEAVES_A_GROUP", 1..=1024),
        Key::needed("spines", "SPINES_A_GROUP", 1..=1024),
        Key::needed("global", "PORTS_A_SPINE", 1..=1024),
        Key::needed("groups", "GROUPS", 2..=4096),
    ],
    boxes: Boxes::Allowed,
    draft: draft_plus,
};

/// Refuses more groups than ports lead to.
fn check(groups: u32, ports: u64) -> Result<(), String> {
    if u64::from(groups - 1) > ports {
        let most = ports + 1;
        return Err(format!(
            "groups={groups}: the {ports} global ports of a group join at most {most} groups"
        ));
    }
    Ok(())
}

/// Cables between groups.
fn between(groups: u32, ports: u64) -> u64 {
    let g = u64::from(groups);
    g * (g - 1) / 2 * (ports / (g - 1))
}

fn draft(values: &Values) -> Result<Draft, String> {
    let [hosts, routers, global, groups] = values.numbers();
    let [p, a, h, g] = [hosts, routers, global, groups].map(u64::from);
    check(groups, a * h)?;
    let mut draft =
        Draft::announce(p * a * g, a * g, p * a * g + g * (a * (a - 1) / 2) + between(groups, a * h))?;
    let router = draft.switches("router", routers * groups);
    for host in 0..hosts * routers * groups {
        draft.cable(End::Host(host), End::Switch(router + host / hosts));
    }
    for group in 0..groups {
        for low in 0..routers {
            for high in low + 1..routers {
                let [low, high] = [low, high].map(|number| End::Switch(router + group * routers + number));
                draft.cable(low, high);
            }
        }
    }
    for ends in all_pairs(groups, routers * global) {
        let [one, other] = ends.map(|(group, port)| End::Switch(router + group * routers + port / global));
        draft.cable(one, other);
    }
    Ok(draft)
}

fn draft_plus(values: &Values) -> Result<Draft, String> {
    let [hosts, leaves, spines, global, groups] = values.numbers();
    let [p, l, s, h, g] = [hosts, leaves, spines, global, groups].map(u64::from);
    check(groups, s * h)?;
    let mut draft =
        Draft::announce(p * l * g, (l + s) * g, p * l * g + g * (l * s) + between(groups, s * h))?;
    let leaf = draft.switches("leaf", leaves * groups);
    let spine = draft.switches("spine", spines * groups);
    for host in 0..hosts * leaves * groups {
        draft.cable(End::Host(host), End::Switch(leaf + host / hosts));
    }
    for number in 0..leaves * spines * groups {
        let (group, within) = (number / (leaves * spines), number % (leaves * spines));
        let below = End::Switch(leaf + group * leaves + within / spines);
        draft.cable(below, End::Switch(spine + group * spines + within % spines));
    }
    for ends in all_pairs(groups, spines * global) {
        let [one, other] = ends.map(|(group, port)| End::Switch(spine + group * spines + port / global));
        draft.cable(one, other);
    }
    Ok(draft)
}
