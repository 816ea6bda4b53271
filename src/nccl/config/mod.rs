//! seam
use crate::Options;
use crate::error::Result;
/// seam
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// seam
    pub blocking: Option<bool>,
    /// seam
    pub comm_name: Option<String>,
}
impl Config {
    /// seam
    pub fn decode(_bytes: &[u8], _text: &mut dyn FnMut(usize) -> Option<String>) -> Result<Self> {
        Ok(Config::default())
    }
    /// seam
    pub fn inherit(&self, child: Option<Config>) -> Config {
        child.unwrap_or_else(|| self.clone())
    }
    /// seam
    pub fn blocking(&self) -> bool {
        self.blocking.unwrap_or(true)
    }
    /// seam
    pub fn to_options(&self) -> Result<Options> {
        Ok(Options::default())
    }
}
/// seam
pub type Extension = (i32, i32, u64);
/// seam
#[derive(Clone, Debug, Default)]
pub struct CallConfig {
    /// seam
    pub timeout: Option<std::time::Duration>,
}
impl CallConfig {
    /// seam
    pub fn decode(
        _bytes: &[u8],
        _e: &[Extension],
        _text: &mut dyn FnMut(usize) -> Option<String>,
    ) -> Result<Self> {
        Ok(CallConfig::default())
    }
    /// seam
    pub fn algorithm_for(
        &self,
        _c: consort_algorithms::Collective,
        _r: u32,
    ) -> Option<consort_algorithms::catalogue::Algorithm> {
        None
    }
}

/// seam
pub const CALL_BYTES: usize = 72;
/// seam
pub const CONFIG_BYTES: usize = 120;
