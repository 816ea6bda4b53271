//! All-reduce by trees that differ up and down: at the bound where links carry bytes one way alone.

use consort_algorithms::Collective;
use consort_algorithms::synthesize::{rate, rooted, trees};

use super::{fabric, prove};

#[test]
fn two_boxes_with_a_link_each_way_are_at_their_bound() {
    let topology = fabric("ndv2-x2");
    assert!(
        trees::all_reduce(&topology, &trees::Options::default()).is_none(),
        "edges both ways join no boxes"
    );
    let found = rooted::all_reduce(&topology).expect("each rank reaches the others");
    assert_eq!(found.schedule.collective, Collective::AllReduce);
    assert_eq!(rate(&found.schedule, &topology).expect("routes"), Some(found.rate));
    assert_eq!(found.rate, found.bound);
    assert_eq!(found.rate.value(), 12.5e9);
    prove(&found.schedule, "ndv2-x2");
    assert_eq!(Some(&found), rooted::all_reduce(&topology).as_ref(), "again");
}

#[test]
fn one_root_is_not_above_the_bound() {
    for name in ["dgx-1", "mi250", "torus-4x4", "pcie-dual-root"] {
        let topology = fabric(name);
        let found = rooted::all_reduce(&topology).expect("each rank reaches the others");
        assert!(found.rate <= found.bound && found.rate.value() >= 0.3 * found.bound.value(), "{name}");
        prove(&found.schedule, name);
    }
}
