//! What travels while joining, after the handshake: hellos, tables and failures.
//!
//! ```text
//! hello     joiner ► root   code, then body    code: HMAC with the key of this connection alone
//! table     root ► joiner   code, then body    or failure: code, then the error that all ranks get; or referral: code, then which
//!                                              ranks hand the table on, and its digest
//! ```
//!
//! Invariants: a decoder never panics, never reserves more than the bytes it was given warrant, and accepts nothing with
//! bytes left over. The first twelve bytes of a hello, and the failure that tells of another version, keep their form for ever.
//! Absent: sockets, policy.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::adapters::{AdapterPort, PORTS_MAX};
use super::distance::RoundTrip;
use super::relay::{SOURCES_MAX, Spread};
pub(super) use crate::codec::forms::SIZE_MAX;
use crate::codec::{Malformed, Reader, Taken, Wire, bytes_of, shortened, wire_struct};
use crate::frames::kind;
use crate::handshake::JOINING_VERSION;
use consort_algorithms::hardware::BusId;
use consort_topology::Place;
use consort_types::Rank;
use consort_types::error::Error;

type Result<T, E = Error> = std::result::Result<T, E>;

pub(super) const SETTINGS_MAX: usize = 512;
pub(super) const SETTING_NAME_MAX: usize = 128;
pub(super) const SETTING_VALUE_MAX: usize = 4096;
const HOST_MAX: usize = 255;
const UNIX_MAX: usize = 108;
const TCP_MAX: usize = 8;
const MEMBER_MAX: usize = 712;
/// The longest payload of a hello.
pub(super) const HELLO_MAX: usize = 128 * 1024;
/// The longest payload of a failure.
pub(super) const FAILURE_MAX: usize = 64 * 1024;

/// The longest payload of a referral.
pub(super) const REFERRAL_MAX: usize = 256 + SOURCES_MAX * (MEMBER_MAX + 8);

/// What the code of the root's answer is about.
pub(super) fn label(answer: u8) -> &'static str {
    match answer {
        kind::TABLE => "table",
        kind::REFERRAL => "referral",
        _ => "failure",
    }
}

/// The longest description of one host, and of how many hosts a table has descriptions at most.
pub(super) const HARDWARE_MAX: usize = consort_settings::options::MACHINE_BYTES_MAX;
const HARDWARE_HOSTS_MAX: usize = 128;

/// The longest payload of a table of `size` members.
pub(super) fn table_max(size: u32) -> usize {
    128 + size as usize * MEMBER_MAX + HARDWARE_HOSTS_MAX.min(size as usize) * HARDWARE_MAX
}

/// What one rank says of itself and of its settings.
#[derive(Clone, Debug)]
pub struct Hello {
    /// Its number.
    pub rank: Rank,
    /// How many ranks it expects.
    pub size: u32,
    /// Names and values that must be the same on all ranks.
    pub settings: Vec<(String, String)>,
    /// Where it can be reached.
    pub member: Member,
}

/// Where one rank is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its host, for people.
    pub host: String,
    /// Its process on that host.
    pub pid: u32,
    /// A random number of that process.
    pub process: [u8; 16],
    /// The machine's boot id: ranks with the same one share its cores and its clock.
    pub machine: [u8; 16],
    /// What is the same on ranks that may share memory: a hint, never a proof.
    pub host_key: [u8; 16],
    /// Megabits a second of its fastest way to other hosts, as the system says; 0 where it says none.
    pub wire_mbits: u32,
    /// The ports of RDMA that it takes in its turn, all as near and as fast; empty where it does not use RDMA, or has none.
    pub ports: Vec<AdapterPort>,
    /// How far it is from the meeting point; what the joiner has measured replaces it.
    pub round_trip: RoundTrip,
    /// Cores of its host.
    pub cores: u32,
    /// Where in its host it runs.
    pub place: Place,
    /// Whether it wants to use a device.
    pub devices: bool,
    /// The PCI address of the device that it uses, where it says so.
    pub device: Option<BusId>,
    /// What is the same on ranks whose files have the same rings and trees; 0 without a file.
    pub graphs: u64,
    /// What is in its host, as text; empty where it does not know. In a table the same for all ranks of a host.
    pub hardware: Arc<Vec<u8>>,
    /// The abstract name of its control listener.
    pub unix: Vec<u8>,
    /// The addresses of its control listener. The root replaces an unspecified ip by the ones at which it saw the rank.
    pub tcp: Vec<SocketAddr>,
}

