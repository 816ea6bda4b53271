//! Two planes that never meet: Alibaba's HPN.

use super::draft::{Draft, End};
use super::words::{Boxes, Family, Key, Values};

const PLANES: u32 = 2;
/// A way up is a port of 400 Gb/s, a way down one of 200 Gb/s.
const UP: u32 = 2;

/// HPN: an adapter has two ports, each to a switch of its own plane; a segment has a switch for each rail and plane, and
/// every such switch has one way up, of twice the bandwidth, to each aggregation switch of its plane.
///
/// Source: K. Qian et al., "Alibaba HPN: a data center network for large language model training", SIGCOMM 2024: segments
/// of 128 boxes (1,024 GPUs) with 16 switches, 60 aggregation switches a plane, 15 segments and some 15,000 GPUs a
/// pod; 25.6 Tb/s down and 24 Tb/s up, so 1.067 : 1. The cores that join pods are left out, and the ports kept in
/// reserve. Diameter 6; a cut between two halves of the segments severs `segments * rails * aggregations` ways up.
pub(super) const FAMILY: Family = Family {
    name: "hpn",
    keys: &[
        Key::needed("segments", "SEGMENTS", 1..=15),
        Key::or("boxes", "BOXES_A_SEGMENT", 128, 1..=128),
        Key::or("aggregations", "SWITCHES_A_PLANE", 60, 1..=60),
    ],
    boxes: Boxes::Always,
    draft,
};

fn draft(values: &Values) -> Result<Draft, String> {
    let [segments, boxes, aggregations] = values.numbers();
    let rails = values.adapters();
    let tors = segments * PLANES * rails;
    let [hosts, t, a, planes] = [segments * boxes * rails, tors, aggregations, PLANES].map(u64::from);
    let mut draft = Draft::announce(hosts, t + planes * a, hosts * planes + t * a)?;
    draft.cables_a_host = PLANES;
    for plane in 0..PLANES {
        let tor = draft.switches(&format!("tor{plane}."), segments * rails);
        let aggregation = draft.switches(&format!("aggregation{plane}."), aggregations);
        for host in 0..segments * boxes * rails {
            let below = tor + host / (boxes * rails) * rails + host % rails;
            draft.cable(End::Host(host), End::Switch(below));
        }
        for number in 0..segments * rails * aggregations {
            let [below, above] =
                [tor + number / aggregations, aggregation + number % aggregations].map(End::Switch);
            draft.trunk(below, above, UP);
        }
    }
    Ok(draft)
}
