//! What the ports of RDMA of each host carry, one after the other.
//!
//! ```text
//! first rank of a host                     its ports          others
//!   two ends of a connection by a port       loops back         wait for what is found
//! ```
//!
//! Invariant: hosts measure side by side, and no port of a host while another one of it is measured. A port that fails is a result.
//! Absent: the network between ports, which pairs of ranks measure.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use consort_memory::Span;
use consort_transports::{Connection, CounterKind, Layout, RatedPort, Transport, TransportError, Verbs};

use super::pair::Limits;
use crate::Rank;
use crate::communicator::{Communicator, adapters};
use consort_kernels::ReduceOp;
use consort_settings::options::{Settings, TransportChoice};
use consort_types::error::{Error, Result};

/// A port of RDMA that a rank has measured: from one queue pair of it to another, so that everything goes to the adapter and comes back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeasuredPort {
    /// The rank that measured it, the first of its host.
    pub rank: Rank,
    /// Its device, as `mlx5_0`.
    pub device: String,
    /// Its number on the device, from 1 on.
    pub port: u8,
    /// Where its address is in the port's table.
    pub gid_index: u8,
    /// The address by which it sends.
    pub gid: String,
    /// Megabits a second as its link says; 0 where it does not.
    pub rated_mbit_s: u64,
    /// Half of the shortest round trip of 8 bytes, in nanoseconds; 0 where it failed.
    pub latency_ns: u64,
    /// Bytes a second in one direction, with the copy that a sender makes; 0 where it failed.
    pub bytes_s: u64,
    /// Why it could not be measured.
    pub trouble: Option<String>,
}

/// A long message, and how many are under way.
const LONG_BYTES: usize = 256 << 10;
const UNDER_WAY: u64 = 4;
/// Round trips and messages that do not count.
const BEFORE: u64 = 4;
/// A port whose ends have not met or whose message has not come for so long is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks between two readings of the clock.
const LOOKS: u32 = 64;

/// The two ends of a connection, and until when they are waited for.
struct Loop {
    ends: [Box<dyn Connection>; 2],
    looks: u32,
    until: Instant,
}

fn late() -> TransportError {
    let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
    TransportError::System { transport: "verbs", call: "measuring a port", source }
}

impl Loop {
    /// Two endpoints that meet.
    fn over(transport: &dyn Transport) -> std::result::Result<Self, TransportError> {
        let layout = |calls| Layout::new(UNDER_WAY as usize * LONG_BYTES).calling(calls);
        let ends = [transport.endpoint(layout(true))?, transport.endpoint(layout(false))?];
        let [one, other] = [ends[0].address().clone(), ends[1].address().clone()];
        let [first, second] = ends;
        let mut connecting = [first.connect(&other)?, second.connect(&one)?];
        let mut met = [None, None];
        let until = Instant::now() + PATIENCE;
        while met.iter().any(Option::is_none) {
            for (connecting, met) in connecting.iter_mut().zip(&mut met).filter(|(_, met)| met.is_none()) {
                if let Poll::Ready(connection) = connecting.poll()? {
                    *met = Some(connection);
                }
            }
            if Instant::now() > until {
                return Err(late());
            }
            std::thread::yield_now();
        }
        let [Some(one), Some(other)] = met else { return Err(late()) };
        Ok(Loop { ends: [one, other], looks: 0, until })
    }

