//! Several ranks. Each way to share the work is a module.

pub mod context;
pub mod data;
pub mod tensor;
pub mod whole;
