//! Proofs of knowing a key: HMAC-SHA256 with a label for each purpose. Streams, control links and the rendezvous greet each
//! other with them, each over the nonces of both sides.
//!
//! Invariant: two different (label, parts) never give the authenticated code the same input, because every part is
//! preceded by its length; proofs are compared in constant time. Absent: encryption, key storage, what is greeted.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

fn code(key: &[u8; 32], label: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut code = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in [b"consort 1".as_slice(), label.as_bytes()].into_iter().chain(parts.iter().copied()) {
        code.update(&(part.len() as u64).to_le_bytes());
        code.update(part);
    }
    code
}

/// The proof that its maker knows `key`, for the purpose `label` and about `parts`.
pub fn prove(key: &[u8; 32], label: &str, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
    code(key, label, parts).finalize().into_bytes().into()
}

/// Whether `proof` is what [`prove`] gives, compared in constant time.
pub fn proves(key: &[u8; 32], label: &str, parts: &[&[u8]], proof: &[u8; PROOF_BYTES]) -> bool {
    code(key, label, parts).verify_slice(proof).is_ok()
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
}
