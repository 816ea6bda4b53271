//! How two ends of a stream prove that they know the key.
//!
//! Invariant: a proof names its direction, its purpose and both endpoints' nonces, which are fresh for every
//! connection; so none can be used for another connection, nor be sent back. Absent: sockets.

use crate::fields::Fields;
use crate::proof::{PROOF_BYTES, prove, proves};
use crate::segment::{NONCE_BYTES, Nonce};

const LABEL_BYTES: usize = 8;
const HELLO: &str = "consort3";
const JOB_BYTES: usize = 16;

/// What tells the jobs at a listener apart; derived from the key, which it does not give away.
pub(super) type JobName = [u8; JOB_BYTES];

/// Label, job, both nonces, proof.
pub(super) const HELLO_BYTES: usize = LABEL_BYTES + JOB_BYTES + 2 * NONCE_BYTES + PROOF_BYTES;
/// Label, proof.
pub(super) const ANSWER_BYTES: usize = LABEL_BYTES + PROOF_BYTES;

/// The side that was called says whether it is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Welcome,
    Gone,
}

impl Verdict {
    const ALL: [Self; 2] = [Self::Welcome, Self::Gone];

    /// Of [`LABEL_BYTES`].
    fn label(self) -> &'static str {
        match self {
            Self::Welcome => "welcome1",
            Self::Gone => "nolonger",
        }
    }
}

/// The secret that all peers have.
#[derive(Clone)]
pub(super) struct Key {
    secret: [u8; 32],
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
    pub(super) fn new(secret: [u8; 32]) -> Self {
        let name = prove(&secret, "job name", &[]);
        Self { secret, job: std::array::from_fn(|byte| name[byte]) }
    }

    pub(super) fn hello(&self, caller: &Nonce, callee: &Nonce) -> Vec<u8> {
        let proof = prove(&self.secret, HELLO, &[caller, callee]);
        [HELLO.as_bytes(), &self.job, caller, callee, &proof].concat()
    }

    /// Who calls whom, if the caller knows the key.
    pub(super) fn check_hello(&self, hello: &[u8]) -> Option<(Nonce, Nonce)> {
        let mut fields = Fields(hello);
        let (label, job) = (fields.take::<LABEL_BYTES>()?, fields.take()?);
        let (caller, callee, proof) = (fields.take()?, fields.take()?, fields.take()?);
        fields.end()?;
        let proved = label == HELLO.as_bytes()
            && self.job == job
            && proves(&self.secret, HELLO, &[&caller, &callee], &proof);
        proved.then_some((caller, callee))
    }

    pub(super) fn answer(&self, verdict: Verdict, caller: &Nonce, callee: &Nonce) -> Vec<u8> {
        let proof = prove(&self.secret, verdict.label(), &[caller, callee]);
        [verdict.label().as_bytes(), &proof].concat()
    }

    /// What the callee says, if it knows the key.
    pub(super) fn check_answer(&self, answer: &[u8], caller: &Nonce, callee: &Nonce) -> Option<Verdict> {
        let mut fields = Fields(answer);
        let (label, proof) = (fields.take::<LABEL_BYTES>()?, fields.take()?);
        fields.end()?;
        let verdict = Verdict::ALL.into_iter().find(|verdict| verdict.label().as_bytes() == label)?;
        proves(&self.secret, verdict.label(), &[caller, callee], &proof).then_some(verdict)
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
