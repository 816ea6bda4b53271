//! Kernels: loaded images and the functions in them.
//!
//! Invariant: an image is loaded as long as a function of it lives, and the driver reads none beyond its end. Absent:
//! the images themselves, and the types of what a function takes.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUfunc_st, CUjit_option as JitOption, CUmod_st};

use super::raw::Raw;
use super::{Context, CudaError, CudaErrorCause, Result};

/// Room for what the driver's compiler complains about.
const LOG_BYTES: usize = 8 << 10;

/// A loaded image.
#[derive(Clone, Debug)]
pub struct Module {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    raw: Raw<CUmod_st>,
}

/// A kernel of a module, which it keeps.
#[derive(Clone, Debug)]
pub struct Function {
    module: Arc<Inner>,
    raw: Raw<CUfunc_st>,
}

impl Context {
    /// Loads an image: PTX, which the driver compiles, or a cubin. The image is to be one of the program's own: what a
    /// cubin's header says of places inside is checked, what its code does is not.
    ///
    /// # Errors
    /// What the driver says, with the words of its compiler ([`CudaErrorCause::Log`]);
    /// [`CudaErrorCause::Unfit`] for an image that is neither.
    pub fn load(&self, image: &[u8]) -> Result<Module> {
        let driver = self.driver();
        let name = driver.functions.module_load.name;
        let image = prepared(image).map_err(|what| CudaError::unfit(name, what))?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [JitOption::CU_JIT_ERROR_LOG_BUFFER, JitOption::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The interface takes the size itself where other options have an address.
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG_BYTES - 1)];
        let mut raw = std::ptr::null_mut();
        let _entered = self.enter()?;
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        // SAFETY: the place is writable, the image whole, and the options have a value each; unloaded below.
        let outcome =
            unsafe { call!(driver, module_load(&mut raw, image.as_ptr().cast(), 2, options, values)) };
        outcome.map_err(|error| {
            let words = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().trim().to_owned());
            match (error.cause == CudaErrorCause::Returned, words) {
                (true, Ok(words)) if !words.is_empty() => {
                    CudaError { cause: CudaErrorCause::Log(words), ..error }
                }
                _ => error,
            }
        })?;
        Ok(Module { inner: Arc::new(Inner { context: self.clone(), raw: Raw(raw) }) })
    }
}

/// The image as the driver may read it, which does not get its length.
fn prepared(image: &[u8]) -> std::result::Result<Vec<u8>, &'static str> {
    if image.starts_with(b"\x7fELF") {
        return if is_whole(image) { Ok(image.to_vec()) } else { Err("the cubin is cut short") };
    }
    // Text: a byte that is none of it means another format, or an end that comes too early.
    let text = image.strip_suffix(&[0]).unwrap_or(image);
    if text.is_empty() || text.iter().any(|&byte| byte == 0 || !(byte.is_ascii())) {
        return Err("the image is neither PTX nor a cubin");
    }
    Ok([text, &[0]].concat())
}

/// Whether all that a 64-bit ELF's tables speak of lies inside.
fn is_whole(image: &[u8]) -> bool {
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let field = image.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    let is_inside =
        |start: u64, bytes: u64| start.checked_add(bytes).is_some_and(|end| end <= image.len() as u64);
    // Offset, size of an entry and number of entries of the segments' and the sections' table, then where an entry has
    // its type (with the one that takes no place in the file), its offset and its size.
    let tables = [(32, 54, 56, 0, None, 8, 32), (40, 58, 60, 4, Some(8), 24, 32)];
    let check = || -> Option<bool> {
        const BITS_64_LITTLE_ENDIAN: u64 = 0x0102;
        if number(4, 2)? != BITS_64_LITTLE_ENDIAN {
            return Some(false);
        }
        for (table, entry, count, kind, nothing, offset, size) in tables {
            let (table, entry, count) = (number(table, 8)?, number(entry, 2)?, number(count, 2)?);
            if count > 0 && (entry < 40 || !is_inside(table, entry * count)) {
                return Some(false);
            }
            for index in 0..count {
                let at = usize::try_from(table + index * entry).ok()?;
                if nothing == Some(number(at + kind, 4)?) {
                    continue;
                }
                if !is_inside(number(at + offset, 8)?, number(at + size, 8)?) {
                    return Some(false);
                }
            }
        }
        Some(true)
    };
    check().unwrap_or(false)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: loaded for this value, and no function of it is left. What the driver says has no reader.
        let _ = unsafe { call!(self.context.driver(), module_unload(self.raw.0)) };
    }
}

