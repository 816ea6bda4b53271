//! The effect of each of NCCL's variables.
//!
//! Invariant: a variable is listed as honoured only where the code does what its line in the table says. Absent:
//! where a value comes from (`settings`), settings themselves (`options`), and options of a single call
//! ([`super::CallConfig`]).

mod meeting;
mod table;

use consort_types::error::Result;

pub use consort_settings::environment::{Environment, Origin, Ours, Resolved, Setting, ours};
pub use meeting::{root_if_agreed, unique_id};
pub use table::{Kind, State, Variable, find, variables};

/// The settings of a communicator that is made now with `options`, in `environment`.
///
/// # Errors
/// As making that communicator.
pub fn settings(options: &consort_settings::Options, environment: &Environment<'_>) -> Result<Vec<Setting>> {
    consort_settings::options::Settings::resolve_in(options, environment).map(|(_, settings)| settings)
}
