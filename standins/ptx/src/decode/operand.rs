//! Operands as written, and the slots that hold them.
//!
//! Invariant: a literal becomes a slot that is set when a thread starts. Absent: what an opcode makes of them.

use super::scope::Item;
use super::{Builder, Statement};
use crate::ParseError;
use crate::module::Place;
use crate::program::{SINK, Slot, Space, Start};
use crate::text::{float, integer};
use crate::value::{Type, mask};

/// An operand.
#[derive(Clone, Debug)]
pub(super) enum Argument<'t> {
    Register(Slot, u32),
    /// `!p`
    Not(Slot),
    /// `p|q`
    Pair(Slot, Slot),
    Integer(u64),
    Float(u64),
    /// A name that is no register, and what is added to it.
    Name(&'t str, i64),
    Vector(Vec<Argument<'t>>),
    /// Base and offset.
    Address(Box<Argument<'t>>, i64),
    /// In parentheses, of a call.
    List(Vec<Argument<'t>>),
    Sink,
}

impl<'t> Builder<'_, 't> {
    /// The operands up to the semicolon.
    pub(super) fn arguments(&mut self) -> Result<Vec<Argument<'t>>, ParseError> {
        let mut found = Vec::new();
        loop {
            if self.peek(0) == ";" {
                self.at += 1;
                return Ok(found);
            }
            found.push(self.argument()?);
            if self.peek(0) == "," {
                self.at += 1;
            } else if self.peek(0) != ";" {
                let token = self.token()?;
                return Err(ParseError::Unexpected { line: token.line, found: token.text.to_owned() });
            }
        }
    }

    fn list(&mut self, end: &str) -> Result<Vec<Argument<'t>>, ParseError> {
        let mut found = Vec::new();
        loop {
            match self.peek(0) {
                text if text == end => {
                    self.at += 1;
                    return Ok(found);
                }
                "," => self.at += 1,
                _ => found.push(self.argument()?),
            }
        }
    }

    /// `+8`, `-8`, `+-8`, or nothing.
    fn offset(&mut self) -> Result<i64, ParseError> {
        let mut sign = 1;
        let mut any = false;
        while matches!(self.peek(0), "+" | "-") {
            if self.peek(0) == "-" {
                sign = -sign;
            }
            any = true;
            self.at += 1;
        }
        if !any {
            return Ok(0);
        }
        let token = self.next()?;
        let value = integer(token.text)
            .ok_or(ParseError::Number { line: token.line, found: token.text.to_owned() })?;
        Ok(sign * value as i64)
    }

    fn argument(&mut self) -> Result<Argument<'t>, ParseError> {
        let token = self.next()?;
        let unexpected = || ParseError::Unexpected { line: token.line, found: token.text.to_owned() };
        Ok(match token.text {
            "{" => Argument::Vector(self.list("}")?),
            "(" => Argument::List(self.list(")")?),
            "[" => {
                let base = self.argument()?;
                let (base, extra) = match base {
                    Argument::Name(name, offset) => (Argument::Name(name, 0), offset),
                    base => (base, 0),
                };
                let offset = self.offset()?;
                if self.next()?.text != "]" {
                    return Err(unexpected());
                }
                Argument::Address(Box::new(base), offset + extra)
            }
            "!" => match self.argument()? {
                Argument::Register(slot, _) => Argument::Not(slot),
                _ => return Err(unexpected()),
            },
            "-" => match self.argument()? {
                Argument::Integer(value) => Argument::Integer(value.wrapping_neg()),
                _ => return Err(unexpected()),
            },
            "_" => self.pair(Argument::Sink)?,
            "WARP_SZ" => Argument::Integer(32),
            word => {
                if let Some((slot, width)) = self.scopes.register(word) {
                    return self.pair(Argument::Register(slot, width));
                }
                if let Some((bits, _)) = float(word) {
                    return Ok(Argument::Float(bits));
                }
                if word.starts_with(|c: char| c.is_ascii_digit()) {
                    let wrong = ParseError::Number { line: token.line, found: word.to_owned() };
                    return Ok(Argument::Integer(integer(word).ok_or(wrong)?));
                }
                if let Some(start) = special(word) {
                    return Ok(Argument::Register(self.start(start), 32));
                }
                Argument::Name(word, self.offset()?)
            }
        })
    }

    /// `p|q`, if that follows.
    fn pair(&mut self, first: Argument<'t>) -> Result<Argument<'t>, ParseError> {
        if self.peek(0) != "|" {
            return Ok(first);
        }
        self.at += 1;
        let token = self.token()?;
        let slot = |argument: &Argument<'_>| match *argument {
            Argument::Register(slot, _) => Some(slot),
            Argument::Sink => Some(SINK),
            _ => None,
        };
        let second = self.argument()?;
        match (slot(&first), slot(&second)) {
            (Some(p), Some(q)) => Ok(Argument::Pair(p, q)),
            _ => Err(ParseError::Unexpected { line: token.line, found: token.text.to_owned() }),
        }
    }

    /// The slot to write, and its bits.
    pub(super) fn target(&self, statement: &Statement<'t>, at: usize) -> Result<(Slot, u32), ParseError> {
        match statement.arguments.get(at) {
            Some(&Argument::Register(slot, width)) => Ok((slot, width)),
            Some(Argument::Sink) => Ok((SINK, 64)),
            _ => Err(statement.operands()),
        }
    }

    /// The slot of a value of `ty`.
    pub(super) fn source(
        &mut self,
        statement: &Statement<'t>,
        at: usize,
        ty: Type,
    ) -> Result<Slot, ParseError> {
        let argument = statement.arguments.get(at).ok_or_else(|| statement.operands())?;
        self.value(statement, argument, ty.width())
    }

    /// The slot of a value of `bits` bits.
    pub(super) fn value(
        &mut self,
        statement: &Statement<'t>,
        argument: &Argument<'t>,
        bits: u32,
    ) -> Result<Slot, ParseError> {
        match *argument {
            Argument::Register(slot, _) => Ok(slot),
            Argument::Integer(value) => Ok(self.start(Start::Value(value & mask(bits)))),
            Argument::Float(value) => Ok(self.start(Start::Value(value))),
            Argument::Name(name, offset) => {
                let (start, _) = self.symbol(statement, name, offset)?;
                Ok(self.start(start))
            }
            _ => Err(statement.operands()),
        }
    }

    /// What a name's address is, and in which space. An offset is added where the start of the name is a number.
    pub(super) fn symbol(
        &self,
        statement: &Statement<'t>,
        name: &str,
        offset: i64,
    ) -> Result<(Start, Space), ParseError> {
        let add = |at: u64| at.wrapping_add_signed(offset);
        if let Some(item) = self.scopes.item(name) {
            return match *item {
                Item::Local(at) => Ok((Start::Value(add(at)), Space::Local)),
                Item::Shared(at) => Ok((Start::Value(add(at)), Space::Shared)),
                Item::Parameter(at) => Ok((Start::Value(add(at)), Space::Parameter)),
                Item::Register(..) | Item::Targets(_) => Err(statement.operands()),
            };
        }
        match self.outline.variables.get(name) {
            Some(&Place::Global(at)) => Ok((Start::Global(add(at)), Space::Global)),
            Some(&Place::Constant(at)) => Ok((Start::Value(add(at)), Space::Constant)),
            Some(&Place::Shared(at)) => Ok((Start::Value(add(at)), Space::Shared)),
            Some(Place::Dynamic) => Ok((Start::Dynamic(add(0)), Space::Shared)),
            None => Err(ParseError::Undeclared { line: statement.line, name: name.to_owned() }),
        }
    }
}

/// What a special register starts with.
fn special(word: &str) -> Option<Start> {
    let axis = |word: &str| match word {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    Some(match word {
        "%laneid" => Start::Lane,
        "%warpid" => Start::Warp,
        "%nwarpid" => Start::Warps,
        "%smid" | "%gridid" => Start::Value(0),
        "%nsmid" => Start::Value(1),
        "%dynamic_smem_size" => Start::DynamicBytes,
        "%lanemask_eq" => Start::LaneMask(0),
        "%lanemask_le" => Start::LaneMask(1),
        "%lanemask_lt" => Start::LaneMask(2),
        "%lanemask_ge" => Start::LaneMask(3),
        "%lanemask_gt" => Start::LaneMask(4),
        _ => {
            let (name, part) = word.rsplit_once('.')?;
            let axis = axis(part)?;
            match name {
                "%tid" => Start::Tid(axis),
                "%ntid" => Start::Ntid(axis),
                "%ctaid" => Start::Ctaid(axis),
                "%nctaid" => Start::Nctaid(axis),
                _ => return None,
            }
        }
    })
}
