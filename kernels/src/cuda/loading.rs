//! Images on their way into a context: machine code where the driver takes it, else PTX, with a call of the listener
//! for each.
//!
//! Invariant: an image that is loaded in the place of another is reported to the listener, once an image and context.
//! Absent: what the listener does, and which images are loaded.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use consort_cuda::{Context, CudaError, CudaErrorCause, Device, Module};

use super::images::{Damaged, Form, Image, image, ptx};
use crate::DataType;

/// An image that is in a context.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// The file's name, for example `f32.sm_90.cubin`.
    pub name: &'static str,
    /// Machine code, or PTX that the driver has compiled or taken from its cache.
    pub form: Form,
    /// The time from its decompression to the driver's answer.
    pub took: Duration,
}

/// An event of loading an image.
#[derive(Debug)]
#[non_exhaustive]
pub enum Loading<'a> {
    /// The driver refused the machine code and is about to compile the PTX, which may take seconds.
    Refused {
        /// The machine code.
        binary: &'static str,
        /// What is loaded in its place.
        text: &'static str,
        /// The driver's error.
        error: &'a CudaError,
    },
    /// The image is in the context.
    Done(&'a Loaded),
}

/// A function that is called while an image is loaded: it must not load or launch.
pub type Listener = fn(&Device, &Loading<'_>);

/// Loads images into one context.
pub(super) struct Loader {
    listener: Listener,
    loaded: Mutex<Vec<Loaded>>,
    /// The machine code whose refusal was reported to the listener.
    refused: Mutex<BTreeSet<&'static str>>,
}

impl Loader {
    pub(super) fn new(listener: Listener) -> Self {
        Loader { listener, loaded: Mutex::default(), refused: Mutex::default() }
    }

    /// The images in the context, in the order in which they were loaded.
    pub(super) fn loaded(&self) -> Vec<Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the driver has refused machine code that is made for the device.
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Loads the kernels of a type.
    pub(super) fn load(&self, context: &Context, data_type: Option<DataType>) -> Result<Module, CudaError> {
        let (best, text) = (image(data_type, context.device().compute_capability), ptx(data_type));
        match self.attempt(context, best) {
            Err(error) if best != text => {
                let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                let is_first = refused.insert(best.name);
                drop(refused);
                if is_first {
                    let refused = Loading::Refused { binary: best.name, text: text.name, error: &error };
                    (self.listener)(context.device(), &refused);
                }
                self.attempt(context, text)
            }
            outcome => outcome,
        }
    }

    fn attempt(&self, context: &Context, image: Image) -> Result<Module, CudaError> {
        let start = Instant::now();
        let module = context.load(&image.bytes().map_err(damaged)?)?;
        let loaded = Loaded { name: image.name, form: image.form, took: start.elapsed() };
        (self.listener)(context.device(), &Loading::Done(&loaded));
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).push(loaded);
        Ok(module)
    }
}

fn damaged(_: Damaged) -> CudaError {
    CudaError {
        call: "cuModuleLoadDataEx",
        code: 0,
        name: String::new(),
        cause: CudaErrorCause::Unfit("the compressed image is damaged"),
    }
}
