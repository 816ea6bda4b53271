//! The lines from which the library answers: `FUNCTION ARGUMENTS = ANSWER`.
//!
//! Invariant: read when the library is initialised, and not again. Absent: state.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::path::PathBuf;

use super::{FUNCTION_NOT_FOUND, Status, UNKNOWN};

pub(super) struct Script(HashMap<Vec<String>, String>);

impl Script {
    /// The script in the directory of this library.
    pub(super) fn beside_this_library() -> Option<Script> {
        let text = std::fs::read_to_string(this_library()?.with_file_name("nvml.script")).ok()?;
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let code = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let lines = code.filter_map(|line| line.split_once('='));
        Some(Script(lines.map(|(question, answer)| (words(question), answer.trim().to_owned())).collect()))
    }

    pub(super) fn answer(&self, function: &str, arguments: &[u32]) -> Result<String, Status> {
        // Each line is compared: scripts have some hundred.
        let fits = |question: &[String]| {
            question.len() == arguments.len() + 1
                && question[0] == function
                && question[1..]
                    .iter()
                    .zip(arguments)
                    .all(|(word, value)| word == "*" || *word == value.to_string())
        };
        let stars = |question: &[String]| question.iter().filter(|word| *word == "*").count();
        let found =
            self.0.iter().filter(|(question, _)| fits(question)).min_by_key(|(question, _)| stars(question));
        let answer = found.map(|(_, answer)| answer).ok_or(FUNCTION_NOT_FOUND)?;
        match answer.strip_prefix('!') {
            Some(code) => Err(code.parse().unwrap_or(UNKNOWN)),
            None => Ok(answer.clone()),
        }
    }
}

/// The file of this library, as the loader knows it.
fn this_library() -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let own: *const c_void = this_library as *const c_void;
    // SAFETY: the address is in this library, and the place can be written.
    if unsafe { libc::dladdr(own, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own text, which lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(name.to_str().ok()?))
}
