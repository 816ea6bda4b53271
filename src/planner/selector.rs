//! Which of the candidates for a call is taken, whatever carries it.
//!
//! Invariant: the first of those with the least price. A candidate that is taken last is considered only where none stands
//! free. Absent: what candidates there are, and what speaks against them.

/// What speaks against a candidate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Eligibility {
    /// Nothing.
    Free,
    /// It is taken where no other is left, for this reason.
    Last(String),
    /// It cannot be taken, for this reason.
    Out(String),
}

impl Eligibility {
    /// The reason, if there is one.
    pub(super) fn reason(self) -> Option<String> {
        match self {
            Eligibility::Free => None,
            Eligibility::Last(why) | Eligibility::Out(why) => Some(why),
        }
    }
}

/// The candidates with a price, in their order: those that stand free, or else those that are taken last.
pub(super) fn eligible<C: Copy>(all: &[C], eligibility: impl Fn(C) -> Eligibility) -> Vec<C> {
    let (mut free, mut last) = (Vec::new(), Vec::new());
    for candidate in all {
        match eligibility(*candidate) {
            Eligibility::Free => free.push(*candidate),
            Eligibility::Last(_) => last.push(*candidate),
            Eligibility::Out(_) => {}
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
