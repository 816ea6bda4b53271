//! Whose memory the C interface moves: the host's, and no device's yet.
//!
//! Invariant: where a CUDA driver is there and may be asked, no operation begins on memory that the driver calls a
//! device's. Where none is, a call pays one load for it. The first communicator of a process decides whether the driver
//! is asked. Absent: memory of devices itself, and pointers, which are numbers here.

use std::sync::Once;

use consort_memory::driver::{CudaError, Driver, MemoryKind};
use consort_memory::sync::{AtomicBool, Ordering};

use super::comm::Comm;
use super::environment::Environment;
use super::log::{self, Subsystem};
use super::result::{Code, Failure, Result};

const VARIABLE: &str = "CONSORT_DEVICE";
const REMEDY: &str = "pass host memory, to which cudaMemcpy copies, or use NVIDIA's libnccl.so.2 for memory of \
                      devices";

/// Whether the driver is asked about buffers.
static ASKS: AtomicBool = AtomicBool::new(false);

/// What [`VARIABLE`] asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Asks the driver if there is one.
    Auto,
    /// All memory is the host's; whoever says so is believed.
    Host,
}

impl Mode {
    fn parse(text: Option<&str>) -> Result<Self> {
        match text {
            None | Some("auto") => Ok(Mode::Auto),
            Some("host") => Ok(Mode::Host),
            Some("cuda") => Err(Failure::usage(
                format!("{VARIABLE} is \"cuda\", and this version has no communicators on memory of devices"),
                "set auto or host, or use NVIDIA's libnccl.so.2",
            )),
            Some(text) => {
                Err(Failure::argument(format!("{VARIABLE} is {text:?}"), "it must be \"auto\" or \"host\""))
            }
        }
    }

