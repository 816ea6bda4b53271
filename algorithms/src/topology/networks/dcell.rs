//! DCell: cells of cells, every two of a level joined by one cable.

use super::draft::{Draft, End};
use super::words::{Boxes, Family, Key, Values};

/// A DCell: `n` hosts at a switch are a cell of level 0; a cell of level `l` is `t + 1` cells of level `l-1` with `t` hosts
/// each, and cell `i` and cell `j > i` are joined by a cable from host `j-1` of the first to host `i` of the second.
/// Hosts forward messages.
///
/// Source: C. Guo et al., "DCell: a scalable and fault-tolerant network structure for data centers", SIGCOMM 2008 (its
/// figure 3 builds the cells this way): `t_l = t_(l-1) (t_(l-1) + 1)` hosts with `l+1` ports; at most `2^(k+1) - 1` hops
/// from host to host, a hop through a switch being two cables here; a bisection of more than `t_k / (4 log_n t_k)`
/// cables.
pub(super) const FAMILY: Family = Family {
    name: "dcell",
    keys: &[Key::needed("n", "PORTS", 2..=361), Key::needed("k", "LEVEL", 0..=3)],
    boxes: Boxes::Never,
    draft,
};

fn draft(values: &Values) -> Result<Draft, String> {
    let [n, k] = values.numbers();
    let sizes: Vec<u64> = std::iter::successors(Some(u64::from(n)), |t| Some(t.saturating_mul(t + 1)))
        .take(k as usize + 1)
        .collect();
    let hosts = sizes[k as usize];
    // Each host has a cable to its switch and half a cable of each level above.
    let cables = hosts.saturating_add(hosts.saturating_mul(u64::from(k)) / 2);
    let mut draft = Draft::announce(hosts, hosts / u64::from(n), cables)?;
    draft.forwards = true;
    draft.switches("switch", draft.hosts / n);
    for host in 0..draft.hosts {
        draft.cable(End::Host(host), End::Switch(host / n));
    }
    for pair in sizes.windows(2) {
        let [inner, outer] = [pair[0] as u32, pair[1] as u32];
        for first in (0..draft.hosts).step_by(outer as usize) {
            for low in 0..=inner {
                for high in low + 1..=inner {
                    let host = |cell: u32, number: u32| End::Host(first + cell * inner + number);
                    draft.cable(host(low, high - 1), host(high, low));
                }
            }
        }
    }
    Ok(draft)
}
