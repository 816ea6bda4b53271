//! The crate from outside: mappings, stamps and held memory; and the CUDA driver where there is one.
#![cfg(not(loom))]

mod driver;
mod mapping;
