//! NCCL's config struct of one call (`ncclCollConfig_t`), with this library's options in it.
//!
//! Its `ext` is a list of options of vendors, each a pair of numbers and a value. This library's options have the
//! vendor number [`EXTENSION_VENDOR`]; NCCL and others skip them, as this library skips theirs.
//!
//! Invariant: as for [`Config`](super::Config). Absent: walking the list, which is the caller's.

use std::time::Duration;

use consort_algorithms::catalogue::Algorithm;

use super::reader::Reader;
use super::{CTA_POLICY, FLAG, NATURAL, POSITIVE, bad, within};
use consort_types::error::{Error, Result};

/// Bytes of the newest struct that is known.
pub const CALL_BYTES: usize = 72;
/// Bytes of the first version of the struct.
const CALL_BYTES_MIN: usize = 64;

/// The number under which options of this library stand in `ext`: the letters `cst`.
pub const EXTENSION_VENDOR: i32 = 0x63_73_74;
/// The call's deadline: `val.i` milliseconds, 1 or more.
pub const EXTENSION_TIMEOUT_MS: i32 = 1;
/// The call's algorithm: `val.s`, a name as `algSelection` takes it. It must be possible.
pub const EXTENSION_ALGORITHM: i32 = 2;

/// One element of `ext`: vendor, option, and the eight bytes of the value.
pub type Extension = (i32, i32, u64);

/// A client's options for one call that have an effect here; the values of the other fields are checked and not kept.
/// `None` where a field is undefined, or a hint names no algorithm.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CallConfig {
    /// `algSelection`, or this library's option: the algorithm of the call.
    pub algorithm: Option<Algorithm>,
    /// `forceAlgSelection`: whether the call fails where the algorithm is not possible.
    pub forced: bool,
    /// This library's option: the deadline of the call.
    pub timeout: Option<Duration>,
}

impl CallConfig {
    /// Reads a client's struct. `bytes` are its first `min(size, CALL_BYTES)` bytes, where `size` is its first field;
    /// `extensions` are the entries of its `ext`; `text` returns the C string at an address.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the field: not initialised, a value that NCCL does not allow, an
    /// algorithm that is forced and has no such name, an unknown option of this library.
    pub fn decode(
        bytes: &[u8],
        extensions: &[Extension],
        text: &mut dyn FnMut(usize) -> Option<String>,
    ) -> Result<Self> {
        let (timeout, named) = ours(extensions, text)?;
        let mut read = Reader::begin("ncclCollConfig_t", bytes, CALL_BYTES_MIN, CALL_BYTES, text)?;
        let min_ctas = within("minCTAs", read.int(24, 0), &POSITIVE)?;
        let max_ctas = within("maxCTAs", read.int(28, 0), &POSITIVE)?;
        if let (Some(least), Some(most)) = (min_ctas, max_ctas)
            && least > most
        {
            return Err(bad("minCTAs", least, &format!("at most maxCTAs, which is {most}")));
        }
        let others =
            [("nvlsCTAs", 32, POSITIVE), ("cgaClusterSize", 36, NATURAL), ("CTAPolicy", 52, CTA_POLICY)];
        for (name, at, allowed) in &others {
            within(name, read.int(*at, 0), allowed)?;
        }
        let forced = within("forceAlgSelection", read.int(48, 0), &FLAG)? != Some(0);
        let selected = read.text(40, 0).filter(|name| !name.trim().is_empty());
        let selected = match selected.as_deref().map(algorithm) {
            None => None,
            Some(Ok(algorithm)) => Some(algorithm),
            Some(Err(error)) if forced => return Err(error),
            // A hint that is not understood is ignored.
            Some(Err(_)) => None,
        };
        Ok(CallConfig { algorithm: named.or(selected), forced: forced || named.is_some(), timeout })
    }

    /// The algorithm for the call, on a communicator of `ranks` ranks. `None` where it was only a hint and is not
    /// defined for the collective.
    ///
    /// An algorithm that is forced is returned even where it is not possible: the call's error then lists the
    /// possible ones.
    pub fn algorithm_for(&self, collective: consort_algorithms::Collective, ranks: u32) -> Option<Algorithm> {
        self.algorithm.filter(|algorithm| self.forced || algorithm.is_defined(collective, ranks))
    }
}

/// This library's options in `ext`.
fn ours(
    extensions: &[Extension],
    text: &mut dyn FnMut(usize) -> Option<String>,
) -> Result<(Option<Duration>, Option<Algorithm>)> {
    let (mut timeout, mut named) = (None, None);
    for &(vendor, option, value) in extensions {
        match (vendor, option) {
            (EXTENSION_VENDOR, EXTENSION_TIMEOUT_MS) => {
                // The union's first member is an int; the bytes behind it are undefined.
                let [a, b, c, d, ..] = value.to_ne_bytes();
                let milliseconds = i32::from_ne_bytes([a, b, c, d]);
                let allowed = u64::try_from(milliseconds).ok().filter(|milliseconds| *milliseconds > 0);
                let Some(milliseconds) = allowed else {
                    return Err(bad(
                        "the timeout of the call in ext",
                        milliseconds,
                        "1 or more milliseconds",
                    ));
                };
                timeout = Some(Duration::from_millis(milliseconds));
            }
            (EXTENSION_VENDOR, EXTENSION_ALGORITHM) => {
                let name = usize::try_from(value).ok().filter(|address| *address != 0).and_then(&mut *text);
                let Some(name) = name else {
                    return Err(Error::invalid(
                        "the algorithm of the call in ext is no text",
                        "let val.s point to its name",
                    ));
                };
                named = Some(algorithm(&name)?);
            }
            (EXTENSION_VENDOR, _) => {
                return Err(Error::invalid(
                    format!("there is no option {option} of vendor {EXTENSION_VENDOR:#x} in ext"),
                    "the options are 1, a timeout in milliseconds, and 2, the name of an algorithm",
                ));
            }
            _ => {}
        }
    }
    Ok((timeout, named))
}

/// An algorithm by NCCL's name or this library's.
fn algorithm(name: &str) -> Result<Algorithm> {
    let found = name.trim().parse();
    found.map_err(|error: consort_algorithms::catalogue::UnknownAlgorithm| {
        Error::invalid(format!("the algorithm of the call is {name:?}"), error.to_string())
    })
}
