//! One thread, for one turn.
//!
//! Invariant: when a turn ends, the thread's position is that of its next instruction. After a fault, it is that of
//! the instruction that caused it. Absent: the choice of the next thread.

use super::Random;
use super::block::{Block, State, Torn};
use super::spaces::View;
use crate::fault::Problem;
use crate::memory::{Access, Atomic, Memory, Site};
use crate::program::{ALWAYS, Combine, How, Instruction, Op, SINK, Slot, window};
use crate::value::{mask, signed};

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The turn was long enough.
    Budget,
    /// The thread ended.
    Ended,
    /// It stands at a barrier, which [`super::barrier`] handles.
    Barrier,
    /// It stands at an instruction of its warp, which [`super::warp`] handles.
    Warp,
    /// It loaded again what it had loaded, or slept.
    Polled,
}

/// The state that turns share.
pub(super) struct Turns {
    pub(super) random: Random,
    pub(super) tear: bool,
    /// Whether a turn ends when its thread polls.
    pub(super) polls: bool,
    pub(super) watch: bool,
    pub(super) executed: u64,
    /// The value of `executed` at the last change that other threads can see.
    pub(super) progress: u64,
    pub(super) began: Option<std::time::Instant>,
}

/// Lets thread `t` go on for at most `budget` instructions.
pub(super) fn turn<M: Memory>(
    block: &mut Block<'_>,
    t: usize,
    memory: &mut M,
    turns: &mut Turns,
    budget: u32,
) -> Result<End, Problem> {
    let kernel = block.launch.kernel;
    let stride = kernel.slots as usize;
    let local_bytes = kernel.local_bytes as usize;
    let thread = &mut block.threads[t];
    let mut one = One {
        r: &mut block.slots[t * stride..][..stride],
        view: View {
            memory,
            shared: &mut block.shared,
            local: &mut block.local[t * local_bytes..][..local_bytes],
            constants: &kernel.constants,
            parameters: block.launch.params,
            watch: turns.watch,
        },
        site: Site {
            actor: block.first_actor + t as u32,
            launch: block.launch_number,
            block: block.number,
            line: 0,
        },
        pc: thread.pc as usize,
        torn: thread.torn,
        seen: thread.seen,
        targets: &kernel.targets,
    };
    let result = one.go(&kernel.code, turns, budget);
    thread.pc = one.pc as u32;
    thread.torn = one.torn;
    thread.seen = one.seen;
    if result == Ok(End::Ended) {
        thread.state = State::Ended;
        block.live -= 1;
        turns.progress = turns.executed;
    }
    result
}

struct One<'o, M> {
    r: &'o mut [u64],
    view: View<'o, M>,
    site: Site,
    pc: usize,
    torn: Torn,
    seen: [(u64, u64); 2],
    targets: &'o [u32],
}

