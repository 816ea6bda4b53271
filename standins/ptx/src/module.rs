//! A text as a whole: its variables, functions and kernels.
//!
//! Invariant: every kernel of the text is decoded when the text is read, so that an unknown opcode shows then.
//! Absent: linking of several texts; `.extern` functions; textures and surfaces.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ParseError;
use crate::decode::decode;
use crate::program::{Kernel, Parameter};
use crate::text::{Token, float, integer, tokens};
use crate::value::Type;

/// Where a module's variable lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Global(u64),
    Constant(u64),
    /// Static shared memory, which every kernel has.
    Shared(u64),
    /// `.extern .shared`.
    Dynamic,
}

/// A variable in `.global` space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// First byte in [`Module::global_image`].
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A function's words, from `{` to `}`.
pub(crate) struct Function<'t> {
    pub(crate) name: &'t str,
    pub(crate) entry: bool,
    pub(crate) returns: Vec<(&'t str, u32, u32)>,
    pub(crate) parameters: Vec<(&'t str, u32, u32)>,
    pub(crate) body: std::ops::Range<usize>,
    pub(crate) max_threads: Option<u32>,
}

/// The parts of the text that the decoder of a function needs.
pub(crate) struct Outline<'t> {
    pub(crate) tokens: Vec<Token<'t>>,
    pub(crate) variables: HashMap<&'t str, Place>,
    pub(crate) functions: HashMap<&'t str, Function<'t>>,
    pub(crate) shared_bytes: u64,
}

/// A parsed text.
#[derive(Debug)]
pub struct Module {
    kernels: Vec<Kernel>,
    globals: Vec<Variable>,
    image: Vec<u8>,
    image_align: u64,
}

impl Module {
    /// Reads `text` and decodes all of its kernels.
    ///
    /// # Errors
    /// The first token that the parser does not understand, with its line.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut reader = Reader { tokens: tokens(text)?, at: 0, state: State::default() };
        while reader.at < reader.tokens.len() {
            reader.declaration()?;
        }
        let Reader { tokens, state, .. } = reader;
        let constants: Arc<[u8]> = state.constants.into();
        let outline = Outline {
            tokens,
            variables: state.variables,
            functions: state.functions,
            shared_bytes: state.shared_bytes,
        };
        let kernels = state
            .order
            .iter()
            .map(|name| decode(&outline, &outline.functions[name], &constants))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            kernels,
            globals: state.globals,
            image: state.image,
            image_align: state.image_align.max(16),
        })
    }

    /// The kernel of that name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// All kernels in the text's order.
    #[must_use]
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The variables in global space.
    #[must_use]
    pub fn globals(&self) -> &[Variable] {
        &self.globals
    }

    /// Contents of the global variables when the module is loaded. The loader copies them to memory aligned by
    /// [`Module::global_align`], and passes the address as [`crate::Launch::globals`].
    #[must_use]
    pub fn global_image(&self) -> &[u8] {
        &self.image
    }

    /// Alignment of the variables, in bytes.
    #[must_use]
    pub fn global_align(&self) -> u64 {
        self.image_align
    }
}

#[derive(Default)]
struct State<'t> {
    variables: HashMap<&'t str, Place>,
    functions: HashMap<&'t str, Function<'t>>,
    order: Vec<&'t str>,
    globals: Vec<Variable>,
    image: Vec<u8>,
    image_align: u64,
    constants: Vec<u8>,
    shared_bytes: u64,
}

/// A cursor over tokens.
struct Reader<'t> {
    tokens: Vec<Token<'t>>,
    at: usize,
    state: State<'t>,
}

/// A variable's declaration, without its space.
pub(crate) struct Declared<'t> {
    pub(crate) name: &'t str,
    pub(crate) ty: Type,
    pub(crate) align: u32,
    /// Elements; `None` for `name[]`.
    pub(crate) count: Option<u64>,
}

impl Declared<'_> {
    pub(crate) fn bytes(&self) -> u64 {
        self.count.unwrap_or(0) * u64::from(self.ty.bytes())
    }
}

