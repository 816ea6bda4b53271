//! BCube: hosts with a switch for each digit of their number.

use super::draft::{Draft, End};
use super::words::{Boxes, Family, Key, Values};

/// A BCube: `n^(k+1)` hosts with `k+1` ports; a switch of level `l` joins the `n` hosts whose numbers to the base `n`
/// differ in digit `l` alone. Hosts forward messages.
///
/// Source: C. Guo et al., "BCube: a high performance, server-centric network architecture for modular data centers",
/// SIGCOMM 2009: `(k+1) n^k` switches, diameter `k+1` hops from host to host, which are `2(k+1)` cables here; for even
/// `n` a bisection of half as many cables as hosts.
pub(super) const FAMILY: Family = Family {
    name: "bcube",
    keys: &[Key::needed("n", "PORTS", 2..=1024), Key::needed("k", "LEVEL", 0..=10)],
    boxes: Boxes::Never,
    draft,
};

fn draft(values: &Values) -> Result<Draft, String> {
    let [n, k] = values.numbers();
    let levels = u64::from(k) + 1;
    let hosts = u64::from(n).saturating_pow(k + 1);
    let mut draft =
        Draft::announce(hosts, (hosts / u64::from(n)).saturating_mul(levels), hosts.saturating_mul(levels))?;
    draft.forwards = true;
    for level in 0..=k {
        let first = draft.switches(&format!("level{level}."), draft.hosts / n);
        let stride = n.pow(level);
        for host in 0..draft.hosts {
            // The number without its digit of this level.
            let switch = host / (stride * n) * stride + host % stride;
            draft.cable(End::Host(host), End::Switch(first + switch));
        }
    }
    Ok(draft)
}
