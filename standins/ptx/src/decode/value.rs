//! Instructions over registers alone.

use super::operand::Argument;
use super::{Builder, Statement};
use crate::ParseError;
use crate::arithmetic::{self, Convert, Function};
use crate::program::{Combine, Op, SINK, Slot};
use crate::value::{Kind, Type};

const B32: Type = Type { kind: Kind::Bits, bits: 32, packed: false };

impl<'t> Builder<'_, 't> {
    pub(super) fn value_op(&mut self, s: &Statement<'t>) -> Result<(), ParseError> {
        let op = match s.words[0] {
            "mov" => self.mov(s)?,
            "cvt" => self.convert(s)?,
            "setp" => self.compare(s)?,
            "set" => self.set(s)?,
            "selp" => {
                let ty = s.ty()?;
                let (d, _) = self.target(s, 0)?;
                let (a, b) = (self.source(s, 1, ty)?, self.source(s, 2, ty)?);
                Op::Select { d, a, b, p: self.source(s, 3, B32)? }
            }
            "slct" => {
                let [_, ty, by] = s.words[..] else { return Err(s.unknown()) };
                let ty = Type::parse(ty).ok_or_else(|| s.unknown())?;
                let float = match by {
                    "s32" => false,
                    "f32" => true,
                    _ => return Err(s.unknown()),
                };
                let (d, _) = self.target(s, 0)?;
                let (a, b) = (self.source(s, 1, ty)?, self.source(s, 2, ty)?);
                Op::SelectSign { d, a, b, c: self.source(s, 3, B32)?, float }
            }
            "bfi" => {
                let ty = s.ty()?;
                if s.words.len() != 2 || !ty.is_integer() {
                    return Err(s.unknown());
                }
                let (d, _) = self.target(s, 0)?;
                let (a, b) = (self.source(s, 1, ty)?, self.source(s, 2, ty)?);
                let (from, length) = (self.source(s, 3, B32)?, self.source(s, 4, B32)?);
                Op::Insert { d, a, b, from, length, bits: ty.bits }
            }
            "lop3" => {
                if s.words != ["lop3", "b32"] {
                    return Err(s.unknown());
                }
                let (d, _) = self.target(s, 0)?;
                let (a, b, c) = (self.source(s, 1, B32)?, self.source(s, 2, B32)?, self.source(s, 3, B32)?);
                match s.arguments.get(4) {
                    Some(&Argument::Integer(table)) if table < 256 => {
                        Op::Logic { d, a, b, c, table: table as u8 }
                    }
                    _ => return Err(s.operands()),
                }
            }
            _ => self.plain(s)?,
        };
        self.emit(s, op);
        Ok(())
    }

    /// What [`arithmetic::function`] knows.
    fn plain(&mut self, s: &Statement<'t>) -> Result<Op, ParseError> {
        if s.words.len() < 2 {
            return Err(s.unknown());
        }
        let ty = s.ty()?;
        let function = arithmetic::function(&s.words, ty).ok_or_else(|| s.unknown())?;
        let (d, _) = self.target(s, 0)?;
        let wanted = match function {
            Function::One(_) => 2,
            Function::Two(_) => 3,
            Function::Three(_) => 4,
        };
        if s.arguments.len() != wanted {
            return Err(s.operands());
        }
        let a = self.source(s, 1, ty)?;
        Ok(match function {
            Function::One(f) => Op::Unary { f, d, a },
            Function::Two(f) => {
                // A shift's distance has 32 bits, whatever is shifted.
                let second = if matches!(s.words[0], "shl" | "shr") { B32 } else { ty };
                Op::Binary { f, d, a, b: self.source(s, 2, second)? }
            }
            Function::Three(f) => {
                let wide = s.words[0] == "mad" && s.words[1] == "wide";
                let (second, third) = match s.words[0] {
                    "bfe" => (B32, B32),
                    _ if wide => (ty, Type { bits: ty.bits * 2, ..ty }),
                    _ => (ty, ty),
                };
                let b = self.source(s, 2, second)?;
                Op::Ternary { f, d, a, b, c: self.source(s, 3, third)? }
            }
        })
    }

    /// The slots of a vector's parts; `None` for the sink.
    pub(super) fn parts(
        &mut self,
        s: &Statement<'t>,
        parts: &[Argument<'t>],
        bits: u32,
    ) -> Result<([Slot; 4], u8), ParseError> {
        let mut slots = [SINK; 4];
        if parts.len() > 4 || parts.is_empty() {
            return Err(s.operands());
        }
        for (slot, part) in slots.iter_mut().zip(parts) {
            *slot = match part {
                Argument::Sink => SINK,
                part => self.value(s, part, bits)?,
            };
        }
        Ok((slots, parts.len() as u8))
    }

    fn mov(&mut self, s: &Statement<'t>) -> Result<Op, ParseError> {
        let ty = s.ty()?;
        if s.words.len() != 2 || s.arguments.len() != 2 {
            return Err(s.unknown());
        }
        match (&s.arguments[0], &s.arguments[1]) {
            (Argument::Vector(parts), _) => {
                let bits = ty.width() / parts.len().max(1) as u32;
                let a = self.source(s, 1, ty)?;
                let (parts, count) = self.parts(s, parts, bits)?;
                Ok(Op::Split { a, parts, count, bits })
            }
            (_, Argument::Vector(parts)) => {
                let bits = ty.width() / parts.len().max(1) as u32;
                let (d, _) = self.target(s, 0)?;
                let (parts, count) = self.parts(s, parts, bits)?;
                Ok(Op::Join { d, parts, count, bits })
            }
            (
                _,
                Argument::Name(
                    name @ ("%clock" | "%clock64" | "%globaltimer" | "%clock_hi" | "%globaltimer_lo"),
                    0,
                ),
            ) => {
                let (d, _) = self.target(s, 0)?;
                if *name == "%clock_hi" {
                    return Err(s.operands());
                }
                Ok(Op::Clock { d, nanoseconds: name.starts_with("%globaltimer"), bits: ty.bits })
            }
            _ => self.plain(s),
        }
    }

    fn convert(&mut self, s: &Statement<'t>) -> Result<Op, ParseError> {
        let (d, width) = self.target(s, 0)?;
        if let Some(at) = s.words.iter().position(|word| matches!(*word, "f16x2" | "bf16x2")) {
            let mut words = s.words.clone();
            words[at] = words[at].trim_end_matches("x2");
            let convert =
                Convert::parse(&words).filter(|_| words.last() == Some(&"f32")).ok_or_else(|| s.unknown())?;
            if s.arguments.len() != 3 {
                return Err(s.operands());
            }
            return Ok(Op::Pack2 { convert, d, a: self.source(s, 1, B32)?, b: self.source(s, 2, B32)? });
        }
        let convert = Convert::parse(&s.words).ok_or_else(|| s.unknown())?;
        Ok(Op::Convert { convert, d, a: self.source(s, 1, s.ty()?)?, width })
    }

    fn compare(&mut self, s: &Statement<'t>) -> Result<Op, ParseError> {
        let ty = s.ty()?;
        let f =
            s.words.get(1).and_then(|name| arithmetic::comparison(name, ty)).ok_or_else(|| s.unknown())?;
        let (d, q) = match s.arguments.first() {
            Some(&Argument::Register(slot, _)) => (slot, SINK),
            Some(&Argument::Pair(p, q)) => (p, q),
            _ => return Err(s.operands()),
        };
        let (a, b) = (self.source(s, 1, ty)?, self.source(s, 2, ty)?);
        let with = match s.words[2..s.words.len() - 1] {
            [] => None,
            [combine] => {
                let combine = match combine {
                    "and" => Combine::And,
                    "or" => Combine::Or,
                    "xor" => Combine::Xor,
                    _ => return Err(s.unknown()),
                };
                match s.arguments.get(3) {
                    Some(&Argument::Register(c, _)) => Some((combine, c, false)),
                    Some(&Argument::Not(c)) => Some((combine, c, true)),
                    _ => return Err(s.operands()),
                }
            }
            _ => return Err(s.unknown()),
        };
        Ok(Op::Compare { f, d, q, a, b, with })
    }

    fn set(&mut self, s: &Statement<'t>) -> Result<Op, ParseError> {
        let [_, name, to, from] = s.words[..] else { return Err(s.unknown()) };
        let true_is = match to {
            "u32" | "s32" => u32::MAX,
            "f32" => 1.0f32.to_bits(),
            _ => return Err(s.unknown()),
        };
        let ty = Type::parse(from).ok_or_else(|| s.unknown())?;
        let f = arithmetic::comparison(name, ty).ok_or_else(|| s.unknown())?;
        let (d, _) = self.target(s, 0)?;
        Ok(Op::Set { f, d, a: self.source(s, 1, ty)?, b: self.source(s, 2, ty)?, true_is })
    }
}
