//! The built library as a program that calls the driver finds it: the host's side, kernels, and several processes.

#[macro_use]
mod support;

mod binaries;
mod captures;
mod host;
mod kernels;
mod processes;