    fn look(&mut self) -> std::result::Result<(), TransportError> {
        for end in &mut self.ends {
            end.progress()?;
        }
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS) {
            // Both ends are this thread; a device that is a program may need its core.
            std::thread::yield_now();
            if Instant::now() > self.until {
                return Err(late());
            }
        }
        Ok(())
    }

    /// Fills the other end's mailbox from one end's.
    fn fill(&mut self, from: usize, bytes: &[u8], value: u64) -> std::result::Result<(), TransportError> {
        self.until = Instant::now() + PATIENCE;
        let (mut done, offset) = (0, (value % UNDER_WAY) as usize * LONG_BYTES);
        while self.ends[from].fill(offset, Span::of(bytes), (value, value), &mut done)?.is_pending() {
            self.look()?;
        }
        Ok(())
    }

    /// Until a counter of an end has this value.
    fn wait(&mut self, at: usize, kind: CounterKind, value: u64) -> std::result::Result<(), TransportError> {
        while self.ends[at].counter(kind).value() < value {
            self.look()?;
        }
        Ok(())
    }

    /// Half of the shortest round trip of 8 bytes.
    fn latency(&mut self, share: Duration) -> std::result::Result<Duration, TransportError> {
        let (begun, mut shortest, mut value) = (Instant::now(), Duration::MAX, 0);
        while value <= BEFORE || begun.elapsed() < share {
            value += 1;
            let sent = Instant::now();
            for [from, to] in [[0, 1], [1, 0]] {
                self.fill(from, &[1; 8], value)?;
                self.wait(to, CounterKind::Ready, value)?;
            }
            shortest = if value > BEFORE { shortest.min(sent.elapsed()) } else { shortest };
        }
        Ok(shortest / 2)
    }

    /// Bytes a second of long messages in one direction, behind `value` short ones.
    fn rate(&mut self, share: Duration) -> std::result::Result<u64, TransportError> {
        let bytes = vec![1u8; LONG_BYTES];
        let first = self.ends[1].counter(CounterKind::Ready).value();
        let (mut filled, mut emptied, mut begun) = (first, first, Instant::now());
        while filled < first + BEFORE + UNDER_WAY || begun.elapsed() < share {
            if filled == first + BEFORE {
                begun = Instant::now();
            }
            while filled - emptied >= UNDER_WAY {
                self.wait(1, CounterKind::Ready, emptied + 1)?;
                emptied += 1;
            }
            filled += 1;
            self.fill(0, &bytes, filled)?;
        }
        self.wait(1, CounterKind::Ready, filled)?;
        let sent = (filled - first - BEFORE) as f64 * LONG_BYTES as f64;
        Ok((sent / begun.elapsed().as_secs_f64().max(1e-9)) as u64)
    }
}

/// Nanoseconds and bytes a second of a transport's connections to itself, in twice this time.
fn measure(transport: &dyn Transport, share: Duration) -> std::result::Result<(u64, u64), TransportError> {
    let mut ends = Loop::over(transport)?;
    let latency = ends.latency(share)?;
    Ok((latency.as_nanos() as u64, ends.rate(share)?))
}

impl MeasuredPort {
    /// A port, measured by itself.
    fn of(rank: Rank, port: RatedPort, settings: &Settings, share: Duration) -> Self {
        let (device, number) = (port.device.clone(), port.number);
        let only = consort_transports::RdmaOptions {
            ports: Arc::new(move |other, at| (other, at) == (&*device, number)),
            ..adapters::options(&settings.rdma)
        };
        let measured = Verbs::near(&only, &Default::default()).and_then(|verbs| measure(&verbs, share));
        let (latency_ns, bytes_s) = *measured.as_ref().unwrap_or(&(0, 0));
        MeasuredPort {
            rank,
            device: port.device,
            port: number,
            gid_index: port.gid_index,
            gid: port.gid,
            rated_mbit_s: port.speed_mbit_s,
            latency_ns,
            bytes_s,
            trouble: measured.err().map(|error| error.to_string()),
        }
    }

    /// Its line among those of a rank.
    fn line(&self) -> String {
        let trouble = self.trouble.as_deref().unwrap_or_default().replace(['\t', '\n', '\0'], " ");
        let Self { device, port, gid_index, gid, rated_mbit_s, latency_ns, bytes_s, .. } = self;
        format!("{device}\t{port}\t{gid_index}\t{gid}\t{rated_mbit_s}\t{latency_ns}\t{bytes_s}\t{trouble}\n")
    }

