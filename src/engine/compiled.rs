//! The operations of a communicator, compiled: what was chosen for each shape of call, and what runs it.
//!
//! Invariant: there is one entry for a shape (what, which type, which operator and root, which size class, which
//! algorithm if the call names one), made by the first call of it and found again by one hash and four keys to compare,
//! without a lock or an allocation. No key names an address. The entry that was found last is looked at first. Absent:
//! plans of other communicators, which the process's planner keeps, proved.

use std::collections::VecDeque;
use std::sync::Arc;

use consort_algorithms::Plan;
use consort_algorithms::catalogue::Algorithm;
use consort_kernels::Reducer;
use consort_memory::{Span, SpanMut};

use super::bound::Bound;
use super::packets::{Direct, Leg, Line};
use super::task::Request;
use crate::Rank;
use crate::eager::{LONG, Use, row_of};
use crate::planner::{Choice, Planner, Plannings};
use consort_types::call::{Call, seed_of};
use consort_types::error::Result;

const SETS: usize = 64;
const WAYS: usize = 4;
/// Changes of the machine that are remembered for calls under way.
const MACHINES_KEPT: usize = 64;

/// Where in a shape the number of the machine is, which has [13 bits](crate::planner::Plannings).
const MACHINE_SHIFT: u32 = 19;

/// The shape of a call, with the machine that it is planned for. The settings are fixed for a communicator's life, so its choice follows
/// from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CallShape {
    packed: u64,
    algorithm: Option<Algorithm>,
}

impl CallShape {
    #[inline]
    fn of(call: &Call, ranks: u32, machine: u16) -> Self {
        let (class, streaming) = Choice::class_of(call, ranks);
        // Not the scalar: each operation brings its own.
        let op = call.operator().map_or(7, |op| op.code() as u64);
        let packed = call.kind as u64
            | (call.data_type.code() as u64) << 5
            | op << 9
            | u64::from(class) << 12
            | u64::from(streaming) << 18
            | u64::from(machine) << MACHINE_SHIFT
            // A call that has groups has no root.
            | u64::from(call.root | call.group) << 32;
        CallShape { packed, algorithm: call.algorithm }
    }

