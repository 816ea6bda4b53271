//! The interface of libibverbs, as far as it is used: its structures, laid out as its library lays them out, and its constants.
//!
//! Source: `verbs.h` of rdma-core (interface versions IBVERBS_1.0 to 1.11, which later ones only add to). The data path has no
//! functions in the library: `verbs.h` calls through the table of the device's context, and so does [`super::queue`].
//!
//! Invariant: sizes and offsets are those of the library (the tests have them as numbers). Absent: what is called when.

use std::ffi::{c_char, c_int, c_void};

/// States of a port.
#[cfg(any(test, feature = "conformance"))]
#[cfg_attr(not(test), allow(dead_code, reason = "as of the stand-in"))]
pub(super) const PORT_DOWN: u32 = 1;
pub(super) const PORT_ACTIVE: u32 = 4;
/// Link layers of a port; an old library says 0 for InfiniBand.
pub(super) const LINK_LAYER_INFINIBAND: u8 = 1;
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;
/// The kind of device that speaks InfiniBand or RoCE.
pub(super) const TRANSPORT_IB: c_int = 0;
/// The flag of a port whose packets must have a global route.
pub(super) const PORT_GRH_REQUIRED: u8 = 1;
/// Kinds of entries of a table of addresses.
pub(super) const GID_ROCE_V2: u32 = 2;
#[cfg(any(test, feature = "conformance"))]
pub(super) const GID_ROCE_V1: u32 = 1;
/// Kinds of events of a device.
pub(super) const EVENT_CQ_ERR: u32 = 0;
pub(super) const EVENT_QP_FATAL: u32 = 1;
pub(super) const EVENT_QP_REQ_ERR: u32 = 2;
pub(super) const EVENT_QP_ACCESS_ERR: u32 = 3;
pub(super) const EVENT_DEVICE_FATAL: u32 = 8;
pub(super) const EVENT_PORT_ACTIVE: u32 = 9;
pub(super) const EVENT_PORT_ERR: u32 = 10;
pub(super) const EVENT_LID_CHANGE: u32 = 11;
pub(super) const EVENT_PKEY_CHANGE: u32 = 12;
pub(super) const EVENT_GID_CHANGE: u32 = 18;
/// What a fork does to registered memory.
pub(super) const FORK_DISABLED: c_int = 0;
#[cfg(any(test, feature = "conformance"))]
#[cfg_attr(not(test), allow(dead_code, reason = "as of the stand-in"))]
pub(super) const FORK_ENABLED: c_int = 1;
pub(super) const FORK_UNNEEDED: c_int = 2;
/// Kinds of queue pairs.
pub(super) const QPT_RC: u32 = 2;
/// States of a queue pair.
pub(super) const QPS_RESET: u32 = 0;
pub(super) const QPS_INIT: u32 = 1;
pub(super) const QPS_RTR: u32 = 2;
pub(super) const QPS_RTS: u32 = 3;
pub(super) const QPS_ERR: u32 = 6;
/// What of a queue pair is changed.
pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;
/// What a region allows.
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const ACCESS_REMOTE_READ: c_int = 1 << 2;
/// That writes to it may pass each other on the bus; a library that has it leaves it out where the device has not.
pub(super) const ACCESS_RELAXED_ORDERING: c_int = 1 << 20;
/// Kinds of work requests.
pub(super) const WR_RDMA_WRITE: u32 = 0;
pub(super) const WR_RDMA_WRITE_WITH_IMM: u32 = 1;
pub(super) const WR_RDMA_READ: u32 = 4;
/// Flags of work requests.
pub(super) const SEND_SIGNALED: u32 = 1 << 1;
pub(super) const SEND_INLINE: u32 = 1 << 3;
/// The kind of a completion at the receiver of a write with an immediate.
pub(super) const WC_RECV_RDMA_WITH_IMM: u32 = (1 << 7) + 1;

/// A device of the list.
#[repr(C)]
pub(super) struct Device {
    _ops: [*mut c_void; 2],
    pub(super) node_type: c_int,
    pub(super) transport_type: c_int,
    pub(super) name: [c_char; 64],
    pub(super) dev_name: [c_char; 64],
    pub(super) dev_path: [c_char; 256],
    pub(super) ibdev_path: [c_char; 256],
}

/// A functions that is not called.
type Unused = *mut c_void;

/// The functions of a context that `verbs.h` calls by itself; the others are the library's own.
#[repr(C)]
pub(super) struct ContextOps {
    _before_poll_cq: [Unused; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    _before_post_send: [Unused; 12],
    pub(super) post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub(super) post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    _after_post_recv: [Unused; 5],
}

/// An open device.
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: ContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
    _mutex: libc::pthread_mutex_t,
    _abi_compat: *mut c_void,
}

/// A protection domain.
#[repr(C)]
pub(super) struct Pd {
    pub(super) context: *mut Context,
    pub(super) handle: u32,
}

/// A registered region.
#[repr(C)]
pub(super) struct Mr {
    pub(super) context: *mut Context,
    pub(super) pd: *mut Pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// What events of completions come through.
#[repr(C)]
pub(super) struct CompChannel {
    pub(super) context: *mut Context,
    pub(super) fd: c_int,
    pub(super) refcnt: c_int,
}

/// A completion queue.
#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
    pub(super) channel: *mut CompChannel,
    pub(super) cq_context: *mut c_void,
    pub(super) handle: u32,
    pub(super) cqe: c_int,
    _mutex: libc::pthread_mutex_t,
    _cond: libc::pthread_cond_t,
    _completion_events: u32,
    _async_events: u32,
}

