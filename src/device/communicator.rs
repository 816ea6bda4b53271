//! Communicators on devices: typed calls, alone and in groups.
//!
//! Invariant: a call returns when its operation is in its stream; what it was given is kept until it is over. Absent:
//! how operations run.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use consort_algorithms::Collective;
use consort_cuda::DeviceSpan;
use consort_kernels::{Element, ReduceOp};

use super::memory::{Device, DeviceBuffer, Stream};
use super::placement::{Entry, Placement, issue};
use super::table::Path;
use crate::Rank;
use crate::communicator::Communicator;
use crate::communicator::point::Part;
use crate::communicator::surface::{collectives, method};
use crate::communicator::typed::block;
use crate::planner::Explanation;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};
use consort_types::varying::CallV;

/// A communicator whose rank has a device.
///
/// Calls are those of [`Communicator`], on [`DeviceBuffer`]s and in a [`Stream`]. Operations of a communicator follow
/// each other in the order of the calls, in whatever streams. The time of an operation begins with its call, whatever is before it in its
/// stream, and what is before it must end within that time too. A failure of an operation is found when the communicator
/// is used again or asked for its [status](Communicator::status): a stream does not know.
///
/// # Several ranks in one process
/// Ranks of a process that share a device are run by one kernel, so a call returns when all of them have made theirs:
/// call from a thread each, or in a [`group`].
#[derive(Debug)]
pub struct DeviceCommunicator {
    communicator: Communicator,
    placement: Arc<Placement>,
}

impl Communicator {
    /// The same communicator on a device. All ranks call it, each with its device; it stays as it is for host memory, and
    /// is closed when both are dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] and [`Error::Settings`] for a `CONSORT_DEVICE_PATH` that cannot be or differs;
    /// [`Error::Device`]; otherwise as every collective.
    pub fn on_device(&self, device: &Device) -> Result<DeviceCommunicator> {
        self.core().check()?;
        let placement = Placement::make(self, device.gpu().context())?;
        Ok(DeviceCommunicator { communicator: self.shared(), placement })
    }
}

impl DeviceCommunicator {
    /// The communicator, for everything else.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// How operations run, the same on all ranks.
    pub fn path(&self) -> Path {
        self.placement.path()
    }

    /// Why a collective on blocks of `block_bytes` bytes runs on the devices as it does: the paths and programs, and the
    /// reasons against those that are left out. Rooted ones begin at rank 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for messages between two ranks; otherwise where a plan is refused.
    pub fn explain(&self, collective: Collective, block_bytes: usize) -> Result<Explanation> {
        if collective == Collective::SendReceive {
            return Err(Error::invalid("messages have one way to go", "ask for a collective"));
        }
        self.placement.explain(self.communicator.planning(), collective, block_bytes as u64)
    }

    /// Bytes of device memory that the communicator holds beside the callers' buffers, its kernels apart.
    pub fn device_bytes(&self) -> usize {
        self.placement.device_bytes()
    }

    /// Waits until every operation that was put into streams is over, and says what became of them.
    ///
    /// # Errors
    /// What an operation ended with, as a blocking call returns it.
    pub fn synchronize(&self) -> Result<()> {
        self.communicator.core().finish_streams(self.communicator.timeout())
    }
}

/// Calls on devices that are made together: see [`group`].
pub struct DeviceGroup<'env> {
    calls: RefCell<Vec<Entry<'env>>>,
    refused: RefCell<Option<Error>>,
}

/// Makes the calls of `body` together, and returns when all are in their streams. One thread may so call on several
/// ranks of its process, and messages may be sent in any order.
///
/// # Errors
/// What `body` returned; what a call was refused for; otherwise the first that could not be put into its stream.
pub fn group<'env, R>(body: impl FnOnce(&DeviceGroup<'env>) -> Result<R>) -> Result<R> {
    let group = DeviceGroup { calls: RefCell::default(), refused: RefCell::default() };
    let value = body(&group)?;
    if let Some(refused) = group.refused.into_inner() {
        return Err(refused);
    }
    issue(&group.calls.into_inner())?;
    Ok(value)
}

