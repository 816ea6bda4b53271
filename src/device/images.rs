//! The log lines about images of kernels: in which form each was loaded, and which machine code a driver refused.
//!
//! Invariant: the driver compiles no text in the place of machine code without a warning. Absent: loading.

use consort_cuda::Device;
use consort_kernels::cuda::{Form, Loaded, Loading};

/// Writes what became of an image to the library's log.
pub(super) fn log_loading(device: &Device, loading: &Loading<'_>) {
    let Device { ordinal, name, compute_capability: (major, minor), .. } = device;
    let place = format!("device {ordinal} ({name}, compute capability {major}.{minor})");
    match loading {
        Loading::Refused { binary, text, error } => consort_settings::notice::warn(&format!(
            "the driver of {place} does not take the machine code {binary}: {error}. It compiles {text} instead, which \
             takes seconds in every process unless its cache has the result"
        )),
        Loading::Done(Loaded { name, form, took, .. }) => {
            let form = match form {
                Form::Binary => "machine code",
                Form::Text => "text that the driver has compiled",
            };
            consort_settings::notice::inform(&format!(
                "{name} is on {place}: {form}, {:.1} ms",
                took.as_secs_f64() * 1e3
            ));
        }
        _ => {}
    }
}
