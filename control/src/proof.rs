//! Secrets, and what is derived from them by proofs ([`consort_transports::prove`]): names, and a veil over bytes.
//!
//! Invariant: a secret is shown by no `Debug`. Absent: proofs themselves, encryption, key storage.

use std::fmt;

pub(crate) use consort_transports::{prove, proves};
use sha2::{Digest, Sha256};

use consort_types::error::{Error, Result};

/// Key material that no `Debug` and no log line shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl Secret {
    /// A fresh one.
    pub(crate) fn random() -> Result<Self> {
        random().map(Secret)
    }

    /// The one that every rank derives from the same configured text or bytes.
    pub(crate) fn derived(material: &[u8]) -> Result<Self> {
        if material.len() < SECRET_MIN_BYTES {
            return Err(Error::invalid(
                format!("the secret has {} bytes, too few to be one", material.len()),
                format!("give at least {SECRET_MIN_BYTES}, better 32 random ones, the same on every rank"),
            ));
        }
        let base = [0u8; 32];
        Ok(Secret(prove(&base, "configured secret", &[material])))
    }
}

/// The least number of bytes of a configured secret.
pub(crate) const SECRET_MIN_BYTES: usize = 16;

/// `N` bytes from the system's generator.
///
/// # Errors
/// [`Error::System`] where it gives none.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::system("asking for random bytes", std::io::Error::other(error.to_string()))
    })?;
    Ok(bytes)
}

/// Bytes as digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The number of a host that has a name for people.
pub fn host_id(name: &str) -> [u8; 16] {
    let digest = digest(name.as_bytes());
    std::array::from_fn(|byte| digest[byte])
}

/// A number that only those who know `key` can compute, for the purpose `label` and about these numbers.
pub fn name(key: &[u8; 32], label: &str, numbers: &[u64]) -> u64 {
    let parts: Vec<[u8; 8]> = numbers.iter().map(|number| number.to_le_bytes()).collect();
    let parts: Vec<&[u8]> = parts.iter().map(<[u8; 8]>::as_slice).collect();
    let proof = prove(key, label, &parts);
    u64::from_le_bytes(std::array::from_fn(|byte| proof[byte]))
}

/// Hides bytes from those who do not know `key`, or shows them again. `nonce` must be another one each time.
pub fn veil(key: &[u8; 32], label: &str, nonce: &[u8], bytes: &mut [u8]) {
    for (block, at) in bytes.chunks_mut(32).zip(0u64..) {
        let pad = prove(key, label, &[nonce, &at.to_le_bytes()]);
        block.iter_mut().zip(pad).for_each(|(byte, pad)| *byte ^= pad);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown_and_short_ones_are_refused() {
        let secret = Secret::derived(b"0123456789abcdef").unwrap();
        assert_eq!(format!("{secret:?}"), "<secret>");
        assert_eq!(secret, Secret::derived(b"0123456789abcdef").unwrap());
        let error = Secret::derived(b"hunter2").unwrap_err().to_string();
        assert!(error.contains("7 bytes") && !error.contains("hunter2"), "{error}");
    }
}
