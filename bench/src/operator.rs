//! The operators that can be measured: nccl-tests' `-o`.
//!
//! Invariant: names are nccl-tests'; `mulsum` is the sum of contributions that every rank multiplies by a scalar, which
//! follows from the rank alone. Absent: what the values are (`values`).

use std::str::FromStr;

use consort::ReduceOp;

/// How values are folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operator {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    MulSum,
}

impl Operator {
    pub(crate) const ALL: [Operator; 6] =
        [Operator::Sum, Operator::Prod, Operator::Max, Operator::Min, Operator::Avg, Operator::MulSum];

    /// The library's operator, whose contributions `mulsum` scales.
    pub(crate) fn folds_with(self) -> ReduceOp {
        match self {
            Operator::Sum | Operator::MulSum => ReduceOp::Sum,
            Operator::Prod => ReduceOp::Prod,
            Operator::Max => ReduceOp::Max,
            Operator::Min => ReduceOp::Min,
            Operator::Avg => ReduceOp::Avg,
        }
    }

    /// The spelling of nccl-tests.
    pub(crate) fn name(self) -> &'static str {
        if self == Operator::MulSum { "mulsum" } else { self.folds_with().name() }
    }
}

impl FromStr for Operator {
    type Err = String;

    /// Accepts [`Operator::name`] in upper or lower case.
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Operator::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            let known = Operator::ALL.map(Operator::name).join(" ");
            format!("'{text}' is no reduction operator; known: {known}")
        })
    }
}
