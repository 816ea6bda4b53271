//! The unique id: what all ranks of a job share before they know each other.
//!
//! ```text
//! 0 magic u32 | 4 version u16 | 6 agreed bool | 7 addresses u8 | 8 four addresses of 19 bytes | 84 secret | 116 job u64 | 124 checksum
//! ```
//!
//! Invariant: 128 bytes with one meaning: what `from_bytes` accepts, `to_bytes` gives back. The process that created the
//! id runs the root for as long as a clone of it lives there and a rank has yet to join. The bytes are all that it takes
//! to join: keep them as one keeps a password. Absent: how the bytes reach the other ranks.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use super::door::Door;
use super::interfaces;
use super::root::{Limits, Root};
use crate::codec::forms::SOCKET_BYTES;
use crate::codec::{Malformed, Reader, Wire, bytes_of};
use crate::proof::{Secret, digest, hex, name, prove, random};
use consort_settings::environment::Environment;
use consort_settings::options::PortRange;
use consort_transports::listen_within;
use consort_types::error::{Error, Result};

const MAGIC: [u8; 4] = *b"cnst";
const VERSION: u16 = 1;
const CHECKSUM_AT: usize = 124;
/// The most addresses in an id.
pub(super) const ADDRESSES_MAX: usize = 4;

/// What all ranks of one job share before they know each other: where to meet, and a secret.
///
/// One process creates it and gives its 128 bytes to the others, over a channel that it trusts.
#[derive(Clone)]
pub struct UniqueId {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) secret: Secret,
    pub(super) job: u64,
    /// The root listens at a place that was agreed beforehand, so it may start later than the ranks that look for it.
    pub(super) agreed: bool,
    pub(super) root: Option<Arc<Root>>,
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId")
            .field("addresses", &self.addresses)
            .field("secret", &self.secret)
            .field("agreed", &self.agreed)
            .field("root_here", &self.root.is_some())
            .finish_non_exhaustive()
    }
}

impl UniqueId {
    /// The length of [`UniqueId::to_bytes`].
    pub const BYTES: usize = 128;

    /// A new id, whose root runs in this process.
    ///
    /// It listens on the loopback address and on up to three addresses of the host's interfaces, or only on the ip
    /// addresses that `CONSORT_BIND` names (separated by commas), at ports of the range `CONSORT_PORTS` where that is set.
    /// Without any usable network an id is still returned; it serves a job of one rank.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `CONSORT_BIND` is malformed or not of this host, or if `CONSORT_PORTS` is malformed or
    /// has no free port; [`Error::System`] if there is no randomness or no thread to be had.
    pub fn create() -> Result<Self> {
        let environment = Environment::of_process();
        let bind = environment.text("CONSORT_BIND").map(|(text, _)| text);
        let ports = PortRange::asked(&environment)?;
        Self::create_on(&bind_addresses(bind.as_deref())?, ports, None, Limits::default())
    }

    /// As [`UniqueId::create`], at the loopback address; its root spreads the table of ranks in this way.
    #[cfg(any(test, feature = "testing"))]
    pub fn create_spreading(spread: super::Spread) -> Result<Self> {
        let limits = Limits { spread, ..Limits::default() };
        Self::create_on(&[Ipv4Addr::LOCALHOST.into()], None, None, limits)
    }

    /// A new id whose root listens at `address`, for ranks that know address and secret beforehand.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the secret is shorter than 16 bytes, if the address is in use (by another job, most
    /// likely) or not one of this host.
    pub fn create_at(address: SocketAddr, secret: &[u8]) -> Result<Self> {
        Self::create_at_any(&[address], secret, Limits::default())
    }

    /// The id of a root that another process created with [`UniqueId::create_at`], or will.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the secret is shorter than 16 bytes.
    pub fn at(address: SocketAddr, secret: &[u8]) -> Result<Self> {
        Self::at_any(&[address], secret)
    }

    pub fn at_any(addresses: &[SocketAddr], secret: &[u8]) -> Result<Self> {
        let secret = Secret::derived(secret)?;
        let job = name(&secret.0, "job number", &[]);
        let addresses = addresses.iter().copied().take(ADDRESSES_MAX).collect();
        Ok(UniqueId { addresses, secret, job, agreed: true, root: None })
    }

    pub(super) fn create_at_any(addresses: &[SocketAddr], secret: &[u8], limits: Limits) -> Result<Self> {
        let mut id = Self::at_any(addresses, secret)?;
        let mut listeners = Vec::new();
        for address in &id.addresses {
            listeners.push(listen(*address)?);
        }
        id.addresses = listened(&listeners)?;
        id.root = Some(Arc::new(Root::start(listeners, None, &id, limits)?));
        // An unspecified address is for listening; this process's own ranks connect to the loopback.
        for address in &mut id.addresses {
            if address.ip().is_unspecified() {
                address.set_ip(Ipv4Addr::LOCALHOST.into());
            }
        }
        Ok(id)
    }

