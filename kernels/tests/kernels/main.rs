//! The kernels from outside: the definition of a fold, the same bits at every level, the formats, and folds of
//! devices.

mod support;

mod device_folds;
mod formats;
mod levels;
mod semantics;
mod words;
