//! The interpreter from outside: small kernels, both schedules, the memory model's litmus tests, planted mistakes, and the
//! kernels that consort ships.

mod support;

mod basic;
mod fast;
mod litmus;
mod planted;
mod shipped;
