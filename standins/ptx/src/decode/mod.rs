//! From a function's words to instructions over slots.
//!
//! A kernel and all functions that it calls become one piece of code; since no function may call itself, each has
//! its registers, variables and parameters at fixed places of a thread's slots and local memory.
//! Invariant: what is decoded names no slot, place or target that does not exist. Absent: optimisation,
//! but for slots being shared ([`places`]).

mod control;
mod memory;
mod operand;
mod places;
mod scope;
mod value;

use std::collections::HashMap;
use std::sync::Arc;

use crate::ParseError;
use crate::module::{Function, Outline, declared, laid_out, place};
use crate::program::{ALWAYS, Instruction, Kernel, Op, SINK, Slot, Start};
use crate::text::{Token, integer};
use crate::value::Type;
use operand::Argument;
use scope::{Item, Scopes};

/// A function that the kernel calls.
struct Callee {
    /// Local places and bytes of results and parameters.
    returns: Vec<(u32, u32)>,
    parameters: Vec<(u32, u32)>,
    back: Slot,
    /// Where its code starts, once decoded.
    start: Option<u32>,
}

/// The kernel as far as it is decoded.
struct Builder<'m, 't> {
    outline: &'m Outline<'t>,
    code: Vec<Instruction>,
    targets: Vec<u32>,
    slots: u32,
    starts: Vec<(Slot, Start)>,
    known: HashMap<Start, Slot>,
    local_bytes: u64,
    shared_bytes: u64,
    callees: HashMap<&'t str, Callee>,
    waiting: Vec<&'t str>,
    /// Caller and callee of every call.
    calls: Vec<(&'t str, &'t str)>,
    /// Calls to be given their target.
    call_sites: Vec<(usize, &'t str)>,
    /// The function being decoded.
    current: &'t str,
    back: Option<Slot>,
    scopes: Scopes<'t>,
    /// Branches to be given their target: instruction or table entry, scope, label, line.
    jumps: Vec<(Jump, usize, &'t str, u32)>,
    at: usize,
}

#[derive(Clone, Copy)]
enum Jump {
    Instruction(usize),
    Table(usize),
}

/// One instruction's words, for errors and for the decoder of its kind.
struct Statement<'t> {
    line: u32,
    opcode: &'t str,
    words: Vec<&'t str>,
    arguments: Vec<Argument<'t>>,
}

impl Statement<'_> {
    fn unknown(&self) -> ParseError {
        ParseError::Opcode { line: self.line, opcode: self.opcode.to_owned() }
    }

    fn operands(&self) -> ParseError {
        ParseError::Operands { line: self.line, opcode: self.opcode.to_owned() }
    }

    /// The type that the opcode ends with.
    fn ty(&self) -> Result<Type, ParseError> {
        self.words.last().and_then(|word| Type::parse(word)).ok_or_else(|| self.unknown())
    }
}

/// Decodes the kernel `function`.
pub(crate) fn decode(
    outline: &Outline<'_>,
    function: &Function<'_>,
    constants: &Arc<[u8]>,
) -> Result<Kernel, ParseError> {
    let mut builder = Builder {
        outline,
        code: Vec::new(),
        targets: Vec::new(),
        slots: SINK + 1,
        starts: Vec::new(),
        known: HashMap::new(),
        local_bytes: 0,
        shared_bytes: outline.shared_bytes,
        callees: HashMap::new(),
        waiting: Vec::new(),
        calls: Vec::new(),
        call_sites: Vec::new(),
        current: function.name,
        back: None,
        scopes: Scopes::new(),
        jumps: Vec::new(),
        at: 0,
    };
    let (parameters, parameter_bytes) = laid_out(&function.parameters);
    for (parameter, &(name, ..)) in parameters.iter().zip(&function.parameters) {
        builder.scopes.declare(name, Item::Parameter(u64::from(parameter.offset)));
    }
    builder.function(function)?;
    while let Some(name) = builder.waiting.pop() {
        builder.callee(&outline.functions[name])?;
    }
    builder.check_calls()?;
    for &(at, name) in &builder.call_sites {
        if let Op::Call { target, .. } = &mut builder.code[at].op {
            *target = builder.callees[name].start.unwrap_or(0);
        }
    }
    builder.slots = places::share(&mut builder.code, &builder.targets, &mut builder.starts, builder.slots);
    let too_large = |bytes: u64| ParseError::Number { line: 0, found: bytes.to_string() };
    Ok(Kernel {
        name: function.name.to_owned(),
        parameters,
        parameter_bytes,
        code: builder.code,
        targets: builder.targets,
        slots: builder.slots,
        starts: builder.starts,
        local_bytes: u32::try_from(builder.local_bytes).map_err(|_| too_large(builder.local_bytes))?,
        static_shared_bytes: u32::try_from(builder.shared_bytes)
            .map_err(|_| too_large(builder.shared_bytes))?,
        dynamic_shared_at: builder.shared_bytes.next_multiple_of(16) as u32,
        constants: constants.clone(),
        max_threads: function.max_threads,
    })
}

