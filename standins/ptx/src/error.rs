//! Errors of a text.

/// The reason why a text is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// A comment or string has no end.
    #[error("line {line}: a comment or string has no end")]
    Unterminated {
        /// Line of the text, from 1.
        line: u32,
    },
    /// The text ends within a declaration or function.
    #[error("the text ends too early")]
    Early,
    /// A token that the grammar does not allow there.
    #[error("line {line}: unexpected `{found}`")]
    Unexpected {
        /// Line of the text, from 1.
        line: u32,
        /// The token.
        found: String,
    },
    /// An opcode, or one of its modifiers, that the interpreter does not know.
    #[error("line {line}: unknown opcode `{opcode}`")]
    Opcode {
        /// Line of the text, from 1.
        line: u32,
        /// The opcode with its modifiers.
        opcode: String,
    },
    /// The operands do not fit the opcode.
    #[error("line {line}: wrong operands of `{opcode}`")]
    Operands {
        /// Line of the text, from 1.
        line: u32,
        /// The opcode with its modifiers.
        opcode: String,
    },
    /// A name that is not declared.
    #[error("line {line}: `{name}` is not declared")]
    Undeclared {
        /// Line of the text, from 1.
        line: u32,
        /// The name.
        name: String,
    },
    /// A function that calls itself, directly or through others.
    #[error("line {line}: `{name}` calls itself")]
    Recursive {
        /// Line of the text, from 1.
        line: u32,
        /// The function.
        name: String,
    },
    /// A number does not fit.
    #[error("line {line}: a number that does not fit: `{found}`")]
    Number {
        /// Line of the text, from 1.
        line: u32,
        /// The word.
        found: String,
    },
}
