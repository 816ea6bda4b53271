//! The operators that a collective folds with.
//!
//! Invariant: codes and names are those of NCCL (`ncclRedOp_t`) and nccl-tests. Absent: the pre-multiplied sum,
//! which is a [`ReduceOp::Sum`] with a `Scalar` of each rank (`factor`), and how each is computed (`number`).

use std::str::FromStr;

use crate::named::named;

/// How two values are combined. The discriminants are NCCL's `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReduceOp {
    /// Addition; integers wrap.
    Sum = 0,
    /// Multiplication; integers wrap.
    Prod = 1,
    /// IEEE 754-2019 `maximum`: NaN wins, −0 is less than +0.
    Max = 2,
    /// IEEE 754-2019 `minimum`: NaN wins, −0 is less than +0.
    Min = 3,
    /// The mean: floats scale each contribution, integers divide the sum.
    Avg = 4,
}

impl ReduceOp {
    /// All operators, in the order of their codes.
    pub const ALL: [ReduceOp; 5] =
        [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];

    /// The operator with this code, if there is one.
    #[inline]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// NCCL's number for the operator.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The spelling of nccl-tests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
        }
    }
}

named!(ReduceOp, ParseReduceOpError, "reduction operator");

impl FromStr for ReduceOp {
    type Err = ParseReduceOpError;

    /// Accepts [`ReduceOp::name`] in upper or lower case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| ParseReduceOpError(text.to_owned()))
    }
}

/// How two elements are combined.
#[derive(Clone, Copy)]
pub(crate) enum Combination {
    Add,
    Multiply,
    Larger,
    Smaller,
}

/// What a kernel computes, as a type, so that each kernel is compiled for one.
pub(crate) trait Op: Copy + 'static {
    const COMBINES: Combination;
    /// Whether raw sources are multiplied by a factor first.
    const SCALES: bool;
    /// Whether the result is divided by the number of contributions.
    const DIVIDES: bool;
    /// Whether the result is the sum of the sources without a factor or a divisor.
    const IS_PLAIN_SUM: bool = matches!(Self::COMBINES, Combination::Add) && !Self::SCALES && !Self::DIVIDES;
}

macro_rules! ops {
    ($($op:ident: $combination:ident, $scales:literal, $divides:literal;)*) => {
        /// What a kernel computes, as a value.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Formula {
            $($op,)*
        }
        $(
            #[derive(Clone, Copy)]
            pub(crate) struct $op;
            impl Op for $op {
                const COMBINES: Combination = Combination::$combination;
                const SCALES: bool = $scales;
                const DIVIDES: bool = $divides;
            }
        )*
    };
}
ops! {
    Sum: Add, false, false;
    Prod: Multiply, false, false;
    Max: Larger, false, false;
    Min: Smaller, false, false;
    ScaledSum: Add, true, false;
    DividedSum: Add, false, true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_come_back() {
        for (code, op) in ReduceOp::ALL.into_iter().enumerate() {
            assert_eq!(op.code() as usize, code);
            assert_eq!(ReduceOp::from_code(code as u32), Some(op));
            assert_eq!(op.to_string().parse(), Ok(op));
        }
        assert_eq!(ReduceOp::from_code(5), None);
        assert!("mean".parse::<ReduceOp>().unwrap_err().to_string().contains("avg"));
    }
}
