//! Loads, stores, atomics, fences and addresses.
//!
//! Cache hints (`.ca`, `L1::no_allocate`, …) change no result and are passed over; `.nc` is a weak load.

use super::operand::Argument;
use super::{Builder, Statement};
use crate::ParseError;
use crate::memory::{AtomicOp, Scope, Semantics};
use crate::program::{How, Op, SINK, Slot, Space, Start, window};
use crate::value::{Kind, Type};

/// The words of a memory instruction, sorted.
struct Words<'t> {
    semantics: Option<Semantics>,
    scope: Option<Scope>,
    space: Space,
    count: u8,
    /// What is left: the operation of an atomic.
    rest: Vec<&'t str>,
}

fn sort<'t>(words: &[&'t str]) -> Words<'t> {
    let mut sorted =
        Words { semantics: None, scope: None, space: Space::Generic, count: 1, rest: Vec::new() };
    for &word in words {
        match word {
            "weak" => sorted.semantics = Some(Semantics::Weak),
            "volatile" => {
                sorted.semantics = Some(Semantics::Volatile);
                sorted.scope = Some(Scope::Sys);
            }
            "relaxed" => sorted.semantics = Some(Semantics::Relaxed),
            "acquire" => sorted.semantics = Some(Semantics::Acquire),
            "release" => sorted.semantics = Some(Semantics::Release),
            "acq_rel" => sorted.semantics = Some(Semantics::AcquireRelease),
            "sc" => sorted.semantics = Some(Semantics::Sequential),
            "cta" => sorted.scope = Some(Scope::Cta),
            "gpu" | "gl" | "cluster" => sorted.scope = Some(Scope::Gpu),
            "sys" => sorted.scope = Some(Scope::Sys),
            "global" => sorted.space = Space::Global,
            "shared" | "shared::cta" => sorted.space = Space::Shared,
            "local" => sorted.space = Space::Local,
            "const" => sorted.space = Space::Constant,
            "param" | "param::entry" | "param::func" => sorted.space = Space::Parameter,
            "v2" => sorted.count = 2,
            "v4" => sorted.count = 4,
            "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc" => {}
            _ if word.starts_with("L1::") || word.starts_with("L2::") => {}
            _ => sorted.rest.push(word),
        }
    }
    sorted
}