/// Reads `.align 8 .b8 name[40]` from `tokens` at `at`.
pub(crate) fn declared<'t>(tokens: &[Token<'t>], at: &mut usize) -> Result<Declared<'t>, ParseError> {
    let mut align = None;
    let mut ty = None;
    loop {
        let token = *tokens.get(*at).ok_or(ParseError::Early)?;
        *at += 1;
        let unexpected = || ParseError::Unexpected { line: token.line, found: token.text.to_owned() };
        match token.text {
            ".align" => {
                let number = tokens.get(*at).ok_or(ParseError::Early)?;
                *at += 1;
                align = integer(number.text).and_then(|n| u32::try_from(n).ok());
            }
            ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
            word if word.starts_with('.') => ty = Some(Type::parse(&word[1..]).ok_or_else(unexpected)?),
            name => {
                let ty = ty.ok_or_else(unexpected)?;
                let mut count = Some(1);
                while tokens.get(*at).is_some_and(|t| t.text == "[") {
                    let number = tokens.get(*at + 1).ok_or(ParseError::Early)?;
                    if number.text == "]" {
                        count = None;
                        *at += 2;
                    } else {
                        let elements = integer(number.text)
                            .filter(|&n| n < 1 << 32)
                            .ok_or(ParseError::Number { line: number.line, found: number.text.to_owned() })?;
                        count = count.map(|c: u64| c.saturating_mul(elements));
                        *at += 3;
                    }
                }
                let align = align.unwrap_or(u32::from(ty.bytes()));
                if !align.is_power_of_two() {
                    return Err(ParseError::Number { line: token.line, found: align.to_string() });
                }
                return Ok(Declared { name, ty, align, count });
            }
        }
    }
}