/// A call that has been checked, by the algorithm that its communicator names.
fn entry<'a>(
    on: &'a DeviceCommunicator,
    (call, blocks, input, output): Part<'a, DeviceSpan, DeviceSpan>,
    stream: &'a Stream,
    kept: Vec<Arc<dyn Any + Send + Sync>>,
) -> Entry<'a> {
    let DeviceCommunicator { communicator, placement } = on;
    let call = communicator.with_own_algorithm(call);
    Entry { communicator, placement, call, blocks, input, output, stream: stream.raw(), kept }
}

/// A collective of equal blocks.
fn collective<'a, T: Element>(
    on: &'a DeviceCommunicator,
    call: Call,
    input: &DeviceBuffer<T>,
    output: &DeviceBuffer<T>,
    stream: &'a Stream,
) -> Result<Entry<'a>> {
    let (from, to) = (input.span(), output.span());
    if call.kind == Kind::AllToAllReplicated {
        return Err(Error::invalid(
            format!("{} does not run on devices", call.kind.name()),
            "pass buffers of the host",
        ));
    }
    if !call.kind.is_message() {
        call.check(on.communicator.rank(), on.communicator.size(), from, to)?;
    }
    Ok(entry(on, (call, None, from, to), stream, vec![input.keeper(), output.keeper()]))
}

/// A message that is sent or received.
fn message<'a, T: Element>(
    on: &'a DeviceCommunicator,
    kind: Kind,
    buffer: &DeviceBuffer<T>,
    peer: Rank,
    stream: &'a Stream,
) -> Result<Entry<'a>> {
    let (span, nothing) = (buffer.span(), DeviceSpan::empty());
    let call = on.communicator.message(kind, T::DATA_TYPE, span.len(), peer)?;
    let (input, output) = if kind == Kind::Send { (span, nothing) } else { (nothing, span) };
    Ok(entry(on, (call, None, input, output), stream, vec![buffer.keeper()]))
}

