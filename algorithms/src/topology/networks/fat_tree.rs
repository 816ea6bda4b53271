//! The fat tree of three tiers of equal switches.

use super::draft::{Draft, End};
use super::words::{Boxes, Family, Key, Values};

/// A fat tree of switches with `k` ports: `k` pods of `k/2` edge switches with `k/2` hosts each, `k/2` switches that
/// aggregate a pod, and `(k/2)^2` cores. With `oversubscription` `R` a pod has `k/2R` aggregation switches, and the
/// cores of the others are left out, so that `k/2` hosts share `k/2R` ways up.
///
/// Source: M. Al-Fares, A. Loukissas, A. Vahdat, "A scalable, commodity data center network architecture", SIGCOMM 2008:
/// `k^3/4` hosts, diameter 6, and full bisection, `k^3/8` cables; a share `1/R` of it where oversubscribed.
pub(super) const FAMILY: Family = Family {
    name: "fat-tree",
    keys: &[Key::needed("k", "K", 2..=80), Key::or("oversubscription", "R", 1, 1..=40)],
    boxes: Boxes::Allowed,
    draft,
};

fn draft(values: &Values) -> Result<Draft, String> {
    let [k, oversubscription] = values.numbers();
    let half = k / 2;
    if !k.is_multiple_of(2) {
        return Err(format!("k={k} is odd: half of a switch's ports lead up and half down"));
    }
    if !half.is_multiple_of(oversubscription) {
        return Err(format!("oversubscription={oversubscription} does not divide the {half} ways up"));
    }
    let ups = half / oversubscription;
    let [pods, h, u] = [k, half, ups].map(u64::from);
    let mut draft = Draft::announce(pods * h * h, pods * (h + u) + u * h, pods * h * (h + 2 * u))?;
    let edge = draft.switches("edge", k * half);
    let aggregation = draft.switches("aggregation", k * ups);
    let core = draft.switches("core", ups * half);
    for host in 0..k * half * half {
        draft.cable(End::Host(host), End::Switch(edge + host / half));
    }
    for pod in 0..k {
        for up in 0..ups {
            let above = End::Switch(aggregation + pod * ups + up);
            for number in 0..half {
                draft.cable(End::Switch(edge + pod * half + number), above);
                draft.cable(above, End::Switch(core + up * half + number));
            }
        }
    }
    Ok(draft)
}
