//! What tests of other crates have of the stand-in: transports over it, and adapters that are not answered.

use std::time::Duration;

use super::super::options::RdmaOptions;
use super::super::sys::Gid;
use super::super::sysfs::Sysfs;
use super::super::{Near, Search, Verbs};
use super::{Adapter, AdapterPort, Source, functions, set, with};

/// Names of the adapters.
const NAMES: [&str; 4] = ["standin0", "standin1", "standin2", "standin3"];

/// The address of an adapter's port.
fn address(network: u8, adapter: u8) -> [u8; 4] {
    [10, network, adapter, 1]
}

#[doc(hidden)]
impl Verbs {
    /// A transport over the stand-in for adapters, by one queue pair at each of `adapters` ports of a network.
    ///
    /// # Panics
    /// If there are none or more than four.
    pub fn over_standin(network: u8, adapters: u8) -> Self {
        let all = NAMES.into_iter().zip(0..adapters);
        let ports = |adapter| vec![AdapterPort::ethernet(address(network, adapter))];
        set(all.map(|(name, adapter)| Adapter::new(name, ports(adapter))).collect());
        let (sysfs, options, near) =
            (Sysfs::below("/nonexistent", None), RdmaOptions::default(), Near::default());
        let search = Search { functions: functions(), sysfs: &sysfs, options: &options, near: &near };
        Verbs::over(&search.ports().expect("ports"), 1, 1, None).expect("the stand-in's adapters")
    }

    /// Nothing that the connections of a network send from now on is answered, and their adapters do not give up.
    pub fn silence_standin(network: u8) {
        let is_there = |gid: &Gid| gid.0[12..14] == [10, network];
        with(|world| {
            world.patience = Duration::from_secs(600);
            let there = world.queues.values_mut().filter(|of| is_there(&of.attr.ah_attr.grh.dgid));
            there.for_each(|of| of.peer = 0);
        });
    }

    /// Whether an adapter was given some of this memory to send, among the last that it was given.
    pub fn standin_was_given(start: usize, bytes: usize) -> bool {
        let is_in =
            |(at, length): &(usize, usize)| *length > 0 && *at >= start && at + length <= start + bytes;
        with(|world| world.queues.values().any(|of| of.posted.iter().any(is_in)))
    }

    /// Whether an adapter may still read some of this memory for what it was given to send.
    pub fn standin_reads(start: usize, bytes: usize) -> bool {
        let is_in = |source: &Source| match source {
            Source::Inline(_) => false,
            Source::Memory(of) => {
                (of.addr as usize) < start + bytes && start < of.addr as usize + of.length as usize
            }
        };
        with(|world| world.queues.values().any(|of| of.sends.iter().any(|send| is_in(&send.source))))
    }
}
