//! The CUDA driver's wrappers, on NVIDIA's driver or the stand-in for it.

mod captures;
mod driver;