impl<'t> Builder<'_, 't> {
    fn slot(&mut self) -> Slot {
        self.slots += 1;
        self.slots - 1
    }

    /// The slot that holds `start` from the thread's start on.
    fn start(&mut self, start: Start) -> Slot {
        if let Some(&slot) = self.known.get(&start) {
            return slot;
        }
        let slot = self.slot();
        self.known.insert(start, slot);
        self.starts.push((slot, start));
        slot
    }

    /// Bytes of a thread's local memory.
    fn local(&mut self, bytes: u64, align: u32) -> u64 {
        let at = self.local_bytes.next_multiple_of(u64::from(align.max(1)));
        self.local_bytes = at + bytes;
        at
    }

    fn callee(&mut self, function: &Function<'t>) -> Result<(), ParseError> {
        self.current = function.name;
        self.scopes = Scopes::new();
        let callee = self.callees.get_mut(function.name).ok_or(ParseError::Early)?;
        callee.start = Some(self.code.len() as u32);
        self.back = Some(callee.back);
        for (&(name, ..), &(at, _)) in function.returns.iter().zip(&callee.returns) {
            self.scopes.declare(name, Item::Local(u64::from(at)));
        }
        for (&(name, ..), &(at, _)) in function.parameters.iter().zip(&callee.parameters) {
            self.scopes.declare(name, Item::Local(u64::from(at)));
        }
        self.function(function)
    }

    /// No function may reach itself.
    fn check_calls(&self) -> Result<(), ParseError> {
        for &(_, start) in &self.calls {
            let mut reached = vec![start];
            let mut next = 0;
            while next < reached.len() {
                for &(from, to) in &self.calls {
                    if from == reached[next] {
                        if to == start {
                            let body = self.outline.functions[start].body.start;
                            let line = self.outline.tokens[body].line;
                            return Err(ParseError::Recursive { line, name: start.to_owned() });
                        }
                        if !reached.contains(&to) {
                            reached.push(to);
                        }
                    }
                }
                next += 1;
            }
        }
        Ok(())
    }

    fn token(&self) -> Result<Token<'t>, ParseError> {
        self.outline.tokens.get(self.at).copied().ok_or(ParseError::Early)
    }

    fn next(&mut self) -> Result<Token<'t>, ParseError> {
        let token = self.token()?;
        self.at += 1;
        Ok(token)
    }

    fn peek(&self, ahead: usize) -> &'t str {
        self.outline.tokens.get(self.at + ahead).map_or("", |token| token.text)
    }

    fn function(&mut self, function: &Function<'t>) -> Result<(), ParseError> {
        self.at = function.body.start;
        let first_jump = self.jumps.len();
        while self.at < function.body.end {
            self.line(function)?;
        }
        // A function whose text ends without a `ret`.
        let line = self.outline.tokens[function.body.end].line;
        let op = self.back.map_or(Op::Exit, |back| Op::Return { back });
        self.code.push(Instruction { op, guard: ALWAYS, negate: false, line });
        for (jump, scope, label, line) in self.jumps.split_off(first_jump) {
            let target = self
                .scopes
                .label(scope, label)
                .ok_or(ParseError::Undeclared { line, name: label.to_owned() })?;
            match jump {
                Jump::Table(at) => self.targets[at] = target,
                Jump::Instruction(at) => self.code[at].op = Op::Branch { target },
            }
        }
        Ok(())
    }

    /// A directive, label, brace or instruction.
    fn line(&mut self, function: &Function<'t>) -> Result<(), ParseError> {
        let token = self.next()?;
        let unexpected = || ParseError::Unexpected { line: token.line, found: token.text.to_owned() };
        match token.text {
            "{" => self.scopes.open(),
            "}" => self.scopes.close(),
            ";" => {}
            ".reg" => self.registers()?,
            ".local" | ".shared" | ".param" => {
                let declared = declared(&self.outline.tokens, &mut self.at)?;
                let item = if token.text == ".shared" {
                    Item::Shared(place(&mut self.shared_bytes, &declared))
                } else {
                    Item::Local(self.local(declared.bytes(), declared.align))
                };
                self.scopes.declare(declared.name, item);
                self.semicolon()?;
            }
            ".pragma" => while self.next()?.text != ";" {},
            ".loc" => {
                while self.at < function.body.end && self.token()?.line == token.line {
                    self.at += 1;
                }
            }
            "@" => {
                let negate = self.peek(0) == "!";
                self.at += usize::from(negate);
                let name = self.next()?;
                let (guard, _) = self
                    .scopes
                    .register(name.text)
                    .ok_or(ParseError::Undeclared { line: name.line, name: name.text.to_owned() })?;
                let opcode = self.next()?;
                self.instruction(opcode, guard, negate)?;
            }
            label if self.peek(0) == ":" => {
                self.at += 1;
                if self.peek(0) == ".branchtargets" {
                    self.at += 1;
                    let mut list = Vec::new();
                    loop {
                        list.push(self.next()?.text);
                        if self.next()?.text == ";" {
                            break;
                        }
                    }
                    self.scopes.declare(label, Item::Targets(list));
                } else {
                    self.scopes.place_label(label, self.code.len() as u32);
                }
            }
            word if word.starts_with('.') || !word.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                return Err(unexpected());
            }
            _ => self.instruction(token, ALWAYS, false)?,
        }
        Ok(())
    }

    fn semicolon(&mut self) -> Result<(), ParseError> {
        let token = self.next()?;
        if token.text == ";" {
            return Ok(());
        }
        Err(ParseError::Unexpected { line: token.line, found: token.text.to_owned() })
    }

    /// `.reg .b32 %r<12>;` or `.reg .pred p, q;`
    fn registers(&mut self) -> Result<(), ParseError> {
        let word = self.next()?;
        let unexpected =
            |token: Token<'_>| ParseError::Unexpected { line: token.line, found: token.text.to_owned() };
        let ty = word.text.strip_prefix('.').and_then(Type::parse).ok_or_else(|| unexpected(word))?;
        let width = ty.width();
        loop {
            let name = self.next()?;
            let mut after = self.next()?;
            if after.text == "<" {
                let count = self.next()?;
                let number = integer(count.text).filter(|&n| n < 1 << 20).ok_or_else(|| unexpected(count))?;
                self.scopes.declare_family(name.text, self.slots, number as u32, width);
                self.slots += number as u32;
                self.next()?;
                after = self.next()?;
            } else {
                let slot = self.slot();
                self.scopes.declare(name.text, Item::Register(slot, width));
            }
            match after.text {
                ";" => return Ok(()),
                "," => {}
                _ => return Err(unexpected(after)),
            }
        }
    }

    fn instruction(&mut self, opcode: Token<'t>, guard: Slot, negate: bool) -> Result<(), ParseError> {
        let arguments = self.arguments()?;
        let words = opcode.text.split('.').collect();
        let statement = Statement { line: opcode.line, opcode: opcode.text, words, arguments };
        let first = self.code.len();
        self.decode_one(&statement)?;
        // Guards of what one statement became: none of these changes the predicate before the last.
        for instruction in &mut self.code[first..] {
            instruction.guard = guard;
            instruction.negate = negate;
        }
        Ok(())
    }

    fn emit(&mut self, statement: &Statement<'t>, op: Op) {
        self.code.push(Instruction { op, guard: ALWAYS, negate: false, line: statement.line });
    }

    fn decode_one(&mut self, statement: &Statement<'t>) -> Result<(), ParseError> {
        match statement.words[0] {
            "ld" | "ldu" | "st" | "atom" | "red" | "fence" | "membar" | "cvta" | "isspacep" | "prefetch"
            | "prefetchu" => self.memory(statement),
            "bar" | "barrier" | "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "nanosleep" | "shfl"
            | "vote" | "redux" | "match" | "activemask" => self.control(statement),
            _ => self.value_op(statement),
        }
    }
}
