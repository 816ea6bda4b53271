//! Whether the C interface moves memory of devices, and the devices of its communicators.
//!
//! Invariant: the first communicator of a process decides whether the CUDA driver is asked; each communicator
//! decides, when it is made, whether its ranks have devices. Absent: whether the buffers of a call are host or device
//! memory (`buffers`), and how operations on devices run ([`consort::device`]).

use std::sync::{Arc, Once};

use consort_cuda::{Context, CudaError, Driver, runtime_device};
use consort_memory::sync::{AtomicBool, Ordering};

use super::environment::Environment;
use super::log::{self, Subsystem};
use super::result::{Code, Failure, Result};
use consort::Communicator;
use consort::device::Placement;
use consort_types::error::list;

pub(super) const VARIABLE: &str = "CONSORT_DEVICE";
pub(super) const REMEDY: &str = "make the communicator on a thread that has chosen its device (cudaSetDevice), on every rank, or \
                      pass host memory, to which cudaMemcpy copies";

/// Whether the driver is asked about buffers.
static ASKS: AtomicBool = AtomicBool::new(false);

/// The value of [`VARIABLE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// A device is used where one is current on the thread that makes a communicator.
    Auto,
    /// All memory counts as host memory, without a check.
    Host,
    /// Every rank has a device, device 0 unless another is current.
    Cuda,
}

impl Mode {
    fn parse(text: Option<&str>) -> Result<Self> {
        match text {
            None | Some("auto") => Ok(Mode::Auto),
            Some("host") => Ok(Mode::Host),
            Some("cuda") => Ok(Mode::Cuda),
            Some(text) => Err(Failure::argument(
                format!("{VARIABLE} is {text:?}"),
                "it must be \"auto\", \"host\" or \"cuda\"",
            )),
        }
    }

    fn of_process() -> Result<Self> {
        let text = Environment::of_process().text(VARIABLE).map(|(text, _)| text);
        Mode::parse(text.as_deref())
    }

