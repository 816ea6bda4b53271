//! seam
pub(super) fn root_if_agreed(_r: u32, _i: &[crate::UniqueId]) -> crate::Result<()> {
    Ok(())
}