/// What every rank knows after joining.
#[derive(Clone)]
pub struct Table {
    /// Names this gathering; not secret.
    pub job: [u8; 16],
    /// The key of this gathering; differs from one join to the next although the secret may be the same.
    pub key: [u8; 32],
    /// The root's random number, from which name and key follow.
    pub nonce: [u8; 32],
    /// How the table is spread.
    pub spread: Spread,
    /// By rank.
    pub members: Arc<[Member]>,
}

impl Table {
    /// The table as it travels, as the root wrote it.
    pub fn bytes(&self) -> Vec<u8> {
        encode_table(&self.nonce, self.spread, self.members.iter())
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("job", &self.job)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

wire_struct!(BusId { domain, bus, device, function });
wire_struct!(Member {
    host,
    pid,
    process,
    machine,
    host_key,
    wire_mbits,
    ports,
    round_trip,
    cores,
    place,
    devices,
    device,
    graphs,
    hardware,
    unix,
    tcp
});

impl Member {
    /// Where it runs, for people.
    pub(crate) fn place(&self) -> String {
        format!("host {}, process {}", self.host, self.pid)
    }

    /// A rank about which nothing is known.
    #[cfg(test)]
    pub(crate) fn unknown() -> Self {
        Member {
            host: "h".into(),
            pid: 1,
            process: [0; 16],
            machine: [0; 16],
            host_key: [0; 16],
            wire_mbits: 0,
            ports: Vec::new(),
            round_trip: RoundTrip::default(),
            cores: 1,
            place: Place::default(),
            devices: false,
            device: None,
            graphs: 0,
            hardware: Arc::default(),
            unix: Vec::new(),
            tcp: Vec::new(),
        }
    }

    /// Whether it keeps within [`MEMBER_MAX`], beside the description of its host.
    pub(super) fn fits(&self) -> bool {
        self.hardware.len() <= HARDWARE_MAX
            && self.host.len() <= HOST_MAX
            && self.unix.len() <= UNIX_MAX
            && self.tcp.len() <= TCP_MAX
            && self.ports.len() <= PORTS_MAX
    }
}

/// A hello as the root reads it: of another version, only the part that never changes.
#[derive(Clone, Debug)]
pub(super) struct HelloSeen {
    pub(super) rank: Rank,
    pub(super) size: u32,
    pub(super) timeout: Duration,
    /// Or the version in which it was written.
    pub(super) rest: Result<(Vec<(String, String)>, Member), u16>,
}

/// Whether settings keep within their bounds.
fn settings_fit(settings: &[(String, String)]) -> bool {
    let fits =
        |(name, value): &(String, String)| name.len() <= SETTING_NAME_MAX && value.len() <= SETTING_VALUE_MAX;
    settings.len() <= SETTINGS_MAX && settings.iter().all(fits)
}

/// The body of a hello, if it keeps within its bounds; of a host's name as much as does.
pub(super) fn encode_hello(hello: &Hello, timeout: Duration) -> Result<Vec<u8>> {
    let host = shortened(&hello.member.host, HOST_MAX).to_owned();
    let member = Member { host, ..hello.member.clone() };
    let fits = settings_fit(&hello.settings) && member.fits();
    let mut out = bytes_of(&(JOINING_VERSION, hello.rank, hello.size));
    timeout.put(&mut out);
    hello.settings.put(&mut out);
    member.put(&mut out);
    if !fits || out.len() + 32 > HELLO_MAX {
        return Err(Error::invalid(
            format!(
                "what rank {} says when joining does not fit: {} bytes of settings",
                hello.rank,
                out.len()
            ),
            format!(
                "shorten the values of its settings: together under {HELLO_MAX} bytes, each under {SETTING_VALUE_MAX}"
            ),
        ));
    }
    Ok(out)
}

/// What [`encode_hello`] wrote.
pub(super) fn decode_hello(body: &[u8]) -> Taken<HelloSeen> {
    let mut reader = Reader::new(body);
    let (version, rank, size): (u16, Rank, u32) = reader.take()?;
    if size == 0 || size > SIZE_MAX || rank >= size {
        return Err(Malformed("its rank or size is out of bounds"));
    }
    if version != JOINING_VERSION {
        return Ok(HelloSeen { rank, size, timeout: Duration::MAX, rest: Err(version) });
    }
    let (timeout, settings, member): (_, Vec<_>, Member) = reader.take()?;
    reader.end()?;
    if !member.fits() || !settings_fit(&settings) {
        return Err(Malformed("a member or its settings are too long"));
    }
    Ok(HelloSeen { rank, size, timeout, rest: Ok((settings, member)) })
}

/// The body of a table: the root's nonce, from which each rank derives job and key, how it is spread, and the members by rank. What is in a host is said
/// once, with the host's first rank, whichever of its ranks knows it; of more than [`HARDWARE_HOSTS_MAX`] hosts it is said of none.
pub(super) fn encode_table<'a>(
    nonce: &[u8; 32],
    spread: Spread,
    members: impl ExactSizeIterator<Item = &'a Member>,
) -> Vec<u8> {
    let mut out = bytes_of(&(*nonce, spread, members.len() as u32));
    let members: Vec<&Member> = members.collect();
    let mut known = first_known(members.iter().copied());
    if known.len() > HARDWARE_HOSTS_MAX {
        known.clear();
    }
    for member in members {
        // Empty where nothing is known, and after the first rank of a host.
        let hardware = known.remove(&member.host_key).unwrap_or_default();
        match hardware == member.hardware {
            true => member.put(&mut out),
            false => Member { hardware, ..member.clone() }.put(&mut out),
        }
    }
    out
}

/// What the first rank that knows says of each host.
fn first_known<'a>(members: impl Iterator<Item = &'a Member>) -> HashMap<[u8; 16], Arc<Vec<u8>>> {
    let mut known = HashMap::new();
    for member in members.filter(|member| !member.hardware.is_empty()) {
        known.entry(member.host_key).or_insert_with(|| member.hardware.clone());
    }
    known
}

/// Gives each rank what the first rank of its host says of it.
fn spread_hardware(members: &mut [Member]) -> Taken<()> {
    let known = first_known(members.iter());
    if known.len() > HARDWARE_HOSTS_MAX {
        return Err(Malformed("a table describes too many hosts"));
    }
    let mut seen = HashSet::new();
    for member in members.iter_mut().filter(|_| !known.is_empty()) {
        let is_first = seen.insert(member.host_key);
        if !is_first && !member.hardware.is_empty() {
            return Err(Malformed("a table describes a host with another rank than its first"));
        }
        if let Some(hardware) = known.get(&member.host_key) {
            member.hardware = hardware.clone();
        }
    }
    Ok(())
}

/// The root's nonce, how the table is spread, and the members.
pub(super) fn decode_table(body: &[u8], size: u32) -> Taken<([u8; 32], Spread, Vec<Member>)> {
    let (nonce, spread, mut members): (_, _, Vec<Member>) = Wire::whole(body)?;
    if members.len() != size as usize {
        return Err(Malformed("a table has another number of members than there are ranks"));
    }
    spread_hardware(&mut members)?;
    Ok((nonce, spread, members))
}
