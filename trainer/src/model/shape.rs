//! The lengths of a model.

use crate::error::{Error, Result};

/// Experts in the place of a block's gated unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Experts {
    /// How many there are, each a gated unit of its own.
    pub count: usize,
    /// How many of them a token goes to.
    pub top_k: usize,
}

/// The lengths of a decoder-only transformer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shape {
    /// Tokens that there are.
    pub vocabulary: usize,
    /// Elements of a token between layers.
    pub width: usize,
    /// Blocks of attention and gated unit.
    pub layers: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and of values.
    pub kv_heads: usize,
    /// Elements of a token inside the gated unit.
    pub hidden: usize,
    /// Experts, if blocks have them.
    pub experts: Option<Experts>,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// Whether the embedding is the matrix of the last layer, too.
    pub tied: bool,
    /// The base of rotary positions.
    pub rope_base: f64,
    /// What norms add to the mean square.
    pub norm_epsilon: f64,
}

impl Shape {
    /// Elements of a head.
    pub fn head(&self) -> usize {
        self.width / self.heads
    }

    /// Floating-point operations of forward and backward of one token: six for each parameter that multiplies it, and
    /// six for each pair of a query element and a key in its sequence: twelve, halved since attention is causal.
    pub fn operations_per_token(&self) -> f64 {
        let kv_width = self.kv_heads * self.head();
        let units = self.experts.map_or(1, |experts| experts.top_k);
        let router = self.experts.map_or(0, |experts| experts.count * self.width);
        let attention = 2 * self.width * self.width + 2 * self.width * kv_width;
        let block = attention + units * 3 * self.width * self.hidden + router;
        let parameters = self.layers * block + self.vocabulary * self.width;
        6.0 * (parameters + self.layers * self.width * self.sequence) as f64
    }

    /// Whether the lengths fit each other.
    ///
    /// # Errors
    /// [`Error::Configuration`] with the lengths that do not.
    pub fn check(&self) -> Result<()> {
        let zero =
            [self.vocabulary, self.width, self.layers, self.heads, self.kv_heads, self.hidden, self.sequence];
        let fault = if zero.contains(&0) {
            Some(("a length of the model is 0".to_owned(), "give lengths of 1 and more"))
        } else if !self.width.is_multiple_of(self.heads) {
            let what = format!("a width of {} is not shared evenly by {} heads", self.width, self.heads);
            Some((what, "make --width a multiple of --heads"))
        } else if !self.heads.is_multiple_of(self.kv_heads) {
            let what = format!(
                "{} heads of queries do not share {} heads of keys evenly",
                self.heads, self.kv_heads
            );
            Some((what, "make --heads a multiple of --kv-heads"))
        } else if !self.head().is_multiple_of(2) {
            let what = format!("heads have {} elements, and rotary positions turn pairs", self.head());
            Some((what, "make --width divided by --heads even"))
        } else if let Some(Experts { count, top_k }) = self.experts
            && !(1..=count).contains(&top_k)
        {
            let what = format!("a token goes to {top_k} experts, and there are {count}");
            Some((what, "make --top-k at least 1 and at most --experts"))
        } else {
            None
        };
        fault.map_or(Ok(()), |(what, hint)| Err(Error::configuration(what, hint)))
    }
}