impl Module {
    /// The kernel of this name.
    ///
    /// # Errors
    /// What the driver says; `CUDA_ERROR_NOT_FOUND`.
    pub fn function(&self, name: &CStr) -> Result<Function> {
        let Inner { context, raw: module } = &*self.inner;
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the place is writable, the module loaded, and the name ends with a zero.
        unsafe { call!(context.driver(), module_function(&mut raw, module.0, name.as_ptr())) }?;
        Ok(Function { module: Arc::clone(&self.inner), raw: Raw(raw) })
    }
}

impl Function {
    pub(super) fn raw(&self) -> Raw<CUfunc_st> {
        self.raw
    }

    /// The context it is loaded into.
    pub fn context(&self) -> &Context {
        &self.module.context
    }

    /// How many blocks of that many threads, with that much shared memory each, are resident on one multiprocessor.
    ///
    /// # Errors
    /// What the driver says.
    pub fn blocks_per_multiprocessor(&self, block_threads: u32, dynamic_shared_bytes: u32) -> Result<u32> {
        let threads = c_int::try_from(block_threads).unwrap_or(c_int::MAX);
        let mut blocks = 0;
        let _entered = self.context().enter()?;
        // SAFETY: the place is writable and the function loaded.
        unsafe {
            call!(
                self.context().driver(),
                function_blocks(&mut blocks, self.raw.0, threads, dynamic_shared_bytes as usize)
            )
        }?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF of a header, one section's table and that section's eight bytes; it says that there are `claimed`.
    fn elf(claimed: u64) -> Vec<u8> {
        let mut image = vec![0; 64 + 64 + 8];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        image[40..48].copy_from_slice(&64u64.to_le_bytes());
        image[58..60].copy_from_slice(&64u16.to_le_bytes());
        image[60..62].copy_from_slice(&1u16.to_le_bytes());
        image[64 + 24..64 + 32].copy_from_slice(&128u64.to_le_bytes());
        image[64 + 32..64 + 40].copy_from_slice(&claimed.to_le_bytes());
        image
    }

    #[test]
    fn text_gets_its_end_and_nothing_else_passes_for_it() {
        assert_eq!(prepared(b".version 7.0"), Ok(b".version 7.0\0".to_vec()));
        assert_eq!(prepared(b".version 7.0\0"), Ok(b".version 7.0\0".to_vec()));
        for wrong in [&b""[..], b"\0", b"a\0b", b"\x50\xed\x55\xba", &[0xff; 64]] {
            assert_eq!(prepared(wrong), Err("the image is neither PTX nor a cubin"));
        }
    }

    #[test]
    fn a_cubin_is_read_no_further_than_it_goes() {
        assert_eq!(prepared(&elf(8)), Ok(elf(8)));
        let mut without_place = elf(1 << 40);
        without_place[64 + 4] = 8;
        assert!(prepared(&without_place).is_ok(), "what takes no place in the file");
        for wrong in
            [elf(9), elf(u64::MAX), elf(8)[..135].to_vec(), elf(8)[..70].to_vec(), elf(8)[..20].to_vec()]
        {
            assert_eq!(prepared(&wrong), Err("the cubin is cut short"));
        }
        let mut far = elf(8);
        far[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(prepared(&far).is_err());
    }
}
