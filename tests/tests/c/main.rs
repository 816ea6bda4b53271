//! Programs in C on the built library, and the text of the device kernels as the host's compiler builds it.

mod contract;
mod device_kernels;
mod extensions;
mod interface;
