//! Proofs of knowing a key: HMAC-SHA256 with a label for each purpose.
//!
//! Invariant: two different (label, parts) never give the authenticated code the same input, because every part is
//! preceded by its length; proofs are compared in constant time. Absent: encryption, key storage.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use consort_types::error::{Error, Result};

/// Key material that no `Debug` and no log line shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Secret(pub(super) [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl Secret {
    /// A fresh one.
    pub(super) fn random() -> Result<Self> {
        random().map(Secret)
    }

    /// The one that every rank derives from the same configured text or bytes.
    pub(super) fn derived(material: &[u8]) -> Result<Self> {
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
pub(super) const SECRET_MIN_BYTES: usize = 16;

/// `N` bytes from the system's generator.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::system("getrandom, for a secret", std::io::Error::other(error.to_string()))
    })?;
    Ok(bytes)
}

/// SHA-256.
pub(super) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// What stands for a host that people have given a name.
pub fn host_id(name: &str) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&digest(name.as_bytes())[..16]);
    id
}

fn code(key: &[u8; 32], label: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut code = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in [b"consort 1".as_slice(), label.as_bytes()].into_iter().chain(parts.iter().copied()) {
        code.update(&(part.len() as u64).to_le_bytes());
        code.update(part);
    }
    code
}

/// The proof that its maker knows `key`, for the purpose `label` and about `parts`.
pub fn prove(key: &[u8; 32], label: &str, parts: &[&[u8]]) -> [u8; 32] {
    code(key, label, parts).finalize().into_bytes().into()
}

/// Whether `proof` is what [`prove`] gives, compared in constant time.
pub fn proves(key: &[u8; 32], label: &str, parts: &[&[u8]], proof: &[u8; 32]) -> bool {
    code(key, label, parts).verify_slice(proof).is_ok()
}

/// A number that only those who know `key` can tell, for the purpose `label` and about these numbers.
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
    fn a_proof_holds_for_its_key_label_and_parts_only() {
        let key = [7; 32];
        let proof = prove(&key, "a", &[b"xy", b"z"]);
        assert!(proves(&key, "a", &[b"xy", b"z"], &proof));
        assert!(!proves(&[8; 32], "a", &[b"xy", b"z"], &proof), "another key");
        assert!(!proves(&key, "b", &[b"xy", b"z"], &proof), "another label");
        assert!(!proves(&key, "a", &[b"x", b"yz"], &proof), "the same bytes, split elsewhere");
        assert!(!proves(&key, "a", &[b"xyz"], &proof), "the same bytes, joined");
        let mut bent = proof;
        bent[31] ^= 1;
        assert!(!proves(&key, "a", &[b"xy", b"z"], &bent), "one bit off");
    }

    #[test]
    fn secrets_are_not_shown_and_short_ones_are_refused() {
        let secret = Secret::derived(b"0123456789abcdef").unwrap();
        assert_eq!(format!("{secret:?}"), "<secret>");
        assert_eq!(secret, Secret::derived(b"0123456789abcdef").unwrap());
        let error = Secret::derived(b"hunter2").unwrap_err().to_string();
        assert!(error.contains("7 bytes") && !error.contains("hunter2"), "{error}");
    }
}
