//! Reduction operators that C made: sums of contributions that each rank multiplies first.
//!
//! Invariant: the number of an operator identifies its communicator and the operator, so that an operator of another
//! communicator, or one that was destroyed, is refused.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use consort_kernels::{DataType, ReduceOp, Scalar};

use super::result::{Failure, Result};

/// The first number that is no built-in operator's.
const FIRST: i32 = 5;
const INDEX_BITS: u32 = 12;
/// Keeps numbers positive.
const GENERATION_BITS: u32 = 18;

/// The scalar of an operator.
#[derive(Clone)]
pub enum Scale {
    /// Read when the operator is made.
    Now(Scalar),
    /// Read whenever a call is made with the operator.
    Later(Arc<dyn Fn() -> Result<Scalar> + Send + Sync>),
}

impl Scale {
    fn read(&self) -> Result<Scalar> {
        match self {
            Scale::Now(scalar) => Ok(*scalar),
            Scale::Later(read) => read(),
        }
    }
}

impl fmt::Debug for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scale::Now(scalar) => f.debug_tuple("Now").field(scalar).finish(),
            Scale::Later(_) => f.write_str("Later"),
        }
    }
}

/// The reduction of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reduction {
    /// The operator.
    pub op: ReduceOp,
    /// The factor of every contribution of this rank.
    pub scalar: Option<Scalar>,
}

struct Slot {
    generation: u32,
    made: Option<(DataType, Scale)>,
}

/// The operators of one communicator.
#[derive(Default)]
pub(super) struct Operators(Mutex<Vec<Slot>>);

impl Operators {
    /// The first generation of a communicator's operators: far from those of others.
    fn base(serial: u64) -> u32 {
        (serial.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - GENERATION_BITS)) as u32
    }

    /// Makes an operator and returns its number.
    ///
    /// # Errors
    /// Where the communicator has used all numbers.
    pub(super) fn create(&self, serial: u64, data_type: DataType, scale: Scale) -> Result<i32> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = slots.iter().position(|slot| slot.made.is_none());
        let index = match free {
            Some(index) => index,
            None if slots.len() < 1 << INDEX_BITS => {
                slots.push(Slot { generation: Self::base(serial), made: None });
                slots.len() - 1
            }
            None => {
                return Err(Failure::usage(
                    format!("the communicator has {} reduction operators", slots.len()),
                    "destroy those that are no longer used with ncclRedOpDestroy",
                ));
            }
        };
        let slot = &mut slots[index];
        slot.generation = (slot.generation + 1) & ((1 << GENERATION_BITS) - 1);
        slot.made = Some((data_type, scale));
        Ok(FIRST + ((slot.generation << INDEX_BITS) as i32 | index as i32))
    }

    /// The slot of a number, if it is one of these operators.
    fn index(slots: &[Slot], number: i32) -> Option<usize> {
        let bits = u32::try_from(number.checked_sub(FIRST)?).ok()?;
        let index = (bits & ((1 << INDEX_BITS) - 1)) as usize;
        let slot = slots.get(index)?;
        (slot.generation == bits >> INDEX_BITS && slot.made.is_some()).then_some(index)
    }

    /// Destroys an operator. Operations that were issued with it keep what they need.
    ///
    /// # Errors
    /// For a number that is not one of this communicator's operators.
    pub(super) fn destroy(&self, number: i32) -> Result<()> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match Self::index(&slots, number) {
            Some(index) => {
                slots[index].made = None;
                Ok(())
            }
            None => {
                Err(unknown(number, "pass what ncclRedOpCreatePreMulSum made on this communicator, once"))
            }
        }
    }

    /// The reduction of a number.
    ///
    /// # Errors
    /// For an unknown number, and an operator of another data type.
    pub(super) fn find(&self, number: i32, data_type: DataType) -> Result<Reduction> {
        if let Some(op) = u32::try_from(number).ok().and_then(ReduceOp::from_code) {
            return Ok(Reduction { op, scalar: None });
        }
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = Self::index(&slots, number).and_then(|index| slots[index].made.as_ref());
        let Some((made_for, scale)) = slot else {
            return Err(unknown(number, "pass one of ncclRedOp_t or an operator made on this communicator"));
        };
        if *made_for != data_type {
            return Err(Failure::argument(
                format!("the operator was made for {made_for} and the call is of {data_type}"),
                "make one for each data type",
            ));
        }
        // Read now: the caller may destroy the operator, and free its scalar, as soon as the call has returned.
        Ok(Reduction { op: ReduceOp::Sum, scalar: Some(scale.read()?) })
    }
}

fn unknown(number: i32, hint: &str) -> Failure {
    Failure::argument(format!("there is no reduction operator {number} on this communicator"), hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn numbers_of_other_communicators_and_destroyed_ones_are_found_out() {
        let (mine, other) = (Operators::default(), Operators::default());
        let number = mine.create(1, DataType::Float32, Scale::Now(Scalar::of(2.0f32))).expect("an operator");
        assert!(number >= FIRST);
        other.create(2, DataType::Float32, Scale::Now(Scalar::of(2.0f32))).expect("an operator");
        assert!(mine.find(number, DataType::Float32).expect("it is there").scalar.is_some());
        assert_eq!(mine.find(number, DataType::Float64).expect_err("a type").code, Code::InvalidArgument);
        assert_eq!(other.find(number, DataType::Float32).expect_err("foreign").code, Code::InvalidArgument);
        mine.destroy(number).expect("it is there");
        assert!(mine.destroy(number).is_err() && mine.find(number, DataType::Float32).is_err());
        let next = mine.create(1, DataType::Int8, Scale::Now(Scalar::of(2.0f32))).expect("an operator");
        assert_ne!(next, number);
        for built_in in 0..5 {
            assert!(mine.find(built_in, DataType::Int8).expect("built in").scalar.is_none());
            assert!(mine.destroy(built_in).is_err());
        }
        for nonsense in [-1, i32::MIN, i32::MAX, 5] {
            assert!(mine.find(nonsense, DataType::Int8).is_err());
        }
    }

    #[test]
    fn there_is_an_end_to_numbers() {
        let operators = Operators::default();
        let all: Vec<i32> = (0..1 << INDEX_BITS)
            .map(|_| operators.create(9, DataType::Int8, Scale::Now(Scalar::of(1i8))).expect("room"))
            .collect();
        let refused = operators.create(9, DataType::Int8, Scale::Now(Scalar::of(1i8))).expect_err("full");
        assert_eq!(refused.code, Code::InvalidUsage);
        operators.destroy(all[7]).expect("it is there");
        operators.create(9, DataType::Int8, Scale::Now(Scalar::of(1i8))).expect("room again");
    }
}