/// Collectives that are put into a stream, alone.
macro_rules! on_devices {
    // What runs on devices has no groups.
    ($(#[$about:meta])* apart $noun:literal all_to_all_replicated $($row:tt)*) => {};
    ($(#[$about:meta])* into $noun:literal $name:ident $($row:tt)*) => {
        on_devices! { $(#[$about])* apart $noun $($row)* }
    };
    ($(#[$about:meta])* apart $($row:tt)*) => {
        method! { {
            (&self) &DeviceBuffer<T>, &DeviceBuffer<T>, (stream: &Stream) of self.communicator.size() => Result<()>;
            apart |call, input, output| issue(&[collective(self, call?, input, output, stream)?]).map(drop);
        }
            $(#[$about])*
            /// On devices also [`Error::Device`].
            ///
            /// # In place
            /// `input` and `output` may be the same memory, or one a part of the other, where the collective has such a form
            /// on [`Communicator`].
            apart $($row)*
        }
    };
    ($($row:tt)*) => {};
}

/// The same in groups.
macro_rules! in_groups {
    ($(#[$about:meta])* apart $noun:literal all_to_all_replicated $($row:tt)*) => {};
    ($(#[$about:meta])* into $noun:literal $name:ident $($row:tt)*) => {
        in_groups! { $(#[$about])* apart $noun $($row)* }
    };
    ($(#[$about:meta])* apart $noun:literal $name:ident $($row:tt)*) => {
        method! { {
            (&self, on: &'env DeviceCommunicator) &DeviceBuffer<T>, &DeviceBuffer<T>, (stream: &'env Stream)
                of on.communicator.size() => Result<()>;
            apart |call, input, output| {
                self.add(call.and_then(|call| collective(on, call, input, output, stream)))
            };
        }
            #[doc = concat!("As [`DeviceCommunicator::", stringify!($name), "`].")]
            ///
            /// # Errors
            /// What can be seen at once; the group is then refused, whatever its body returns.
            apart $noun $name $($row)*
        }
    };
    ($($row:tt)*) => {};
}

/// Calls whose blocks differ, planned or as messages.
fn varying<'a, T: Element>(
    on: &'a DeviceCommunicator,
    call: &CallV<'a>,
    input: &DeviceBuffer<T>,
    output: &DeviceBuffer<T>,
    stream: &'a Stream,
) -> Result<Vec<Entry<'a>>> {
    let (rank, size) = (on.communicator.rank(), on.communicator.size());
    let (from, to) = (input.span(), output.span());
    call.check(rank, size, from, to)?;
    let kept: Vec<Arc<dyn Any + Send + Sync>> = vec![input.keeper(), output.keeper()];
    let parts = on.communicator.parts(call, from, to)?.into_iter();
    Ok(parts.map(|part| entry(on, part, stream, kept.clone())).collect())
}

impl DeviceCommunicator {
    collectives!(on_devices);

    /// As [`Communicator::execute`]: what `call` says, of elements of its data type, whatever that of the buffers is.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`].
    pub fn execute<T: Element>(
        &self,
        call: &Call,
        input: &DeviceBuffer<T>,
        output: &DeviceBuffer<T>,
        stream: &Stream,
    ) -> Result<()> {
        issue(&[collective(self, *call, input, output, stream)?]).map(drop)
    }

    /// As [`Communicator::execute_v`].
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`].
    pub fn execute_v<T: Element>(
        &self,
        call: &CallV<'_>,
        input: &DeviceBuffer<T>,
        output: &DeviceBuffer<T>,
        stream: &Stream,
    ) -> Result<()> {
        issue(&varying(self, call, input, output, stream)?).map(drop)
    }

    /// Sends to a rank, which must receive it. Where ranks send to each other, use a [`group`].
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`].
    pub fn send<T: Element>(&self, input: &DeviceBuffer<T>, to: Rank, stream: &Stream) -> Result<()> {
        issue(&[message(self, Kind::Send, input, to, stream)?]).map(drop)
    }

    /// Receives what a rank sends.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`].
    pub fn receive<T: Element>(&self, output: &DeviceBuffer<T>, from: Rank, stream: &Stream) -> Result<()> {
        issue(&[message(self, Kind::Receive, output, from, stream)?]).map(drop)
    }
}

impl<'env> DeviceGroup<'env> {
    collectives!(in_groups);

    /// As [`DeviceCommunicator::execute`].
    ///
    /// # Errors
    /// As [`DeviceGroup::all_reduce`].
    pub fn execute<T: Element>(
        &self,
        on: &'env DeviceCommunicator,
        call: &Call,
        input: &DeviceBuffer<T>,
        output: &DeviceBuffer<T>,
        stream: &'env Stream,
    ) -> Result<()> {
        self.add(collective(on, *call, input, output, stream))
    }

    /// As [`Communicator::execute_v`].
    ///
    /// # Errors
    /// As [`DeviceGroup::all_reduce`].
    pub fn execute_v<T: Element>(
        &self,
        on: &'env DeviceCommunicator,
        call: &CallV<'env>,
        input: &DeviceBuffer<T>,
        output: &DeviceBuffer<T>,
        stream: &'env Stream,
    ) -> Result<()> {
        let calls = self.noting(varying(on, call, input, output, stream))?;
        self.calls.borrow_mut().extend(calls);
        Ok(())
    }

    /// Sends to a rank, which must receive it.
    ///
    /// # Errors
    /// As [`DeviceGroup::all_reduce`].
    pub fn send<T: Element>(
        &self,
        on: &'env DeviceCommunicator,
        input: &DeviceBuffer<T>,
        to: Rank,
        stream: &'env Stream,
    ) -> Result<()> {
        self.add(message(on, Kind::Send, input, to, stream))
    }

    /// Receives what a rank sends.
    ///
    /// # Errors
    /// As [`DeviceGroup::all_reduce`].
    pub fn receive<T: Element>(
        &self,
        on: &'env DeviceCommunicator,
        output: &DeviceBuffer<T>,
        from: Rank,
        stream: &'env Stream,
    ) -> Result<()> {
        self.add(message(on, Kind::Receive, output, from, stream))
    }

    fn add(&self, entry: Result<Entry<'env>>) -> Result<()> {
        let entry = self.noting(entry)?;
        self.calls.borrow_mut().push(entry);
        Ok(())
    }

    /// A refused call refuses the group.
    fn noting<R>(&self, result: Result<R>) -> Result<R> {
        if let Err(error) = &result {
            self.refused.borrow_mut().get_or_insert_with(|| error.clone());
        }
        result
    }
}

impl std::fmt::Debug for DeviceGroup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceGroup").field("calls", &self.calls.borrow().len()).finish_non_exhaustive()
    }
}
