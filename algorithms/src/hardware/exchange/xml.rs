//! XML, within bounds.
//!
//! Invariant: before the reader sees a text, one pass over it has refused entities, namespaces, elements inside each other
//! deeper than any file has them, and more attributes or elements than any has. So the reader's memory and
//! time are a small multiple of the text's length, and nothing is expanded. Absent: what elements mean.

use std::borrow::Cow;

use roxmltree::{Document, Node, ParsingOptions};

use super::error::{Place, ReadError};

/// hwloc has some ten levels of caches and groups, and PCIe some ten of switches.
const DEPTH_MAX: usize = 256;
/// NCCL reads 16 attributes of an element.
const ATTRIBUTES_MAX: usize = 256;
/// The largest hosts have some ten thousand objects.
const ELEMENTS_MAX: usize = 200_000;

/// What to do about a text that is no file that one of the programs wrote.
const FOREIGN: &str = "write the file again with the program that made it";

/// Parses a text whose format was found.
pub(crate) fn parse<'a>(text: &'a str, place: &Place) -> Result<Document<'a>, ReadError> {
    scan(text, place)?;
    // Files of hwloc name a DTD, which nothing reads.
    let options =
        ParsingOptions { allow_dtd: true, nodes_limit: 4 * ELEMENTS_MAX as u32, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(|error| {
        let reason = format!("the XML is damaged: {error}");
        let remedy = "the file may be cut off or edited; write it again with the program that made it";
        place.error(error.pos().row, reason, remedy)
    })
}

/// The bounds.
fn scan(text: &str, place: &Place) -> Result<(), ReadError> {
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut elements) = (0, 0usize, 0usize);
    while let Some(next) = text[at..].find('<') {
        let start = at + next;
        let rest = &text[start..];
        let refuse = |reason: &str| Err(place.error(place.line(start), reason, FOREIGN));
        // What is cut off is the reader's to refuse.
        let after = |end: &str| rest.find(end).map_or(bytes.len(), |found| start + found + end.len());
        at = if rest.starts_with("<!--") {
            after("-->")
        } else if rest.starts_with("<![CDATA[") {
            after("]]>")
        } else if rest.starts_with("<?") {
            after("?>")
        } else if rest.starts_with("<!") {
            let end = after(">");
            if text[start..end].contains(['[']) || rest.starts_with("<!ENTITY") {
                return refuse(
                    "a document type with declarations of its own, which could expand without bounds",
                );
            }
            end
        } else if rest.starts_with("</") {
            depth = depth.saturating_sub(1);
            after(">")
        } else {
            elements += 1;
            let (end, attributes, is_empty) = tag(bytes, start);
            depth += usize::from(!is_empty);
            if attributes > ATTRIBUTES_MAX {
                return refuse("an element with more than 256 attributes");
            }
            if elements > ELEMENTS_MAX {
                return refuse("more than 200,000 elements");
            }
            if depth > DEPTH_MAX {
                return refuse("elements more than 256 deep inside each other");
            }
            if text[start..end].contains("xmlns") {
                return refuse("an XML namespace, which none of these formats has");
            }
            end
        };
    }
    Ok(())
}

/// The text, with blanks in place of an XML declaration that does not stand at its beginning. XML forbids that, and
/// files have it whose licence was put in front; NCCL reads them.
pub(super) fn without_late_declaration(text: &str) -> Cow<'_, str> {
    let begins = |at: usize| text.trim_start().starts_with('<') && at > 0 && !text[..at].contains("<system");
    match text.find("<?xml ").filter(|at| begins(*at)) {
        Some(at) => {
            let end = text[at..].find("?>").map_or(text.len(), |end| at + end + 2);
            let blanks: String =
                text[at..end].chars().map(|letter| if letter == '\n' { '\n' } else { ' ' }).collect();
            Cow::Owned([&text[..at], &blanks, &text[end..]].concat())
        }
        None => Cow::Borrowed(text),
    }
}

/// The name of the first element.
pub(super) fn root_name(text: &str) -> Option<&str> {
    let mut rest = text;
    loop {
        rest = &rest[rest.find('<')?..];
        let end = if rest.starts_with("<!--") {
            "-->"
        } else if rest.starts_with("<?") {
            "?>"
        } else if rest.starts_with("<!") {
            ">"
        } else {
            let name = &rest[1..];
            let name = name.split(|letter: char| letter.is_whitespace() || "/>".contains(letter)).next()?;
            return Some(name).filter(|name| !name.is_empty());
        };
        rest = &rest[rest.find(end)? + end.len()..];
    }
}

