//! What a rank says of RDMA before the ranks know each other, and where it stands among them.
//!
//! Invariant: only ranks that were asked for RDMA look at devices; a device that cannot be used is no error here, but one of the connections
//! over it. Absent: connections.

use std::sync::Arc;

use consort_algorithms::hardware::BusId;
use consort_control::bootstrap::AdapterPort;
use consort_settings::options::{Rdma, Settings, TransportChoice, digest};
use consort_topology::Place;
use consort_transports::{
    Addresses, DeviceLevel, MemoryUse, Near, RatedPort, RdmaOptions, RelaxedOrdering, Travel, Verbs,
};

/// What the transport is asked for.
pub(crate) fn options(rdma: &Rdma) -> RdmaOptions {
    let default = RdmaOptions::default();
    let ports = rdma.ports.clone();
    RdmaOptions {
        ports_asked: ports.text().to_owned(),
        ports: Arc::new(move |device, port| ports.has(device, port)),
        addresses: Addresses {
            index: rdma.gid_index,
            is_ipv6: rdma.is_ipv6,
            range: rdma.range,
            version: rdma.roce_version.unwrap_or(default.addresses.version),
        },
        travel: Travel {
            service_level: rdma.service_level.unwrap_or(default.travel.service_level),
            traffic_class: rdma.traffic_class.unwrap_or(default.travel.traffic_class),
            partition: rdma.partition.unwrap_or(default.travel.partition),
            timeout: rdma.timeout,
            retries: rdma.retries.unwrap_or(default.travel.retries),
        },
        queue_pairs: rdma.queue_pairs.unwrap_or(default.queue_pairs),
        memory: MemoryUse {
            relaxed_ordering: match rdma.relaxed_ordering {
                Some(0) => RelaxedOrdering::Never,
                Some(1) => RelaxedOrdering::Asked,
                _ => RelaxedOrdering::WherePossible,
            },
            dma_buffers: !rdma.no_dma_buffers,
            device_level: rdma
                .device_level
                .and_then(|number| DeviceLevel::ALL.get(usize::from(number)).copied()),
            reads_devices: !rdma.no_device_reads,
        },
    }
}

/// Where a rank with this GPU is, for the choice of its ports: how many others that are as near to them come before it, and how many there are
/// with it.
pub(super) fn near(gpu: Option<BusId>, place: &Place, (turn, ranks): (usize, usize)) -> Near {
    Near { device: gpu.map(|gpu| gpu.to_string()), node: place.node, turn, ranks }
}

/// The ports among which a rank of this process takes its turn; none where RDMA was not asked for, or cannot be used.
pub(super) fn said(settings: &Settings, place: &Place) -> Vec<AdapterPort> {
    if settings.transport != TransportChoice::Verbs {
        return Vec::new();
    }
    match Verbs::rated(&options(&settings.rdma), &near(settings.device, place, (0, 0))) {
        Ok(ports) => AdapterPort::said(ports.iter().filter(|port| port.is_best).map(of)),
        Err(error) => {
            tracing::debug!(%error, "no port of RDMA is said");
            Vec::new()
        }
    }
}

fn of(port: &RatedPort) -> AdapterPort {
    AdapterPort {
        mark: digest(&format!("{}:{}", port.device, port.number)) as u32,
        mbits: u32::try_from(port.speed_mbit_s).unwrap_or(u32::MAX),
    }
}
