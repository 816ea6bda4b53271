//! Ranks on devices, on the stand-in for the driver, and the kernels of devices in the interpreter: none of it shows
//! anything about NVIDIA's driver or devices.

mod c;
mod discarded;
mod images;
mod made;
mod memory;
mod ptx_folds;
mod ranks;
mod standin;

/// The program that is a rank of its own process.
const RANK: &str = env!("CARGO_BIN_EXE_device-rank");
