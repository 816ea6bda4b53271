//! The stand-in's functions as a library has them, of several versions and on several kernels.

use std::ffi::c_int;

use super::super::library::Functions;
use super::super::sys::{FORK_DISABLED, FORK_ENABLED, FORK_UNNEEDED};
use super::*;

/// The stand-in's functions.
pub(in super::super) fn functions() -> Functions {
    Functions {
        get_device_list: adapters::get_device_list,
        free_device_list: adapters::free_device_list,
        open_device: adapters::open_device,
        close_device: adapters::close_device,
        query_port: adapters::query_port,
        query_gid: adapters::query_gid,
        alloc_pd,
        dealloc_pd,
        reg_mr: regions::reg_mr,
        dereg_mr: regions::dereg_mr,
        create_comp_channel: completions::create_comp_channel,
        destroy_comp_channel: completions::destroy_comp_channel,
        create_cq: completions::create_cq,
        destroy_cq: completions::destroy_cq,
        get_cq_event: completions::get_cq_event,
        ack_cq_events: completions::ack_cq_events,
        create_qp,
        modify_qp,
        destroy_qp,
        get_async_event: adapters::get_async_event,
        ack_async_event: adapters::ack_async_event,
        wc_status_str: completions::wc_status_str,
        query_gid_ex: Some(adapters::query_gid_ex),
        reg_dmabuf_mr: Some(regions::reg_dmabuf_mr),
        reg_mr_iova2: Some(regions::reg_mr_iova2),
        is_fork_initialized: Some(copies_at_forks),
    }
}

unsafe extern "C" fn copies_at_forks() -> c_int {
    FORK_UNNEEDED
}

unsafe extern "C" fn hides_from_forks() -> c_int {
    FORK_ENABLED
}

unsafe extern "C" fn parts_at_forks() -> c_int {
    FORK_DISABLED
}

/// The same on a kernel that does not copy registered memory at a fork, with the library's own way about that, and without.
pub(in super::super) fn hiding() -> Functions {
    Functions { is_fork_initialized: Some(hides_from_forks), ..functions() }
}

pub(in super::super) fn parting() -> Functions {
    Functions { is_fork_initialized: Some(parts_at_forks), ..functions() }
}

/// The same of an older library, which does not say of what version an address is, and knows no DMA buffers.
pub(in super::super) fn older() -> Functions {
    Functions {
        query_gid_ex: None,
        reg_dmabuf_mr: None,
        reg_mr_iova2: None,
        is_fork_initialized: None,
        ..functions()
    }
}
