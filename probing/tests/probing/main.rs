//! Probes of machines that are not here: trees of files, recorded answers, and a library that stands in for NVML.

mod damage;
mod functions;
mod here;
mod library;
mod machines;
mod merging;
mod support;
