//! Programs in C on the built library.

mod contract;
mod extensions;
mod interface;
