//! How two ends of a stream prove that they know the key.
//!
//! Invariant: a proof names its direction, its purpose, the path with its epoch, and both endpoints' nonces, which are fresh for
//! every connection; so none can be used for another connection or another time that a path is opened, nor be sent back. Absent:
//! sockets.

use crate::fields::Fields;
use crate::proof::{PROOF_BYTES, prove, proves};
use crate::segment::{NONCE_BYTES, Nonce};
use crate::streams::Path;

const LABEL_BYTES: usize = 8;
const HELLO: &str = "consort4";
const JOB_BYTES: usize = 16;

/// What tells the jobs at a listener apart; derived from the key, which it does not give away.
pub(super) type JobName = [u8; JOB_BYTES];

/// The number of a path, and its epoch.
const PATH_BYTES: usize = 1 + size_of::<u32>();

/// Label, job, both nonces, path, proof.
pub(super) const HELLO_BYTES: usize = LABEL_BYTES + JOB_BYTES + 2 * NONCE_BYTES + PATH_BYTES + PROOF_BYTES;
/// Label, proof.
pub(super) const ANSWER_BYTES: usize = LABEL_BYTES + PROOF_BYTES;

/// Who calls whom, and to open which path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meeting {
    pub(super) caller: Nonce,
    pub(super) callee: Nonce,
    pub(super) path: Path,
}

impl Meeting {
    fn path(&self) -> [u8; PATH_BYTES] {
        let [a, b, c, d] = self.path.epoch.to_le_bytes();
        [self.path.number, a, b, c, d]
    }
}

/// The side that was called says whether it is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Welcome,
    Gone,
    /// It is there, and is to be called with short segments.
    Shorter,
}

impl Verdict {
    const ALL: [Self; 3] = [Self::Welcome, Self::Gone, Self::Shorter];

    /// Of [`LABEL_BYTES`].
    fn label(self) -> &'static str {
        match self {
            Self::Welcome => "welcome1",
            Self::Gone => "nolonger",
            Self::Shorter => "shorter1",
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

    fn proof(&self, label: &str, meeting: &Meeting) -> [u8; PROOF_BYTES] {
        prove(&self.secret, label, &[&meeting.caller, &meeting.callee, &meeting.path()])
    }

    pub(super) fn hello(&self, meeting: &Meeting) -> Vec<u8> {
        let Meeting { caller, callee, .. } = meeting;
        let proof = self.proof(HELLO, meeting);
        [HELLO.as_bytes(), &self.job, caller, callee, &meeting.path(), &proof].concat()
    }

    /// Who calls whom, if the caller knows the key.
    pub(super) fn check_hello(&self, hello: &[u8]) -> Option<Meeting> {
        let mut fields = Fields(hello);
        let (label, job) = (fields.take::<LABEL_BYTES>()?, fields.take()?);
        let (caller, callee) = (fields.take()?, fields.take()?);
        let ([number], epoch, proof) = (fields.take()?, fields.u32()?, fields.take::<PROOF_BYTES>()?);
        fields.end()?;
        let meeting = Meeting { caller, callee, path: Path { number, epoch } };
        let proved = label == HELLO.as_bytes() && self.job == job && self.proves(HELLO, &meeting, &proof);
        proved.then_some(meeting)
    }

    fn proves(&self, label: &str, meeting: &Meeting, proof: &[u8; PROOF_BYTES]) -> bool {
        proves(&self.secret, label, &[&meeting.caller, &meeting.callee, &meeting.path()], proof)
    }

    pub(super) fn answer(&self, verdict: Verdict, meeting: &Meeting) -> Vec<u8> {
        [verdict.label().as_bytes(), &self.proof(verdict.label(), meeting)].concat()
    }

    /// What the callee says, if it knows the key.
    pub(super) fn check_answer(&self, answer: &[u8], meeting: &Meeting) -> Option<Verdict> {
        let mut fields = Fields(answer);
        let (label, proof) = (fields.take::<LABEL_BYTES>()?, fields.take()?);
        fields.end()?;
        let verdict = Verdict::ALL.into_iter().find(|verdict| verdict.label().as_bytes() == label)?;
        self.proves(verdict.label(), meeting, &proof).then_some(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_proof_counts() {
        let key = Key::new([7; 32]);
        let meeting =
            Meeting { caller: [1; 16], callee: [2; 16], path: Path { number: 3, epoch: 0x0506_0708 } };
        let hello = key.hello(&meeting);
        assert_eq!(hello.len(), HELLO_BYTES);
        assert_eq!(key.check_hello(&hello), Some(meeting));
        assert_eq!(Key::new([8; 32]).check_hello(&hello), None);
        let answer = key.answer(Verdict::Welcome, &meeting);
        assert_eq!(answer.len(), ANSWER_BYTES);
        assert_eq!(key.check_answer(&answer, &meeting), Some(Verdict::Welcome));
        let others = [
            Meeting { caller: [2; 16], callee: [1; 16], ..meeting },
            Meeting { path: Path { number: 4, ..meeting.path }, ..meeting },
            Meeting { path: Path { epoch: 1, ..meeting.path }, ..meeting },
        ];
        for other in others {
            assert_eq!(key.check_answer(&answer, &other), None);
        }
        for verdict in Verdict::ALL {
            assert_eq!(key.check_answer(&key.answer(verdict, &meeting), &meeting), Some(verdict));
        }
        for bit in 0..HELLO_BYTES * 8 {
            let mut wrong = hello.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.check_hello(&wrong), None);
            if bit < ANSWER_BYTES * 8 {
                let mut wrong = answer.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(key.check_answer(&wrong, &meeting), None);
            }
        }
        // A hello that is sent back proves nothing.
        assert_eq!(key.check_answer(&hello[..ANSWER_BYTES], &meeting), None);
    }
}
