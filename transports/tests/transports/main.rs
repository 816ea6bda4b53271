//! The transports from outside: the suite that all of them run, the simulated network, memory of devices, and what needs
//! several processes or one to itself.

#[macro_use]
mod child;

mod conformance;
mod cuda_ipc;
mod processes;
mod simnet;
