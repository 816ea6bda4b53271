//! Modules, their functions, and launches of them.
//!
//! Invariant: a launch has copied its parameters when the call returns, and holds its module until it has ended. Absent:
//! machine code that consort does not ship, fat binaries, linking.

use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::boundary::In;
use crate::code::{Answer, Code};
use crate::context::{Context, StreamKey};
use crate::driver;
use crate::engine::{Facts, Launch, Program};
use crate::memory::{Bytes, Kind, Mapping, Place, Region, Store};
use crate::queue::Work;
use crate::shipped;

/// A loaded image.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: Arc<Context>,
    source: Source,
    /// The address of the module's variables. 0 without variables.
    globals: OnceLock<Answer<u64>>,
}

/// The source of a module.
#[derive(Debug)]
enum Source {
    /// A text that the program gave.
    Given(Program),
    /// An image that consort ships. It is read when a kernel is first launched or asked for a fact: most types of most
    /// processes never are.
    Shipped(&'static shipped::Text),
}

/// A kernel of a module.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) context: Arc<Context>,
    pub(crate) module: Arc<Module>,
    pub(crate) name: String,
    pub(crate) c_name: CString,
    facts: OnceLock<Facts>,
    /// Registers of a thread, for kernels in the manifest.
    registers: Option<u32>,
    /// The dynamic shared memory that the program asked for. [`UNASKED`] before.
    max_dynamic_shared: AtomicU32,
}

/// The program has not asked for dynamic shared memory.
const UNASKED: u32 = u32::MAX;

/// The most static and dynamic shared memory of a block, without a request for more and with one.
pub(crate) const SHARED: u32 = 48 << 10;
pub(crate) const SHARED_OPT_IN: u32 = 163 << 10;
/// Shared memory of a multiprocessor, and what the driver takes of it for each block.
pub(crate) const SHARED_MULTIPROCESSOR: u32 = 164 << 10;
pub(crate) const SHARED_RESERVED: u32 = 1 << 10;
/// Registers of a multiprocessor and, at most, of a block.
pub(crate) const REGISTERS: u32 = 64 << 10;
/// Threads of a multiprocessor.
pub(crate) const THREADS: u32 = 2048;

/// The shape of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) is_cooperative: bool,
}

impl Module {
    /// Loads an image. The errors of a text are in a compiler's words.
    pub(crate) fn load(context: &Arc<Context>, image: &[u8]) -> Result<Self, (Code, String)> {
        let wordless = |code| (code, String::new());
        let module = |source| Module { context: Arc::clone(context), source, globals: OnceLock::new() };
        if let Some(text) = shipped::text(image) {
            return Ok(module(Source::Shipped(text)));
        }
        if is_elf(image) {
            return Err(wordless(Code::NO_BINARY_FOR_GPU));
        }
        let text = std::str::from_utf8(image).map_err(|_| wordless(Code::INVALID_IMAGE))?;
        let program = Program::parse(text).map_err(|error| (Code::INVALID_PTX, error.to_string()))?;
        let module = module(Source::Given(program));
        module.globals().map_err(wordless)?;
        Ok(module)
    }

    /// The program that runs.
    fn program(&self) -> Answer<&Program> {
        match &self.source {
            Source::Given(program) => Ok(program),
            Source::Shipped(text) => text.program(),
        }
    }

