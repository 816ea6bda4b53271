//! Modules, functions, launches.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use crate::boundary::{In, Out, Text, exports};
use crate::code::{Answer, Code};
use crate::context::{stream, working};
use crate::driver;
use crate::module::{Function, Module, Shape, image_bytes};

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The stream.
    pub stream: u64,
    /// The launch's attributes.
    pub attributes: In<LaunchAttribute>,
    /// The number of attributes.
    pub count: u32,
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchAttribute {
    /// `CUlaunchAttributeID`: 0 is ignored, 2 is whether the launch is cooperative.
    pub id: u32,
    /// Nothing.
    pub padding: u32,
    /// Its value, by number.
    pub value: [u32; 16],
}

const COOPERATIVE: u32 = 2;

/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const ERROR_LOG: u32 = 5;
const ERROR_LOG_BYTES: u32 = 6;

/// Address and size of the buffer into which the program wants the errors of its text.
fn error_log(count: u32, options: In<u32>, values: In<u64>) -> Answer<Option<(u64, u64)>> {
    let (mut place, mut bytes) = (0, 0);
    for index in 0..count as usize {
        match options.at(index)? {
            ERROR_LOG => place = values.at(index)?,
            // The number itself is in the place of an address.
            ERROR_LOG_BYTES => bytes = values.at(index)?,
            _ => {}
        }
    }
    Ok((place != 0 && bytes > 0).then_some((place, bytes)))
}

/// Refuses an image for later devices than the pretend ones: machine code is for 8.0, and a text names its
/// capability.
fn refuse_later(image: &[u8]) -> Answer {
    let (major, minor) = driver::get()?.settings.capability;
    let Ok(text) = std::str::from_utf8(image) else {
        return if major < 8 { Err(Code::NO_BINARY_FOR_GPU) } else { Ok(()) };
    };
    let target = text.lines().find_map(|line| line.trim().strip_prefix(".target sm_"));
    let target = target.and_then(|target| target.trim_end_matches(',').parse::<u32>().ok());
    match target {
        Some(target) if target > 10 * major + minor => Err(Code::INVALID_PTX),
        _ => Ok(()),
    }
}

fn load(place: Out<u64>, image: In<u8>, log: Option<(u64, u64)>) -> Answer {
    place.check()?;
    let context = working()?;
    // Loading may wait for the device. Here it always waits, so that a program that relies on less is found.
    context.synchronize()?;
    let image = image_bytes(image)?;
    refuse_later(&image)?;
    let module = Module::load(&context, &image).map_err(|(code, words)| {
        if let Some((start, bytes)) = log {
            let mut shown: Vec<u8> = words.bytes().take(bytes as usize - 1).collect();
            shown.push(0);
            let _ = Out::from_address(start).put_all(&shown);
        }
        if !words.is_empty() {
            eprintln!("consort's stand-in for the CUDA driver: {words}");
        }
        code
    })?;
    let driver = driver::get()?;
    let handle = driver.number();
    driver.modules.insert(handle, Arc::new(module));
    place.put(handle)
}

fn launch(handle: u64, shape: Shape, on: u64, each: In<u64>, extra: In<u64>) -> Answer {
    let function = driver::get()?.functions.get(handle)?;
    let (context, key) = stream(on)?;
    context.check()?;
    function.launch(&context, key, shape, function.parameters(each, extra)?)
}

fn attribute(function: &Function, number: u32) -> Answer<u32> {
    Ok(match number {
        0 => function.max_threads()?,
        1 => function.facts()?.shared_bytes,
        2 => 0,
        3 => function.facts()?.local_bytes,
        4 => function.facts()?.registers,
        5 | 6 => 80,
        7 | 9..=15 => 0,
        8 => function.max_dynamic_shared()?,
        _ => return Err(Code::INVALID_VALUE),
    })
}