    /// Whether its root is to run at a place that was agreed on and does not run in this process.
    pub fn is_agreed_elsewhere(&self) -> bool {
        self.agreed && self.root.is_none()
    }

    /// The same id, with its root in this process from now on, at those of its addresses that are this host's.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if none of them can be listened at; [`Error::System`] if there is no thread to be had.
    pub fn listening(mut self) -> Result<Self> {
        let mut listeners = Vec::new();
        let mut refused = None;
        // A name of a host may stand for addresses that are not all its own.
        for address in &self.addresses {
            match listen(*address) {
                Ok(listener) => listeners.push(listener),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        if let Some(error) = refused.filter(|_| listeners.is_empty()) {
            return Err(error);
        }
        self.root = Some(Arc::new(Root::start(listeners, None, &self, Limits::default())?));
        Ok(self)
    }

    /// An id for a job of one rank, which needs no network.
    pub(super) fn lone() -> Result<Self> {
        Ok(UniqueId { addresses: Vec::new(), secret: Secret::random()?, job: 0, agreed: false, root: None })
    }

    /// The id of a root that another process runs there.
    #[cfg(any(test, feature = "testing"))]
    pub fn known(addresses: &[SocketAddr], secret: [u8; 32], job: u64, agreed: bool) -> Self {
        UniqueId { addresses: addresses.to_vec(), secret: Secret(secret), job, agreed, root: None }
    }

    /// A new id on these addresses, or on all that the host has, at ports of the range where there is one; `door` hands its
    /// bytes to local processes.
    pub(super) fn create_on(
        bind: &[IpAddr],
        ports: Option<PortRange>,
        door: Option<Door>,
        limits: Limits,
    ) -> Result<Self> {
        let mut listeners = Vec::new();
        let all = if bind.is_empty() { interfaces::usable()? } else { bind.to_vec() };
        for ip in all {
            match listen_within(ip, ports.map(PortRange::ports)) {
                Ok(listener) => listeners.push(for_all_ranks(listener)),
                Err(error) => match ports.and_then(|ports| ports.refused(ip, &error)) {
                    Some(error) => return Err(error),
                    None if bind.is_empty() => {
                        tracing::debug!(%ip, %error, "the root does not listen here")
                    }
                    None => return Err(refused(SocketAddr::new(ip, 0), error)),
                },
            }
        }
        let addresses = listened(&listeners)?;
        let job = u64::from_le_bytes(random()?);
        let mut id = UniqueId { addresses, secret: Secret::random()?, job, agreed: false, root: None };
        if listeners.is_empty() {
            tracing::warn!(
                "no address of this host could be listened at: only a job of one rank can be made with this id"
            );
        } else {
            id.root = Some(Arc::new(Root::start(listeners, door, &id, limits)?));
        }
        Ok(id)
    }

    /// The id as bytes, for the other ranks. Secret: they are all that it takes to join.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut out = bytes_of(&(MAGIC, VERSION));
        (u8::from(self.agreed), self.addresses.len() as u8).put(&mut out);
        for at in 0..ADDRESSES_MAX {
            match self.addresses.get(at) {
                Some(address) => address.put(&mut out),
                None => [0; SOCKET_BYTES].put(&mut out),
            }
        }
        (self.secret.0, self.job).put(&mut out);
        out.extend_from_slice(&digest(&out)[..4]);
        std::array::from_fn(|at| out[at])
    }

    /// The id that [`UniqueId::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes are not an id, are damaged, or are of another version.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        Self::read(bytes).map_err(|what| {
            Error::invalid(
                format!("these {} bytes are not a unique id: {what}", Self::BYTES),
                "pass on all bytes that one rank's UniqueId gave, unchanged, to every rank of the same job",
            )
        })
    }

    fn read(bytes: &[u8; Self::BYTES]) -> std::result::Result<Self, String> {
        let text = |Malformed(what): Malformed| what.to_owned();
        let (fields, checksum) = bytes.split_at(CHECKSUM_AT);
        let mut reader = Reader::new(fields);
        let (magic, version): ([u8; 4], u16) = reader.take().map_err(text)?;
        if magic != MAGIC {
            let zero = bytes.iter().all(|byte| *byte == 0);
            return Err(if zero { "all are zero" } else { "they begin differently" }.into());
        }
        if version != VERSION {
            return Err(format!("they are of version {version}, and this library reads version {VERSION}"));
        }
        if *checksum != digest(fields)[..4] {
            return Err("the checksum is wrong, so they were changed on the way".into());
        }
        let out_of_bounds = |_| "a field is out of bounds".to_owned();
        let (agreed, count): (bool, u8) = reader.take().map_err(out_of_bounds)?;
        let slots: [u8; SOCKET_BYTES * ADDRESSES_MAX] = reader.take().map_err(text)?;
        let slots = slots.as_chunks::<SOCKET_BYTES>().0;
        let (used, unused) =
            slots.split_at_checked(count.into()).ok_or(Malformed("")).map_err(out_of_bounds)?;
        let address = |slot: &[u8; SOCKET_BYTES]| SocketAddr::whole(slot).ok().filter(|at| at.port() != 0);
        let addresses: Option<Vec<_>> = used.iter().map(address).collect();
        let addresses = addresses.filter(|_| unused.as_flattened().iter().all(|byte| *byte == 0));
        let addresses = addresses.ok_or("an address is malformed")?;
        let (secret, job) = reader.take().map_err(text)?;
        Ok(UniqueId { addresses, secret: Secret(secret), job, agreed, root: None })
    }

    /// A short text that tells these other ids from any others, to those who know this one.
    pub fn mark(&self, others: &[UniqueId]) -> String {
        let bytes: Vec<[u8; Self::BYTES]> = others.iter().map(Self::to_bytes).collect();
        let parts: Vec<&[u8]> = bytes.iter().map(<[u8; Self::BYTES]>::as_slice).collect();
        let proof = prove(&self.secret.0, "other ids", &parts);
        hex(&proof[..8])
    }

    /// Whether no rank needs it any more: its root does not run here or has ended, all ranks have joined, or it was retired.
    /// Dropping the last clone then waits until the verdict is on its way,
    /// [`Limits::flush`](super::root::Limits) at most.
    pub fn is_over(&self) -> bool {
        self.root.as_ref().is_none_or(|root| root.is_over())
    }

    /// No rank will meet by it: its root ends if it runs here.
    pub fn retire(&self) {
        if let Some(root) = &self.root {
            root.stop();
        }
    }

    /// Its addresses, for people.
    pub(super) fn place(&self) -> String {
        place(&self.addresses)
    }
}

