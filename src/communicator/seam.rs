//! seam
use super::*;
/// seam
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shrink {
    /// seam
    Idle,
    /// seam
    Abort,
}
impl Communicator {
    pub(crate) fn join_scalable_unless(
        rank: Rank,
        size: u32,
        ids: &[crate::UniqueId],
        options: &crate::Options,
        _c: &std::sync::atomic::AtomicBool,
    ) -> Result<Self> {
        Self::join_with(rank, size, &ids[0], options)
    }
    /// seam
    pub fn shrink(&self, _e: &[Rank], _h: Shrink) -> Result<Communicator> {
        Err(Error::internal("seam"))
    }
    /// seam
    pub fn grow(&self, _s: u32, _i: Option<&crate::UniqueId>) -> Result<Communicator> {
        Err(Error::internal("seam"))
    }
    /// seam
    pub fn grow_id(&self) -> Result<crate::UniqueId> {
        Err(Error::internal("seam"))
    }
}
