//! What the system says of a socket: how often it has sent the same again, how far the other end is, how long the wire was at work.
//!
//! Source: `struct tcp_info`, as documented in tcp(7) of Linux. What an older system does not say is not known.

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// What the system knows of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Info {
    /// How often in a row it has sent the same bytes again, and how many segments it has sent again in all.
    pub(crate) retransmits: u8,
    pub(crate) sent_again: u32,
    /// The longest packet that the path is said to take, in bytes, and the longest segment that is sent in one.
    pub(crate) path_mtu: u32,
    pub(crate) segment: u32,
    /// How long ago something has come from the peer's system.
    pub(crate) heard: Duration,
    /// After how long it sends again what is not acknowledged: twice as long each time in a row.
    pub(crate) resend: Duration,
    /// The round trip at present, and the shortest so far where one has been measured.
    pub(crate) round_trip: Duration,
    pub(crate) shortest: Option<Duration>,
    /// What the wire has carried.
    pub(crate) carried: Option<Carried>,
}

/// What a wire has carried since its socket was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Carried {
    /// Bytes that the peer's system has acknowledged, and that have come from it.
    pub(crate) bytes: u64,
    pub(crate) received: u64,
    /// How long something was on its way, and how much of that the peer's system had no room for more. In ticks of the system, of
    /// some milliseconds each.
    pub(crate) at_work: Duration,
    pub(crate) held_up: Duration,
}

impl Info {
    /// None where the system does not say.
    pub(crate) fn of(socket: &impl AsFd) -> Option<Info> {
        // SAFETY: all its fields are numbers, for which zero is a value.
        let mut raw: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        let descriptor = socket.as_fd().as_raw_fd();
        // SAFETY: the system writes at most `length` bytes of the structure, which lives during the call, and says how many.
        let outcome = unsafe {
            libc::getsockopt(
                descriptor,
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut raw).cast(),
                &raw mut length,
            )
        };
        let reaches = |end: usize| length as usize >= end;
        // The field is all ones before the first measurement.
        let is_measured = reaches(offset_of!(libc::tcp_info, tcpi_min_rtt) + size_of::<u32>())
            && raw.tcpi_min_rtt < u32::MAX;
        let is_counted = reaches(offset_of!(libc::tcp_info, tcpi_rwnd_limited) + size_of::<u64>());
        (outcome == 0).then(|| Info {
            retransmits: raw.tcpi_retransmits,
            sent_again: raw.tcpi_total_retrans,
            path_mtu: raw.tcpi_pmtu,
            segment: raw.tcpi_snd_mss,
            heard: Duration::from_millis(raw.tcpi_last_ack_recv.min(raw.tcpi_last_data_recv).into()),
            resend: Duration::from_micros(raw.tcpi_rto.into()),
            round_trip: Duration::from_micros(raw.tcpi_rtt.into()),
            shortest: is_measured.then(|| Duration::from_micros(raw.tcpi_min_rtt.into())),
            carried: is_counted.then(|| Carried {
                bytes: raw.tcpi_bytes_acked,
                received: raw.tcpi_bytes_received,
                at_work: Duration::from_micros(raw.tcpi_busy_time),
                held_up: Duration::from_micros(raw.tcpi_rwnd_limited),
            }),
        })
    }
}
