//! Which of the candidates for a call is taken, whatever carries it.
//!
//! Invariant: the first of those with the least price. A candidate that is taken last is considered only where none stands
//! free. Absent: what candidates there are, and what speaks against them.

/// What speaks against a candidate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Nothing.
    Free,
    /// It is taken where no other is left, for this reason.
    Last(String),
    /// It cannot be taken, for this reason.
    Out(String),
}

impl Standing {
    /// The reason, if there is one.
    pub(super) fn reason(self) -> Option<String> {
        match self {
            Standing::Free => None,
            Standing::Last(why) | Standing::Out(why) => Some(why),
        }
    }
}

/// The candidates with a price, in their order: those that stand free, or else those that are taken last.
pub(super) fn eligible<C: Copy>(all: &[C], standing: impl Fn(C) -> Standing) -> Vec<C> {
    let (mut free, mut last) = (Vec::new(), Vec::new());
    for candidate in all {
        match standing(*candidate) {
            Standing::Free => free.push(*candidate),
            Standing::Last(_) => last.push(*candidate),
            Standing::Out(_) => {}
        }
    }
    if free.is_empty() { last } else { free }
}

/// The first of the eligible candidates with the least price. One alone needs no price.
pub(crate) fn least<C: Copy>(eligible: &[C], price: impl Fn(C) -> f64) -> Option<C> {
    if let [only] = eligible {
        return Some(*only);
    }
    let priced = eligible.iter().map(|candidate| (price(*candidate), *candidate));
    priced.reduce(|best, next| if next.0 < best.0 { next } else { best }).map(|(_, candidate)| candidate)
}
