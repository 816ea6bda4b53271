//! Modules, their functions, and launches of them.
//!
//! Invariant: a launch has copied its parameters when the call returns, and holds its module until it has ended. Absent:
//! cubins and fat binaries, linking.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::boundary::In;
use crate::code::{Answer, Code};
use crate::context::{Context, StreamKey};
use crate::driver;
use crate::engine::{Facts, Launch, Program};
use crate::memory::{Bytes, Kind, Mapping, Place, Region, Store};
use crate::queue::Work;

/// A loaded text.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: Arc<Context>,
    pub(crate) program: Program,
    /// Where its variables are; 0 when it has none.
    globals: u64,
}

/// A kernel of a module.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) context: Arc<Context>,
    pub(crate) module: Arc<Module>,
    pub(crate) name: String,
    pub(crate) c_name: CString,
    pub(crate) facts: Facts,
    pub(crate) max_dynamic_shared: AtomicU32,
}

/// Shared memory of a block without asking for more, and with.
pub(crate) const SHARED: u32 = 48 << 10;
pub(crate) const SHARED_OPT_IN: u32 = 163 << 10;

/// What is to be launched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) is_cooperative: bool,
}

impl Module {
    /// Takes a text; what is wrong with it is said as a compiler would.
    pub(crate) fn load(context: &Arc<Context>, text: &str) -> Result<Self, (Code, String)> {
        let program = Program::parse(text).map_err(|error| (Code::INVALID_PTX, error.to_string()))?;
        let globals = Self::place(context, program.image()).map_err(|code| (code, String::new()))?;
        Ok(Module { context: Arc::clone(context), program, globals })
    }

    fn place(context: &Arc<Context>, image: &[u8]) -> Answer<u64> {
        if image.is_empty() {
            return Ok(0);
        }
        let driver = driver::get()?;
        let bytes = image.len() as u64;
        let store = Arc::new(Store::new(context.device, bytes)?);
        store.write(image);
        let reserved = Mapping::reserved(bytes, 4096)?;
        let start = reserved.start();
        driver.table.insert(Region {
            start,
            bytes,
            // Counted as nobody's memory: it is part of the module.
            kind: Kind::Module,
            device: context.device,
            context: context.handle,
            id: driver.number(),
            place: Place::new(Some(reserved), Bytes::Stored(store, 0)),
        });
        Ok(start)
    }

    /// Address and bytes of a variable.
    pub(crate) fn global(&self, name: &str) -> Option<(u64, u64)> {
        self.program.global(name).map(|(offset, bytes)| (self.globals + offset, bytes))
    }

