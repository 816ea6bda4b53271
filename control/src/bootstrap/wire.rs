//! What travels while joining: frames, and the encoding of hellos, tables and refusals.
//!
//! ```text
//! frame     length u32 | kind u8 | payload                  every length checked against its kind's bound first
//! greeting  root ► joiner   magic, wire version, challenge
//! proof     joiner ► root   magic, wire version, job number, nonce, proof over all of them
//! accept    root ► joiner   proof over both nonces           or refusal: one byte of reason, believed as a hint only
//! hello     joiner ► root   code, then body                  code: HMAC with a key of this connection alone
//! table     root ► joiner   code, then body                  or failure: code, then the error that all ranks get
//! ```
//!
//! Invariants: little-endian; a decoder never panics, never reserves more than the bytes it was given warrant, and
//! accepts nothing with bytes left over. Greeting to accept and the first twelve bytes of a hello keep their form for
//! ever, so that two versions can still tell each other that they differ. Absent: sockets, policy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::codec::{Malformed, Reader, Taken, Wire, bytes_of, put_counted, put_text, wire_struct};
use consort_topology::{Claim, Place};
use consort_types::Rank;
use consort_types::error::Error;

type Result<T, E = Error> = std::result::Result<T, E>;

/// The version of everything after the first twelve bytes of a hello.
pub(super) const WIRE_VERSION: u16 = 5;
/// Begins a greeting and a proof.
pub(super) const MAGIC: [u8; 8] = *b"consort\x01";
/// The most ranks of a job.
pub(super) const SIZE_MAX: u32 = 1 << 16;
const SETTINGS_MAX: usize = 512;
const SETTING_NAME_MAX: usize = 128;
const SETTING_VALUE_MAX: usize = 4096;
const HOST_MAX: usize = 255;
const UNIX_MAX: usize = 108;
const TCP_MAX: usize = 8;
const MEMBER_MAX: usize = 640;
const TEXT_MAX: usize = 16 * 1024;
/// The longest payload of a hello.
pub(super) const HELLO_MAX: usize = 128 * 1024;
/// The longest payload of a failure.
pub(super) const FAILURE_MAX: usize = 64 * 1024;
/// The longest payload before anybody has proved anything.
pub(super) const UNPROVED_MAX: usize = 96;

/// The longest payload of a table of `size` members.
pub(super) fn table_max(size: u32) -> usize {
    128 + size as usize * MEMBER_MAX
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
    /// Cores of its host.
    pub cores: u32,
    /// Where in its host it runs.
    pub place: Place,
    /// Whether it wants to use a device.
    pub devices: bool,
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
    /// By rank.
    pub members: Vec<Member>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("job", &self.job)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

/// The kinds of frames.
pub(super) mod kind {
    pub(in super::super) const GREETING: u8 = 1;
    pub(in super::super) const PROOF: u8 = 2;
    pub(in super::super) const ACCEPT: u8 = 3;
    pub(in super::super) const REFUSAL: u8 = 4;
    pub(in super::super) const HELLO: u8 = 5;
    pub(in super::super) const TABLE: u8 = 6;
    pub(in super::super) const FAILURE: u8 = 7;
}

/// The bytes of a frame with this payload, which may be given in pieces.
pub(super) fn frame(kind: u8, pieces: &[&[u8]]) -> Vec<u8> {
    let mut bytes = frame_head(kind, pieces.iter().map(|piece| piece.len()).sum());
    for piece in pieces {
        bytes.extend_from_slice(piece);
    }
    bytes
}

/// The head of a frame whose payload follows separately.
pub(super) fn frame_head(kind: u8, payload: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FRAME_HEAD);
    (payload as u32, kind).put(&mut bytes);
    bytes
}

/// The bytes before the payload.
pub(super) const FRAME_HEAD: usize = 5;

/// Nineteen bytes: family, ip, port; all zero for none.
pub(super) fn put_address(out: &mut Vec<u8>, address: Option<SocketAddr>) {
    let mut bytes = [0u8; ADDRESS_BYTES];
    if let Some(address) = address {
        match address.ip() {
            IpAddr::V4(ip) => {
                bytes[0] = 4;
                bytes[1..5].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                bytes[0] = 6;
                bytes[1..17].copy_from_slice(&ip.octets());
            }
        }
        bytes[17..].copy_from_slice(&address.port().to_le_bytes());
    }
    out.extend_from_slice(&bytes);
}

/// The bytes of one address.
pub(super) const ADDRESS_BYTES: usize = 19;

