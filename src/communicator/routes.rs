//! Which transport leads to which rank of a real process: memory inside a process and a host, sockets between hosts; or RDMA, by the
//! adapter that is nearest to this rank.
//!
//! Invariant: what the control link proved about the distance decides, as [`Routes`] demands. Listeners are the process's
//! and go with the last communicator that uses them. Absent: what travels.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use consort_algorithms::hardware::BusId;
use consort_transports::{MemoryLender, Near, NetPlugin, Tcp, Transport, TransportError, Verbs};

use super::adapters;
use crate::Rank;
use crate::engine::links::link_error;
use crate::engine::routes::Routes;
use consort_control::bootstrap::{further_interfaces, turn};
use consort_control::membership::group::Group;
use consort_control::membership::member::Distance;
use consort_control::membership::process::{Attendance, Listening, Shared};
use consort_settings::options::{PortRange, Rdma, Settings, TransportChoice};
use consort_types::error::{Error, Result};

/// The transports of a real process.
pub(crate) struct ProcessRoutes {
    choice: TransportChoice,
    /// At which its listeners take a port.
    ports: Option<PortRange>,
    /// What is asked of RDMA, and the rank's GPU.
    rdma: Rdma,
    gpu: Option<BusId>,
    shared: Arc<Shared>,
    /// By local address; with what keeps its listeners.
    tcp: HashMap<IpAddr, (Vec<Arc<Listening>>, Arc<Tcp>)>,
    /// The rank's, once it is needed.
    verbs: Option<Arc<Adapters>>,
    /// The list of plugins, and the transport over the first that can be used, once it is needed.
    plugins: String,
    plugin: Option<Arc<Plugged>>,
}

/// A plugin's transport, with what the control thread does for it.
struct Plugged {
    /// Before the transport, whose last words it must not miss.
    _attended: Option<Attendance>,
    transport: Arc<NetPlugin>,
}

/// The plugins of this process by their lists, for as long as a communicator uses them.
static PLUGINS: Mutex<Vec<(String, Weak<Plugged>)>> = Mutex::new(Vec::new());

/// RDMA for ranks in one place that ask for the same.
struct Adapters {
    verbs: Arc<Verbs>,
    /// What their devices say is heard by the control thread, and closed connections are looked after.
    _attended: Option<Attendance>,
}

/// RDMA of this process by what is asked for and by where the rank is, for as long as a communicator uses it.
static VERBS: Mutex<Vec<(Rdma, Near, Weak<Adapters>)>> = Mutex::new(Vec::new());

impl ProcessRoutes {
    pub(crate) fn new(shared: Arc<Shared>, settings: &Settings) -> Self {
        let Settings { transport: choice, ports, device: gpu, .. } = *settings;
        let rdma = settings.rdma.clone();
        let plugins = settings.net_plugin.clone();
        ProcessRoutes {
            choice,
            ports,
            rdma,
            gpu,
            shared,
            tcp: HashMap::new(),
            verbs: None,
            plugins,
            plugin: None,
        }
    }

    /// Where this rank is, for the choice of an adapter. Ranks of one host and memory node take turns.
    fn near(&self, group: &Group) -> Near {
        let member = &group.member;
        let beside = turn(&member.table, member.rank as usize);
        adapters::near(self.gpu, &member.table[member.rank as usize].place, beside)
    }

    fn verbs(&mut self, group: &Group) -> std::result::Result<Arc<Verbs>, TransportError> {
        if let Some(adapters) = &self.verbs {
            return Ok(adapters.verbs.clone());
        }
        let near = self.near(group);
        let mut of_process = VERBS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut adapters = None;
        of_process.retain(|(rdma, place, known)| {
            let Some(known) = known.upgrade() else { return false };
            // A forked child's copy is its parent's.
            if known.verbs.is_forked_child() {
                std::mem::forget(known);
                return false;
            }
            // Who has connections by it has their errors; others open the device again.
            if known.verbs.has_failed() {
                return false;
            }
            if (rdma, place) == (&self.rdma, &near) {
                adapters = Some(known);
            }
            true
        });
        let adapters = match adapters {
            Some(adapters) => adapters,
            None => {
                let verbs = Arc::new(Verbs::near(&adapters::options(&self.rdma), &near)?);
                let service = verbs.service();
                let _attended = service.map(|service| self.shared.attended(service)).transpose()?;
                let adapters = Arc::new(Adapters { verbs, _attended });
                of_process.push((self.rdma.clone(), near, Arc::downgrade(&adapters)));
                adapters
            }
        };
        self.verbs = Some(adapters.clone());
        Ok(adapters.verbs.clone())
    }

