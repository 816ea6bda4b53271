//! The kernels from outside: what a fold means, that every level gives the same bits, the formats, and folds of devices.

mod support;

mod device_folds;
mod formats;
mod levels;
mod semantics;
