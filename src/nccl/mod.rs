//! NCCL's contract on top of this library: what its C interface promises and the Rust interface has no use for.
//!
//! Invariant: everything here is safe Rust on values that `ffi/` has taken from C; nothing here sees a raw pointer.
//! Absent: C types, exported names, handles (`ffi/`).