/// A queue pair.
#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut Pd,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
    pub(super) state: u32,
    pub(super) qp_type: u32,
    _mutex: libc::pthread_mutex_t,
    _cond: libc::pthread_cond_t,
    _events: u32,
}

/// What a queue pair has room for.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// A queue pair that is to be made.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: QpCap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

/// An address as all networks have it.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Gid(pub [u8; 16]);

/// A way across routers.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct GlobalRoute {
    pub(super) dgid: Gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

/// The way to a peer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub(super) grh: GlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// What is changed of a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: u32,
    pub(super) cur_qp_state: u32,
    pub(super) path_mtu: u32,
    pub(super) path_mig_state: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: u32,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// A piece of registered memory.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// Something to be sent.
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: u32,
    /// In network order.
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    /// What other kinds of requests have there.
    _others: [u32; 5],
    _shared_receive: u32,
    _bind: [u64; 6],
}

impl SendWr {
    /// A write of these pieces to a place of the peer's.
    pub(super) fn write(wr_id: u64, sges: &mut [Sge], remote_addr: u64, rkey: u32) -> Self {
        SendWr {
            wr_id,
            next: std::ptr::null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as c_int,
            opcode: WR_RDMA_WRITE,
            send_flags: 0,
            imm_data: 0,
            remote_addr,
            rkey,
            _others: [0; 5],
            _shared_receive: 0,
            _bind: [0; 6],
        }
    }
}

/// Room for something that comes.
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// A completion.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// In network order.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: u32,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// What is known of a port.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct PortAttr {
    pub(super) state: u32,
    pub(super) max_mtu: u32,
    pub(super) active_mtu: u32,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
    pub(super) active_speed_ex: u32,
}

/// An entry of a port's table of addresses.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct GidEntry {
    pub(super) gid: Gid,
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// Something that has happened to a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AsyncEvent {
    /// The address of a queue pair or of a completion queue, or the number of a port in the first four bytes.
    pub(super) element: u64,
    pub(super) event_type: u32,
}

impl AsyncEvent {
    /// The port, of an event that is one's.
    pub(super) fn port(&self) -> u32 {
        let [a, b, c, d, ..] = self.element.to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// As a C compiler lays the header's structures out on 64-bit Linux.
    #[test]
    fn structures_are_laid_out_as_the_librarys() {
        assert_eq!([size_of::<Device>(), offset_of!(Device, ibdev_path)], [664, 408]);
        let ops = offset_of!(Context, ops);
        let of_ops = [offset_of!(ContextOps, poll_cq), offset_of!(ContextOps, post_send)];
        assert_eq!((ops, of_ops, size_of::<ContextOps>()), (8, [88, 200], 256));
        assert_eq!([offset_of!(Context, cmd_fd), size_of::<Context>()], [264, 328]);
        assert_eq!([size_of::<Pd>(), size_of::<Mr>(), offset_of!(Mr, rkey)], [16, 48, 40]);
        assert_eq!([size_of::<CompChannel>(), offset_of!(CompChannel, fd)], [16, 8]);
        assert_eq!([size_of::<Cq>(), offset_of!(Cq, cqe)], [128, 28]);
        assert_eq!([size_of::<Qp>(), offset_of!(Qp, qp_num), offset_of!(Qp, state)], [160, 52, 56]);
        assert_eq!([size_of::<QpInitAttr>(), offset_of!(QpInitAttr, qp_type)], [64, 52]);
        let of_attr = [
            offset_of!(QpAttr, ah_attr),
            offset_of!(QpAttr, pkey_index),
            offset_of!(QpAttr, timeout),
            offset_of!(QpAttr, rate_limit),
        ];
        assert_eq!((of_attr, size_of::<QpAttr>()), ([56, 120, 130, 136], 144));
        assert_eq!(
            [size_of::<GlobalRoute>(), size_of::<AhAttr>(), offset_of!(AhAttr, port_num)],
            [24, 32, 30]
        );
        let of_send = [
            offset_of!(SendWr, imm_data),
            offset_of!(SendWr, remote_addr),
            offset_of!(SendWr, rkey),
            offset_of!(SendWr, _bind),
        ];
        assert_eq!((of_send, size_of::<SendWr>(), size_of::<RecvWr>()), ([36, 40, 48, 80], 128, 32));
        assert_eq!([size_of::<Wc>(), offset_of!(Wc, imm_data), offset_of!(Wc, qp_num)], [48, 24, 28]);
        let of_port = [offset_of!(PortAttr, link_layer), offset_of!(PortAttr, active_speed_ex)];
        assert_eq!((of_port, size_of::<PortAttr>()), ([46, 52], 56));
        assert_eq!([size_of::<GidEntry>(), offset_of!(GidEntry, gid_type)], [32, 24]);
        assert_eq!([size_of::<AsyncEvent>(), offset_of!(AsyncEvent, event_type)], [16, 8]);
    }
}
