//! Ranks with different calls: the ways to differ, and the words that the error must have.

use consort::{Communicator, Error, ReduceOp, Result};

/// How one rank deviates from the others' `all_reduce` of 1000 floats (or, for roots, from their broadcast).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// Another number of elements.
    Count,
    /// A much larger number, of another slot length.
    LargeCount,
    /// No elements.
    Zero,
    /// Another operator.
    Operator,
    /// A sum whose contributions are scaled.
    Scaled,
    /// Another data type of the same size.
    DataType,
    /// Another root.
    Root,
    /// Another collective.
    Collective,
    /// A barrier instead.
    Barrier,
}

impl Difference {
    /// All differences.
    pub const ALL: [Difference; 9] = [
        Difference::Count,
        Difference::LargeCount,
        Difference::Zero,
        Difference::Operator,
        Difference::Scaled,
        Difference::DataType,
        Difference::Root,
        Difference::Collective,
        Difference::Barrier,
    ];

    /// By its name, as `Debug` writes it.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|difference| format!("{difference:?}") == name)
    }

    /// The words of the error besides the ranks: the two calls.
    pub fn texts(self) -> [&'static str; 2] {
        let usual = "all_reduce of 1000 float (sum)";
        match self {
            Difference::Count => [usual, "all_reduce of 1001 float (sum)"],
            Difference::LargeCount => [usual, "all_reduce of 3000000 float (sum)"],
            Difference::Zero => [usual, "all_reduce of 0 float (sum)"],
            Difference::Operator => [usual, "all_reduce of 1000 float (max)"],
            Difference::Scaled => [usual, "all_reduce of 1000 float (mulsum)"],
            Difference::DataType => [usual, "all_reduce of 1000 int32 (sum)"],
            Difference::Root => ["broadcast of 1000 float root 0", "broadcast of 1000 float root 1"],
            Difference::Collective => [usual, "broadcast of 1000 float root 0"],
            Difference::Barrier => [usual, "barrier"],
        }
    }

    /// Makes the rank's call, then the same again; returns the first error of the two.
    ///
    /// # Errors
    /// The expected one.
    pub fn act(self, comm: &Communicator, deviates: bool) -> Result<()> {
        let mut floats = vec![1.0f32; 1000];
        match (self, deviates) {
            (Difference::Count, true) => comm.all_reduce(&mut [1.0f32; 1001], ReduceOp::Sum)?,
            (Difference::LargeCount, true) => comm.all_reduce(&mut vec![1.0f32; 3_000_000], ReduceOp::Sum)?,
            (Difference::Zero, true) => comm.all_reduce::<f32>(&mut [], ReduceOp::Sum)?,
            (Difference::Operator, true) => comm.all_reduce(&mut floats, ReduceOp::Max)?,
            (Difference::Scaled, true) => comm.scaled_by(1.0f32).all_reduce(&mut floats)?,
            (Difference::DataType, true) => comm.all_reduce(&mut [1i32; 1000], ReduceOp::Sum)?,
            (Difference::Root, _) => comm.broadcast(&mut floats, u32::from(deviates))?,
            (Difference::Collective, true) => comm.broadcast(&mut floats, 0)?,
            (Difference::Barrier, true) => comm.barrier()?,
            (_, false) => comm.all_reduce(&mut floats, ReduceOp::Sum)?,
        }
        comm.barrier()
    }
}

/// The name of an error's variant.
pub fn variant(error: &Error) -> String {
    let text = format!("{error:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}