/// The byte behind a start tag, how many attributes it has, and whether it is an element without content.
fn tag(bytes: &[u8], start: usize) -> (usize, usize, bool) {
    let (mut quote, mut attributes) = (None, 0);
    for (at, &byte) in bytes.iter().enumerate().skip(start) {
        match (quote, byte) {
            (None, b'"' | b'\'') => {
                quote = Some(byte);
                attributes += 1;
            }
            (Some(open), byte) if byte == open => quote = None,
            (None, b'>') => return (at + 1, attributes, bytes[at - 1] == b'/'),
            _ => {}
        }
    }
    (bytes.len(), attributes, false)
}

/// The line of an element.
pub(crate) fn line(place: &Place, node: Node<'_, '_>) -> u32 {
    place.line(node.range().start)
}

/// A whole number as C's `strtol` reads it with base 0: decimal, or hexadecimal after `0x`.
pub(super) fn integer(text: &str) -> Option<i64> {
    let text = text.trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16)
            .ok()
            .filter(|_| !digits.starts_with('+'))
            .map(|value| value as i64),
        None => text.parse().ok(),
    }
}

/// An integer of an attribute that may be missing or empty, and is then `None`. Numbers below 0 stand for "not known".
pub(crate) fn number<T: TryFrom<i64>>(
    place: &Place,
    line: u32,
    key: &str,
    value: Option<&str>,
) -> Result<Option<T>, ReadError> {
    let Some(text) = value.filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    let wrong =
        || place.error(line, format!("{key}={text:?} is no number that fits"), "correct it, or leave it out");
    let value = integer(text).ok_or_else(wrong)?;
    if value < 0 && !text.starts_with("0x") {
        Ok(None)
    } else {
        T::try_from(value).map(Some).map_err(|_| wrong())
    }
}

/// A value between quotation marks.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted += "&quot;",
            '&' => quoted += "&amp;",
            '<' => quoted += "&lt;",
            '\n' | '\r' | '\t' => quoted += &format!("&#{};", u32::from(letter)),
            // XML has no way to write them.
            letter if letter.is_control() => quoted.push('?'),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::exchange::Format;

    fn fault(text: &str) -> String {
        let place = Place::new(Format::NcclTopology, text);
        parse(text, &place).map(|_| ()).expect_err("it is refused").to_string()
    }

    #[test]
    fn what_could_grow_without_bounds_is_refused_before_it_is_parsed() {
        let entity = "<?xml version=\"1.0\"?>\n<!DOCTYPE a [<!ENTITY b \"c\">]>\n<a>&b;</a>";
        assert!(fault(entity).starts_with("line 2 of an NCCL topology: a document type with declarations"));
        assert!(fault(&"<a>".repeat(100_000)).contains("deep inside each other"));
        let wide: String = (0..300).map(|at| format!(" a{at}='>'")).collect();
        assert!(
            fault(&format!("<a{wide}/>")).contains("more than 256 attributes"),
            "a > in a value ends no tag"
        );
        assert!(fault(&format!("<a>{}</a>", "<b/>".repeat(200_001))).contains("more than 200,000 elements"));
        assert!(fault("<svg xmlns='http://www.w3.org/2000/svg'/>").contains("namespace"));
        let cut = fault("<a>\n<b>\n</a>");
        assert!(cut.starts_with("line 3 of an NCCL topology: the XML is damaged"), "{cut}");
        for text in ["<a", "<a b='", "<!-- a", "<!DOCTYPE a", "<a>", "<?", "", "<![CDATA["] {
            assert!(fault(text).contains("damaged"), "{text:?}");
        }
    }

    #[test]
    fn a_document_type_without_declarations_is_read() {
        let text =
            "<?xml version='1.0'?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology a='&amp;&#10;'/>";
        let place = Place::new(Format::Hwloc, text);
        let document = parse(text, &place).expect("it is right");
        assert_eq!(document.root_element().attribute("a"), Some("&\n"));
        assert_eq!(line(&place, document.root_element()), 3);
        assert_eq!(quoted("a\"&<\n\u{1}é"), "\"a&quot;&amp;&lt;&#10;?é\"");
    }

    #[test]
    fn numbers_are_those_of_c() {
        assert_eq!(integer(" 0x10de"), Some(0x10de));
        assert_eq!(integer("-1"), Some(-1));
        assert_eq!(integer("0xffffffffffffffff"), Some(-1));
        assert_eq!(
            (integer("0x"), integer("0x+1"), integer("1a"), integer("99999999999999999999")),
            (None, None, None, None)
        );
    }
}
