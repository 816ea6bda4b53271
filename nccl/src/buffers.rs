//! Host or device memory: which of them the buffers of a call are.
//!
//! Invariant: where the CUDA driver is asked, a call on memory of a device runs in the caller's stream or is refused
//! with an error text; the host does not touch that memory. Where the driver is not asked, a call pays one load.
//! Absent: whether the driver is asked (`device`), and pointers, which are numbers here.

use consort_cuda::{CudaError, DeviceSpan, Driver, MemoryKind};
use consort_kernels::{DataType, Scalar};

use super::comm::Comm;
use super::device::{REMEDY, VARIABLE, asks, refused_by_driver};
use super::result::{Code, Failure, Result};
use consort_types::error::Error;

/// What moves the buffers of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The host, which may touch them.
    Host,
    /// A stream of a device.
    Device,
}

/// What moves the buffers of a call, by the addresses at which they begin; an empty one has none.
///
/// # Errors
/// For buffers of different kinds or that the communicator does not reach, and where the driver does not
/// answer.
#[inline]
pub fn whose(comm: &Comm, send: Option<usize>, receive: Option<usize>) -> Result<Whose> {
    if !asks() {
        return Ok(Whose::Host);
    }
    ask(comm, [("send buffer", send), ("receive buffer", receive)])
}

/// Whether the scalar of an operator is in host memory.
///
/// # Errors
/// Where the driver does not answer.
pub fn is_scalar_of_host(start: usize) -> Result<bool> {
    Ok(!asks() || kind("scalar", start)? != MemoryKind::Device)
}

/// The present value of a scalar on a device, after all work of that device.
///
/// # Errors
/// The driver's, and on a communicator without a device.
pub fn read_scalar(comm: &Comm, at: DeviceSpan, data_type: DataType) -> Result<Scalar> {
    let Some(context) = &comm.context else {
        return Err(Failure::usage(
            "the scalar is device memory, and the communicator is on host memory",
            REMEDY,
        ));
    };
    let mut bytes = vec![0; data_type.size()];
    let read = context.synchronize().and_then(|()| context.copy_to_host(&mut bytes, at));
    read.map_err(|error| refused_by_driver(&error))?;
    Scalar::from_bytes(data_type, &bytes).map_err(|error| Error::internal(error.to_string()).into())
}

/// The buffers with their names and first addresses; `None` for an empty one.
type Buffers = [(&'static str, Option<usize>); 2];

#[inline(never)]
fn ask(comm: &Comm, buffers: Buffers) -> Result<Whose> {
    let mut kinds = [None; 2];
    for ((what, start), kind) in buffers.into_iter().zip(&mut kinds) {
        *kind = start.map(|start| self::kind(what, start)).transpose()?;
    }
    let is_placed = comm.placement().is_some();
    let has = |wanted: MemoryKind| kinds.contains(&Some(wanted));
    let plain = has(MemoryKind::Host);
    if has(MemoryKind::Device) && (plain || !is_placed) {
        return Err(refused(buffers, kinds, comm));
    }
    // A communicator on devices takes memory that its devices reach in the order of its streams. For buffers that are
    // all empty the path does not matter.
    Ok(if is_placed && !plain { Whose::Device } else { Whose::Host })
}

fn kind(what: &str, start: usize) -> Result<MemoryKind> {
    let answer = Driver::of_process().map_or(Ok(MemoryKind::Host), |driver| driver.memory_kind(start));
    answer.map_err(|error| unknown(what, start, &error))
}

#[cold]
fn unknown(what: &str, start: usize, error: &CudaError) -> Failure {
    Failure {
        code: Code::Cuda,
        text: format!(
            "cuda error: the driver does not say whose memory the {what} at {start:#x} is: {error}; look for an \
             earlier CUDA call that failed, or set {VARIABLE}=host if no buffer is memory of a device"
        ),
    }
}

/// The error of a call with at least one buffer of a device.
#[cold]
fn refused(buffers: Buffers, kinds: [Option<MemoryKind>; 2], comm: &Comm) -> Failure {
    let text = refusal(buffers, kinds, comm.placement().is_some());
    Failure::usage(text, REMEDY)
}

fn refusal(buffers: Buffers, kinds: [Option<MemoryKind>; 2], is_placed: bool) -> String {
    let named = |wanted_device: bool| {
        let of_kind = buffers.iter().zip(kinds).filter_map(|((what, start), kind)| {
            let is_device = kind? == MemoryKind::Device;
            (is_device == wanted_device).then_some(format!("the {what} at {:#x}", (*start)?))
        });
        of_kind.collect::<Vec<_>>().join(" and ")
    };
    let (device, host) = (named(true), named(false));
    let verb = if kinds == [Some(MemoryKind::Device); 2] { "are" } else { "is" };
    if is_placed {
        return format!("{device} {verb} device memory, {host} host memory, and one call cannot have both");
    }
    format!("{device} {verb} device memory, and the communicator is on host memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_what_is_where_and_what_it_does_not_go_with() {
        use MemoryKind::{Device, Host};
        let buffers = [("send buffer", Some(0x1000)), ("receive buffer", Some(0x2000))];
        assert_eq!(
            refusal(buffers, [Some(Device); 2], false),
            "the send buffer at 0x1000 and the receive buffer at 0x2000 are device memory, and the communicator is on \
             host memory"
        );
        assert_eq!(
            refusal(buffers, [Some(Device), Some(Host)], true),
            "the send buffer at 0x1000 is device memory, the receive buffer at 0x2000 host memory, and one call cannot \
             have both"
        );
    }
}
