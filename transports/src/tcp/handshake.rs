//! How two ends of a stream prove that they know the key.
//!
//! Invariant: a proof names its direction, its purpose and both endpoints' nonces, which are fresh for every
//! connection; so none can be used for another connection, nor be sent back. Absent: sockets.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::segment::{NONCE_BYTES, Nonce};

const MAC_BYTES: usize = 32;
const LABEL_BYTES: usize = 8;
const HELLO: [u8; LABEL_BYTES] = *b"consort2";
/// What a job's name is derived with.
const NAMING: [u8; LABEL_BYTES] = *b"job name";
const JOB_BYTES: usize = 16;

/// What tells the jobs at a listener apart; derived from the key, which it does not give away.
pub(super) type JobName = [u8; JOB_BYTES];

/// Label, job, both nonces, proof.
pub(super) const HELLO_BYTES: usize = LABEL_BYTES + JOB_BYTES + 2 * NONCE_BYTES + MAC_BYTES;
/// Label, proof.
pub(super) const ANSWER_BYTES: usize = LABEL_BYTES + MAC_BYTES;

/// The side that was called says whether it is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Welcome,
    Gone,
}

impl Verdict {
    const ALL: [Self; 2] = [Self::Welcome, Self::Gone];

    fn label(self) -> [u8; LABEL_BYTES] {
        match self {
            Self::Welcome => *b"welcome1",
            Self::Gone => *b"nolonger",
        }
    }
}

/// The secret that all peers have.
#[derive(Clone)]
pub(super) struct Key {
    secret: Hmac<Sha256>,
    pub(super) job: JobName,
}

/// The job that a caller means.
pub(super) fn job_of(hello: &[u8]) -> Option<JobName> {
    hello.get(LABEL_BYTES..)?.first_chunk().copied()
}

impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Key(..)")
    }
}

impl Key {
    pub(super) fn new(key: [u8; 32]) -> Self {
        let secret = Hmac::<Sha256>::new_from_slice(&key).expect("a key may have any length");
        let name = secret.clone().chain_update(NAMING).finalize().into_bytes();
        Self { secret, job: std::array::from_fn(|byte| name[byte]) }
    }

    fn proof(&self, label: [u8; LABEL_BYTES], caller: &Nonce, callee: &Nonce) -> Hmac<Sha256> {
        self.secret.clone().chain_update(label).chain_update(caller).chain_update(callee)
    }

    pub(super) fn hello(&self, caller: &Nonce, callee: &Nonce) -> Vec<u8> {
        let proof = self.proof(HELLO, caller, callee).finalize().into_bytes();
        [&HELLO[..], &self.job, caller, callee, &proof].concat()
    }

    /// Who calls whom, if the caller knows the key.
    pub(super) fn check_hello(&self, hello: &[u8]) -> Option<(Nonce, Nonce)> {
        let (label, rest) = hello.split_first_chunk::<LABEL_BYTES>()?;
        let (job, rest) = rest.split_first_chunk::<JOB_BYTES>()?;
        let (caller, rest) = rest.split_first_chunk::<NONCE_BYTES>()?;
        let (callee, proof) = rest.split_first_chunk::<NONCE_BYTES>()?;
        // `verify_slice` takes the same time wherever the difference is.
        let proved = *label == HELLO
            && *job == self.job
            && self.proof(HELLO, caller, callee).verify_slice(proof).is_ok();
        proved.then_some((*caller, *callee))
    }

    pub(super) fn answer(&self, verdict: Verdict, caller: &Nonce, callee: &Nonce) -> Vec<u8> {
        let label = verdict.label();
        let proof = self.proof(label, caller, callee).finalize().into_bytes();
        [&label[..], &proof].concat()
    }

    /// What the callee says, if it knows the key.
    pub(super) fn check_answer(&self, answer: &[u8], caller: &Nonce, callee: &Nonce) -> Option<Verdict> {
        let (label, proof) = answer.split_first_chunk::<LABEL_BYTES>()?;
        let verdict = Verdict::ALL.into_iter().find(|verdict| verdict.label() == *label)?;
        self.proof(*label, caller, callee).verify_slice(proof).is_ok().then_some(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_proof_counts() {
        let key = Key::new([7; 32]);
        let (caller, callee) = ([1; 16], [2; 16]);
        let hello = key.hello(&caller, &callee);
        assert_eq!(hello.len(), HELLO_BYTES);
        assert_eq!(key.check_hello(&hello), Some((caller, callee)));
        assert_eq!(Key::new([8; 32]).check_hello(&hello), None);
        let answer = key.answer(Verdict::Welcome, &caller, &callee);
        assert_eq!(answer.len(), ANSWER_BYTES);
        assert_eq!(key.check_answer(&answer, &caller, &callee), Some(Verdict::Welcome));
        assert_eq!(key.check_answer(&answer, &callee, &caller), None);
        assert_eq!(
            key.check_answer(&key.answer(Verdict::Gone, &caller, &callee), &caller, &callee),
            Some(Verdict::Gone)
        );
        for bit in 0..HELLO_BYTES * 8 {
            let mut wrong = hello.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.check_hello(&wrong), None);
            if bit < ANSWER_BYTES * 8 {
                let mut wrong = answer.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(key.check_answer(&wrong, &caller, &callee), None);
            }
        }
        // A hello that is sent back proves nothing.
        assert_eq!(key.check_answer(&hello[..ANSWER_BYTES], &caller, &callee), None);
    }
}
