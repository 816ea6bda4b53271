//! What of a model a rank has, and the lengths of that.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::model::Shape;

/// What of a model a rank has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The blocks of each of its stages, in the order of the model.
    pub stages: Vec<Range<usize>>,
    /// Its number among the ranks that share each layer.
    pub tensor: usize,
    /// How many ranks share each layer.
    pub tensors: usize,
    /// Whether these share the tokens between half blocks, too.
    pub shares_tokens: bool,
    /// How many ranks share each sequence.
    pub contexts: usize,
    /// Its number among the ranks that share the experts.
    pub expert: usize,
    /// How many ranks share the experts.
    pub experts: usize,
    /// How many ranks have the same.
    pub replicas: usize,
}

impl Cut {
    /// All of it.
    pub fn whole(shape: &Shape) -> Self {
        let all = 0..shape.layers;
        Cut {
            stages: vec![all],
            tensor: 0,
            tensors: 1,
            shares_tokens: false,
            contexts: 1,
            expert: 0,
            experts: 1,
            replicas: 1,
        }
    }

    /// Whether the model can be cut so.
    ///
    /// # Errors
    /// [`Error::Configuration`] with the lengths that cannot.
    pub fn check(&self, shape: &Shape) -> Result<()> {
        let shared = [
            ("heads", shape.heads, "make --heads a multiple of --tp"),
            ("heads of keys", shape.kv_heads, "make --kv-heads a multiple of --tp"),
            ("elements inside the gated unit", shape.hidden, "make --hidden a multiple of --tp"),
            ("tokens of the vocabulary", shape.vocabulary, "make --tp a divisor of the vocabulary"),
        ];
        let uneven = shared.into_iter().find(|(_, length, _)| !length.is_multiple_of(self.tensors));
        if let Some((what, length, hint)) = uneven {
            let what = format!("{length} {what} are not shared evenly by {} tensor ranks", self.tensors);
            return Err(Error::configuration(what, hint));
        }
        let count = shape.experts.map_or(0, |experts| experts.count);
        if shape.experts.is_some() && self.tensors > 1 {
            return Err(Error::configuration(
                format!("{} tensor ranks share each matrix, and experts are not cut", self.tensors),
                "leave out --tp, or --experts",
            ));
        }
        if self.experts > 1 && (count == 0 || !count.is_multiple_of(self.experts)) {
            return Err(Error::configuration(
                format!("{count} experts are not shared evenly by {} ranks", self.experts),
                "make --experts a multiple of --ep",
            ));
        }
        if let Some(stage) = self.stages.iter().find(|stage| stage.is_empty()) {
            return Err(Error::configuration(
                format!("the stage at block {} of {} has no block", stage.start, shape.layers),
                "give a model of more --layers, or a shorter pipeline",
            ));
        }
        Ok(())
    }

    /// Whether it has a block, by its number in the whole model.
    pub fn has(&self, block: usize) -> bool {
        self.stages.iter().any(|stage| stage.contains(&block))
    }

    /// Whether the embedding is the last matrix, and both are here.
    pub fn is_tied(&self, shape: &Shape) -> bool {
        shape.tied && self.has(0) && self.has(shape.layers - 1)
    }
}

/// The lengths of what a rank has.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lengths {
    /// Elements of a token between layers.
    pub width: usize,
    /// Elements of a head.
    pub head: usize,
    /// Its heads of queries.
    pub heads: usize,
    /// Its heads of keys and of values.
    pub kv_heads: usize,
    /// Its elements of a token inside the gated unit.
    pub hidden: usize,
    /// Its tokens of the vocabulary.
    pub vocabulary: usize,
    /// Its tokens of a sequence.
    pub sequence: usize,
    /// How many ranks share the tokens between half blocks.
    pub sharers: usize,
    /// What norms add to the mean square.
    pub norm_epsilon: f64,
}

impl Lengths {
    /// Of a model that is cut.
    pub fn new(shape: &Shape, cut: &Cut) -> Self {
        Lengths {
            width: shape.width,
            head: shape.head(),
            heads: shape.heads / cut.tensors,
            kv_heads: shape.kv_heads / cut.tensors,
            hidden: shape.hidden / cut.tensors,
            vocabulary: shape.vocabulary / cut.tensors,
            sequence: shape.sequence / cut.contexts,
            sharers: if cut.shares_tokens { cut.tensors } else { 1 },
            norm_epsilon: shape.norm_epsilon,
        }
    }

    /// Elements of a token in its heads of queries.
    pub fn query_width(&self) -> usize {
        self.heads * self.head
    }

    /// Elements of a token in its heads of keys.
    pub fn key_width(&self) -> usize {
        self.kv_heads * self.head
    }
}