/// Places `declared` after `end`.
pub(crate) fn place(end: &mut u64, declared: &Declared<'_>) -> u64 {
    let at = end.next_multiple_of(u64::from(declared.align));
    *end = at + declared.bytes();
    at
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<Token<'t>, ParseError> {
        let token = *self.tokens.get(self.at).ok_or(ParseError::Early)?;
        self.at += 1;
        Ok(token)
    }

    fn peek(&self) -> &'t str {
        self.tokens.get(self.at).map_or("", |token| token.text)
    }

    fn expect(&mut self, text: &str) -> Result<(), ParseError> {
        let token = self.next()?;
        if token.text == text {
            return Ok(());
        }
        Err(ParseError::Unexpected { line: token.line, found: token.text.to_owned() })
    }

    fn declaration(&mut self) -> Result<(), ParseError> {
        let token = self.next()?;
        match token.text {
            ".version" | ".address_size" => {
                self.next()?;
            }
            ".target" => {
                self.next()?;
                while self.peek() == "," {
                    self.at += 2;
                }
            }
            ".file" => {
                let line = token.line;
                while self.tokens.get(self.at).is_some_and(|t| t.line == line) {
                    self.at += 1;
                }
            }
            ".section" => while self.next()?.text != "}" {},
            ".visible" | ".weak" | ".common" => {}
            ".extern" => {
                if self.peek() != ".shared" {
                    let found = self.peek().to_owned();
                    return Err(ParseError::Unexpected { line: token.line, found });
                }
            }
            ".global" | ".const" | ".shared" => self.variable(token.text)?,
            ".entry" => self.function(true)?,
            ".func" => self.function(false)?,
            _ => return Err(ParseError::Unexpected { line: token.line, found: token.text.to_owned() }),
        }
        Ok(())
    }

    fn variable(&mut self, space: &str) -> Result<(), ParseError> {
        let declared = declared(&self.tokens, &mut self.at)?;
        let mut declared = declared;
        let bytes = if self.peek() == "=" {
            self.at += 1;
            let bytes = self.initial(declared.ty)?;
            if declared.count.is_none() {
                declared.count = Some(bytes.len() as u64 / u64::from(declared.ty.bytes()));
            }
            bytes
        } else {
            Vec::new()
        };
        self.expect(";")?;
        let state = &mut self.state;
        let found = match space {
            ".shared" if declared.count.is_none() => Place::Dynamic,
            ".shared" => Place::Shared(place(&mut state.shared_bytes, &declared)),
            _ => {
                let image = if space == ".const" { &mut state.constants } else { &mut state.image };
                let mut end = image.len() as u64;
                let at = place(&mut end, &declared);
                image.resize(end as usize, 0);
                let fits = bytes.len().min(declared.bytes() as usize);
                image[at as usize..at as usize + fits].copy_from_slice(&bytes[..fits]);
                if space == ".const" {
                    Place::Constant(at)
                } else {
                    state.image_align = state.image_align.max(u64::from(declared.align));
                    state.globals.push(Variable {
                        name: declared.name.to_owned(),
                        offset: at,
                        bytes: declared.bytes(),
                    });
                    Place::Global(at)
                }
            }
        };
        state.variables.insert(declared.name, found);
        Ok(())
    }

    /// The bytes of `{1, 2, {3}}` or of one number.
    fn initial(&mut self, ty: Type) -> Result<Vec<u8>, ParseError> {
        let mut bytes = Vec::new();
        let mut depth = 0;
        let mut negative = false;
        loop {
            let token = self.next()?;
            match token.text {
                "{" => depth += 1,
                "}" => depth -= 1,
                "," => {}
                "-" => {
                    negative = true;
                    continue;
                }
                word => {
                    let value = integer(word)
                        .or_else(|| float(word).map(|(bits, _)| bits))
                        .ok_or(ParseError::Unexpected { line: token.line, found: word.to_owned() })?;
                    let value = if negative { value.wrapping_neg() } else { value };
                    negative = false;
                    bytes.extend_from_slice(&value.to_le_bytes()[..usize::from(ty.bytes())]);
                }
            }
            if depth == 0 {
                return Ok(bytes);
            }
        }
    }

    /// `(.param .b32 a, …)`, if it is there.
    fn parameters(&mut self) -> Result<Vec<(&'t str, u32, u32)>, ParseError> {
        let mut found = Vec::new();
        if self.peek() != "(" {
            return Ok(found);
        }
        self.at += 1;
        loop {
            let token = self.next()?;
            match token.text {
                ")" => return Ok(found),
                "," => {}
                ".param" => {
                    let declared = declared(&self.tokens, &mut self.at)?;
                    let bytes = u32::try_from(declared.bytes()).map_err(|_| ParseError::Number {
                        line: token.line,
                        found: declared.name.to_owned(),
                    })?;
                    found.push((declared.name, bytes, declared.align));
                }
                _ => return Err(ParseError::Unexpected { line: token.line, found: token.text.to_owned() }),
            }
        }
    }

    fn function(&mut self, entry: bool) -> Result<(), ParseError> {
        let returns = if entry { Vec::new() } else { self.parameters()? };
        let name = self.next()?;
        let parameters = self.parameters()?;
        let mut max_threads = None;
        loop {
            let token = self.next()?;
            match token.text {
                // A declaration; the definition comes later.
                ";" => return Ok(()),
                "{" => break,
                ".maxntid" | ".reqntid" => {
                    let mut product = 1u64;
                    loop {
                        let number = self.next()?;
                        let found =
                            || ParseError::Number { line: number.line, found: number.text.to_owned() };
                        product = product.saturating_mul(integer(number.text).ok_or_else(found)?);
                        if self.peek() != "," {
                            break;
                        }
                        self.at += 1;
                    }
                    max_threads = u32::try_from(product).ok();
                }
                ".minnctapersm" | ".maxnreg" | ".pragma" => {
                    self.next()?;
                }
                ".noreturn" => {}
                _ => return Err(ParseError::Unexpected { line: token.line, found: token.text.to_owned() }),
            }
        }
        let start = self.at;
        let mut depth = 1;
        while depth > 0 {
            match self.next()?.text {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
        }
        let body = start..self.at - 1;
        let function = Function { name: name.text, entry, returns, parameters, body, max_threads };
        self.state.functions.insert(name.text, function);
        if entry {
            self.state.order.push(name.text);
        }
        Ok(())
    }
}

/// The parameters of a kernel as laid out for a launch, and their bytes in all.
pub(crate) fn laid_out(parameters: &[(&str, u32, u32)]) -> (Vec<Parameter>, u32) {
    let mut end = 0u32;
    let mut found = Vec::new();
    for &(name, bytes, align) in parameters {
        let offset = end.next_multiple_of(align);
        end = offset + bytes;
        found.push(Parameter { name: name.to_owned(), offset, bytes, align });
    }
    (found, end)
}
