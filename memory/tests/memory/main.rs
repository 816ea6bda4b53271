//! The crate from outside: mappings, stamps and held memory.
#![cfg(not(loom))]

mod mapping;
