//! NCCL's network plugins: what our loader makes of them.

mod loaded;
mod refused;