    #[inline]
    fn set(self) -> usize {
        (self.packed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SETS
    }

    fn machine(self) -> u16 {
        (self.packed >> MACHINE_SHIFT & 0x1fff) as u16
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
    /// Whether calls can be made by it without a task: not those that bring a scalar or name their algorithm.
    at_once: bool,
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
    /// What a call is packed to that is made without a task if it has as many elements; 0 where that needs one.
    key: u64,
    count: usize,
    /// What is the same in the marks of all such calls.
    pub(crate) seed: u64,
    /// What its exchange is, where that is one of lines.
    pub(crate) line: Line,
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
    /// Where the output lies from the input in the in-place form; where there is none, somewhere apart.
    in_place: usize,
    /// The least distance of the output behind the input at which they are apart, and how many more there are.
    apart: usize,
    apart_more: usize,
}

impl Last {
    fn of(call: &Call, programs: &Programs, me: Rank, ranks: u32) -> Self {
        let direct = programs.exchange.as_ref();
        let is_meeting = direct.is_some_and(|direct| direct.purpose == Use::Meet);
        let bytes = if is_meeting { 0 } else { call.count * call.data_type.size() };
        let row = row_of(bytes);
        let leg = direct.and_then(|direct| direct.only_leg()).filter(|_| row < LONG);
        let (input_bytes, output_bytes) = (call.input_bytes(me, ranks), call.output_bytes(me, ranks));
        let packed = call.descriptor().packed();
        // An empty call moves nothing, whatever call of one element its class has.
        let is_at_once = programs.at_once && call.is_plain() && call.count != 0;
        // Two stretches are apart where the second begins behind the first and ends before it, round the address space.
        let (apart, apart_more) = match (input_bytes, output_bytes) {
            (0, _) | (_, 0) => (0, usize::MAX),
            (input, output) => (input, 0usize.wrapping_sub(input).wrapping_sub(output)),
        };
        Last {
            key: if is_at_once { packed } else { 0 },
            count: call.count,
            seed: seed_of(packed, call.count as u64),
            line: direct.map_or(Line::OTHER, |direct| Line::of(direct, bytes, input_bytes, output_bytes)),
            call: *call,
            packed,
            bytes,
            row,
            leg: leg.copied(),
            input_bytes,
            output_bytes,
            in_place: call.in_place(me).unwrap_or(apart),
            apart,
            apart_more,
        }
    }

    /// What is recorded of it.
    #[inline]
    pub(crate) fn what(&self) -> (u64, u64) {
        (self.packed, self.count as u64)
    }

    /// Whether a plain call, packed, is like this one and made without a task.
    #[inline(always)]
    pub(crate) fn is_at_once(&self, packed: u64, count: usize) -> bool {
        self.key == packed && self.count == count
    }

    /// Whether the buffers are not what the call needs, as [`Call::check`] finds it.
    #[inline(always)]
    pub(crate) fn misfits(&self, input: Span<'_>, output: SpanMut<'_>) -> bool {
        let behind = (output.as_mut_ptr() as usize).wrapping_sub(input.as_ptr() as usize);
        input.len() != self.input_bytes && self.input_bytes != 0
            || output.len() != self.output_bytes && self.output_bytes != 0
            || behind.wrapping_sub(self.apart) > self.apart_more && behind != self.in_place
    }
}

impl Compiled {
    /// The same number on all ranks for calls of one shape.
    #[inline]
    pub(crate) fn shape_number(&self) -> u64 {
        self.shape.packed
    }

    fn has_run(&self) -> bool {
        self.programs.exchange.is_some() || self.programs.plan.is_some()
    }

    /// How a call of the shape folds its values.
    pub(crate) fn reducer_for(&self, call: &Call) -> Reducer {
        call.scalar.map_or(self.reducer, |scalar| self.reducer.with_scalar(scalar))
    }
}

/// The compiled operations of a communicator: a set-associative table that forgets the oldest of a set.
pub(crate) struct Operations {
    plannings: Arc<Plannings>,
    /// From which collective on calls are planned for which machine, the latest last: those of all calls under way.
    machines: VecDeque<(u64, u16)>,
    me: Rank,
    ranks: u32,
    /// Sets of [`WAYS`] entries; empty before the first call.
    entries: Vec<Option<Box<Compiled>>>,
    /// The way of each set that is taken next.
    next: Vec<u8>,
    /// The entry that was found last.
    latest: usize,
    /// The one found before it: programs take turns between two calls, a broadcast from each of two ranks for one.
    earlier: usize,
}

impl Operations {
    pub(crate) fn new(plannings: Arc<Plannings>, me: Rank, ranks: u32) -> Self {
        Operations {
            plannings,
            machines: [(0, 0)].into(),
            me,
            ranks,
            entries: Vec::new(),
            next: Vec::new(),
            latest: 0,
            earlier: 0,
        }
    }

    /// Collectives from number `from` on are planned for another machine. What was compiled for others runs calls that were entered
    /// before, and not without a task.
    pub(crate) fn go_over(&mut self, from: u64, machine: u16) {
        self.machines.push_back((from, machine));
        if self.machines.len() > MACHINES_KEPT {
            self.machines.pop_front();
        }
        let (me, ranks) = (self.me, self.ranks);
        for compiled in self.entries.iter_mut().flatten() {
            if compiled.shape.machine() == machine {
                compiled.last = Last::of(&compiled.last.call, &compiled.programs, me, ranks);
            } else {
                compiled.last.key = 0;
            }
        }
    }

    /// From which collectives on calls were planned for which machine.
    #[cfg(feature = "testing")]
    pub(crate) fn machines(&self) -> Vec<(u64, u16)> {
        self.machines.iter().copied().collect()
    }

    /// The mark of calls with that of the machine: on another one they have other plans.
    pub(super) fn mark(&self, calls: u64) -> u64 {
        calls ^ u64::from(self.machine()) << 48
    }

    /// The machine that the next collective is planned for.
    fn machine(&self) -> u16 {
        self.machines.back().map_or(0, |(_, machine)| *machine)
    }

    /// The machine that a call is planned for. The two ranks of a message agree on no number of collectives, so messages are planned for
    /// the machine of the beginning.
    fn machine_of(&self, request: &Request) -> u16 {
        if request.call.kind.is_message() {
            return 0;
        }
        let mut latest_first = self.machines.iter().rev();
        latest_first.find(|(from, _)| *from <= request.sequence).map_or(0, |(_, machine)| *machine)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        (self.entries, self.next) = (Vec::new(), Vec::new());
        (self.latest, self.earlier) = (0, 0);
    }

    /// The entry that was found last.
    #[inline(always)]
    pub(crate) fn latest(&self) -> Option<&Compiled> {
        self.entries.get(self.latest)?.as_deref()
    }

    /// The entry found before the last one, if a plain call, packed, is like its last call and made without a task; it is
    /// the latest then.
    #[inline]
    pub(crate) fn take_turns(&mut self, packed: u64, count: usize) -> Option<&Compiled> {
        let compiled = self.entries.get(self.earlier)?.as_deref()?;
        if !compiled.last.is_at_once(packed, count) {
            return None;
        }
        std::mem::swap(&mut self.latest, &mut self.earlier);
        Some(compiled)
    }

    /// Makes the entry at a place the latest.
    fn found(&mut self, at: usize) {
        if self.latest != at {
            (self.latest, self.earlier) = (at, self.latest);
        }
    }

    /// Whether the shape of the next collective is there; it is the latest then, and the call the last one of it.
    pub(crate) fn recall(&mut self, call: &Call) -> bool {
        self.recall_for(call, self.machine())
    }

    fn recall_for(&mut self, call: &Call, machine: u16) -> bool {
        let shape = CallShape::of(call, self.ranks, machine);
        let (me, ranks, first) = (self.me, self.ranks, shape.set() * WAYS);
        let is_over = machine != self.machine();
        for at in first..first + WAYS {
            if let Some(Some(compiled)) = self.entries.get_mut(at)
                && compiled.shape == shape
            {
                if compiled.last.call != *call {
                    compiled.last = Last::of(call, &compiled.programs, me, ranks);
                    if is_over {
                        compiled.last.key = 0;
                    }
                }
                self.found(at);
                return true;
            }
        }
        false
    }

    /// The entry for a call that was entered, which is made if it is not there.
    ///
    /// # Errors
    /// As [`Choice::of`].
    pub(crate) fn compile(&mut self, request: &Request) -> Result<&mut Compiled> {
        let machine = self.machine_of(request);
        self.compile_for(&request.call, machine)
    }

    fn compile_for(&mut self, call: &Call, machine: u16) -> Result<&mut Compiled> {
        if !self.recall_for(call, machine) {
            let choice = Choice::of(self.plannings.nth(machine), call)?;
            let (shape, reducer) = (CallShape::of(call, self.ranks, machine), call.reducer(self.ranks));
            self.entries.resize_with(SETS * WAYS, || None);
            self.next.resize(SETS, 0);
            let set = shape.set();
            self.found(set * WAYS + self.next[set] as usize % WAYS);
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
            let last = Last::of(call, &programs, self.me, self.ranks);
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
    pub(crate) fn mapped(&mut self, request: &Request, planner: &Planner) -> Result<Arc<Plan>> {
        let (me, ranks, call) = (self.me, self.ranks, &request.call);
        let compiled = self.compile(request)?;
        if let Some(plan) = &compiled.programs.mapped {
            return Ok(plan.clone());
        }
        let relative = (me + ranks - call.root) % ranks;
        let plan = planner.mapped(call.collective(), ranks, relative, call.first_folded(ranks))?;
        Ok(compiled.programs.mapped.insert(plan).clone())
    }

    /// The calls of this call's shape run by an exchange from now on.
    ///
    /// # Errors
    /// As [`Choice::of`].
    pub(crate) fn keep(&mut self, request: &Request, direct: Arc<Direct>) -> Result<()> {
        let (me, ranks, call) = (self.me, self.ranks, &request.call);
        let is_next = self.machine_of(request) == self.machine();
        let compiled = self.compile(request)?;
        let has_more = call.scalar.is_some() || call.algorithm.is_some();
        compiled.programs.at_once = !has_more && is_next;
        compiled.programs.exchange = Some(direct);
        compiled.last = Last::of(call, &compiled.programs, me, ranks);
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
    use crate::planner::Planning;
    use consort_control::membership::group::LostPaths;
    use consort_settings::options::Settings;
    use consort_types::call::Kind;

    fn operations() -> Operations {
        let planning = Planning::for_host(4, 4, &Options::default()).expect("a plan for a host");
        Operations::new(Arc::new(Plannings::new(Arc::new(planning))), 1, 4)
    }

    fn sum(count: usize) -> Call {
        Call::all_reduce(DataType::Float32, ReduceOp::Sum, count)
    }

    #[test]
    fn a_full_set_forgets_its_oldest() {
        let mut operations = operations();
        let roots = (0..100_000u32).map(|root| Call { root, ..sum(4) });
        let calls: Vec<Call> =
            roots.filter(|call| CallShape::of(call, 4, 0).set() == 3).take(WAYS + 1).collect();
        for call in &calls {
            assert!(!operations.recall(call));
            operations.compile_for(call, 0).expect("a choice");
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
        let known = operations.compile_for(&sum(5000), 0).expect("a choice").choice;
        assert!(operations.recall(&sum(8192)), "of one class");
        let last = operations.latest().expect("it was found");
        assert_eq!((last.choice, last.last.bytes), (known, 4 * 8192));
        assert!(!operations.recall(&sum(8193)));
        let named = Call { algorithm: Some(Algorithm::Tree), ..sum(5000) };
        assert!(!operations.recall(&named), "what one call names is its own");
        assert_eq!(
            operations.compile_for(&named, 0).expect("trees").choice.program.algorithm,
            Algorithm::Tree
        );
        assert_eq!(operations.compile_for(&sum(5000), 0).expect("a choice").choice, known);
        let error = operations.compile_for(&Call { algorithm: Some(Algorithm::Pair), ..sum(5000) }, 0);
        assert!(error.err().expect("no all-reduce").to_string().contains("pair is not defined"));
    }

    #[test]
    fn a_call_is_planned_for_the_machine_of_its_number_and_a_message_for_the_first() {
        let mut operations = operations();
        let settings = Settings::resolve_from(&Options::default(), &|_| None).expect("settings");
        let lost = [LostPaths { host: 0, left: 1, of: 2 }];
        let numbered = |call, sequence| Request { call, sequence, history: 0, record: 0 };
        let compiled = operations.compile_for(&sum(4), 0).expect("a choice");
        compiled.programs.at_once = true;
        compiled.last = Last::of(&sum(4), &compiled.programs, 1, 4);
        let is_at_once = |operations: &Operations| {
            operations.latest().is_some_and(|known| known.last.is_at_once(sum(4).packed(), 4))
        };
        assert!(is_at_once(&operations));
        for (from, lost, machine) in [(10, lost.as_slice(), 1), (20, &[], 0), (30, &lost, 1)] {
            let number = operations.plannings.go_over(lost, &Planner::default(), &settings);
            assert_eq!(number, machine, "from {from} on");
            operations.go_over(from, number);
            assert_eq!(is_at_once(&operations), machine == 0, "what is for another machine runs by a task");
        }
        let message = Call { kind: Kind::Send, root: 0, ..sum(4) };
        for (call, sequence, machine) in
            [(sum(4), 9, 0), (sum(4), 10, 1), (sum(4), 29, 0), (sum(4), 30, 1), (message, 99, 0)]
        {
            let compiled = operations.compile(&numbered(call, sequence)).expect("a choice");
            assert_eq!(compiled.shape.machine(), machine, "call {sequence}");
        }
        let current = operations.plannings.current();
        assert!(current.topology().name.ends_with("host 0 with 1 of 2 paths"));
        // No tuning table was measured there.
        assert!(current.machine().ends_with(" lost=0:1/2"), "{}", current.machine());
    }

    #[test]
    fn two_calls_take_turns_and_a_third_one_takes_the_place_of_the_earlier() {
        let mut operations = operations();
        let calls = [0, 1, 2].map(|root| Call::broadcast(DataType::Float32, 2, root));
        for call in &calls {
            let compiled = operations.compile_for(call, 0).expect("a choice");
            compiled.programs.at_once = true;
            compiled.last = Last::of(call, &compiled.programs, 1, 4);
        }
        let turn = |operations: &mut Operations, call: &Call, count| {
            operations.take_turns(call.packed(), count).map(|compiled| compiled.last.call)
        };
        for call in [&calls[1], &calls[2], &calls[1], &calls[2]] {
            assert_eq!(turn(&mut operations, call, 3), None, "another count");
            assert_eq!(turn(&mut operations, call, 2), Some(*call));
            assert_eq!(operations.latest().map(|compiled| compiled.last.call), Some(*call));
            assert_eq!(turn(&mut operations, call, 2), None, "it is the latest already");
        }
        assert_eq!(turn(&mut operations, &calls[0], 2), None, "two have come since");
        assert!(operations.recall(&calls[0]) && operations.recall(&calls[0]));
        assert_eq!(turn(&mut operations, &calls[1], 2), None);
        assert_eq!(turn(&mut operations, &calls[2], 2), Some(calls[2]));
        operations.clear();
        assert_eq!(turn(&mut operations, &calls[2], 2), None);
    }
}