/// What [`put_address`] wrote, and only that.
pub(super) fn address(bytes: &[u8; ADDRESS_BYTES]) -> Taken<Option<SocketAddr>> {
    let (family, octets, port): (u8, [u8; 16], u16) = Wire::whole(bytes)?;
    match family {
        0 if octets == [0; 16] && port == 0 => Ok(None),
        4 if octets[4..] == [0; 12] => {
            let ip = Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]);
            Ok(Some(SocketAddr::new(ip.into(), port)))
        }
        6 => Ok(Some(SocketAddr::new(Ipv6Addr::from(octets).into(), port))),
        _ => Err(Malformed("an address is of no known family")),
    }
}

/// The payload of a greeting.
pub(super) fn encode_greeting(challenge: &[u8; 32]) -> Vec<u8> {
    bytes_of(&((MAGIC, WIRE_VERSION), *challenge))
}

/// The root's challenge, whatever the version.
pub(super) fn decode_greeting(payload: &[u8]) -> Taken<[u8; 32]> {
    marked(payload, "it is not a greeting of consort")
}

/// What a joiner answers to a greeting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Proof {
    pub(super) job: u64,
    pub(super) nonce: [u8; 32],
    pub(super) proof: [u8; 32],
}

wire_struct!(Proof { job, nonce, proof });

/// The payload of a proof.
pub(super) fn encode_proof(proof: &Proof) -> Vec<u8> {
    let mut out = bytes_of(&(MAGIC, WIRE_VERSION));
    proof.put(&mut out);
    out
}

/// What a joiner says it can prove, whatever its version.
pub(super) fn decode_proof(payload: &[u8]) -> Taken<Proof> {
    marked(payload, "it is not an answer of consort")
}

/// What follows the magic and a version.
fn marked<T: Wire>(payload: &[u8], otherwise: &'static str) -> Taken<T> {
    let magic = payload.first_chunk().ok_or(Malformed("it ends too early"))?;
    if *magic != MAGIC {
        return Err(Malformed(otherwise));
    }
    <(u16, T)>::whole(&payload[MAGIC.len()..]).map(|(_, value)| value)
}

wire_struct!(Claim { digest, bits, cores, quota });

impl Wire for Member {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(out, &self.host, HOST_MAX);
        (self.pid, self.process, self.machine).put(out);
        (self.host_key, self.wire_mbits, self.cores).put(out);
        for number in [self.place.cache, self.place.node] {
            // The largest number is none, like 0.
            number.map_or(0, |number| number.wrapping_add(1)).put(out);
        }
        self.place.claim.put(out);
        self.devices.put(out);
        put_counted(out, &self.unix);
        out.push(self.tcp.len() as u8);
        self.tcp.iter().for_each(|address| put_address(out, Some(*address)));
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let host = reader.text(HOST_MAX)?;
        let (pid, process, machine) = reader.take()?;
        let (host_key, wire_mbits, cores) = reader.take()?;
        let (cache, node): (u32, u32) = reader.take()?;
        let place = Place { cache: cache.checked_sub(1), node: node.checked_sub(1), claim: reader.take()? };
        let devices = reader.take()?;
        let unix = reader.counted(UNIX_MAX)?.to_vec();
        let count = usize::from(reader.take::<u8>()?);
        if count > TCP_MAX {
            return Err(Malformed("a member has too many addresses"));
        }
        let mut tcp = Vec::with_capacity(count);
        for _ in 0..count {
            tcp.push(address(&reader.take()?)?.ok_or(Malformed("a member has an empty address"))?);
        }
        Ok(Member { host, pid, process, machine, host_key, wire_mbits, cores, place, devices, unix, tcp })
    }
}

/// A hello as the root reads it: of another version, only the part that never changes.
#[derive(Clone, Debug)]
pub(super) struct HelloSeen {
    pub(super) rank: Rank,
    pub(super) size: u32,
    pub(super) timeout: Duration,
    /// Or the version of whoever wrote it.
    pub(super) rest: Result<(Vec<(String, String)>, Member), u16>,
}

/// The body of a hello, if it keeps within its bounds.
pub(super) fn encode_hello(hello: &Hello, timeout: Duration) -> Result<Vec<u8>> {
    let fits = hello.settings.len() <= SETTINGS_MAX
        && hello.settings.iter().all(|(n, v)| n.len() <= SETTING_NAME_MAX && v.len() <= SETTING_VALUE_MAX)
        && hello.member.unix.len() <= UNIX_MAX
        && hello.member.tcp.len() <= TCP_MAX;
    let mut out = Vec::new();
    (WIRE_VERSION, hello.rank, hello.size).put(&mut out);
    // Rounded up: nobody is told before the rank's own deadline that it has passed.
    let milliseconds = timeout.as_nanos().div_ceil(1_000_000).min(u128::from(u64::MAX));
    (milliseconds as u64, hello.settings.len() as u32).put(&mut out);
    for (name, value) in &hello.settings {
        put_text(&mut out, name, SETTING_NAME_MAX);
        put_text(&mut out, value, SETTING_VALUE_MAX);
    }
    if fits {
        hello.member.put(&mut out);
    }
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
    if version != WIRE_VERSION {
        return Ok(HelloSeen { rank, size, timeout: Duration::MAX, rest: Err(version) });
    }
    let timeout = Duration::from_millis(reader.take()?);
    let count = reader.count(SETTINGS_MAX, 4)?;
    let mut settings = Vec::with_capacity(count);
    for _ in 0..count {
        settings.push((reader.text(SETTING_NAME_MAX)?, reader.text(SETTING_VALUE_MAX)?));
    }
    let member = reader.take()?;
    reader.end()?;
    Ok(HelloSeen { rank, size, timeout, rest: Ok((settings, member)) })
}

