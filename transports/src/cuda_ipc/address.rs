//! An arena's offer as bytes.
//!
//! Invariant: a decoded offer is one that some version of this library could have written; whether it is true is for
//! the process that opens it. All numbers are little-endian. Absent: opening.

use consort_cuda::IpcHandle;

use super::NAME;
use crate::TransportError;
use crate::segment::{NONCE_BYTES, Nonce};

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

/// Takes fields off the front.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }
}

impl OfferedArena {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend(MAGIC);
        bytes.extend(self.process);
        bytes.extend(self.process_id.to_le_bytes());
        bytes.extend(self.device);
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(self.key.to_le_bytes());
        match &self.way {
            Way::Process => bytes.push(PROCESS),
            Way::Legacy(handle) => {
                bytes.push(LEGACY);
                bytes.extend(handle.0);
            }
            Way::Shareable { desk, nonce, mapped_bytes } => {
                bytes.push(SHAREABLE);
                bytes.extend(desk);
                bytes.extend(nonce);
                bytes.extend(mapped_bytes.to_le_bytes());
            }
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, TransportError> {
        let bad = |reason| TransportError::BadAddress { transport: NAME, reason };
        let mut fields = Fields(bytes);
        if fields.take() != Some(MAGIC) {
            return Err(bad("it is no arena's"));
        }
        let decoded = Self::fields(&mut fields).ok_or_else(|| bad("it has the wrong length"))?;
        let decoded = decoded.ok_or_else(|| bad("it names no way to the memory"))?;
        if !fields.0.is_empty() {
            return Err(bad("it has the wrong length"));
        }
        Ok(decoded)
    }

    /// `None`: too short. `Some(None)`: of another version.
    fn fields(fields: &mut Fields<'_>) -> Option<Option<Self>> {
        let process = fields.take::<NONCE_BYTES>()?;
        let process_id = u32::from_le_bytes(fields.take()?);
        let device = fields.take()?;
        let bytes = u64::from_le_bytes(fields.take()?);
        let key = u64::from_le_bytes(fields.take()?);
        let way = match fields.take::<1>()? {
            [PROCESS] => Way::Process,
            [LEGACY] => Way::Legacy(IpcHandle(fields.take()?)),
            [SHAREABLE] => {
                let (desk, nonce) = (fields.take()?, fields.take()?);
                Way::Shareable { desk, nonce, mapped_bytes: u64::from_le_bytes(fields.take()?) }
            }
            _ => return Some(None),
        };
        Some(Some(Self { process, process_id, device, bytes, key, way }))
    }
}