    pub(crate) fn function(self: &Arc<Self>, name: &str) -> Option<Function> {
        let facts = self.program.facts(name)?;
        Some(Function {
            context: Arc::clone(&self.context),
            module: Arc::clone(self),
            name: name.to_owned(),
            c_name: CString::new(name).unwrap_or_default(),
            facts,
            max_dynamic_shared: AtomicU32::new(SHARED),
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let (true, Ok(driver)) = (self.globals != 0, driver::get()) {
            driver.table.remove(self.globals, |region| region.kind == Kind::Module);
        }
    }
}

impl Function {
    /// The most threads of a block.
    pub(crate) fn max_threads(&self) -> u32 {
        self.facts.max_threads.clamp(1, 1024)
    }

    /// Blocks that one multiprocessor runs at once.
    pub(crate) fn occupancy(&self, threads: u32, shared_bytes: usize) -> Answer<u32> {
        let shared = self.facts.shared_bytes as usize + shared_bytes;
        if threads == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if threads > self.max_threads() || shared > SHARED_OPT_IN as usize {
            return Ok(0);
        }
        Ok(driver::get()?.settings.blocks_per_multiprocessor())
    }

    /// The parameters as one piece, from an array of addresses or from the piece that `extra` names.
    pub(crate) fn parameters(&self, each: In<u64>, extra: In<u64>) -> Answer<Vec<u8>> {
        let mut all = vec![0; self.facts.parameter_bytes];
        if each.is_null() && !extra.is_null() {
            let (mut start, mut bytes, mut at) = (0, 0, 0);
            loop {
                match extra.at(at)? {
                    0 => break,
                    1 => start = extra.at(at + 1)?,
                    2 => bytes = In::<usize>::from_address(extra.at(at + 1)?).get()?,
                    _ => return Err(Code::INVALID_VALUE),
                }
                at += 2;
            }
            if bytes != all.len() {
                return Err(Code::INVALID_VALUE);
            }
            read(start, &mut all)?;
            return Ok(all);
        }
        for (index, (offset, bytes)) in self.facts.parameters.iter().enumerate() {
            let from = each.at(index)?;
            read(from, &mut all[*offset as usize..(offset + bytes) as usize])?;
        }
        Ok(all)
    }

    /// Launches it in a stream.
    pub(crate) fn launch(
        self: &Arc<Self>,
        context: &Arc<Context>,
        key: StreamKey,
        shape: Shape,
        parameters: Vec<u8>,
    ) -> Answer {
        let settings = &driver::get()?.settings;
        let Shape { grid, block, shared_bytes, is_cooperative } = shape;
        let product = |sides: [u32; 3]| sides.iter().try_fold(1u32, |all, side| all.checked_mul(*side));
        let (blocks, threads) = (product(grid), product(block));
        let (Some(blocks @ 1..), Some(threads @ 1..)) = (blocks, threads) else {
            return Err(Code::INVALID_VALUE);
        };
        if !Arc::ptr_eq(context, &self.context) {
            return Err(Code::INVALID_CONTEXT);
        }
        if threads > 1024 || block[2] > 64 || grid[1].max(grid[2]) > 65535 {
            return Err(Code::INVALID_VALUE);
        }
        if threads > self.max_threads() {
            return Err(Code::INVALID_VALUE);
        }
        if shared_bytes > self.max_dynamic_shared.load(Ordering::Relaxed)
            || shared_bytes + self.facts.shared_bytes > SHARED_OPT_IN
        {
            return Err(Code::INVALID_VALUE);
        }
        let together = settings.blocks_per_multiprocessor() * settings.multiprocessors();
        if is_cooperative && blocks > together {
            return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        let launch = Launch {
            kernel: self.name.clone(),
            grid,
            block,
            dynamic_shared_bytes: shared_bytes,
            parameters,
            globals: self.module.globals,
        };
        let function = Arc::clone(self);
        let task = move |context: &Arc<Context>| {
            let gate = &driver::get()?.device(context.device as i32)?.gate;
            let reserved = if is_cooperative { blocks } else { 1 };
            match gate.enter(reserved, || context.is_broken()) {
                Some(mut resident) => function.module.program.run(&launch, context, &mut resident),
                None => Ok(()),
            }
        };
        let launched = context.submit(key, None, Work::Beside(Box::new(task)))?;
        if settings.launches_block {
            launched.wait();
        }
        Ok(())
    }
}

/// Reads bytes of the caller's.
fn read(address: u64, place: &mut [u8]) -> Answer {
    let from = In::<u8>::from_address(address);
    for (index, byte) in place.iter_mut().enumerate() {
        *byte = from.at(index)?;
    }
    Ok(())
}

/// What is at the address of an image: a text, or why it is refused.
pub(crate) fn image_text(image: In<u8>) -> Answer<String> {
    let mut bytes = Vec::new();
    loop {
        let byte = image.at(bytes.len())?;
        if byte == 0 {
            break;
        }
        bytes.push(byte);
        // Told apart before more is read than there is: neither has a zero at its end.
        if bytes == *b"\x7fELF" || bytes == [0x50, 0xed, 0x55, 0xba] {
            return Err(Code::NO_BINARY_FOR_GPU);
        }
    }
    String::from_utf8(bytes).map_err(|_| Code::INVALID_IMAGE)
}
