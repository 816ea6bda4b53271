//! The settings ([`options`]), where the value of each comes from ([`environment`]), and warnings and information
//! about them ([`notice`]).
//!
//! Invariant: the environment is read and never changed. Absent: what a setting does.

#![forbid(unsafe_code)]

pub mod environment;
pub mod notice;
pub mod options;

pub use options::Options;
