//! The operations of a communicator, compiled: what was chosen for each shape of call, and what runs it.
//!
//! Invariant: there is one entry for a shape (what, which type, which operator and root, which size class, which
//! algorithm if the call names one), made by the first call of it and found again by one hash and four keys to compare,
//! without a lock or an allocation. No key names an address. The entry that was found last is looked at first. Absent:
//! plans of other communicators, which the process's planner keeps, proved.

use std::sync::Arc;

use consort_algorithms::Plan;
use consort_algorithms::catalogue::Algorithm;
use consort_kernels::Reducer;

use super::Buffers;
use super::bound::Bound;
use super::packets::{Direct, Leg};
use crate::Rank;
use crate::eager::{LONG, Use, row_of};
use crate::planner::{Choice, Planner, Planning};
use consort_types::call::Call;
use consort_types::error::Result;

const SETS: usize = 64;
const WAYS: usize = 4;

/// The shape of a call. The settings are fixed for a communicator's life, so its choice follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CallShape {
    packed: u64,
    algorithm: Option<Algorithm>,
}

impl CallShape {
    #[inline]
    fn of(call: &Call, ranks: u32) -> Self {
        let (class, streaming) = Choice::class_of(call, ranks);
        // Not the scalar: each operation brings its own.
        let op = call.operator().map_or(7, |op| op.code() as u64);
        let packed = call.kind as u64
            | (call.data_type.code() as u64) << 5
            | op << 9
            | u64::from(class) << 12
            | u64::from(streaming) << 18
            | u64::from(call.root) << 32;
        CallShape { packed, algorithm: call.algorithm }
    }

    #[inline]
    fn set(self) -> usize {
        (self.packed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SETS
    }

    /// All of it but the size class and what follows from that.
    fn without_class(self) -> (u64, Option<Algorithm>) {
        (self.packed & !(0x7f << 12), self.algorithm)
    }
}

/// What runs the calls of a shape: each way in which one has run.
#[derive(Clone, Default)]
pub(crate) struct Programs {
    /// Messages that carry their flag, sent directly.
    pub(crate) exchange: Option<Arc<Direct>>,
    /// The same of calls that can be made without a task: not those that bring a scalar or name their algorithm.
    at_once: Option<Arc<Direct>>,
    /// A plan over links.
    pub(crate) plan: Option<Arc<Bound>>,
    /// A plan on buffers that all ranks have mapped.
    mapped: Option<Arc<Plan>>,
}

/// A shape of call, compiled.
pub(crate) struct Compiled {
    shape: CallShape,
    pub(crate) choice: Choice,
    pub(crate) programs: Programs,
    /// How its values are folded; a pre-multiplied sum by the scalar of some operation.
    pub(crate) reducer: Reducer,
    /// The last call of the shape.
    pub(crate) last: Last,
}

/// A call, with what follows from it on this rank.
pub(crate) struct Last {
    pub(crate) call: Call,
    pub(crate) packed: u64,
    /// Bytes of a block, and the row of messages as long.
    pub(crate) bytes: usize,
    pub(crate) row: usize,
    /// The only leg of its exchange, if it has one and its messages are not long: what runs then needs no list.
    pub(crate) leg: Option<Leg>,
    /// Bytes of the buffers; 0 where this rank has none.
    input_bytes: usize,
    output_bytes: usize,
    /// Where the output lies from the input in the in-place form, if there is one.
    in_place: Option<usize>,
}

impl Last {
    fn of(call: &Call, direct: Option<&Arc<Direct>>, me: Rank, ranks: u32) -> Self {
        let is_meeting = direct.is_some_and(|direct| direct.purpose == Use::Meet);
        let bytes = if is_meeting { 0 } else { call.count * call.data_type.size() };
        let row = row_of(bytes);
        let leg = direct.and_then(|direct| direct.only_leg()).filter(|_| row < LONG);
        Last {
            call: *call,
            packed: call.descriptor().packed(),
            bytes,
            row,
            leg: leg.copied(),
            input_bytes: call.input_bytes(me, ranks),
            output_bytes: call.output_bytes(me, ranks),
            in_place: call.in_place(me),
        }
    }
}

impl Compiled {
    /// The exchange that runs the call without a task, if the call is like the last one of the shape.
    #[inline(always)]
    pub(crate) fn at_once(&self, call: &Call) -> Option<&Arc<Direct>> {
        let Call { kind, data_type, op, root, count, .. } = self.last.call;
        let is_alike = || {
            count == call.count
                && call.scalar.is_none()
                && call.algorithm.is_none()
                && call.counts == 0
                && kind == call.kind
                && data_type == call.data_type
                && op == call.op
                && root == call.root
        };
        self.programs.at_once.as_ref().filter(|_| is_alike())
    }

