//! The words of a PTX text, with their lines.
//!
//! Invariant: a token's text is a slice of the source. Absent: meaning; see [`crate::module`] and [`crate::decode`].

use crate::ParseError;

/// One word or mark of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'t> {
    /// The characters, without the quotes of a string.
    pub(crate) text: &'t str,
    /// Line of the text, from 1.
    pub(crate) line: u32,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// Splits `text` into words (opcodes with their modifiers, names, numbers) and marks of one character.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let bytes = text.as_bytes();
    let (mut at, mut line) = (0, 1);
    let mut found = Vec::new();
    while at < bytes.len() {
        let byte = bytes[at];
        match byte {
            b'\n' => {
                line += 1;
                at += 1;
            }
            _ if byte.is_ascii_whitespace() => at += 1,
            // The driver is given the text with its terminating zero.
            0 => break,
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = text[at + 2..].find("*/").ok_or(ParseError::Unterminated { line })?;
                line += text[at..at + 2 + end].matches('\n').count() as u32;
                at += end + 4;
            }
            b'"' => {
                let end = text[at + 1..].find('"').ok_or(ParseError::Unterminated { line })?;
                found.push(Token { text: &text[at + 1..at + 1 + end], line });
                at += end + 2;
            }
            _ if is_word(byte) => {
                let start = at;
                loop {
                    while at < bytes.len() && is_word(bytes[at]) {
                        at += 1;
                    }
                    // `L1::no_allocate` is one word; a label ends with one colon.
                    if bytes.get(at) == Some(&b':') && bytes.get(at + 1) == Some(&b':') {
                        at += 2;
                    } else {
                        break;
                    }
                }
                found.push(Token { text: &text[start..at], line });
            }
            _ if byte.is_ascii() => {
                found.push(Token { text: &text[at..at + 1], line });
                at += 1;
            }
            _ => return Err(ParseError::Unexpected { line, found: "a character outside ASCII".into() }),
        }
    }
    Ok(found)
}

/// The value of a PTX integer literal, as 64 bits.
pub(crate) fn integer(word: &str) -> Option<u64> {
    let word = word.strip_suffix('U').unwrap_or(word);
    let (digits, radix) = match word.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&word[2..], 16),
        [b'0', b'b' | b'B', ..] => (&word[2..], 2),
        [b'0', _, ..] => (&word[1..], 8),
        _ => (word, 10),
    };
    u64::from_str_radix(digits, radix).ok()
}

/// A literal of a float: its bits and whether they are those of an `f64`.
pub(crate) fn float(word: &str) -> Option<(u64, bool)> {
    match word.as_bytes() {
        [b'0', b'f' | b'F', rest @ ..] if rest.len() == 8 => {
            Some((u64::from_str_radix(&word[2..], 16).ok()?, false))
        }
        [b'0', b'd' | b'D', rest @ ..] if rest.len() == 16 => {
            Some((u64::from_str_radix(&word[2..], 16).ok()?, true))
        }
        [b'0'..=b'9', ..] if word.contains('.') => Some((word.parse::<f64>().ok()?.to_bits(), true)),
        _ => None,
    }
}
