//! The version of NCCL's interface that this library reports.

use super::result::{Failure, Result};

/// `NCCL_VERSION_CODE` of the newest interface whose contract this library's tests hold.
pub const CODE: i32 = 23_203;
/// The variable that names another version, for clients that must see one.
pub const VARIABLE: &str = "CONSORT_NCCL_VERSION";

/// The text that tools look for to find a library's version.
pub const BANNER: &str = concat!("\0NCCL version 2.32.3+consort", env!("CARGO_PKG_VERSION"), "\0");
/// The version in the log: the interface's and this library's.
pub const TEXT: &str = concat!("2.32.3+consort", env!("CARGO_PKG_VERSION"));

/// The version for clients: [`CODE`], or the value of `CONSORT_NCCL_VERSION`, as a code (`22703`) or with dots
/// (`2.27.3`).
///
/// # Errors
/// For text that is not a version.
pub fn reported() -> Result<i32> {
    match std::env::var(VARIABLE) {
        Ok(text) if !text.trim().is_empty() => parse(text.trim()).ok_or_else(|| {
            Failure::argument(
                format!("{VARIABLE} is {text:?}"),
                "set a version such as 2.27.3 or 22703, from 2.3.0 to 2.99.99",
            )
        }),
        _ => Ok(CODE),
    }
}

fn parse(text: &str) -> Option<i32> {
    let known = |code: &i32| (2300..30_000).contains(code);
    if let Ok(code) = text.parse::<i32>() {
        return Some(code).filter(known);
    }
    let mut parts =
        text.split('.').map(|part| part.parse::<i32>().ok().filter(|part| (0..100).contains(part)));
    let (major, minor, patch) = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
    if major != 2 || parts.next().is_some() {
        return None;
    }
    // Until 2.8 a version had four digits.
    let code = if minor <= 8 { major * 1000 + minor * 100 } else { major * 10_000 + minor * 100 } + patch;
    Some(code).filter(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_codes() {
        for (text, code) in
            [("2.32.3", 23_203), ("2.8.4", 2804), ("2.9.6", 20_906), ("22703", 22_703), ("2.27", 22_700)]
        {
            assert_eq!(parse(text), Some(code), "{text}");
        }
        for nonsense in ["", "2", "3.1.1", "2.100.1", "2.1.1.1", "-1", "99999999999", "two"] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
        assert_eq!(parse(TEXT.split('+').next().expect("a version")), Some(CODE));
    }
}
