//! How a run can fail. Each error says what is wrong, where, and what to do.

use std::path::Path;

/// The result of what can fail here.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can end a run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A number of the configuration does not fit the others.
    #[error("{what}; {hint}")]
    Configuration {
        /// What does not fit, with the values.
        what: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// The text is too short to train on.
    #[error(
        "the text has {tokens} tokens, and sequences of {sequence} need {needed}; give a longer text or a smaller --sequence"
    )]
    ShortText {
        /// The tokens that the text has.
        tokens: usize,
        /// The tokens of a sequence.
        sequence: usize,
        /// The tokens that it must have.
        needed: usize,
    },
    /// A file could not be read or written.
    #[error("{path} could not be {verb}: {error}")]
    File {
        /// The file.
        path: String,
        /// `read`, `written`, `made`, `removed` or `found`.
        verb: &'static str,
        /// What the system says.
        error: std::io::Error,
    },
    /// A checkpoint is not whole, or of another run.
    #[error("{path}: {why}; {hint}")]
    Checkpoint {
        /// The file or directory.
        path: String,
        /// What is wrong with it.
        why: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// Another rank has failed, and all end alike.
    #[error("rank {rank} could not go on; it says why itself")]
    Elsewhere {
        /// That rank.
        rank: u64,
    },
    /// The picture of the losses could not be drawn.
    #[error("the chart {path} could not be drawn: {why}; name another file with --chart or --timeline")]
    Chart {
        /// The file.
        path: String,
        /// What the drawing library says.
        why: String,
    },
    /// The loss or the gradient is no longer a number.
    #[error("step {step}: {quantity} is {value}; lower --rate, or raise --warmup")]
    Diverged {
        /// The step, counted from 1.
        step: usize,
        /// `the loss` or `the gradient's norm`.
        quantity: &'static str,
        /// Its value.
        value: f64,
    },
    /// The ranks could not be started, or one of them failed.
    #[error("{what}; {hint}")]
    Launch {
        /// Which rank, and how it ended.
        what: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// A call of the library failed.
    #[error(transparent)]
    Library(#[from] consort::Error),
    /// There is less memory than a run needs.
    #[error("{needed}, and {available}; {hint}")]
    Demand {
        /// Whose bytes, how many, and what of.
        needed: String,
        /// How many there are, and who says so.
        available: String,
        /// What makes them fewer.
        hint: &'static str,
    },
    /// There is no memory for parameters or gradients.
    #[error("no memory for parameters and gradients: {0}; choose a smaller model, or start fewer ranks")]
    Memory(#[from] consort::MemoryError),
}

impl Error {
    /// A file or directory that could not be read or written.
    pub(crate) fn file(path: &Path, verb: &'static str, error: std::io::Error) -> Self {
        Error::File { path: path.display().to_string(), verb, error }
    }

    /// A configuration that does not fit.
    pub(crate) fn configuration(what: String, hint: &'static str) -> Self {
        Error::Configuration { what, hint }
    }
}
