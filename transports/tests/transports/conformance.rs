//! The conformance suite over every transport of this crate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::sync::Arc;

use consort_transports::conformance::{Fixture, Stranger};
use consort_transports::simnet::{Network, Node, Profile};
use consort_transports::{Address, Listener, Loopback, Shm, Tcp, Transport, conformance_suite};

struct LoopbackFixture;

impl Fixture for LoopbackFixture {
    fn sides(&self) -> (Arc<dyn Transport>, Arc<dyn Transport>) {
        let loopback = Loopback::new().expect("loopback");
        (Arc::new(loopback.clone()), Arc::new(loopback))
    }

    fn stranger(&self, _: &Address) -> Option<Box<dyn Stranger>> {
        None
    }
}

/// Two processes' worth of objects, or one's.
struct ShmFixture {
    shared: bool,
}

impl Fixture for ShmFixture {
    fn sides(&self) -> (Arc<dyn Transport>, Arc<dyn Transport>) {
        let near = Shm::new().expect("shm");
        let far = if self.shared { near.clone() } else { Shm::new().expect("shm") };
        (Arc::new(near), Arc::new(far))
    }

    fn stranger(&self, address: &Address) -> Option<Box<dyn Stranger>> {
        let name: String = address.bytes[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let address = UnixAddr::from_abstract_name(format!("consort-{name}")).expect("name");
        let stream = UnixStream::connect_addr(&address).expect("a listener");
        stream.set_nonblocking(true).expect("nonblocking");
        Some(Box::new(stream))
    }
}

struct TcpFixture {
    here: IpAddr,
    /// Further addresses of each side.
    further: &'static [Ipv4Addr],
}

impl Fixture for TcpFixture {
    fn sides(&self) -> (Arc<dyn Transport>, Arc<dyn Transport>) {
        let listener = |at| Arc::new(Listener::new(at).expect("a listener"));
        let listeners = || -> Vec<_> {
            let further = self.further.iter().map(|ip| IpAddr::from(*ip));
            std::iter::once(self.here).chain(further).map(listener).collect()
        };
        let side = |listeners, key| Arc::new(Tcp::over(listeners, [key; 32]).expect("tcp"));
        let (near, far) = (listeners(), listeners());
        // Of another job, at the same listeners.
        let others = [side(near.clone(), 6), side(far.clone(), 6)];
        drop(others);
        (side(near, 5), side(far, 5))
    }

    fn stranger(&self, address: &Address) -> Option<Box<dyn Stranger>> {
        let port = u16::from_le_bytes([16, 17].map(|at| address.bytes[at]));
        let stream = TcpStream::connect(SocketAddr::new(self.here, port)).expect("a listener");
        stream.set_nonblocking(true).expect("nonblocking");
        Some(Box::new(stream))
    }
}

/// Two nodes of a network whose time goes on with every look.
struct SimnetFixture {
    seed: u64,
    profile: Profile,
}

impl Fixture for SimnetFixture {
    fn sides(&self) -> (Arc<dyn Transport>, Arc<dyn Transport>) {
        let network = Network::with_own_pace(self.seed).with_profile(self.profile);
        (network.transport(Node(0)), network.transport(Node(1)))
    }

    fn stranger(&self, _: &Address) -> Option<Box<dyn Stranger>> {
        None
    }
}

conformance_suite!(loopback, LoopbackFixture);
conformance_suite!(shm, ShmFixture { shared: false });
conformance_suite!(shm_within_one_object, ShmFixture { shared: true });
conformance_suite!(tcp_v4, TcpFixture { here: Ipv4Addr::LOCALHOST.into(), further: &[] });
conformance_suite!(tcp_v6, TcpFixture { here: Ipv6Addr::LOCALHOST.into(), further: &[] });
/// Addresses of the loopback instead of three interfaces.
const FURTHER: &[Ipv4Addr] = &[Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];
conformance_suite!(tcp_several, TcpFixture { here: Ipv4Addr::LOCALHOST.into(), further: FURTHER });
conformance_suite!(simnet, SimnetFixture { seed: 1, profile: Profile::Messages });
conformance_suite!(simnet_of_another_seed, SimnetFixture { seed: 2, profile: Profile::Messages });
conformance_suite!(simnet_one_sided, SimnetFixture { seed: 1, profile: Profile::OneSided });
conformance_suite!(simnet_one_sided_of_another_seed, SimnetFixture { seed: 2, profile: Profile::OneSided });
