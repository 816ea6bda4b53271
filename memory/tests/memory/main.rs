//! The crate from outside: mappings, stamps and held memory; and the CUDA driver where there is one.
#![cfg(not(loom))]

mod captures;
mod driver;
mod mapping;
