//! The conformance suite over plugins that are shared objects.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use consort_tests::plugins::{memory_plugin, own_plugin};
use consort_transports::conformance::{Fixture, Stranger};
use consort_transports::{Address, NetPlugin, Transport, conformance, conformance_suite};

/// Two processes' worth of transports over a plugin.
struct Over(PathBuf);

impl Fixture for Over {
    fn sides(&self) -> (Arc<dyn Transport>, Arc<dyn Transport>) {
        let side = || -> Arc<dyn Transport> {
            Arc::new(NetPlugin::load(self.0.to_str().expect("a path of letters")).expect("a plugin"))
        };
        (side(), side())
    }

    fn stranger(&self, _: &Address) -> Option<Box<dyn Stranger>> {
        None
    }

    fn hears_of_peers_that_gave_up(&self) -> bool {
        false
    }

    fn wakes_sleepers(&self) -> bool {
        false
    }
}

fn memory() -> Option<&'static PathBuf> {
    static PLUGIN: OnceLock<Option<PathBuf>> = OnceLock::new();
    PLUGIN.get_or_init(|| memory_plugin(&["NET_VERSION=12"])).as_ref()
}

conformance_suite!(of_shared_memory, Over(memory().expect("it was compiled").clone()), where memory().is_some());

conformance_suite!(of_our_own, Over(own_plugin()));

#[test]
fn every_version_of_the_interface_is_spoken() {
    for version in 8..=11 {
        let Some(plugin) = memory_plugin(&[&format!("NET_VERSION={version}")]) else { return };
        let over = Over(plugin);
        conformance::a_signal_publishes_the_puts_before_it(&over);
        conformance::both_directions_flow_at_once(&over);
        conformance::what_was_sent_before_the_end_stays(&over);
    }
}
