//! A queue pair whose peer is itself: its reads of this side's memory push what others have written there out of the way before them.
//!
//! Invariant: one read is under way at a time. Absent: which memory needs that.

use std::io;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::NAME;
use super::super::port::Domain;
use super::super::sys::{self, QpAttr, SEND_SIGNALED, SendWr, Sge, Wc};
use super::{Peer, Queue};
use crate::TransportError;

/// How long a read of memory of this machine may take: what a device that works needs is a thousandth of it.
const PATIENCE: Duration = Duration::from_secs(5);

impl Queue {
    /// A queue pair that is connected to itself.
    ///
    /// # Errors
    /// The device's.
    pub(in super::super) fn to_itself(domain: &Arc<Domain>) -> Result<Self, TransportError> {
        let mut queue = Queue::new(domain)?;
        let init = QpAttr {
            qp_state: sys::QPS_INIT,
            qp_access_flags: sys::ACCESS_REMOTE_READ as u32,
            ..QpAttr::default()
        };
        queue.modify(init, sys::QP_STATE | sys::QP_ACCESS_FLAGS, "ibv_modify_qp within INIT")?;
        let own = Peer { reach: queue.port().reach, number: queue.number(), first_packet: 0 };
        queue.connect(&own, 0, true)?;
        Ok(queue)
    }

    /// Reads a byte of this side's memory into another place, and waits for that.
    ///
    /// # Errors
    /// The device's; that the read failed or has not come back.
    pub(in super::super) fn read_byte(
        &mut self,
        from: (u64, u32),
        into: (u64, u32),
    ) -> Result<(), TransportError> {
        const CALL: &str = "a read that flushes what an adapter has written";
        let mut sges = [Sge { addr: into.0, length: 1, lkey: into.1 }];
        let id = self.accepted + 1;
        let mut request = SendWr::write(id, &mut sges, from.0, from.1);
        (request.opcode, request.send_flags) = (sys::WR_RDMA_READ, SEND_SIGNALED);
        let mut refused = null_mut();
        let post = self.ops().post_send.ok_or_else(|| Self::lacks("post_send"))?;
        // SAFETY: a request that lives during the call, of memory that stays until it completes.
        let code = unsafe { post(self.qp, &raw mut request, &raw mut refused) };
        if code != 0 {
            return Err(TransportError::system(NAME, "ibv_post_send", io::Error::from_raw_os_error(code)));
        }
        self.accepted = id;
        let (begun, mut completions) = (Instant::now(), [Wc::default(); 1]);
        // One of a read before would say nothing of this one.
        while self.sent(&mut completions)? == 0 || completions[0].wr_id != id {
            if begun.elapsed() > PATIENCE {
                return Err(TransportError::system(NAME, CALL, io::Error::from(io::ErrorKind::TimedOut)));
            }
            std::hint::spin_loop();
        }
        match completions[0].status {
            0 => Ok(()),
            status => {
                let source = io::Error::other(format!("status {status}"));
                Err(TransportError::system(NAME, CALL, source))
            }
        }
    }
}
