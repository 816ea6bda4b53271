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
        let units = self.experts.map_or(1, |experts| experts.top_k);
        let layers = self.layers as f64 * self.width as f64;
        6.0 * (self.multiplied(units) + layers * self.sequence as f64)
    }

    /// The elements of all matrices but the embedding, with `units` gated units in a block.
    fn multiplied(&self, units: usize) -> f64 {
        let [width, keys, hidden] =
            [self.width, self.kv_heads * self.head(), self.hidden].map(|length| length as f64);
        let router = self.experts.map_or(0.0, |experts| experts.count as f64 * width);
        let block = 2.0 * width * (width + keys) + units as f64 * 3.0 * width * hidden + router;
        self.layers as f64 * block + self.vocabulary as f64 * width
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
        } else if 64.0 * self.multiplied(self.experts.map_or(1, |experts| experts.count)) > isize::MAX as f64
        {
            Some((
                "the parameters are more than can be counted".to_owned(),
                "choose a smaller --width, --hidden or --layers",
            ))
        } else {
            None
        };
        fault.map_or(Ok(()), |(what, hint)| Err(Error::configuration(what, hint)))
    }
}