exports! {
    /// Loads a text of PTX that ends with a zero, or machine code that consort ships, after all submitted work has
    /// ended. Any other image is refused.
    fn cuModuleLoadData(place: Out<u64>, image: In<u8>) {
        load(place, image, None)
    }

    /// Loads like `cuModuleLoadData`. Of the options, only the log of errors is looked at.
    fn cuModuleLoadDataEx(place: Out<u64>, image: In<u8>, count: u32, options: In<u32>, values: In<u64>) {
        load(place, image, error_log(count, options, values)?)
    }

    /// Refused.
    fn cuModuleLoadFatBinary(_place: Out<u64>, _image: In<u8>) {
        working()?;
        Err(Code::NO_BINARY_FOR_GPU)
    }

    /// Unloads a module after all submitted work has ended.
    fn cuModuleUnload(handle: u64) {
        let driver = driver::get()?;
        let module = driver.modules.get(handle)?;
        module.context.synchronize()?;
        driver.functions.retain(|function| !Arc::ptr_eq(&function.module, &module));
        driver.modules.remove(handle).map(drop)
    }

    /// A kernel by name.
    fn cuModuleGetFunction(place: Out<u64>, module: u64, name: Text) {
        place.check()?;
        let driver = driver::get()?;
        let name = name.get()?.to_str().map_err(|_| Code::NOT_FOUND)?;
        let module = driver.modules.get(module)?;
        // A kernel is loaded at the first request, as is the driver's default. Loading waits for the device.
        module.context.synchronize()?;
        let function = module.function(name)?;
        let handle = driver.number();
        driver.functions.insert(handle, Arc::new(function));
        place.put(handle)
    }

    /// A variable by name.
    fn cuModuleGetGlobal_v2(start: Out<u64>, bytes: Out<usize>, module: u64, name: Text) {
        let name = name.get()?.to_str().map_err(|_| Code::NOT_FOUND)?;
        let found = driver::get()?.modules.get(module)?.global(name)?;
        start.put_if_wanted(found.0);
        bytes.put_if_wanted(found.1 as usize);
        Ok(())
    }

    /// The module of a function.
    fn cuFuncGetModule(place: Out<u64>, function: u64) {
        let driver = driver::get()?;
        let module = &driver.functions.get(function)?.module;
        place.put(driver.modules.find(|known| std::ptr::eq(known, &**module)).ok_or(Code::INVALID_HANDLE)?)
    }

    /// An attribute of a function.
    fn cuFuncGetAttribute(value: Out<c_int>, number: u32, function: u64) {
        value.put(attribute(&*driver::get()?.functions.get(function)?, number)? as c_int)
    }

    /// Sets an attribute. Only the bytes of dynamic shared memory have an effect.
    fn cuFuncSetAttribute(function: u64, number: u32, value: c_int) {
        let function = driver::get()?.functions.get(function)?;
        let value = u32::try_from(value).map_err(|_| Code::INVALID_VALUE)?;
        match number {
            8 => function.ask_dynamic_shared(value),
            9..=15 => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Takes a preference, without effect.
    fn cuFuncSetCacheConfig(function: u64, _config: u32) {
        driver::get()?.functions.get(function).map(drop)
    }

    /// The blocks of a function that run at once on one multiprocessor.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(count: Out<c_int>, function: u64, threads: c_int, shared: usize) {
        let function = driver::get()?.functions.get(function)?;
        count.put(function.occupancy(u32::try_from(threads).map_err(|_| Code::INVALID_VALUE)?, shared)? as c_int)
    }

    /// The blocks of a function that run at once on one multiprocessor.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count: Out<c_int>, function: u64, threads: c_int, shared: usize, _flags: u32) {
        let function = driver::get()?.functions.get(function)?;
        count.put(function.occupancy(u32::try_from(threads).map_err(|_| Code::INVALID_VALUE)?, shared)? as c_int)
    }

    /// Runs a kernel in the order of a stream.
    fn cuLaunchKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: u64,
        parameters: In<u64>,
        extra: In<u64>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, Shape { grid, block, shared_bytes, is_cooperative: false }, stream, parameters, extra)
    }

    /// Runs a kernel whose blocks are all resident at once, or refuses it.
    fn cuLaunchCooperativeKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: u64,
        parameters: In<u64>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let extra = In::from_address(0);
        launch(function, Shape { grid, block, shared_bytes, is_cooperative: true }, stream, parameters, extra)
    }

    /// Runs a kernel, cooperatively where the attributes say so. Of the others only clusters are looked at, and
    /// refused.
    fn cuLaunchKernelEx(config: In<LaunchConfig>, function: u64, parameters: In<u64>, extra: In<u64>) {
        let LaunchConfig { grid, block, shared_bytes, stream, attributes, count } = config.get()?;
        let mut is_cooperative = false;
        for index in 0..count as usize {
            let LaunchAttribute { id, value, .. } = attributes.at(index)?;
            match id {
                COOPERATIVE => is_cooperative = value[0] != 0,
                4 if value[..3].iter().any(|side| *side > 1) => return Err(Code::NOT_SUPPORTED),
                _ => {}
            }
        }
        launch(function, Shape { grid, block, shared_bytes, is_cooperative }, stream, parameters, extra)
    }

    /// The name of a kernel.
    fn cuFuncGetName(name: Out<*const c_char>, function: u64) {
        let function = driver::get()?.functions.get(function)?;
        name.put(function.c_name.as_ptr())
    }
}