/// Addresses, for people.
pub(super) fn place(addresses: &[SocketAddr]) -> String {
    match addresses {
        [] => "no address".into(),
        _ => addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "),
    }
}

fn listened(listeners: &[TcpListener]) -> Result<Vec<SocketAddr>> {
    listeners
        .iter()
        .map(|l| l.local_addr().map_err(|error| Error::system("getsockname of the root's listener", error)))
        .collect()
}

/// The ip addresses in `CONSORT_BIND`; none if it is not set.
pub(super) fn bind_addresses(value: Option<&str>) -> Result<Vec<IpAddr>> {
    let Some(value) = value.map(str::trim).filter(|value| !value.is_empty()) else { return Ok(Vec::new()) };
    let addresses: Option<Vec<IpAddr>> = value.split(',').map(|ip| ip.trim().parse().ok()).collect();
    match addresses {
        Some(addresses)
            if addresses.len() <= ADDRESSES_MAX && addresses.iter().all(|ip| !ip.is_unspecified()) =>
        {
            Ok(addresses)
        }
        _ => Err(Error::invalid(
            format!("CONSORT_BIND={value} is not a list of ip addresses"),
            format!(
                "give up to {ADDRESSES_MAX} addresses of this host, separated by commas, or leave it unset"
            ),
        )),
    }
}

/// Listens at an address that was agreed on, port and all.
pub(super) fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).map(for_all_ranks).map_err(|error| refused(address, error))
}

/// The standard library's queue is of 128 callers, and all ranks call at the same time; without this the others call again.
fn for_all_ranks(listener: TcpListener) -> TcpListener {
    let _ = nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::MAXCONN);
    listener
}

/// Why the root cannot listen there.
fn refused(address: SocketAddr, error: std::io::Error) -> Error {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::AddrInUse => Error::invalid(
            format!("the rendezvous address {address} is in use, most likely by another job"),
            "give each job a port of its own (CONSORT_ADDRESS), and do not use MASTER_PORT, which torchrun's agent holds",
        ),
        ErrorKind::AddrNotAvailable => Error::invalid(
            format!("the rendezvous address {address} is not an address of this host"),
            "rank 0 listens there: name an address of the host that rank 0 runs on",
        ),
        ErrorKind::PermissionDenied => Error::invalid(
            format!("this user may not listen at the rendezvous address {address}"),
            "take a port above 1023",
        ),
        _ => Error::system(format!("listening at the rendezvous address {address}"), error),
    }
}
