//! Kernels run in the interpreter of PTX, with the process's memory behind it.
//!
//! Invariant: a fault of a kernel is printed on standard error in the interpreter's words, and becomes the driver's
//! code for it. Absent: the search for races, which the interpreter's own tests do.

use std::sync::Arc;

use consort_standin_ptx as ptx;

use crate::code::{Answer, Code};
use crate::context::Context;
use crate::driver;
use crate::gate::Resident;
use crate::reach::Reach;

/// A parsed text.
#[derive(Debug)]
pub(crate) struct Program(ptx::Module);

/// Facts of a kernel that a program can query.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Offset and bytes of each parameter.
    pub(crate) parameters: Vec<(u32, u32)>,
    /// Bytes of all of them together.
    pub(crate) parameter_bytes: usize,
    pub(crate) shared_bytes: u32,
    pub(crate) local_bytes: u32,
    /// An invented number, not a GPU's.
    pub(crate) registers: u32,
    pub(crate) max_threads: u32,
}

/// A launch with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: String,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) parameters: Vec<u8>,
    /// The address of the module's variables.
    pub(crate) globals: u64,
}

impl Program {
    /// Parses a text, or returns its error.
    pub(crate) fn parse(text: &str) -> Result<Self, ptx::ParseError> {
        ptx::Module::parse(text).map(Program)
    }

    pub(crate) fn facts(&self, kernel: &str) -> Option<Facts> {
        let kernel = self.0.kernel(kernel)?;
        Some(Facts {
            parameters: kernel.parameters().iter().map(|each| (each.offset, each.bytes)).collect(),
            parameter_bytes: kernel.parameter_bytes(),
            shared_bytes: kernel.static_shared_bytes() as u32,
            local_bytes: kernel.local_bytes() as u32,
            registers: kernel.slots().min(255),
            max_threads: kernel.max_threads().unwrap_or(1024),
        })
    }

    /// Offset and bytes of a variable.
    pub(crate) fn global(&self, name: &str) -> Option<(u64, u64)> {
        let found = self.0.globals().iter().find(|variable| variable.name == name)?;
        Some((found.offset, found.bytes))
    }

    /// The first contents of the variables.
    pub(crate) fn image(&self) -> &[u8] {
        self.0.global_image()
    }

    /// Runs a launch to its end.
    ///
    /// # Errors
    /// What breaks the context.
    pub(crate) fn run(&self, launch: &Launch, context: &Arc<Context>, resident: &mut Resident<'_>) -> Answer {
        let settings = &driver::get()?.settings;
        let asked = ptx::Launch {
            kernel: self.0.kernel(&launch.kernel).ok_or(Code::NOT_FOUND)?,
            grid: launch.grid,
            block: launch.block,
            dynamic_shared_bytes: launch.dynamic_shared_bytes,
            params: &launch.parameters,
            globals: launch.globals,
            device: context.device,
        };
        let options = ptx::Options {
            seed: settings.seed,
            // The gate says how many, with those of other launches.
            resident_blocks: u32::MAX,
            ..ptx::Options::fast()
        };
        let mut memory = Reach::new(context, resident)?;
        let Err(fault) = ptx::run(&[asked], &mut memory, &options) else { return Ok(()) };
        if fault.problem == ptx::Problem::Stopped {
            return Ok(());
        }
        eprintln!("consort's stand-in for the CUDA driver, device {}: {fault}", context.device);
        Err(match fault.problem {
            ptx::Problem::OutOfBounds { .. } => Code::ILLEGAL_ADDRESS,
            ptx::Problem::Misaligned { .. } => Code::MISALIGNED_ADDRESS,
            ptx::Problem::Trap => Code::ILLEGAL_INSTRUCTION,
            _ => Code::LAUNCH_FAILED,
        })
    }
}
