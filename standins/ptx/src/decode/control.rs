//! Branches, calls, barriers and what warps do together.

use super::operand::Argument;
use super::scope::Item;
use super::{Builder, Callee, Jump, Statement};
use crate::ParseError;
use crate::memory::AtomicOp;
use crate::program::{BarrierOp, Op, SINK, Shuffle, Slot, Start, WarpOp};
use crate::value::{Kind, Type};

const B32: Type = Type { kind: Kind::Bits, bits: 32, packed: false };

impl<'t> Builder<'_, 't> {
    pub(super) fn control(&mut self, s: &Statement<'t>) -> Result<(), ParseError> {
        let op = match (s.words[0], &s.words[1..]) {
            ("bra", [] | ["uni"]) => {
                let [Argument::Name(label, 0)] = s.arguments[..] else { return Err(s.operands()) };
                self.jumps.push((Jump::Instruction(self.code.len()), self.scopes.current(), label, s.line));
                Op::Branch { target: 0 }
            }
            ("brx", ["idx"] | ["idx", "uni"]) => self.table(s)?,
            ("call", [] | ["uni"]) => return self.call(s),
            ("ret", [] | ["uni"]) => self.back.map_or(Op::Exit, |back| Op::Return { back }),
            ("exit", []) => Op::Exit,
            ("trap", []) => Op::Trap,
            ("nanosleep", ["u32"]) => Op::Sleep,
            ("activemask", ["b32"]) => {
                let (d, _) = self.target(s, 0)?;
                Op::ActiveMask { d, lane: self.start(Start::Lane) }
            }
            ("bar", ["warp", "sync"]) => {
                let members = self.source(s, 0, B32)?;
                Op::Warp { op: WarpOp::Barrier, d: SINK, a: SINK, negate: false, members }
            }
            ("bar" | "barrier", _) => self.barrier(s)?,
            ("shfl", ["sync", mode, "b32"]) => self.shuffle(s, mode)?,
            ("vote", ["sync", kind, ty]) => {
                let op = match (*kind, *ty) {
                    ("ballot", "b32") => WarpOp::Ballot,
                    ("any", "pred") => WarpOp::Any,
                    ("all", "pred") => WarpOp::All,
                    ("uni", "pred") => WarpOp::Uniform,
                    _ => return Err(s.unknown()),
                };
                let (d, _) = self.target(s, 0)?;
                let (a, negate) = self.predicate(s, 1)?;
                Op::Warp { op, d, a, negate, members: self.source(s, 2, B32)? }
            }
            ("match", ["any", "sync", "b32" | "b64"]) => {
                let (d, _) = self.target(s, 0)?;
                let a = self.source(s, 1, s.ty()?)?;
                Op::Warp { op: WarpOp::Match, d, a, negate: false, members: self.source(s, 2, B32)? }
            }
            ("redux", ["sync", operation, ty]) => {
                let op = match (*operation, *ty) {
                    ("add", "u32" | "s32") => AtomicOp::Add,
                    ("min", "u32") => AtomicOp::MinUnsigned,
                    ("max", "u32") => AtomicOp::MaxUnsigned,
                    ("min", "s32") => AtomicOp::MinSigned,
                    ("max", "s32") => AtomicOp::MaxSigned,
                    ("and", "b32") => AtomicOp::And,
                    ("or", "b32") => AtomicOp::Or,
                    ("xor", "b32") => AtomicOp::Xor,
                    _ => return Err(s.unknown()),
                };
                let (d, _) = self.target(s, 0)?;
                let a = self.source(s, 1, B32)?;
                Op::Warp { op: WarpOp::Reduce(op), d, a, negate: false, members: self.source(s, 2, B32)? }
            }
            _ => return Err(s.unknown()),
        };
        self.emit(s, op);
        Ok(())
    }

    /// A predicate and whether it is to be inverted.
    fn predicate(&mut self, s: &Statement<'t>, at: usize) -> Result<(Slot, bool), ParseError> {
        match s.arguments.get(at) {
            Some(&Argument::Register(slot, _)) => Ok((slot, false)),
            Some(&Argument::Not(slot)) => Ok((slot, true)),
            Some(&Argument::Integer(value)) => Ok((self.start(Start::Value(value & 1)), false)),
            _ => Err(s.operands()),
        }
    }

    fn table(&mut self, s: &Statement<'t>) -> Result<Op, ParseError> {
        let index = self.source(s, 0, B32)?;
        let Some(&Argument::Name(name, 0)) = s.arguments.get(1) else { return Err(s.operands()) };
        let Some(Item::Targets(labels)) = self.scopes.item(name).cloned() else {
            return Err(ParseError::Undeclared { line: s.line, name: name.to_owned() });
        };
        let first = self.targets.len();
        for (at, label) in labels.iter().enumerate() {
            self.targets.push(0);
            self.jumps.push((Jump::Table(first + at), self.scopes.current(), label, s.line));
        }
        Ok(Op::BranchTable { index, first: first as u32, count: labels.len() as u32 })
    }

    /// `bar.sync`, `barrier.sync.aligned`, `bar.arrive`, `bar.red`.
    fn barrier(&mut self, s: &Statement<'t>) -> Result<Op, ParseError> {
        let aligned = s.words[0] == "bar" || s.words.contains(&"aligned");
        let words: Vec<_> =
            s.words[1..].iter().copied().filter(|w| !matches!(*w, "aligned" | "cta")).collect();
        let (op, first) = match words[..] {
            ["sync"] => (BarrierOp::Sync, 0),
            ["arrive"] => (BarrierOp::Arrive, 0),
            ["red", "popc", "u32"] => (BarrierOp::Count, 1),
            ["red", "and", "pred"] => (BarrierOp::And, 1),
            ["red", "or", "pred"] => (BarrierOp::Or, 1),
            _ => return Err(s.unknown()),
        };
        let reduces = first == 1;
        let d = if reduces { self.target(s, 0)?.0 } else { SINK };
        let id = self.source(s, first, B32)?;
        let rest = s.arguments.len() - first - 1 - usize::from(reduces);
        // Zero threads: all of the block.
        let count = match rest {
            0 => self.start(Start::Value(0)),
            1 => self.source(s, first + 1, B32)?,
            _ => return Err(s.operands()),
        };
        let (p, negate) = if reduces { self.predicate(s, first + 1 + rest)? } else { (SINK, false) };
        Ok(Op::Barrier { op, aligned, id, count, d, p, negate })
    }

    fn shuffle(&mut self, s: &Statement<'t>, mode: &str) -> Result<Op, ParseError> {
        let mode = match mode {
            "up" => Shuffle::Up,
            "down" => Shuffle::Down,
            "bfly" => Shuffle::Butterfly,
            "idx" => Shuffle::Index,
            _ => return Err(s.unknown()),
        };
        let (d, valid) = match s.arguments.first() {
            Some(&Argument::Register(slot, _)) => (slot, SINK),
            Some(&Argument::Pair(d, p)) => (d, p),
            _ => return Err(s.operands()),
        };
        let a = self.source(s, 1, B32)?;
        let (lane, clamp) = (self.source(s, 2, B32)?, self.source(s, 3, B32)?);
        let members = self.source(s, 4, B32)?;
        Ok(Op::Warp { op: WarpOp::Shuffle { mode, valid, lane, clamp }, d, a, negate: false, members })
    }

    /// `call (result), name, (arguments)`, with either list absent.
    fn call(&mut self, s: &Statement<'t>) -> Result<(), ParseError> {
        let empty = Vec::new();
        let (results, name, parameters) = match &s.arguments[..] {
            [Argument::List(results), Argument::Name(name, 0), Argument::List(parameters)] => {
                (results, *name, parameters)
            }
            [Argument::List(results), Argument::Name(name, 0)] => (results, *name, &empty),
            [Argument::Name(name, 0), Argument::List(parameters)] => (&empty, *name, parameters),
            [Argument::Name(name, 0)] => (&empty, *name, &empty),
            _ => return Err(s.operands()),
        };
        self.reach(s, name)?;
        let callee = &self.callees[name];
        let (to, from, back) = (callee.parameters.clone(), callee.returns.clone(), callee.back);
        if to.len() != parameters.len() || from.len() != results.len() {
            return Err(s.operands());
        }
        for (&(to, bytes), argument) in to.iter().zip(parameters) {
            let from = self.local_of(s, argument)?;
            self.emit(s, Op::Copy { from, to, bytes });
        }
        self.calls.push((self.current, name));
        self.call_sites.push((self.code.len(), name));
        self.emit(s, Op::Call { target: 0, back });
        for (&(from, bytes), argument) in from.iter().zip(results) {
            let to = self.local_of(s, argument)?;
            self.emit(s, Op::Copy { from, to, bytes });
        }
        Ok(())
    }

    /// Gives the function `name` its places, if it has none yet.
    fn reach(&mut self, s: &Statement<'t>, name: &'t str) -> Result<(), ParseError> {
        if self.callees.contains_key(name) {
            return Ok(());
        }
        let function = self
            .outline
            .functions
            .get(name)
            .filter(|function| !function.entry)
            .ok_or(ParseError::Undeclared { line: s.line, name: name.to_owned() })?;
        let mut places = |list: &[(&str, u32, u32)]| {
            list.iter().map(|&(_, bytes, align)| (self.local(bytes.into(), align) as u32, bytes)).collect()
        };
        let (returns, parameters) = (places(&function.returns), places(&function.parameters));
        let back = self.slot();
        self.callees.insert(name, Callee { returns, parameters, back, start: None });
        self.waiting.push(name);
        Ok(())
    }

    /// The place of a call's `.param` in the thread's local memory.
    fn local_of(&self, s: &Statement<'t>, argument: &Argument<'t>) -> Result<u32, ParseError> {
        let Argument::Name(name, 0) = *argument else { return Err(s.operands()) };
        match self.scopes.item(name) {
            Some(&Item::Local(at)) => Ok(at as u32),
            _ => Err(ParseError::Undeclared { line: s.line, name: name.to_owned() }),
        }
    }
}