    fn plugin(&mut self) -> std::result::Result<Arc<NetPlugin>, TransportError> {
        if let Some(plugged) = &self.plugin {
            return Ok(plugged.transport.clone());
        }
        let mut of_process = PLUGINS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = of_process.iter().position(|(list, _)| *list == self.plugins);
        let plugged = known.and_then(|at| of_process[at].1.upgrade());
        // A forked child's copy is its parent's.
        let plugged = match plugged {
            Some(plugged) if !plugged.transport.is_forked_child() => plugged,
            parents => {
                std::mem::forget(parents);
                known.into_iter().for_each(|at| _ = of_process.swap_remove(at));
                let transport = Arc::new(NetPlugin::load(&self.plugins)?);
                let service = transport.service();
                let _attended = service.map(|service| self.shared.attended(service)).transpose()?;
                Arc::new(Plugged { _attended, transport })
            }
        };
        if !of_process.iter().any(|(list, _)| *list == self.plugins) {
            of_process.push((self.plugins.clone(), Arc::downgrade(&plugged)));
        }
        self.plugin = Some(plugged.clone());
        Ok(plugged.transport.clone())
    }
}

impl Routes for ProcessRoutes {
    fn is_mapped(&self, group: &Group, rank: Rank) -> bool {
        group.member.is_near(group.members[rank as usize]) && !self.choice.is_by_messages()
    }

    fn transport(&mut self, group: &Group, rank: Rank) -> Result<Arc<dyn Transport>> {
        let unavailable = |cause: &str| Error::Link {
            from: group.rank,
            to: rank,
            transport: "shm".into(),
            cause: cause.into(),
        };
        let failed = |error| link_error(group.rank, rank, error);
        if self.choice == TransportChoice::Verbs {
            return Ok(self.verbs(group).map_err(failed)?);
        }
        if self.choice == TransportChoice::Plugin {
            return Ok(self.plugin().map_err(failed)?);
        }
        let ip = match (group.member.distance(group.members[rank as usize]), self.choice) {
            (Distance::Process, TransportChoice::Auto | TransportChoice::SharedMemory) => {
                return Ok(self.shared.loopback.clone());
            }
            (Distance::Host, TransportChoice::Auto | TransportChoice::SharedMemory) => {
                return match &self.shared.memory {
                    Some(memory) => Ok(memory.clone()),
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
            (_, TransportChoice::Tcp | TransportChoice::Verbs | TransportChoice::Plugin) => {
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            }
        };
        if let Some((_, tcp)) = self.tcp.get(&ip) {
            return Ok(tcp.clone());
        }
        let mut listening = vec![self.shared.listening(ip, self.ports).map_err(failed)?];
        for further in further_interfaces(ip) {
            match self.shared.listening(further, self.ports) {
                Ok(further) => listening.push(further),
                // The first carries everything then.
                Err(error) => tracing::warn!("a further interface is not used: {error}"),
            }
        }
        let listeners = listening.iter().map(|listening| listening.listener.clone()).collect();
        let tcp = Arc::new(Tcp::over(listeners, group.member.key).map_err(failed)?);
        self.tcp.insert(ip, (listening, tcp.clone()));
        Ok(tcp)
    }

    fn memory(&self) -> Option<&dyn MemoryLender> {
        self.shared.memory.as_deref()
    }

    fn abandon(&mut self) {
        std::mem::forget((std::mem::take(&mut self.tcp), self.verbs.take(), self.plugin.take()));
    }
}
