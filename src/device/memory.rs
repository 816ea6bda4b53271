//! Devices, their memory and their streams, for the Rust interface.
//!
//! Invariant: memory of a device lives as long as a buffer or an operation under way has it; it is never a slice.
//! Absent: communicators.

use std::marker::PhantomData;
use std::sync::Arc;

use consort_cuda::{Context, CudaError, DeviceMemory, DeviceSpan, Driver};
use consort_kernels::Element;
use consort_memory::{Span, SpanMut};

use super::gpu::Gpu;
use consort_types::error::{Error, Result};

/// A CUDA device of this process.
#[derive(Clone, Debug)]
pub struct Device(Arc<Gpu>);

/// Elements in the memory of a device. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct DeviceBuffer<T: Element> {
    memory: Arc<DeviceMemory>,
    span: DeviceSpan,
    elements: PhantomData<T>,
}

/// A queue of work on a device.
#[derive(Debug)]
pub struct Stream(consort_cuda::Stream);

/// The error for what the driver said to a call that has no rank.
fn refused(error: CudaError) -> Error {
    if error.is_out_of_memory() {
        return Error::invalid(error.to_string(), "free memory of the device, or ask for less");
    }
    Error::system("the CUDA driver", std::io::Error::other(error))
}

impl Device {
    /// How many devices there are.
    ///
    /// # Errors
    /// [`Error::System`] with the reason why there is no driver.
    pub fn count() -> Result<u32> {
        Self::driver().map(Driver::devices)
    }

    fn driver() -> Result<&'static Driver> {
        Driver::of_process().map_err(|reason| {
            Error::system("looking for the CUDA driver", std::io::Error::other(reason.clone()))
        })
    }

    /// The newest version of CUDA that the driver serves, as major and minor number.
    ///
    /// # Errors
    /// As [`Device::count`].
    pub fn driver_version() -> Result<(i32, i32)> {
        Self::driver().map(Driver::version)
    }

    /// A device by its number, from 0; its primary context, which it shares with the CUDA runtime.
    ///
    /// # Errors
    /// As [`Device::count`]; [`Error::InvalidArgument`] when there is no such device.
    pub fn open(ordinal: u32) -> Result<Self> {
        let count = Self::count()?;
        if ordinal >= count {
            return Err(Error::invalid(
                format!("device {ordinal} of {count}"),
                "pass a number below Device::count(), and look at CUDA_VISIBLE_DEVICES",
            ));
        }
        Ok(Self::of(&Context::primary(ordinal).map_err(refused)?))
    }

    pub(crate) fn of(context: &Context) -> Self {
        Device(Gpu::of(context))
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.0
    }

    /// Its name, as the driver gives it.
    pub fn name(&self) -> &str {
        &self.0.context().device().name
    }

    /// Its place on the bus: domain, bus, device and function, as `0000:65:00.0`.
    pub fn pci(&self) -> &str {
        &self.0.context().device().pci
    }

    /// Its number.
    pub fn ordinal(&self) -> u32 {
        self.0.context().device().ordinal
    }

    /// How many multiprocessors it has.
    pub fn multiprocessors(&self) -> u32 {
        self.0.context().device().multiprocessors
    }

    /// Bytes of its memory.
    pub fn memory_bytes(&self) -> u64 {
        self.0.context().device().memory_bytes
    }

    /// A stream that does not wait for the default one.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream(&self) -> Result<Stream> {
        self.0.context().create_stream().map(Stream).map_err(refused)
    }

    /// Memory for `count` elements; what it holds is not known.
    ///
    /// # Errors
    /// The driver's; [`Error::InvalidArgument`] when there is not so much.
    pub fn buffer<T: Element>(&self, count: usize) -> Result<DeviceBuffer<T>> {
        let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let Some(bytes) = bytes else {
            return Err(Error::invalid(format!("{count} elements"), "ask for fewer"));
        };
        let memory = self.0.context().allocate(bytes.max(1)).map_err(refused)?;
        let span = memory.span().slice(0, bytes);
        Ok(DeviceBuffer { memory: Arc::new(memory), span, elements: PhantomData })
    }

    /// Memory that holds what `data` does.
    ///
    /// # Errors
    /// As [`Device::buffer`].
    pub fn copy_of<T: Element>(&self, data: &[T]) -> Result<DeviceBuffer<T>> {
        let buffer = self.buffer(data.len())?;
        buffer.set(data)?;
        Ok(buffer)
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.span.len() / size_of::<T>()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    /// Elements `start..end` of it.
    ///
    /// # Panics
    /// If they are not inside of it.
    pub fn slice(&self, elements: std::ops::Range<usize>) -> Self {
        let (start, count) = (elements.start, elements.len());
        assert!(elements.end <= self.len(), "elements {elements:?} of {}", self.len());
        let span = self.span.slice(start * size_of::<T>(), count * size_of::<T>());
        DeviceBuffer { memory: self.memory.clone(), span, elements: PhantomData }
    }

    /// Where it is on its device.
    pub fn address(&self) -> u64 {
        self.span.address()
    }

    pub(crate) fn span(&self) -> DeviceSpan {
        self.span
    }

    /// Keeps the memory.
    pub(crate) fn keeper(&self) -> Arc<DeviceMemory> {
        self.memory.clone()
    }

    /// Writes all elements, now: streams are not waited for.
    ///
    /// # Errors
    /// The driver's, also what an earlier kernel did.
    ///
    /// # Panics
    /// If `data` has another length.
    pub fn set(&self, data: &[T]) -> Result<()> {
        assert_eq!(data.len(), self.len(), "elements for a buffer");
        let mut bytes = vec![0u8; self.span.len()];
        SpanMut::of(&mut bytes).copy_from(Span::of(data));
        self.memory.copy_from_host(self.offset(), &bytes).map_err(refused)
    }

    /// Reads all elements, now: streams are not waited for.
    ///
    /// # Errors
    /// The driver's, also what an earlier kernel did.
    pub fn to_vec(&self) -> Result<Vec<T>>
    where
        T: Default,
    {
        let mut bytes = vec![0u8; self.span.len()];
        self.memory.copy_to_host(self.offset(), &mut bytes).map_err(refused)?;
        let mut data = vec![T::default(); self.len()];
        SpanMut::of(&mut data).copy_from(Span::of(&bytes));
        Ok(data)
    }

    fn offset(&self) -> usize {
        (self.span.address() - self.memory.address()) as usize
    }
}

impl Stream {
    /// Waits until everything in it is over.
    ///
    /// # Errors
    /// The driver's, also what a kernel did. What became of operations says [`crate::Communicator::status`].
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.0.context().enter().map_err(refused)?;
        self.0.synchronize().map_err(refused)
    }

    pub(crate) fn raw(&self) -> consort_cuda::RawStream {
        self.0.raw()
    }
}
