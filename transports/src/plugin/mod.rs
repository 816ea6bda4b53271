//! NCCL's network plugins as a transport: what `libnccl-net-….so` sends and receives carries our connections.
//!
//! ```text
//! names    which shared object a name means, and its newest table     logger   what a plugin logs
//! network  an initialised plugin, its comms, and registered memory
//! message  what two ends say to each other                           line     one end: what it sends and hears
//! ```
//!
//! A connection has two comms, one of each direction. Each side listens, and its address has the handle; both connect to the
//! other's handle and accept. A comm may be anyone's, so each side's first message names the endpoint that it means.
//!
//! Invariant: nothing blocks; a connection that was closed keeps its comms until the plugin has sent everything. Absent: readiness,
//! which plugins do not have: who waits looks now and then; the choice among devices; memory of devices.

mod line;
mod logger;
mod message;
mod names;
mod network;

use std::sync::Arc;
use std::task::Poll;

use consort_memory::{Counter, Mapping, Span, SpanMut};

use crate::closed::{Closed, Closing};
use crate::segment::nonce;
use crate::{
    Address, Capabilities, Connecting, Connection, CounterKind, Endpoint, Layout, PeerState, RemoteRegion,
    Service, Transport, TransportError,
};
use line::Line;
use message::{Kind, NAME_BYTES_MAX, Place};
use network::{Comm, Handle, Plugin};

const NAME: &str = "plugin";
/// The transport of a process over one device of a network plugin.
pub struct NetPlugin {
    shared: Arc<Shared>,
}

struct Shared {
    plugin: Arc<Plugin>,
    /// Connections that were closed before everything was sent.
    closed: Arc<Closed<Box<Line>>>,
}

impl NetPlugin {
    /// Over the first plugin that can be used of a list as NCCL's variable `NCCL_NET_PLUGIN` has it: names of files or of plugins,
    /// separated by commas; of its devices the first that takes host memory.
    ///
    /// # Errors
    /// [`TransportError::NoPlugin`] or [`TransportError::Plugin`]: why the first of them cannot be used.
    pub fn load(list: &str) -> Result<Self, TransportError> {
        let plugin = Arc::new(Plugin::first_of(list)?);
        Ok(NetPlugin { shared: Arc::new(Shared { plugin, closed: Closed::new(NAME)? }) })
    }

    /// Whether it is a forked child's copy, which must not be used.
    pub fn is_forked_child(&self) -> bool {
        self.shared.plugin.stamp.is_forked_child()
    }
}

impl Transport for NetPlugin {
    fn name(&self) -> &'static str {
        NAME
    }

    fn endpoint(&self, layout: Layout) -> Result<Box<dyn Endpoint>, TransportError> {
        self.shared.closed.tidy();
        let mailbox = Mapping::anonymous_on(layout.mailbox_bytes, layout.node)
            .map_err(|error| TransportError::memory(NAME, error))?;
        let nonce = nonce(NAME)?;
        let plugin = &self.shared.plugin;
        let (listening, handle) = plugin.listen()?;
        let mut name = plugin.name.clone().into_bytes();
        name.truncate(NAME_BYTES_MAX);
        let place = Place { mailbox_bytes: layout.mailbox_bytes as u64, nonce, handle, plugin: name };
        let address = Address { transport: NAME.into(), bytes: place.encode() };
        Ok(Box::new(PluginEndpoint { shared: Arc::clone(&self.shared), address, place, listening, mailbox }))
    }

    fn service(&self) -> Option<Arc<dyn Service>> {
        Some(self.shared.closed.clone())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.plugin.stamp.is_forked_child() {
            self.closed.abandon();
        } else {
            self.closed.finish();
        }
    }
}

impl Closing for Box<Line> {
    fn is_open(&mut self) -> bool {
        matches!(self.progress(), Ok(PeerState::Open))
    }

    fn say_end(&mut self) -> bool {
        self.end()
    }

    fn is_delivered(&self) -> bool {
        self.is_flushed()
    }
}

struct PluginEndpoint {
    shared: Arc<Shared>,
    address: Address,
    place: Place,
    listening: Comm,
    mailbox: Mapping,
}

impl Endpoint for PluginEndpoint {
    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(self: Box<Self>, peer: &Address) -> Result<Box<dyn Connecting>, TransportError> {
        let bad = |reason| TransportError::BadAddress { transport: NAME, reason };
        let bytes = peer.bytes_for(NAME)?;
        let peer = Place::decode(bytes).ok_or_else(|| bad("it is not one of a network plugin's endpoint"))?;
        if peer.nonce == self.place.nonce {
            return Err(bad("it is this endpoint's own"));
        }
        if peer.plugin != self.place.plugin {
            return Err(bad("the two sides have loaded different network plugins (NCCL_NET_PLUGIN)"));
        }
        usize::try_from(peer.mailbox_bytes).map_err(|_| bad("it names an impossible size"))?;
        let Self { shared, place, listening, mailbox, .. } = *self;
        let handle = Box::new(Handle(peer.handle));
        let stage = Stage::Meeting { listening: Some(listening), mailbox, sending: None, receiving: None };
        Ok(Box::new(PluginConnecting { shared, place, peer, handle, stage }))
    }
}

enum Stage {
    /// Comms are asked for.
    Meeting {
        listening: Option<Comm>,
        mailbox: Mapping,
        sending: Option<Comm>,
        receiving: Option<Comm>,
    },
    /// Both are there; the peer's hello is waited for.
    Greeting(Box<Line>),
    Over,
}