    /// What another rank said.
    fn read(rank: Rank, line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[device, port, gid_index, gid, rated, latency, rate, trouble] = &fields[..] else { return None };
        Some(MeasuredPort {
            rank,
            device: device.into(),
            port: port.parse().ok()?,
            gid_index: gid_index.parse().ok()?,
            gid: gid.into(),
            rated_mbit_s: rated.parse().ok()?,
            latency_ns: latency.parse().ok()?,
            bytes_s: rate.parse().ok()?,
            trouble: (!trouble.is_empty()).then(|| trouble.into()),
        })
    }
}

impl Communicator {
    /// The ports of all hosts, on all ranks; none where the ranks use no RDMA.
    pub(super) fn probe_ports(&self, clock: &Limits, host_of: &[u32]) -> Result<Vec<MeasuredPort>> {
        let settings = &self.core().settings;
        if settings.transport != TransportChoice::Verbs {
            return Ok(Vec::new());
        }
        let rank = self.rank();
        let is_first = host_of.iter().position(|host| *host == host_of[rank as usize]) == Some(rank as usize);
        let rated = |_| Verbs::rated(&adapters::options(&settings.rdma), &Default::default());
        // The connections of this rank are by one of them, so there are some.
        let ports = is_first.then_some(()).map(rated).transpose().unwrap_or_default().unwrap_or_default();
        let lines = ports.into_iter().map(|port| MeasuredPort::of(rank, port, settings, clock.share).line());
        let mut mine = lines.collect::<String>().into_bytes();
        let mut longest = [mine.len() as u64];
        clock.of(self).all_reduce(&mut longest, ReduceOp::Max)?;
        mine.resize(longest[0] as usize, 0);
        let mut all = vec![0u8; mine.len() * self.size() as usize];
        if mine.is_empty() {
            return Ok(Vec::new());
        }
        clock.of(self).all_gather(&mine, &mut all)?;
        let of_rank = |(text, rank): (&[u8], Rank)| {
            let text = String::from_utf8_lossy(text).trim_end_matches('\0').to_owned();
            text.lines().map(|line| MeasuredPort::read(rank, line)).collect::<Vec<_>>()
        };
        let read: Option<Vec<MeasuredPort>> =
            all.chunks_exact(mine.len()).zip(0..).flat_map(of_rank).collect();
        read.ok_or_else(|| Error::internal("a rank said a port that is none"))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use consort_transports::{Listener, Tcp};

    use super::*;

    #[test]
    fn a_transport_is_measured_over_two_ends_in_one_thread() {
        let listener = Arc::new(Listener::new(Ipv4Addr::LOCALHOST.into()).expect("a listener"));
        let tcp = Tcp::new(listener, [7; 32]).expect("a transport");
        let (latency_ns, bytes_s) = measure(&tcp, Duration::from_millis(5)).expect("they meet");
        assert!(latency_ns > 0 && bytes_s > 0, "{latency_ns} {bytes_s}");
    }

    #[test]
    fn what_a_rank_says_of_a_port_is_read_by_others_and_what_is_no_port_is_refused() {
        let port = MeasuredPort {
            rank: 3,
            device: "rxe0".into(),
            port: 1,
            gid_index: 2,
            gid: "10.0.0.1".into(),
            rated_mbit_s: 2_500,
            latency_ns: 1_300,
            bytes_s: 70_000_000,
            trouble: None,
        };
        let failed = MeasuredPort { trouble: Some("no\tway".into()), latency_ns: 0, ..port.clone() };
        assert_eq!(MeasuredPort::read(3, port.line().trim_end_matches('\n')), Some(port.clone()));
        let read = MeasuredPort::read(3, failed.line().trim_end_matches('\n')).expect("a port");
        assert_eq!(read.trouble.as_deref(), Some("no way"));
        for wrong in ["", "rxe0", "rxe0\t1\t2\tx\t1\t2\tthree\t", "rxe0\t900\t2\tx\t1\t2\t3\t"] {
            assert_eq!(MeasuredPort::read(0, wrong), None, "{wrong:?}");
        }
    }
}
