//! An arena's offer as bytes.
//!
//! Invariant: a decoded offer is one that some version of this library could have written; whether it is true is for
//! the process that opens it. All numbers are little-endian. Absent: opening.

use consort_cuda::IpcHandle;

use super::NAME;
use crate::TransportError;
use crate::fields::Fields;
use crate::segment::Nonce;

const MAGIC: [u8; 4] = *b"csa1";
/// How other processes come to the memory, in one byte.
const PROCESS: u8 = 0;
const LEGACY: u8 = 1;
const SHAREABLE: u8 = 2;

/// What an offer says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OfferedArena {
    pub(super) process: Nonce,
    /// For messages.
    pub(super) process_id: u32,
    pub(super) device: [u8; 16],
    pub(super) bytes: u64,
    pub(super) key: u64,
    pub(super) way: Way,
}

/// How other processes come to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Process,
    Legacy(IpcHandle),
    Shareable { desk: Nonce, nonce: Nonce, mapped_bytes: u64 },
}

impl OfferedArena {
    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = [self.bytes, self.key].map(u64::to_le_bytes);
        let way = match &self.way {
            Way::Process => vec![PROCESS],
            Way::Legacy(handle) => [&[LEGACY], &handle.0[..]].concat(),
            Way::Shareable { desk, nonce, mapped_bytes } => {
                [&[SHAREABLE], &desk[..], nonce, &mapped_bytes.to_le_bytes()].concat()
            }
        };
        let process_id = self.process_id.to_le_bytes();
        [&MAGIC, &self.process[..], &process_id, &self.device, numbers.as_flattened(), &way].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, TransportError> {
        let bad = |reason| TransportError::BadAddress { transport: NAME, reason };
        let mut fields = Fields(bytes);
        if fields.take() != Some(MAGIC) {
            return Err(bad("it is no arena's"));
        }
        let decoded = Self::fields(&mut fields).ok_or_else(|| bad("it has the wrong length"))?;
        let decoded = decoded.ok_or_else(|| bad("it names no way to the memory"))?;
        fields.end().map(|()| decoded).ok_or_else(|| bad("it has the wrong length"))
    }

    /// `None`: too short. `Some(None)`: of another version.
    fn fields(fields: &mut Fields<'_>) -> Option<Option<Self>> {
        let (process, process_id, device) = (fields.take()?, fields.u32()?, fields.take()?);
        let (bytes, key) = (fields.u64()?, fields.u64()?);
        let way = match fields.take::<1>()? {
            [PROCESS] => Way::Process,
            [LEGACY] => Way::Legacy(IpcHandle(fields.take()?)),
            [SHAREABLE] => {
                Way::Shareable { desk: fields.take()?, nonce: fields.take()?, mapped_bytes: fields.u64()? }
            }
            _ => return Some(None),
        };
        Some(Some(Self { process, process_id, device, bytes, key, way }))
    }
}
