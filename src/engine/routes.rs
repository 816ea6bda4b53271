//! Which transport leads to which rank.
//!
//! Invariant: both ends of a link choose the same transport, because they see the same distance.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use consort_transports::{Shm, Tcp, Transport};

use super::links::link_error;
use crate::Rank;
use crate::control::group::Group;
use crate::control::member::Distance;
use crate::control::process::Shared;
use crate::error::{Error, Result};
use crate::options::TransportChoice;

/// The ways out of a process.
pub(crate) trait Routes: Send {
    /// Whether the link to `rank` can be stored to, once it is there: known beforehand, so that plans can be made
    /// for it.
    fn is_mapped(&self, group: &Group, rank: Rank) -> bool;

    /// What carries the link to `rank`.
    fn transport(&mut self, group: &Group, rank: Rank) -> Result<Arc<dyn Transport>>;

    /// Where memory files are lent and fetched, if that is possible.
    fn shm(&self) -> Option<&Shm> {
        None
    }

    /// Forgets everything without closing what a parent process still uses.
    fn abandon(&mut self);
}

/// The transports of a real process.
pub(crate) struct ProcessRoutes {
    choice: TransportChoice,
    shared: Arc<Shared>,
    tcp: HashMap<IpAddr, Arc<Tcp>>,
}

impl ProcessRoutes {
    pub(crate) fn new(shared: Arc<Shared>, choice: TransportChoice) -> Self {
        ProcessRoutes { choice, shared, tcp: HashMap::new() }
    }
}

impl Routes for ProcessRoutes {
    fn is_mapped(&self, group: &Group, rank: Rank) -> bool {
        match group.member.distance(group.members[rank as usize]) {
            Distance::Process | Distance::Host => self.choice != TransportChoice::Tcp,
            Distance::Network(_) => false,
        }
    }

    fn transport(&mut self, group: &Group, rank: Rank) -> Result<Arc<dyn Transport>> {
        let unavailable = |cause: &str| Error::Link {
            from: group.rank,
            to: rank,
            transport: "shm".into(),
            cause: cause.into(),
        };
        let ip = match (group.member.distance(group.members[rank as usize]), self.choice) {
            (Distance::Process, TransportChoice::Auto | TransportChoice::SharedMemory) => {
                return Ok(self.shared.loopback.clone());
            }
            (Distance::Host, TransportChoice::Auto | TransportChoice::SharedMemory) => {
                return match &self.shared.shm {
                    Some(shm) => Ok(shm.clone()),
                    None => Err(unavailable(
                        "shared memory is not available in this process; set CONSORT_TRANSPORT=tcp",
                    )),
                };
            }
            (Distance::Network(_), TransportChoice::SharedMemory) => {
                return Err(unavailable(
                    "the rank is on another host (or in another network namespace) and CONSORT_TRANSPORT is shm",
                ));
            }
            (Distance::Network(ip), _) => ip,
            (_, TransportChoice::Tcp) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        if let Some(tcp) = self.tcp.get(&ip) {
            return Ok(tcp.clone());
        }
        let tcp = Tcp::new(ip, group.member.key).map_err(|error| link_error(group.rank, rank, error))?;
        let tcp = Arc::new(tcp);
        self.tcp.insert(ip, tcp.clone());
        Ok(tcp)
    }

    fn shm(&self) -> Option<&Shm> {
        self.shared.shm.as_deref()
    }

    fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.tcp));
    }
}
