//! Memory of devices over a connection: written from where it is or from pinned memory, and exposed to what peers write.
//!
//! Invariant: pinned memory is filled again only when the adapter has read it. Absent: which way a device's memory is reached (`device`).

use std::sync::Arc;
use std::task::Poll;

use consort_cuda::{Context, DeviceSpan, PinnedMemory};

use super::super::NAME;
use super::super::line::lent::{Direct, Kept};
use super::super::message::Kind;
use super::super::one::{One, OneConnection};
use super::super::port::{Domain, Registration, Written};
use super::device::{DevicePath, refused};
use crate::TransportError;
use crate::device::{DeviceDestination, DeviceLink, DeviceTarget, DeviceWay, ExposedMemory};
use crate::mapped::check_bounds;

/// The longest write, which the interface limits to twice as much.
const WRITE_MAX: usize = 1 << 30;
/// Bytes of each half of pinned memory: while the adapter reads one, the device fills the other.
const HALF: usize = 1 << 20;

/// Pinned memory that the adapter knows.
struct Pinned {
    /// Before the memory that it is of.
    registration: Arc<Registration>,
    memory: PinnedMemory,
}

impl Pinned {
    fn new(
        domain: &Arc<Domain>,
        context: &Context,
        bytes: usize,
        by: Written,
    ) -> Result<Self, TransportError> {
        let memory = context.allocate_host(bytes).map_err(refused("pinned memory for a GPU"))?;
        let start = memory.span().as_mut_ptr();
        // SAFETY: the memory outlives its registration (fields in this order, and `Kept::Staging`), and only the device copies out of it.
        let registered = unsafe { domain.register_range(start, bytes, by) };
        let registration = registered.map_err(|source| domain.unregistered(bytes, source))?;
        Ok(Pinned { registration: Arc::new(registration), memory })
    }
}

/// Two halves of pinned memory, by which a connection sends what its adapter does not reach.
pub(in super::super) struct Staging {
    context: Context,
    /// Each with the number of what was last sent from it.
    halves: [(Pinned, u64); 2],
    next: usize,
}

impl Staging {
    fn new(path: &DevicePath) -> Result<Self, TransportError> {
        let half = || Pinned::new(&path.domain, &path.context, HALF, Written::Here).map(|half| (half, 0));
        Ok(Staging { context: path.context.clone(), halves: [half()?, half()?], next: 0 })
    }

    /// Sends a piece; its number, if there was room.
    fn send(
        &mut self,
        one: &mut One,
        piece: DeviceSpan,
        to: (u64, u32),
        says: Option<(Kind, u64, u64)>,
    ) -> Result<Option<u64>, TransportError> {
        let (half, number) = &mut self.halves[self.next];
        if !one.line.is_source_free(*number) {
            return Ok(None);
        }
        let (span, registration) = (half.memory.device_span(), Arc::clone(&half.registration));
        self.context
            .copy(span.slice(0, piece.len()), piece)
            .map_err(refused("a copy from the GPU to pinned memory"))?;
        let from = (half.memory.address() as u64, registration.keys().0);
        let direct = Direct { from, bytes: piece.len(), to };
        let sent = one.send_direct(direct, Kept::Staging(half.memory.clone()), registration, says)?;
        if let Some(sent) = sent {
            *number = sent;
            self.next ^= 1;
        }
        Ok(sent)
    }
}

/// How exposed memory is written.
enum Exposure {
    /// Where it is.
    Direct(Arc<Registration>),
    /// In pinned memory, from where it is copied when it has come.
    Staged(Pinned),
}

struct Exposed {
    path: Arc<DevicePath>,
    memory: DeviceSpan,
    exposure: Exposure,
    way: DeviceWay,
}

impl ExposedMemory for Exposed {
    fn target(&self) -> DeviceTarget {
        let (start, key) = match &self.exposure {
            Exposure::Direct(registration) => (self.memory.address(), registration.keys().1),
            Exposure::Staged(pinned) => (pinned.memory.address() as u64, pinned.registration.keys().1),
        };
        DeviceTarget { start, bytes: self.memory.len() as u64, key }
    }

    fn way(&self) -> DeviceWay {
        self.way
    }

    fn settle(&self, offset: usize, bytes: usize) -> Result<(), TransportError> {
        let part = self.memory.slice(offset, bytes);
        match &self.exposure {
            Exposure::Direct(registration) => self.path.flush(part.address(), registration.keys().1),
            Exposure::Staged(pinned) => {
                let from = pinned.memory.device_span().slice(offset, bytes);
                self.path.context.copy(part, from).map_err(refused("a copy from pinned memory to the GPU"))
            }
        }
    }
}

/// Where bytes go in the peer's memory, and by which key.
fn place(
    one: &One,
    (to, offset): (DeviceDestination<'_>, usize),
    bytes: usize,
) -> Result<(u64, u32), TransportError> {
    match to {
        DeviceDestination::Mailbox => one.place(offset, bytes),
        DeviceDestination::Exposed(target) => {
            check_bounds(NAME, offset, bytes, usize::try_from(target.bytes).unwrap_or(usize::MAX))?;
            Ok((target.start + offset as u64, target.key))
        }
    }
}

impl DeviceLink for OneConnection {
    fn expose(
        &self,
        context: &Context,
        memory: DeviceSpan,
    ) -> Result<Box<dyn ExposedMemory>, TransportError> {
        self.shared.check_fork()?;
        let path = self.shared.devices.path(context)?;
        let registered = path.exposed(&self.shared.registrations[0], memory)?;
        let (exposure, way) = match registered {
            Some(registration) => (Exposure::Direct(registration), path.way()),
            None => {
                let pinned = Pinned::new(&path.domain, context, memory.len(), Written::ByPeer)?;
                (Exposure::Staged(pinned), DeviceWay::Staged)
            }
        };
        Ok(Box::new(Exposed { path, memory, exposure, way }))
    }

    fn write_device(
        &mut self,
        (context, from): (&Context, DeviceSpan),
        to: (DeviceDestination<'_>, usize),
        (value, tag): (u64, u64),
        done: &mut usize,
    ) -> Result<Poll<u64>, TransportError> {
        self.shared.check_fork()?;
        let (start, key) = place(self.one(), to, from.len())?;
        let path = self.shared.devices.path(context)?;
        let registration = path.registered(&self.shared.registrations[0], from, Written::Here)?;
        if registration.is_none() && self.staging.as_ref().is_none_or(|of| of.context != *context) {
            self.staging = Some(Staging::new(&path)?);
        }
        let piece_max = if registration.is_some() { WRITE_MAX } else { HALF };
        let one = self.one.as_mut().expect("there until it is dropped");
        loop {
            let piece = from.slice(*done, (from.len() - *done).min(piece_max));
            let is_last = *done + piece.len() == from.len();
            let says = is_last.then_some((Kind::Ready, value, tag));
            let to = (start + *done as u64, key);
            let sent = match (&registration, &mut self.staging) {
                (Some(registration), _) => {
                    let source = (piece.address(), registration.keys().0);
                    let direct = Direct { from: source, bytes: piece.len(), to };
                    one.send_direct(direct, Kept::Device, Arc::clone(registration), says)?
                }
                (None, Some(staging)) => staging.send(one, piece, to, says)?,
                (None, None) => None,
            };
            let Some(number) = sent else { return Ok(Poll::Pending) };
            *done += piece.len();
            if is_last {
                return Ok(Poll::Ready(number));
            }
        }
    }
}