    /// Opens the driver where the mode needs it, and logs the result.
    fn settle(self) {
        let tell = |why: &str| log::info(Subsystem::Init, log::NO_DEVICE, format_args!("{why}"));
        if self == Mode::Host {
            return tell("host memory: CONSORT_DEVICE is host");
        }
        match Driver::of_process() {
            Err(reason) => tell(&format!("host memory: no CUDA driver ({reason})")),
            Ok(driver) => {
                let ((major, minor), devices) = (driver.version(), driver.devices());
                tell(&format!("CUDA {major}.{minor} driver with {devices} devices"));
                // Relaxed: buffers come with a communicator, whose handle orders its making before its use.
                ASKS.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// Decides whether the driver is asked, when a communicator is made.
///
/// # Errors
/// For an unknown value of `CONSORT_DEVICE`, and for `cuda` without a driver.
pub fn check_mode() -> Result<()> {
    static SETTLED: Once = Once::new();
    super::began(super::version::TEXT);
    let mode = Mode::of_process()?;
    SETTLED.call_once(|| mode.settle());
    if mode == Mode::Cuda
        && let Err(reason) = Driver::of_process()
    {
        return Err(Failure::usage(
            format!("{VARIABLE} is \"cuda\", and there is no CUDA driver ({reason})"),
            "install NVIDIA's driver, or set auto or host",
        ));
    }
    Ok(())
}

/// The device of a rank whose communicator the calling thread makes: that of the current context, or else the one
/// that `usual` returns, or else, where devices are demanded, device 0.
///
/// # Errors
/// The driver's, where devices are demanded.
pub fn current() -> Result<Option<Context>> {
    if !asks() {
        return Ok(None);
    }
    let demanded = Mode::of_process()? == Mode::Cuda;
    let found = Context::current().and_then(|current| if current.is_some() { Ok(current) } else { usual() });
    let why = match found {
        Ok(Some(context)) => return Ok(Some(context)),
        Ok(None) if demanded => {
            return Context::primary(0).map(Some).map_err(|error| refused_by_driver(&error));
        }
        Err(error) if demanded => return Err(refused_by_driver(&error)),
        Ok(None) => "the thread has no CUDA context, and its device has none either".to_owned(),
        Err(error) => error.to_string(),
    };
    log::info(Subsystem::Init, log::NO_DEVICE, format_args!("host memory: {why}"));
    Ok(None)
}

/// The device of a thread without a context, as CUDA's runtime chooses it: the thread's current device, which is
/// device 0 unless the thread has named another. The library makes no context for a program that has used no device:
/// it makes one only for a device that the thread has named, and otherwise device 0 must have one already.
fn usual() -> std::result::Result<Option<Context>, CudaError> {
    match runtime_device() {
        Some(named) if named > 0 => Context::primary(named).map(Some),
        _ => Context::active_primary(0),
    }
}

/// The devices of ranks that one thread makes, by their numbers.
///
/// # Errors
/// The driver's, for a device that does not exist.
pub fn numbered(devices: Option<&[i32]>, ranks: u32) -> Result<Vec<Option<Context>>> {
    let number = |rank: u32| devices.map_or(rank, |devices| devices[rank as usize].max(0) as u32);
    // All ranks are on host memory, as without a driver, where the device of one does not exist.
    let is_missing = || {
        let known = Driver::of_process().map_or(0, Driver::devices);
        (0..ranks).any(|rank| number(rank) >= known)
    };
    if !asks() || is_missing() && Mode::of_process()? != Mode::Cuda {
        return Ok((0..ranks).map(|_| None).collect());
    }
    let context = |rank: u32| Context::primary(number(rank)).map(Some);
    (0..ranks).map(context).collect::<std::result::Result<_, _>>().map_err(|error| refused_by_driver(&error))
}

pub(super) fn refused_by_driver(error: &CudaError) -> Failure {
    Failure {
        code: Code::Cuda,
        text: format!("cuda error: {error}; look for an earlier CUDA call that failed"),
    }
}

/// Puts a new communicator on its ranks' devices, together with all of them; `None` if some rank has no device.
///
/// # Errors
/// As [`Communicator::on_device`].
pub(super) fn place(
    communicator: &Communicator,
    context: Option<&Context>,
) -> Result<Option<Arc<Placement>>> {
    let Some(context) = context else { return Ok(None) };
    let without = communicator.ranks_without_devices();
    let rank = i32::try_from(communicator.rank()).unwrap_or(log::NO_DEVICE);
    if !without.is_empty() {
        let text = format_args!("host memory: rank {} made it without a device", list(&without));
        log::info(Subsystem::Init, rank, text);
        return Ok(None);
    }
    let placement = Placement::make(communicator, context)?;
    log::info(Subsystem::Init, rank, format_args!("{}", placement.describe()));
    Ok(Some(placement))
}

/// Whether buffers may be memory of a device.
#[inline]
pub fn asks() -> bool {
    // Relaxed: as where it is set.
    ASKS.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_that_are_and_are_not() {
        assert_eq!(Mode::parse(None), Ok(Mode::Auto));
        assert_eq!(Mode::parse(Some("auto")), Ok(Mode::Auto));
        assert_eq!(Mode::parse(Some("host")), Ok(Mode::Host));
        assert_eq!(Mode::parse(Some("cuda")), Ok(Mode::Cuda));
        let parsed = |text: &str| Mode::parse(Some(text)).map_err(|failure| (failure.code, failure.text));
        for nonsense in ["", "HOST", "gpu", "0", " auto"] {
            let (code, text) = parsed(nonsense).expect_err(nonsense);
            assert_eq!(code, Code::InvalidArgument);
            assert!(text.contains(&format!("CONSORT_DEVICE is {nonsense:?}")), "{text}");
        }
    }
}
