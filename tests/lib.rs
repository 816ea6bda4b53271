//! Shared helpers of the multi-process tests.