struct PluginConnecting {
    shared: Arc<Shared>,
    place: Place,
    peer: Place,
    /// Stays where it is, for a plugin may keep what it does there.
    handle: Box<Handle>,
    stage: Stage,
}

impl PluginConnecting {
    /// Asks the plugin for comms. What follows.
    fn meet(&mut self, stage: Stage) -> Result<Stage, TransportError> {
        let Stage::Meeting { mut listening, mailbox, mut sending, mut receiving } = stage else {
            return Ok(stage);
        };
        let plugin = &self.shared.plugin;
        if let Some(listener) = &listening {
            receiving = plugin.accept(listener)?;
            if receiving.is_some() {
                listening = None;
            }
        }
        if sending.is_none() {
            sending = plugin.connect(&mut self.handle)?;
        }
        Ok(match (sending, receiving) {
            (Some(sending), Some(receiving)) => {
                let line = Line::new([sending, receiving], mailbox, &self.place, &self.peer)?;
                Stage::Greeting(Box::new(line))
            }
            (sending, receiving) => Stage::Meeting { listening, mailbox, sending, receiving },
        })
    }
}

impl Connecting for PluginConnecting {
    fn poll(&mut self) -> Result<Poll<Box<dyn Connection>>, TransportError> {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        match self.meet(stage)? {
            Stage::Over => Err(TransportError::PeerClosed { transport: NAME }),
            Stage::Greeting(mut line) => {
                let state = line.progress()?;
                if line.is_greeted {
                    let shared = Arc::clone(&self.shared);
                    return Ok(Poll::Ready(Box::new(PluginConnection { shared, line: Some(line) })));
                }
                if state == PeerState::Closed {
                    return Err(TransportError::PeerClosed { transport: NAME });
                }
                self.stage = Stage::Greeting(line);
                Ok(Poll::Pending)
            }
            meeting => {
                self.stage = meeting;
                Ok(Poll::Pending)
            }
        }
    }

    fn waits_for(&self) -> Option<String> {
        let of = |what: &str| Some(format!("the network plugin {} {what}", self.shared.plugin.name));
        match &self.stage {
            Stage::Meeting { sending: None, receiving: None, .. } => of("has neither connected nor accepted"),
            Stage::Meeting { sending: None, .. } => of("has accepted the peer and has not connected to it"),
            Stage::Meeting { .. } => of("has connected to the peer and has not accepted it"),
            Stage::Greeting(_) => of("has connected both ways, and the peer's hello has not come"),
            Stage::Over => None,
        }
    }
}

impl Drop for PluginConnecting {
    fn drop(&mut self) {
        // A child's copies are the parent's comms.
        if self.shared.plugin.stamp.is_forked_child() {
            std::mem::forget(std::mem::replace(&mut self.stage, Stage::Over));
        }
    }
}

struct PluginConnection {
    shared: Arc<Shared>,
    /// None when it is dropped.
    line: Option<Box<Line>>,
}

impl PluginConnection {
    fn line(&self) -> &Line {
        self.line.as_ref().expect("there until it is dropped")
    }

    fn put_and_say(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        done: &mut usize,
        says: Option<(Kind, u64, u64)>,
    ) -> Result<Poll<()>, TransportError> {
        let line = self.line.as_mut().expect("there until it is dropped");
        Ok(if line.put(offset, bytes, done, says)? { Poll::Ready(()) } else { Poll::Pending })
    }
}

impl Connection for PluginConnection {
    fn transport(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { load_store: false, put: true, ordered: true, needs_progress: true }
    }

    fn mailbox(&self) -> SpanMut<'_> {
        self.line().mailbox()
    }

    fn kept_bytes(&self) -> usize {
        self.line().kept_bytes()
    }

    fn remote(&self) -> RemoteRegion<'_> {
        RemoteRegion { bytes: self.line().peer_mailbox_bytes(), mapped: None }
    }

    fn counter(&self, kind: CounterKind) -> &Counter {
        match kind {
            CounterKind::Ready => &self.line().ready,
            CounterKind::Credit => &self.line().credit,
        }
    }

    fn peer_counter(&self, _kind: CounterKind) -> Option<&Counter> {
        None
    }

    fn put(&mut self, offset: usize, bytes: Span<'_>, done: &mut usize) -> Result<Poll<()>, TransportError> {
        self.put_and_say(offset, bytes, done, None)
    }

    fn fill(
        &mut self,
        offset: usize,
        bytes: Span<'_>,
        (value, tag): (u64, u64),
        done: &mut usize,
    ) -> Result<Poll<()>, TransportError> {
        self.put_and_say(offset, bytes, done, Some((Kind::Ready, value, tag)))
    }

    fn signal(&mut self, kind: CounterKind, value: u64, tag: u64) -> Result<Poll<()>, TransportError> {
        let kind = match kind {
            CounterKind::Ready => Kind::Ready,
            CounterKind::Credit => Kind::Credit,
        };
        self.put_and_say(0, Span::empty(), &mut 0, Some((kind, value, tag)))
    }

    fn is_flushed(&self) -> bool {
        self.line().is_flushed()
    }

    fn progress(&mut self) -> Result<PeerState, TransportError> {
        self.line.as_mut().expect("there until it is dropped").progress()
    }
}

impl Drop for PluginConnection {
    fn drop(&mut self) {
        let Some(line) = self.line.take() else { return };
        // A child's copy is the parent's.
        if self.shared.plugin.stamp.is_forked_child() {
            std::mem::forget(line);
            return;
        }
        self.shared.closed.keep(line);
    }
}

#[cfg(test)]
mod tests;
