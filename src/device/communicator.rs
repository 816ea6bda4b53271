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
use crate::communicator::surface::{collectives, method};
use crate::communicator::typed::block;
use crate::planner::Explanation;
use consort_types::blocks::Blocks;
use consort_types::call::{Call, Kind};
use consort_types::error::{Error, Result};
use consort_types::varying::CallV;

/// A communicator whose rank has a device.
///
/// Calls are those of [`Communicator`], on [`DeviceBuffer`]s and in a [`Stream`]. Operations of a communicator follow
/// each other in the order of the calls, in whatever streams. A failure of an operation is found when the communicator
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

/// A call on spans of a device.
struct Asked<'a> {
    on: &'a DeviceCommunicator,
    call: Call,
    blocks: Option<Blocks<'a>>,
    input: DeviceSpan,
    output: DeviceSpan,
    stream: &'a Stream,
    kept: Vec<Arc<dyn Any + Send + Sync>>,
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
    calls: RefCell<Vec<Asked<'env>>>,
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
    run(group.calls.into_inner())?;
    Ok(value)
}

fn run(calls: Vec<Asked<'_>>) -> Result<()> {
    let entries: Vec<Entry<'_>> = calls.iter().map(Asked::entry).collect();
    issue(&entries).map(drop)
}

impl<'a> Asked<'a> {
    fn entry(&self) -> Entry<'_> {
        Entry {
            communicator: &self.on.communicator,
            placement: &self.on.placement,
            call: self.call,
            blocks: self.blocks,
            input: self.input,
            output: self.output,
            stream: self.stream.raw(),
            kept: self.kept.clone(),
        }
    }

    fn new<T: Element, U: Element>(
        on: &'a DeviceCommunicator,
        call: Call,
        input: Option<&DeviceBuffer<T>>,
        output: Option<&DeviceBuffer<U>>,
        stream: &'a Stream,
    ) -> Result<Self> {
        let nothing = DeviceSpan::empty();
        let spans = (input.map_or(nothing, DeviceBuffer::span), output.map_or(nothing, DeviceBuffer::span));
        if !call.kind.is_message() {
            call.check(on.communicator.rank(), on.communicator.size(), spans.0, spans.1)?;
        }
        let mut kept: Vec<Arc<dyn Any + Send + Sync>> = Vec::new();
        if let Some(input) = input {
            kept.push(input.keeper());
        }
        if let Some(output) = output {
            kept.push(output.keeper());
        }
        let call = on.communicator.with_own_algorithm(call);
        Ok(Asked { on, call, blocks: None, input: spans.0, output: spans.1, stream, kept })
    }
}

/// Collectives that are put into a stream, alone.
macro_rules! on_devices {
    ($(#[$about:meta])* into $noun:literal $name:ident $($row:tt)*) => {
        on_devices! { $(#[$about])* apart $noun $($row)* }
    };
    ($(#[$about:meta])* apart $($row:tt)*) => {
        method! { {
            (&self) &DeviceBuffer<T>, &DeviceBuffer<T>, (stream: &Stream) of self.communicator.size() => Result<()>;
            apart |call, input, output| run(vec![Asked::new(self, call?, Some(input), Some(output), stream)?]);
        }
            $(#[$about])*
            /// [`Error::Device`]. The buffers may overlap where the collective may run in place.
            apart $($row)*
        }
    };
    ($($row:tt)*) => {};
}

/// The same in groups.
macro_rules! in_groups {
    ($(#[$about:meta])* into $noun:literal $name:ident $($row:tt)*) => {
        in_groups! { $(#[$about])* apart $noun $($row)* }
    };
    ($(#[$about:meta])* apart $noun:literal $name:ident $($row:tt)*) => {
        method! { {
            (&self, on: &'env DeviceCommunicator) &DeviceBuffer<T>, &DeviceBuffer<T>, (stream: &'env Stream)
                of on.communicator.size() => Result<()>;
            apart |call, input, output| {
                self.add(call.and_then(|call| Asked::new(on, call, Some(input), Some(output), stream)))
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
) -> Result<Vec<Asked<'a>>> {
    let (rank, size) = (on.communicator.rank(), on.communicator.size());
    let (from, to) = (input.span(), output.span());
    call.check(rank, size, from, to)?;
    let kept: Vec<Arc<dyn Any + Send + Sync>> = vec![input.keeper(), output.keeper()];
    let asked = |(call, blocks, input, output)| {
        let call = on.communicator.with_own_algorithm(call);
        Asked { on, call, blocks, input, output, stream, kept: kept.clone() }
    };
    Ok(on.communicator.parts(call, from, to)?.into_iter().map(asked).collect())
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
        run(vec![Asked::new(self, *call, Some(input), Some(output), stream)?])
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
        run(varying(self, call, input, output, stream)?)
    }

    /// Sends to a rank, which must receive it. Where ranks send to each other, use a [`group`].
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`].
    pub fn send<T: Element>(&self, input: &DeviceBuffer<T>, to: Rank, stream: &Stream) -> Result<()> {
        group(|group| group.send(self, input, to, stream))
    }

    /// Receives what a rank sends.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`].
    pub fn receive<T: Element>(&self, output: &DeviceBuffer<T>, from: Rank, stream: &Stream) -> Result<()> {
        group(|group| group.receive(self, output, from, stream))
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
        self.add(Asked::new(on, *call, Some(input), Some(output), stream))
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
        let bytes = input.span().len();
        let call = self.noting(on.communicator.message(Kind::Send, T::DATA_TYPE, bytes, to))?;
        self.add(Asked::new(on, call, Some(input), None::<&DeviceBuffer<T>>, stream))
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
        let bytes = output.span().len();
        let call = self.noting(on.communicator.message(Kind::Receive, T::DATA_TYPE, bytes, from))?;
        self.add(Asked::new(on, call, None::<&DeviceBuffer<T>>, Some(output), stream))
    }

    fn add(&self, asked: Result<Asked<'env>>) -> Result<()> {
        let asked = self.noting(asked)?;
        self.calls.borrow_mut().push(asked);
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