    /// The address of the module's variables. The first call allocates them.
    fn globals(&self) -> Answer<u64> {
        *self.globals.get_or_init(|| Self::place(&self.context, self.program()?.image()))
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
            // Not counted as an allocation: it is part of the module.
            kind: Kind::Module,
            device: context.device,
            context: context.handle,
            id: driver.number(),
            place: Place::new(Some(reserved), Bytes::Stored(store, 0)),
        });
        Ok(start)
    }

    /// Address and bytes of a variable.
    pub(crate) fn global(&self, name: &str) -> Answer<(u64, u64)> {
        let (offset, bytes) = self.program()?.global(name).ok_or(Code::NOT_FOUND)?;
        Ok((self.globals()? + offset, bytes))
    }

    pub(crate) fn function(self: &Arc<Self>, name: &str) -> Answer<Function> {
        let (facts, registers) = match &self.source {
            Source::Given(program) => (program.facts(name).ok_or(Code::NOT_FOUND)?.into(), None),
            Source::Shipped(text) => (OnceLock::new(), Some(text.registers(name).ok_or(Code::NOT_FOUND)?)),
        };
        Ok(Function {
            context: Arc::clone(&self.context),
            module: Arc::clone(self),
            name: name.to_owned(),
            c_name: CString::new(name).unwrap_or_default(),
            facts,
            registers,
            max_dynamic_shared: AtomicU32::new(UNASKED),
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let (Some(Ok(start @ 1..)), Ok(driver)) = (self.globals.get(), driver::get()) {
            driver.table.remove(*start, |region| region.kind == Kind::Module);
        }
    }
}

impl Function {
    /// The facts that a program can query.
    pub(crate) fn facts(&self) -> Answer<&Facts> {
        if let Some(known) = self.facts.get() {
            return Ok(known);
        }
        let mut facts = self.module.program()?.facts(&self.name).ok_or(Code::NOT_FOUND)?;
        facts.registers = self.registers.unwrap_or(facts.registers);
        Ok(self.facts.get_or_init(|| facts))
    }

    /// The most threads of a block.
    pub(crate) fn max_threads(&self) -> Answer<u32> {
        Ok(self.facts()?.max_threads.clamp(1, 1024))
    }

    /// The most bytes of dynamic shared memory of a block: those asked for, or the default.
    pub(crate) fn max_dynamic_shared(&self) -> Answer<u32> {
        match self.max_dynamic_shared.load(Ordering::Relaxed) {
            UNASKED => Ok(SHARED.saturating_sub(self.facts()?.shared_bytes)),
            asked => Ok(asked),
        }
    }

    /// Asks for bytes of dynamic shared memory of a block.
    pub(crate) fn ask_dynamic_shared(&self, bytes: u32) -> Answer {
        if bytes > SHARED_OPT_IN - self.facts()?.shared_bytes.min(SHARED_OPT_IN) {
            return Err(Code::INVALID_VALUE);
        }
        self.max_dynamic_shared.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Blocks that one multiprocessor runs at once: as many as have room, and no more than the settings say.
    pub(crate) fn occupancy(&self, threads: u32, shared_bytes: usize) -> Answer<u32> {
        if threads == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let shared = self.facts()?.shared_bytes as usize + shared_bytes;
        if threads > self.max_threads()? || shared > SHARED_OPT_IN as usize {
            return Ok(0);
        }
        let settings = driver::get()?.settings.blocks_per_multiprocessor();
        Ok(settings.min(room(threads, shared as u32, self.registers)))
    }

    /// The parameters as one piece, from an array of addresses or from the piece that `extra` names.
    pub(crate) fn parameters(&self, each: In<u64>, extra: In<u64>) -> Answer<Vec<u8>> {
        let facts = self.facts()?;
        let mut all = vec![0; facts.parameter_bytes];
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
        for (index, (offset, bytes)) in facts.parameters.iter().enumerate() {
            let from = each.at(index)?;
            read(from, &mut all[*offset as usize..(offset + bytes) as usize])?;
        }
        Ok(all)
    }

    /// Launches the kernel in a stream.
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
        if threads > self.max_threads()? {
            return Err(Code::INVALID_VALUE);
        }
        if shared_bytes > self.max_dynamic_shared()? {
            return Err(Code::INVALID_VALUE);
        }
        let together = self.occupancy(threads, shared_bytes as usize)? * settings.multiprocessors();
        if is_cooperative && blocks > together {
            return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        let launch = Launch {
            kernel: self.name.clone(),
            grid,
            block,
            dynamic_shared_bytes: shared_bytes,
            parameters,
            globals: self.module.globals()?,
        };
        let function = Arc::clone(self);
        let task = move |context: &Arc<Context>| {
            let gate = &driver::get()?.device(context.device as i32)?.gate;
            let reserved = if is_cooperative { blocks } else { 1 };
            match gate.enter(reserved, || context.is_broken()) {
                Some(mut resident) => function.module.program()?.run(&launch, context, &mut resident),
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

/// Blocks of capability 8.0 for which a multiprocessor has room at once, by the threads, the bytes of shared memory
/// and the registers of a thread of each block.
fn room(threads: u32, shared: u32, registers: Option<u32>) -> u32 {
    let warps = threads.div_ceil(32);
    let by_threads = THREADS / 32 / warps;
    let by_shared = SHARED_MULTIPROCESSOR / (shared + SHARED_RESERVED).next_multiple_of(128);
    // Warps get registers, 256 at a time; a multiprocessor has them in four parts, and a warp's are in one of these.
    let by_registers = registers.map_or(u32::MAX, |registers| {
        let each = (registers * 32).next_multiple_of(256).max(256);
        4 * (REGISTERS / 4 / each) / warps.next_multiple_of(4)
    });
    by_threads.min(by_shared).min(by_registers)
}

/// Reads bytes of the caller.
fn read(address: u64, place: &mut [u8]) -> Answer {
    let from = In::<u8>::from_address(address);
    for (index, byte) in place.iter_mut().enumerate() {
        *byte = from.at(index)?;
    }
    Ok(())
}

fn is_elf(image: &[u8]) -> bool {
    image.starts_with(b"\x7fELF")
}

/// The bytes of an image: a text without its zero, or machine code that the manifest may have. Any other image is
/// refused.
pub(crate) fn image_bytes(image: In<u8>) -> Answer<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let byte = image.at(bytes.len())?;
        if byte == 0 {
            return Ok(bytes);
        }
        bytes.push(byte);
        // A binary or fat binary does not end with a zero, so it is recognised before more is read than there is.
        if is_elf(&bytes) && driver::get()?.settings.takes_binaries {
            return shipped::binary(image);
        }
        if is_elf(&bytes) || bytes == [0x50, 0xed, 0x55, 0xba] {
            return Err(Code::NO_BINARY_FOR_GPU);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_registers_and_shared_memory_take_room() {
        // Threads alone: 2048.
        assert_eq!([32, 33, 512, 1024].map(|threads| room(threads, 0, None)), [64, 32, 4, 2]);
        // Registers: 79 a thread are 10 * 256 a warp, and each of four parts holds 6 such warps. 64 a thread are 8 * 256.
        assert_eq!([128, 256, 512].map(|threads| room(threads, 0, Some(79))), [6, 3, 1]);
        assert_eq!([64, 65, 80, 128].map(|registers| room(512, 0, Some(registers))), [2, 1, 1, 1]);
        assert_eq!(room(1024, 0, Some(255)), 0);
        // A block's warps are counted in fours.
        assert_eq!(room(32, 0, Some(64)), 8);
        // Shared memory: 164 KiB. Each block takes 1 KiB besides the bytes that it asks for.
        assert_eq!([0, 40, 81, 82, 163].map(|kib| room(64, kib << 10, None)), [32, 4, 2, 1, 1]);
    }
}