    /// Looks for a driver if that is wanted, and says what came of it.
    fn settle(self) {
        let tell = |why: &str| log::info(Subsystem::Init, log::NO_DEVICE, format_args!("host memory: {why}"));
        if self == Mode::Host {
            return tell("CONSORT_DEVICE is host");
        }
        match Driver::of_process() {
            Err(reason) => tell(&format!("no CUDA driver ({reason})")),
            Ok(driver) => {
                let ((major, minor), devices) = (driver.version(), driver.devices());
                tell(&format!(
                    "of the {devices} devices of the CUDA {major}.{minor} driver this version moves none"
                ));
                // Relaxed: buffers come with a communicator, whose handle orders its making before its use.
                ASKS.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// Decides whether the driver is asked, when a communicator is made.
///
/// # Errors
/// For a `CONSORT_DEVICE` that means nothing, or that this version does not have.
pub fn check_mode() -> Result<()> {
    static SETTLED: Once = Once::new();
    super::began(super::version::TEXT);
    let text = Environment::of_process().text(VARIABLE).map(|(text, _)| text);
    let mode = Mode::parse(text.as_deref())?;
    SETTLED.call_once(|| mode.settle());
    Ok(())
}

/// Whether the buffers of a call, which begin at these addresses unless they are empty, are the host's to touch.
///
/// # Errors
/// For memory of a device, and when the driver cannot say.
#[inline]
pub fn check_buffers(comm: &Comm, send: Option<usize>, receive: Option<usize>) -> Result<()> {
    // Relaxed: as where it is set.
    if !ASKS.load(Ordering::Relaxed) {
        return Ok(());
    }
    ask(comm, [("send buffer", send), ("receive buffer", receive)])
}

/// Whether the factor of an operator is the host's to touch.
///
/// # Errors
/// As [`check_buffers`].
pub fn check_scalar(start: usize) -> Result<()> {
    // Relaxed: as where it is set.
    if ASKS.load(Ordering::Relaxed) && kind("scalar", start)? == MemoryKind::Device {
        return Err(refusal(format!("the scalar at {start:#x} is device memory")));
    }
    Ok(())
}

/// Buffers with what they are called and where they begin; nothing for one that is empty.
type Buffers = [(&'static str, Option<usize>); 2];

#[inline(never)]
fn ask(comm: &Comm, buffers: Buffers) -> Result<()> {
    let mut kinds = [None; 2];
    for ((what, start), kind) in buffers.into_iter().zip(&mut kinds) {
        *kind = start.map(|start| self::kind(what, start)).transpose()?;
    }
    if kinds.contains(&Some(MemoryKind::Device)) {
        // Relaxed: a thread that does not order its calls with those of others knows of none before its own.
        return Err(refused(buffers, kinds, comm.had_host.load(Ordering::Relaxed)));
    }
    // Looked at first, so that the line stays shared.
    if kinds != [None; 2] && !comm.had_host.load(Ordering::Relaxed) {
        comm.had_host.store(true, Ordering::Relaxed);
    }
    Ok(())
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
            "cuda error: cuPointerGetAttribute does not say whose memory the {what} at {start:#x} is: {error}; look \
             for an earlier CUDA call that failed, or set {VARIABLE}=host if no buffer is memory of a device"
        ),
    }
}

/// The failure of a call of whose buffers at least one is a device's.
#[cold]
fn refused(buffers: Buffers, kinds: [Option<MemoryKind>; 2], had_host: bool) -> Failure {
    let named = |wanted_device: bool| {
        let of_kind = buffers.iter().zip(kinds).filter_map(|((what, start), kind)| {
            let is_device = kind? == MemoryKind::Device;
            (is_device == wanted_device).then_some(format!("the {what} at {:#x}", (*start)?))
        });
        of_kind.collect::<Vec<_>>().join(" and ")
    };
    let (device, host) = (named(true), named(false));
    let verb = if kinds == [Some(MemoryKind::Device); 2] { "are" } else { "is" };
    let more = if !host.is_empty() {
        format!(", {host} host memory, and one call cannot have both")
    } else if had_host {
        ", earlier calls on this communicator were on host memory, and one communicator cannot have both"
            .to_owned()
    } else {
        String::new()
    };
    refusal(format!("{device} {verb} device memory{more}"))
}

fn refusal(what: String) -> Failure {
    Failure::usage(format!("{what}: this version moves host memory only"), REMEDY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_that_are_and_are_not() {
        assert_eq!(Mode::parse(None), Ok(Mode::Auto));
        assert_eq!(Mode::parse(Some("auto")), Ok(Mode::Auto));
        assert_eq!(Mode::parse(Some("host")), Ok(Mode::Host));
        let told = |text: &str| Mode::parse(Some(text)).map_err(|failure| (failure.code, failure.text));
        let (code, text) = told("cuda").expect_err("there is none");
        assert_eq!(code, Code::InvalidUsage);
        assert!(text.contains("no communicators on memory of devices"), "{text}");
        for nonsense in ["", "HOST", "gpu", "0", " auto"] {
            let (code, text) = told(nonsense).expect_err(nonsense);
            assert_eq!(code, Code::InvalidArgument);
            assert!(text.contains(&format!("CONSORT_DEVICE is {nonsense:?}")), "{text}");
        }
    }

    #[test]
    fn a_refusal_names_what_is_where_and_what_it_does_not_go_with() {
        use MemoryKind::{Device, Host, Managed};
        let buffers = [("send buffer", Some(0x1000)), ("receive buffer", Some(0x2000))];
        let text = |kinds, had_host| {
            let failure = refused(buffers, kinds, had_host);
            assert_eq!(failure.code, Code::InvalidUsage);
            let rest = format!(": this version moves host memory only; {REMEDY}");
            let text = failure.text.strip_prefix("invalid usage: ").expect("its kind");
            text.strip_suffix(&rest).unwrap_or_else(|| panic!("{text}")).to_owned()
        };
        let send = "the send buffer at 0x1000 is device memory";
        assert_eq!(text([Some(Device), None], false), send);
        assert_eq!(
            text([Some(Device); 2], false),
            "the send buffer at 0x1000 and the receive buffer at 0x2000 are device memory"
        );
        let both = format!("{send}, the receive buffer at 0x2000 host memory, and one call cannot have both");
        for (kind, had_host) in [(Host, false), (Managed, false), (Host, true)] {
            assert_eq!(text([Some(Device), Some(kind)], had_host), both);
        }
        assert_eq!(
            text([Some(Device), None], true),
            format!(
                "{send}, earlier calls on this communicator were on host memory, and one communicator cannot have both"
            )
        );
    }
}
