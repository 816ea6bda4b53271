//! Connections by verbs: over the stand-in, and where the system has an active port over that.

use super::*;
use crate::conformance::{Fixture, Stranger};

/// Both sides of a connection over one port.
struct OverPort(fn() -> Option<Verbs>);

fn over_standin() -> Option<Verbs> {
    let ports = Port::all(standin::functions(), &|_, _| true).expect("the stand-in's");
    Some(Verbs::over(ports.into_iter().next().expect("a port")).expect("a transport"))
}

impl Fixture for OverPort {
    fn sides(&self) -> (Arc<dyn Transport>, Arc<dyn Transport>) {
        let side = || -> Arc<dyn Transport> { Arc::new((self.0)().expect("a port")) };
        (side(), side())
    }

    fn stranger(&self, _: &Address) -> Option<Box<dyn Stranger>> {
        None
    }

    fn hears_of_peers_that_gave_up(&self) -> bool {
        false
    }
}

crate::conformance_suite!(over_the_standin, OverPort(over_standin));

fn over_a_device() -> Option<Verbs> {
    Verbs::new().ok()
}

/// The same suite over the first device of this system, such as one of `scripts/rxe`.
#[test]
fn over_the_devices_of_this_system() {
    use crate::conformance::*;
    if let Err(error) = Verbs::new() {
        println!("SKIP: {error}");
        return;
    }
    type Check = fn(&dyn Fixture);
    let checks: [(&str, Check); 16] = [
        ("puts_land_where_they_should", puts_land_where_they_should),
        ("a_signal_publishes_the_puts_before_it", a_signal_publishes_the_puts_before_it),
        ("a_signal_may_come_while_a_put_is_under_way", a_signal_may_come_while_a_put_is_under_way),
        ("both_directions_flow_at_once", both_directions_flow_at_once),
        ("puts_out_of_bounds_are_refused", puts_out_of_bounds_are_refused),
        ("random_traffic_arrives", random_traffic_arrives),
        ("slots_change_hands", slots_change_hands),
        ("names_of_slots_are_checked", names_of_slots_are_checked),
        ("what_was_sent_before_the_end_stays", what_was_sent_before_the_end_stays),
        ("what_was_queued_at_the_end_arrives", what_was_queued_at_the_end_arrives),
        ("a_peer_that_gives_up_is_noticed", a_peer_that_gives_up_is_noticed),
        ("a_sleeper_is_woken", a_sleeper_is_woken),
        ("many_connections_at_once", many_connections_at_once),
        ("sides_may_differ_in_size", sides_may_differ_in_size),
        ("garbage_addresses_are_refused", garbage_addresses_are_refused),
        ("absurd_sizes_are_typed_errors", absurd_sizes_are_typed_errors),
    ];
    for (name, check) in checks {
        let begun = Instant::now();
        check(&OverPort(over_a_device));
        println!("{name}: {:?}", begun.elapsed());
    }
    // Its thousand rounds are long where a device is a program.
    let begun = Instant::now();
    what_is_sent_by_one_who_goes_at_once_arrives(&OverPort(over_a_device));
    println!("what_is_sent_by_one_who_goes_at_once_arrives: {:?}", begun.elapsed());
}
