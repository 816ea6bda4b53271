//! Several ranks. Each way to share the work is a module.

pub mod data;
pub mod pipeline;
pub mod replica;
pub mod whole;
pub mod zero;
