//! The properties of a communicator for `ncclCommQueryProperties`.
//!
//! Invariant: nothing is written beyond the size of the caller's structure, nor into a field that is newer than its
//! version, as padding of an older structure may stand there.

use super::comm::Comm;
use super::result::{Failure, Result};

/// `NCCL_API_MAGIC`.
const MAGIC: u32 = 0xcafe_beef;

/// `ncclCommProperties_t`, field by field, as bytes with their offset and the first version that has them.
#[derive(Debug)]
pub struct Properties {
    fields: Vec<(i32, usize, Vec<u8>)>,
}

impl Properties {
    /// Bytes of the head of every caller's structure: size, magic, version.
    pub const HEAD_BYTES: usize = 16;

    /// The properties of a communicator. The interface for devices, windows and one-sided writes report themselves as
    /// absent.
    ///
    /// # Errors
    /// As [`Comm::communicator`].
    pub fn of(comm: &Comm) -> Result<Self> {
        let (rank, size) = (comm.rank()? as i32, comm.size()? as i32);
        let number = |value: i32| value.to_ne_bytes().to_vec();
        let no = || vec![0u8];
        Ok(Properties {
            fields: vec![
                (22_902, 16, number(rank)),
                (22_902, 20, number(size)),
                (22_902, 24, number(comm.device())),
                // No device of the management library.
                (22_902, 28, number(-1)),
                // deviceApiSupport, multimemSupport, ginType.
                (22_902, 32, no()),
                (22_902, 33, no()),
                (22_902, 36, number(0)),
                // Every rank is a team of its own.
                (22_902, 40, number(size)),
                // hostRmaSupport, railedGinType.
                (22_902, 44, no()),
                (22_907, 48, number(0)),
                (23_003, 56, comm.hash()?.to_ne_bytes().to_vec()),
                // ginMinStride, ginConnectionType, ginSupport.
                (23_007, 64, number(0)),
                (23_007, 68, number(0)),
                (23_007, 72, vec![0; 64]),
                // devCommRuntimeVersionSize.
                (23_007, 136, vec![0; 8]),
                // cftSupport, cftMulticastSupport, cftCountedSupport.
                (23_102, 144, no()),
                (23_102, 145, no()),
                (23_203, 146, no()),
            ],
        })
    }

    /// The fields of a structure of `size` bytes with this head, with their offsets.
    ///
    /// # Errors
    /// For a head that no initializer made.
    pub fn written(self, size: usize, head: &[u8; Self::HEAD_BYTES]) -> Result<Vec<(usize, Vec<u8>)>> {
        let word = |at: usize| head[at..].first_chunk().copied().map_or(0, u32::from_ne_bytes);
        if size < Self::HEAD_BYTES || word(8) != MAGIC {
            return Err(Failure::argument(
                format!("an ncclCommProperties_t of {size} bytes with magic {:#x}", word(8)),
                "set it up with NCCL_COMM_PROPERTIES_INITIALIZER",
            ));
        }
        let version = i32::try_from(word(12)).unwrap_or(i32::MAX);
        let fits = |(since, offset, bytes): &(i32, usize, Vec<u8>)| {
            *since <= version && offset + bytes.len() <= size
        };
        Ok(self.fields.into_iter().filter(fits).map(|(_, offset, bytes)| (offset, bytes)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(size: usize, magic: u32, version: u32) -> [u8; 16] {
        let mut head = [0; 16];
        head[..8].copy_from_slice(&size.to_ne_bytes());
        head[8..12].copy_from_slice(&magic.to_ne_bytes());
        head[12..].copy_from_slice(&version.to_ne_bytes());
        head
    }

    #[test]
    fn nothing_is_written_that_the_caller_does_not_have() {
        let comm = Comm::local(1, None).expect("one rank").remove(0);
        let written = |size, version| {
            Properties::of(&comm).expect("joined").written(size, &head(size, MAGIC, version)).expect("a head")
        };
        assert_eq!(written(152, 23_203).last().map(|(offset, _)| *offset), Some(146));
        assert!(written(152, 23_203).len() > written(152, 22_902).len());
        assert!(written(152, 22_902).iter().all(|(offset, bytes)| offset + bytes.len() <= 45));
        assert!(written(40, 23_203).iter().all(|(offset, bytes)| offset + bytes.len() <= 40));
        assert!(written(16, 23_203).is_empty());
        for (size, magic) in [(152, 0), (8, MAGIC), (0, 0)] {
            assert!(
                Properties::of(&comm).expect("joined").written(size, &head(size, magic, 23_203)).is_err()
            );
        }
    }
}