    /// The same number on all ranks for calls of one shape.
    #[inline]
    pub(crate) fn shape_number(&self) -> u64 {
        self.shape.packed
    }

    /// Whether ranks meet before a call of the shape, unless they have met in vain before.
    #[inline(always)]
    pub(crate) fn meets(&self) -> bool {
        self.choice.meets
    }

    fn has_run(&self) -> bool {
        self.programs.exchange.is_some() || self.programs.plan.is_some()
    }

    /// How a call of the shape folds its values.
    pub(crate) fn reducer_for(&self, call: &Call) -> Reducer {
        call.scalar.map_or(self.reducer, |scalar| self.reducer.with_scalar(scalar))
    }

    /// Whether the buffers are what the last call needs, as [`Call::check`] finds it.
    #[inline(always)]
    pub(crate) fn fits(&self, buffers: &Buffers<'_>) -> bool {
        let (input, output) = (buffers.input, buffers.output);
        let Last { input_bytes, output_bytes, in_place, .. } = self.last;
        if input_bytes != 0 && input.len() != input_bytes || output_bytes != 0 && output.len() != output_bytes
        {
            return false;
        }
        let (from, to) = (input.as_ptr() as usize, output.as_mut_ptr() as usize);
        input_bytes == 0
            || output_bytes == 0
            || in_place == Some(to.wrapping_sub(from))
            || from + input_bytes <= to
            || to + output_bytes <= from
    }
}

/// The compiled operations of a communicator: a set-associative table that forgets the oldest of a set.
pub(crate) struct Operations {
    planning: Arc<Planning>,
    me: Rank,
    ranks: u32,
    /// Sets of [`WAYS`] entries; empty before the first call.
    entries: Vec<Option<Box<Compiled>>>,
    /// The way of each set that is taken next.
    next: Vec<u8>,
    /// The entry that was found last.
    latest: usize,
}

impl Operations {
    pub(crate) fn new(planning: Arc<Planning>, me: Rank, ranks: u32) -> Self {
        Operations { planning, me, ranks, entries: Vec::new(), next: Vec::new(), latest: 0 }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        (self.entries, self.next, self.latest) = (Vec::new(), Vec::new(), 0);
    }

    /// The entry that was found last.
    #[inline(always)]
    pub(crate) fn latest(&self) -> Option<&Compiled> {
        self.entries.get(self.latest)?.as_deref()
    }

    /// Whether the shape of a call is there; it is the latest then, and the call the last one of it.
    pub(crate) fn recall(&mut self, call: &Call) -> bool {
        let shape = CallShape::of(call, self.ranks);
        let (me, ranks, first) = (self.me, self.ranks, shape.set() * WAYS);
        for at in first..first + WAYS {
            if let Some(Some(compiled)) = self.entries.get_mut(at)
                && compiled.shape == shape
            {
                self.latest = at;
                if compiled.last.call != *call {
                    compiled.last = Last::of(call, compiled.programs.exchange.as_ref(), me, ranks);
                }
                return true;
            }
        }
        false
    }

    /// The entry for a call, which is made if it is not there.
    ///
    /// # Errors
    /// As [`Choice::of`].
    pub(crate) fn compile(&mut self, call: &Call) -> Result<&mut Compiled> {
        if !self.recall(call) {
            let choice = Choice::of(&self.planning, call)?;
            let (shape, reducer) = (CallShape::of(call, self.ranks), call.reducer(self.ranks));
            self.entries.resize_with(SETS * WAYS, || None);
            self.next.resize(SETS, 0);
            let set = shape.set();
            self.latest = set * WAYS + self.next[set] as usize % WAYS;
            self.next[set] = self.next[set].wrapping_add(1);
            // As of a shape that differs in its size class alone, where that changes nothing of what runs.
            let is_alike = |known: &&Compiled| {
                known.shape.without_class() == shape.without_class() && known.choice == choice
            };
            let alike = self
                .entries
                .iter()
                .flatten()
                .map(|known| &**known)
                .filter(is_alike)
                .find(|known| known.has_run());
            let programs = alike.map(|known| known.programs.clone()).unwrap_or_default();
            let last = Last::of(call, programs.exchange.as_ref(), self.me, self.ranks);
            let compiled = Compiled { shape, choice, programs, reducer, last };
            return Ok(self.entries[self.latest].insert(Box::new(compiled)));
        }
        match &mut self.entries[self.latest] {
            Some(compiled) => Ok(compiled),
            None => unreachable!("what is recalled is there"),
        }
    }