impl<'t> Builder<'_, 't> {
    pub(super) fn memory(&mut self, s: &Statement<'t>) -> Result<(), ParseError> {
        let op = match s.words[0] {
            "ld" | "ldu" => self.load(s)?,
            "st" => self.store(s)?,
            "atom" | "red" => self.atomic(s)?,
            "fence" | "membar" => {
                let sorted = sort(&s.words[1..]);
                let scope = sorted.scope.filter(|_| sorted.rest.is_empty()).ok_or_else(|| s.unknown())?;
                // `membar` is `fence.sc`, and a fence without a kind is `fence.acq_rel`.
                let usual =
                    if s.words[0] == "membar" { Semantics::Sequential } else { Semantics::AcquireRelease };
                Op::Fence { semantics: sorted.semantics.unwrap_or(usual), scope }
            }
            "cvta" => self.address(s)?,
            "isspacep" => {
                let window = match s.words[1..] {
                    ["shared"] => window::SHARED,
                    ["local"] => window::LOCAL,
                    ["const"] => window::CONSTANT,
                    ["param"] => window::PARAMETER,
                    ["global"] => 0,
                    _ => return Err(s.unknown()),
                };
                let (d, _) = self.target(s, 0)?;
                Op::IsSpace { d, a: self.source(s, 1, B64)?, window }
            }
            // A hint.
            _ => return Ok(()),
        };
        self.emit(s, op);
        Ok(())
    }

    /// Sorts the words and resolves the address at argument `at`.
    fn how(&mut self, s: &Statement<'t>, at: usize) -> Result<(How, Type, Vec<&'t str>), ParseError> {
        let ty = s.ty()?;
        let sorted = sort(&s.words[1..s.words.len() - 1]);
        let (space, base, offset) = self.place(s, at, sorted.space)?;
        let semantics = sorted.semantics.unwrap_or(Semantics::Weak);
        if semantics.strong() && sorted.scope.is_none() && !matches!(s.words[0], "atom" | "red") {
            return Err(s.unknown());
        }
        let how = How {
            space,
            semantics,
            scope: sorted.scope.unwrap_or(Scope::Cta),
            element: ty.bytes(),
            count: sorted.count,
            signed: ty.kind == Kind::Signed,
            base,
            offset,
        };
        if ty.kind == Kind::Predicate || u32::from(how.element) * u32::from(how.count) > 16 {
            return Err(s.unknown());
        }
        Ok((how, ty, sorted.rest))
    }

    /// Space, base and offset of an address.
    fn place(
        &mut self,
        s: &Statement<'t>,
        at: usize,
        space: Space,
    ) -> Result<(Space, Slot, i64), ParseError> {
        let Some(Argument::Address(base, offset)) = s.arguments.get(at) else { return Err(s.operands()) };
        match **base {
            Argument::Register(slot, _) => Ok((space, slot, *offset)),
            Argument::Integer(value) => Ok((space, self.start(Start::Value(value)), *offset)),
            Argument::Name(name, 0) => {
                let (start, found) = self.symbol(s, name, 0)?;
                let fits = match space {
                    // A generic access of a name: the name's space is known.
                    Space::Generic => true,
                    Space::Parameter => matches!(found, Space::Parameter | Space::Local),
                    space => space == found,
                };
                if !fits {
                    return Err(s.operands());
                }
                Ok((found, self.start(start), *offset))
            }
            _ => Err(s.operands()),
        }
    }

    fn load(&mut self, s: &Statement<'t>) -> Result<Op, ParseError> {
        let (how, ty, rest) = self.how(s, 1)?;
        if !rest.is_empty() || how.semantics.releases() || s.arguments.len() != 2 {
            return Err(s.unknown());
        }
        let mut widths = [64u8; 4];
        let parts: Vec<Argument<'t>> = match &s.arguments[0] {
            Argument::Vector(parts) if parts.len() == usize::from(how.count) => parts.clone(),
            one if how.count == 1 => vec![one.clone()],
            _ => return Err(s.operands()),
        };
        for (width, part) in widths.iter_mut().zip(&parts) {
            match *part {
                Argument::Register(_, bits) => *width = bits as u8,
                Argument::Sink => {}
                _ => return Err(s.operands()),
            }
        }
        let (to, _) = self.parts(s, &parts, ty.width())?;
        Ok(Op::Load { how, to, widths })
    }

    fn store(&mut self, s: &Statement<'t>) -> Result<Op, ParseError> {
        let (how, ty, rest) = self.how(s, 0)?;
        let read_only = how.space == Space::Constant || how.space == Space::Parameter;
        if !rest.is_empty() || how.semantics.acquires() || s.arguments.len() != 2 || read_only {
            return Err(s.unknown());
        }
        let parts: Vec<Argument<'t>> = match &s.arguments[1] {
            Argument::Vector(parts) if parts.len() == usize::from(how.count) => parts.clone(),
            one if how.count == 1 => vec![one.clone()],
            _ => return Err(s.operands()),
        };
        let (from, _) = self.parts(s, &parts, ty.width())?;
        Ok(Op::Store { how, from })
    }

    fn atomic(&mut self, s: &Statement<'t>) -> Result<Op, ParseError> {
        let returns = s.words[0] == "atom";
        let first = usize::from(returns);
        let (mut how, ty, rest) = self.how(s, first)?;
        let [operation] = rest[..] else { return Err(s.unknown()) };
        if how.count != 1 || !matches!(how.space, Space::Generic | Space::Global | Space::Shared) {
            return Err(s.unknown());
        }
        if !s.words.iter().any(|word| matches!(*word, "cta" | "gpu" | "sys")) {
            how.scope = Scope::Gpu;
        }
        if how.semantics == Semantics::Weak {
            how.semantics = Semantics::Relaxed;
        }
        let signed = ty.kind == Kind::Signed;
        let float = ty.is_float();
        let op = match (operation, ty.bits) {
            ("add", 32) if float => AtomicOp::AddF32,
            ("add", 64) if float => AtomicOp::AddF64,
            _ if float => return Err(s.unknown()),
            ("add", 32 | 64) => AtomicOp::Add,
            ("exch", 32 | 64) => AtomicOp::Exchange,
            ("cas", 16 | 32 | 64) => AtomicOp::CompareExchange,
            ("and", 32 | 64) => AtomicOp::And,
            ("or", 32 | 64) => AtomicOp::Or,
            ("xor", 32 | 64) => AtomicOp::Xor,
            ("min", 32 | 64) if signed => AtomicOp::MinSigned,
            ("max", 32 | 64) if signed => AtomicOp::MaxSigned,
            ("min", 32 | 64) => AtomicOp::MinUnsigned,
            ("max", 32 | 64) => AtomicOp::MaxUnsigned,
            ("inc", 32) => AtomicOp::Increment,
            ("dec", 32) => AtomicOp::Decrement,
            _ => return Err(s.unknown()),
        };
        let d = if returns { self.target(s, 0)?.0 } else { SINK };
        let first_operand = self.source(s, first + 1, ty)?;
        // Compare-and-exchange brings the value to compare with first.
        let (b, c) = if op == AtomicOp::CompareExchange {
            (self.source(s, first + 2, ty)?, first_operand)
        } else {
            (first_operand, first_operand)
        };
        Ok(Op::Atomic { how, op, d, b, c })
    }

    fn address(&mut self, s: &Statement<'t>) -> Result<Op, ParseError> {
        let (back, space) = match s.words[1..] {
            ["to", space, "u64"] => (true, space),
            [space, "u64"] => (false, space),
            _ => return Err(s.unknown()),
        };
        let window = match space {
            "global" => 0,
            "shared" => window::SHARED,
            "local" => window::LOCAL,
            "const" => window::CONSTANT,
            "param" => window::PARAMETER,
            _ => return Err(s.unknown()),
        };
        let (d, _) = self.target(s, 0)?;
        let add = if back { window.wrapping_neg() } else { window };
        Ok(Op::Address { d, a: self.source(s, 1, B64)?, add })
    }
}

const B64: Type = Type { kind: Kind::Bits, bits: 64, packed: false };
