//! seam
/// seam
pub fn warn(_d: i32, _t: impl std::fmt::Display) {}
/// seam
pub fn call(_t: impl std::fmt::Display) {}
/// seam
pub fn reset() {}
/// seam
pub const NO_DEVICE: i32 = -1;