    /// The plan of a call's shape on buffers that all ranks have mapped.
    ///
    /// # Errors
    /// As [`Planner::mapped`].
    pub(crate) fn mapped(&mut self, call: &Call, planner: &Planner) -> Result<Arc<Plan>> {
        let (me, ranks) = (self.me, self.ranks);
        let compiled = self.compile(call)?;
        if let Some(plan) = &compiled.programs.mapped {
            return Ok(plan.clone());
        }
        let relative = (me + ranks - call.root) % ranks;
        let plan = planner.mapped(call.kind.collective(), ranks, relative, call.first_folded(ranks))?;
        Ok(compiled.programs.mapped.insert(plan).clone())
    }

    /// The calls of this call's shape run by an exchange from now on.
    ///
    /// # Errors
    /// As [`Choice::of`].
    pub(crate) fn keep(&mut self, call: &Call, direct: Arc<Direct>) -> Result<()> {
        let (me, ranks) = (self.me, self.ranks);
        let compiled = self.compile(call)?;
        compiled.last = Last::of(call, Some(&direct), me, ranks);
        let has_more = call.scalar.is_some() || call.algorithm.is_some();
        compiled.programs.at_once = (!has_more).then(|| direct.clone());
        compiled.programs.exchange = Some(direct);
        Ok(())
    }

    /// Bytes of the table and of what is in it.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of = |compiled: &Compiled| {
            let Programs { exchange, plan, .. } = &compiled.programs;
            let exchange = exchange.as_ref().map_or(0, |direct| direct.memory_bytes());
            // Its share: shapes that differ in their class have the same.
            let plan = plan.as_ref().map_or(0, |plan| plan.memory_bytes() / Arc::strong_count(plan));
            size_of::<Compiled>() + exchange + plan
        };
        let tables = self.entries.capacity() * size_of::<Option<Box<Compiled>>>() + self.next.capacity();
        tables + self.entries.iter().flatten().map(|compiled| of(compiled)).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use consort_kernels::{DataType, ReduceOp};

    use super::*;
    use crate::Options;

    fn operations() -> Operations {
        let planning = Planning::for_host(4, 4, &Options::default()).expect("a plan for a host");
        Operations::new(Arc::new(planning), 1, 4)
    }

    fn sum(count: usize) -> Call {
        Call::all_reduce(DataType::Float32, ReduceOp::Sum, count)
    }

    #[test]
    fn a_full_set_forgets_its_oldest() {
        let mut operations = operations();
        let roots = (0..100_000u32).map(|root| Call { root, ..sum(4) });
        let calls: Vec<Call> =
            roots.filter(|call| CallShape::of(call, 4).set() == 3).take(WAYS + 1).collect();
        for call in &calls {
            assert!(!operations.recall(call));
            operations.compile(call).expect("a choice");
        }
        assert!(!operations.recall(&calls[0]));
        for call in &calls[1..] {
            assert!(operations.recall(call));
            assert_eq!(operations.latest().map(|compiled| compiled.last.call), Some(*call));
        }
    }

    #[test]
    fn a_class_is_one_shape_and_remembers_its_last_call() {
        let mut operations = operations();
        let known = operations.compile(&sum(5000)).expect("a choice").choice;
        assert!(operations.recall(&sum(8192)), "of one class");
        let last = operations.latest().expect("it was found");
        assert_eq!((last.choice, last.last.bytes), (known, 4 * 8192));
        assert!(!operations.recall(&sum(8193)));
        let named = Call { algorithm: Some(Algorithm::Tree), ..sum(5000) };
        assert!(!operations.recall(&named), "what one call names is its own");
        assert_eq!(operations.compile(&named).expect("trees").choice.program.algorithm, Algorithm::Tree);
        assert_eq!(operations.compile(&sum(5000)).expect("a choice").choice, known);
        let error = operations.compile(&Call { algorithm: Some(Algorithm::Pair), ..sum(5000) });
        assert!(error.err().expect("no all-reduce").to_string().contains("pair is not defined"));
    }
}