/// The body of a table: the root's nonce, from which each rank derives job and key, and the members by rank.
pub(super) fn encode_table<'a>(
    nonce: &[u8; 32],
    members: impl ExactSizeIterator<Item = &'a Member>,
) -> Vec<u8> {
    let mut out = bytes_of(&(*nonce, members.len() as u32));
    members.for_each(|member| member.put(&mut out));
    out
}

/// The root's nonce and the members.
pub(super) fn decode_table(body: &[u8], size: u32) -> Taken<([u8; 32], Vec<Member>)> {
    let mut reader = Reader::new(body);
    let nonce = reader.take()?;
    let count = reader.count(size as usize, 73)?;
    if count != size as usize {
        return Err(Malformed("a table has another number of members than there are ranks"));
    }
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        members.push(reader.take()?);
    }
    reader.end()?;
    Ok((nonce, members))
}

/// The body of a failure: the error that every rank gets.
pub(super) fn encode_failure(error: &Error) -> Vec<u8> {
    let mut out = Vec::new();
    match error {
        Error::Settings { difference } => {
            out.push(1);
            put_text(&mut out, difference, TEXT_MAX);
        }
        Error::MissingRanks { missing, size, waited, address } => {
            out.push(2);
            (*size, waited.as_millis() as u64).put(&mut out);
            put_text(&mut out, address, TEXT_MAX);
            // As ranges, so that the bound on a failure holds for many ranks as well.
            let ranges = ranges(missing);
            ranges[..ranges.len().min(RANGES_MAX)].to_vec().put(&mut out);
        }
        Error::Join { rank, cause, hint } => {
            out.push(3);
            rank.put(&mut out);
            put_text(&mut out, cause, TEXT_MAX);
            put_text(&mut out, hint, TEXT_MAX);
        }
        Error::PeerLost { rank, place, cause, .. } => {
            out.push(4);
            rank.put(&mut out);
            put_text(&mut out, place, TEXT_MAX);
            put_text(&mut out, cause, TEXT_MAX);
        }
        other => {
            out.push(5);
            put_text(&mut out, &other.to_string(), TEXT_MAX);
        }
    }
    out
}

const RANGES_MAX: usize = 2048;

fn ranges(sorted: &[Rank]) -> Vec<(Rank, Rank)> {
    let mut ranges: Vec<(Rank, Rank)> = Vec::new();
    for &rank in sorted {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => ranges.push((rank, rank)),
        }
    }
    ranges
}

/// What [`encode_failure`] wrote.
pub(super) fn decode_failure(body: &[u8]) -> Taken<Error> {
    let mut reader = Reader::new(body);
    let error = match reader.take::<u8>()? {
        1 => Error::Settings { difference: reader.text(TEXT_MAX)? },
        2 => {
            let size = reader.take::<u32>()?;
            if size > SIZE_MAX {
                return Err(Malformed("a number of ranks is out of bounds"));
            }
            let waited = Duration::from_millis(reader.take()?);
            let address = reader.text(TEXT_MAX)?;
            let count = reader.count(RANGES_MAX, 8)?;
            let mut missing = Vec::new();
            for _ in 0..count {
                let (first, last): (Rank, Rank) = reader.take()?;
                if first > last || last >= size || missing.last().is_some_and(|m| *m >= first) {
                    return Err(Malformed("a range of ranks is out of bounds"));
                }
                missing.extend(first..=last);
            }
            Error::MissingRanks { missing, size, waited, address }
        }
        3 => Error::Join {
            rank: reader.take::<u32>()?,
            cause: reader.text(TEXT_MAX)?,
            hint: reader.text(TEXT_MAX)?,
        },
        4 => Error::PeerLost {
            rank: reader.take::<u32>()?,
            place: reader.text(TEXT_MAX)?,
            operation: None,
            cause: reader.text(TEXT_MAX)?,
        },
        5 => Error::internal(reader.text(TEXT_MAX)?),
        _ => return Err(Malformed("it is a failure of no known kind")),
    };
    reader.end()?;
    Ok(error)
}
