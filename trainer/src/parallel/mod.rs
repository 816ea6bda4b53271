//! Several ranks. Each way to share the work is a module.

pub mod data;
pub mod pipeline;
pub mod tensor;
pub mod whole;