impl<M: Memory> One<'_, M> {
    fn get(&self, slot: Slot) -> u64 {
        self.r[slot as usize]
    }

    fn set(&mut self, slot: Slot, value: u64) {
        self.r[slot as usize] = value;
    }

    fn go(&mut self, code: &[Instruction], turns: &mut Turns, budget: u32) -> Result<End, Problem> {
        let mut left = budget;
        while left > 0 {
            left -= 1;
            let Instruction { op, guard, negate, line } = &code[self.pc];
            turns.executed += 1;
            if *guard != ALWAYS && (self.get(*guard) & 1 == 1) == *negate {
                self.pc += 1;
                continue;
            }
            match *op {
                Op::Unary { f, d, a } => {
                    let value = f(self.get(a));
                    self.set(d, value);
                }
                Op::Binary { f, d, a, b } => {
                    let value = f(self.get(a), self.get(b));
                    self.set(d, value);
                }
                Op::Ternary { f, d, a, b, c } => {
                    let value = f(self.get(a), self.get(b), self.get(c));
                    self.set(d, value);
                }
                Op::Compare { f, d, q, a, b, with } => {
                    let holds = f(self.get(a), self.get(b));
                    let with = with.map(|(combine, c, negate)| (combine, (self.get(c) & 1 == 1) != negate));
                    let combined = |holds: bool| match with {
                        None => holds,
                        Some((Combine::And, c)) => holds & c,
                        Some((Combine::Or, c)) => holds | c,
                        Some((Combine::Xor, c)) => holds ^ c,
                    };
                    self.set(d, combined(holds).into());
                    if q != SINK {
                        self.set(q, combined(!holds).into());
                    }
                }
                Op::Select { d, a, b, p } => {
                    let value = if self.get(p) & 1 == 1 { self.get(a) } else { self.get(b) };
                    self.set(d, value);
                }
                Op::Address { d, a, add } => {
                    let value = self.get(a).wrapping_add(add);
                    self.set(d, value);
                }
                Op::Convert { ref convert, d, a, width } => {
                    let value = convert.apply(self.get(a));
                    let wide = convert.extends_sign() && width > convert.bits();
                    let value = if wide { signed(value, convert.bits()) as u64 & mask(width) } else { value };
                    self.set(d, value);
                }
                Op::Branch { target } => {
                    self.pc = target as usize;
                    continue;
                }
                Op::Load { ref how, ref to, ref widths } => {
                    self.site.line = *line;
                    if self.load(how, to, widths, turns)? {
                        if self.torn.left == 0 {
                            self.pc += 1;
                        }
                        return Ok(End::Polled);
                    }
                    if self.torn.left != 0 {
                        return Ok(End::Budget);
                    }
                }
                Op::Store { ref how, ref from } => {
                    self.site.line = *line;
                    if self.store(how, from, turns)? {
                        turns.progress = turns.executed;
                    }
                    if self.torn.left != 0 {
                        return Ok(End::Budget);
                    }
                }
                // The barrier's own code moves the thread on.
                Op::Barrier { .. } => return Ok(End::Barrier),
                Op::Warp { .. } => return Ok(End::Warp),
                Op::Exit => return Ok(End::Ended),
                Op::Trap => return Err(Problem::Trap),
                Op::Call { target, back } => {
                    let after = self.pc as u64 + 1;
                    self.set(back, after);
                    self.pc = target as usize;
                    continue;
                }
                Op::Return { back } => {
                    self.pc = self.get(back) as usize;
                    continue;
                }
                Op::BranchTable { index, first, count } => {
                    let index = self.get(index);
                    if index >= u64::from(count) {
                        return Err(Problem::Table { index, count });
                    }
                    self.pc = self.targets[first as usize + index as usize] as usize;
                    continue;
                }
                Op::Sleep => {
                    self.pc += 1;
                    return Ok(if turns.polls { End::Polled } else { End::Budget });
                }
                Op::Atomic { ref how, op, d, b, c } => {
                    self.site.line = *line;
                    let atomic =
                        Atomic { op, operand: self.get(b), compare: self.get(c), returns: d != SINK };
                    if self.atomic(how, atomic, d, turns)? {
                        self.pc += 1;
                        return Ok(End::Polled);
                    }
                }
                Op::Fence { semantics, scope } => {
                    self.site.line = *line;
                    self.view.memory.fence(&self.site, semantics, scope);
                }
                ref other => self.rare(other, turns),
            }
            self.pc += 1;
        }
        Ok(End::Budget)
    }

    /// The rarer instructions.
    fn rare(&mut self, op: &Op, turns: &Turns) {
        match *op {
            Op::Insert { d, a, b, from, length, bits } => {
                let value = crate::arithmetic::insert(
                    self.get(a),
                    self.get(b),
                    self.get(from),
                    self.get(length),
                    bits,
                );
                self.set(d, value);
            }
            Op::Logic { d, a, b, c, table } => {
                let (a, b, c) = (self.get(a), self.get(b), self.get(c));
                let mut value = 0;
                for row in 0..8u8 {
                    if table >> row & 1 == 1 {
                        let pick = |v: u64, bit: u8| if row >> bit & 1 == 1 { v } else { !v };
                        value |= pick(a, 2) & pick(b, 1) & pick(c, 0);
                    }
                }
                self.set(d, value & mask(32));
            }
            Op::Set { f, d, a, b, true_is } => {
                let value = if f(self.get(a), self.get(b)) { true_is } else { 0 };
                self.set(d, value.into());
            }
            Op::SelectSign { d, a, b, c, float } => {
                let c = self.get(c) as u32;
                let positive = if float { f32::from_bits(c) >= 0.0 } else { c as i32 >= 0 };
                let value = self.get(if positive { a } else { b });
                self.set(d, value);
            }
            Op::Pack2 { ref convert, d, a, b } => {
                let value = convert.apply(self.get(a)) << 16 | convert.apply(self.get(b));
                self.set(d, value);
            }
            Op::Join { d, ref parts, count, bits } => {
                let mut value = 0;
                for (i, &part) in parts[..count.into()].iter().enumerate() {
                    value |= (self.get(part) & mask(bits)) << (bits * i as u32);
                }
                self.set(d, value);
            }
            Op::Split { a, ref parts, count, bits } => {
                let value = self.get(a);
                for (i, &part) in parts[..count.into()].iter().enumerate() {
                    self.set(part, value >> (bits * i as u32) & mask(bits));
                }
            }
            Op::IsSpace { d, a, window } => {
                let holds = self.get(a) & window::MASK == window;
                self.set(d, holds.into());
            }
            Op::ActiveMask { d, lane } => {
                // Threads are independent, so it is always right that no other thread is at this place.
                let value = 1 << self.get(lane);
                self.set(d, value);
            }
            Op::Clock { d, nanoseconds, bits } => {
                let value = match turns.began {
                    Some(began) if nanoseconds => began.elapsed().as_nanos() as u64,
                    _ => turns.executed,
                };
                self.set(d, value & mask(bits));
            }
            Op::Copy { from, to, bytes } => {
                let (from, to, bytes) = (from as usize, to as usize, bytes as usize);
                self.view.local.copy_within(from..from + bytes, to);
            }
            // `go` does all others.
            _ => {}
        }
    }

    fn access(&self, how: &How, address: u64, bytes: u8) -> Access {
        Access { address, bytes, element: how.element, semantics: how.semantics, scope: how.scope }
    }

    /// Begins or continues a vector access that is done in pieces, and returns the element to do now.
    fn piece(&mut self, turns: &mut Turns) -> u32 {
        let mut nth = turns.random.below(self.torn.left.count_ones().into());
        for element in 0..4 {
            if self.torn.left >> element & 1 == 1 {
                if nth == 0 {
                    self.torn.left &= !(1 << element);
                    return element;
                }
                nth -= 1;
            }
        }
        0
    }

    /// Loads, and returns whether the thread polls.
    fn load(
        &mut self,
        how: &How,
        to: &[Slot; 4],
        widths: &[u8; 4],
        turns: &mut Turns,
    ) -> Result<bool, Problem> {
        let address = self.get(how.base).wrapping_add_signed(how.offset);
        let bits = u32::from(how.element) * 8;
        let whole = how.element * how.count;
        let value = if how.count > 1 && turns.tear {
            if self.torn.left == 0 {
                self.torn = Torn { left: (1 << how.count) - 1, address, value: 0 };
                self.whole_aligned(address, whole)?;
            }
            let element = self.piece(turns);
            let at = self.torn.address + u64::from(element) * u64::from(how.element);
            let access = self.access(how, at, how.element);
            self.torn.value |= self.view.load(&self.site, how, access)? << (bits * element);
            if self.torn.left != 0 {
                return Ok(false);
            }
            self.torn.value
        } else {
            let access = self.access(how, address, whole);
            self.view.load(&self.site, how, access)?
        };
        if how.count == 1 {
            let mut value = value as u64;
            if how.signed {
                value = signed(value, bits) as u64 & mask(widths[0].into());
            }
            self.set(to[0], value);
        } else {
            for i in 0..usize::from(how.count) {
                let mut part = (value >> (bits * i as u32)) as u64 & mask(bits);
                if how.signed {
                    part = signed(part, bits) as u64 & mask(widths[i].into());
                }
                self.set(to[i], part);
            }
        }
        Ok(turns.polls && how.semantics.strong() && self.again(address, value as u64))
    }

    fn whole_aligned(&self, address: u64, bytes: u8) -> Result<(), Problem> {
        if address & u64::from(bytes - 1) == 0 {
            return Ok(());
        }
        Err(Problem::Misaligned { address: address & !window::MASK, bytes })
    }

    /// Whether the thread has seen this value at this address lately.
    fn again(&mut self, address: u64, value: u64) -> bool {
        if self.seen.contains(&(address, value)) {
            return true;
        }
        let at = usize::from(self.seen[0].0 != address && self.seen[1].0 == address);
        if self.seen[at].0 != address {
            self.seen[1] = self.seen[0];
            self.seen[0] = (address, value);
        } else {
            self.seen[at].1 = value;
        }
        false
    }

    /// Stores, and returns whether the memory changed.
    fn store(&mut self, how: &How, from: &[Slot; 4], turns: &mut Turns) -> Result<bool, Problem> {
        let bits = u32::from(how.element) * 8;
        let whole = how.element * how.count;
        if self.torn.left == 0 {
            let address = self.get(how.base).wrapping_add_signed(how.offset);
            let mut value = 0u128;
            for (i, &slot) in from[..how.count.into()].iter().enumerate() {
                value |= u128::from(self.get(slot) & mask(bits)) << (bits * i as u32);
            }
            if how.count == 1 || !turns.tear {
                let access = self.access(how, address, whole);
                return self.view.store(&self.site, how, access, value);
            }
            self.whole_aligned(address, whole)?;
            self.torn = Torn { left: (1 << how.count) - 1, address, value };
        }
        let element = self.piece(turns);
        let at = self.torn.address + u64::from(element) * u64::from(how.element);
        let access = self.access(how, at, how.element);
        let part = self.torn.value >> (bits * element) & u128::from(mask(bits));
        self.view.store(&self.site, how, access, part)
    }

    /// Does an atomic operation, and returns whether the thread polls.
    fn atomic(&mut self, how: &How, atomic: Atomic, d: Slot, turns: &mut Turns) -> Result<bool, Problem> {
        let address = self.get(how.base).wrapping_add_signed(how.offset);
        let access = self.access(how, address, how.element);
        let old = self.view.atomic(&self.site, how, access, &atomic)?;
        self.set(d, old);
        if atomic.apply(how.element, old) != old {
            turns.progress = turns.executed;
            return Ok(false);
        }
        Ok(turns.polls && self.again(address, old))
    }
}
