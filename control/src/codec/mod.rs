//! Values as bytes: little-endian, lengths first.
//!
//! Invariant: taking never panics and never holds more than the bytes that are there: a length is believed only
//! as far as bytes follow.

pub(crate) mod forms;

use std::sync::Arc;
use std::time::Duration;

/// Bytes that were not what they had to be; the text is for the log and for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

/// What is read off the front of some bytes.
pub type Taken<T> = Result<T, Malformed>;

const SHORT: Malformed = Malformed("it ends too early");

/// What is still to be read.
pub struct Reader<'a>(&'a [u8]);

/// A value with a form on the wire.
pub trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);

    /// # Errors
    /// When the bytes are not of this form.
    fn take(reader: &mut Reader<'_>) -> Taken<Self>;

    /// What [`Wire::put`] wrote, and only that.
    ///
    /// # Errors
    /// As [`Wire::take`], and when bytes are left over.
    fn whole(bytes: &[u8]) -> Taken<Self> {
        let mut reader = Reader::new(bytes);
        let value = Self::take(&mut reader)?;
        reader.end()?;
        Ok(value)
    }
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    pub fn take<T: Wire>(&mut self) -> Taken<T> {
        T::take(self)
    }

    pub fn bytes(&mut self, count: usize) -> Taken<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(first)
    }

    pub fn end(self) -> Taken<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("bytes are left over")) }
    }
}

/// A value's form.
pub fn bytes_of(value: &impl Wire) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

/// As much of the text as `most` bytes hold.
pub(crate) fn shortened(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn take(reader: &mut Reader<'_>) -> Taken<Self> {
                reader.take().map(<$number>::from_le_bytes)
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        match u8::take(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let (first, rest) = reader.0.split_first_chunk().ok_or(SHORT)?;
        reader.0 = rest;
        Ok(*first)
    }
}

/// In nanoseconds; longer than 584 years does not occur.
impl Wire for Duration {
    fn put(&self, out: &mut Vec<u8>) {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        u64::take(reader).map(Duration::from_nanos)
    }
}

/// The longest text kept, in bytes: what a person reads.
const TEXT_MAX: usize = 8 << 10;

/// As much of the text as fits, its length as a `u16` first.
impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        let text = shortened(self, TEXT_MAX);
        (text.len() as u16).put(out);
        out.extend_from_slice(text.as_bytes());
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let length = usize::from(u16::take(reader)?);
        if length > TEXT_MAX {
            return Err(Malformed("a text is too long"));
        }
        let bytes = reader.bytes(length)?;
        str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed("a text is not UTF-8"))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        Ok(if bool::take(reader)? { Some(T::take(reader)?) } else { None })
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let length = u32::take(reader)? as usize;
        // Every value takes a byte at least, so this grows no further than the frame.
        if length > reader.0.len() {
            return Err(Malformed("a count is out of bounds"));
        }
        (0..length).map(|_| T::take(reader)).collect()
    }
}

impl<T: Wire> Wire for Arc<T> {
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        T::take(reader).map(Arc::new)
    }
}

macro_rules! tuples {
    ($(($($part:ident),*)),*) => {$(
        impl<$($part: Wire),*> Wire for ($($part,)*) {
            #[expect(non_snake_case, reason = "types and values of a tuple share their names here")]
            fn put(&self, out: &mut Vec<u8>) {
                let ($($part,)*) = self;
                $($part.put(out);)*
            }

            fn take(reader: &mut Reader<'_>) -> Taken<Self> {
                Ok(($($part::take(reader)?,)*))
            }
        }
    )*};
}

tuples!((A, B), (A, B, C));

/// The form of a struct: its fields, in this order.
macro_rules! wire_struct {
    ($name:ty { $($field:ident),* $(,)? }) => {
        impl $crate::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(reader: &mut $crate::codec::Reader<'_>) -> $crate::codec::Taken<Self> {
                Ok(Self { $($field: reader.take()?),* })
            }
        }
    };
}

/// The form of an enum: a number, then the variant's fields, in this order; `field: Form` is read and written by `Form`'s
/// functions `put` and `take`. What else there is travels as the value that `else` makes of it.
macro_rules! wire_enum {
    ($name:ty {
        $($code:literal => $variant:ident
            $({ $($field:ident $(: $form:ty)?),* $(,)? })? $(( $($part:ident),* ))?),* $(,)?
    } $(else $other:ident => $substitute:expr)?) => {
        impl $crate::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(( $($part),* ))? => {
                        out.push($code);
                        $($(wire_enum!(@put $field, out $(, $form)?);)*)?
                        $($($part.put(out);)*)?
                    })*
                    $($other => $substitute.put(out),)?
                }
            }

            fn take(reader: &mut $crate::codec::Reader<'_>) -> $crate::codec::Taken<Self> {
                match reader.take::<u8>()? {
                    $($code => Ok(Self::$variant
                        $({ $($field: wire_enum!(@take reader $(, $form)?)),* })?
                        $(( $({ let $part = reader.take()?; $part }),* ))?),)*
                    _ => Err($crate::codec::Malformed("it is of no known kind")),
                }
            }
        }
    };
    (@put $field:ident, $out:ident) => { $field.put($out) };
    (@put $field:ident, $out:ident, $form:ty) => { <$form>::put($field, $out) };
    (@take $reader:ident) => { $reader.take()? };
    (@take $reader:ident, $form:ty) => { <$form>::take($reader)? };
}

pub(crate) use {wire_enum, wire_struct};

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq, Debug)]
    enum Shape {
        Dot,
        Line { length: u32 },
        Other,
    }

    wire_enum!(Shape { 1 => Dot, 2 => Line { length } } else _other => Shape::Dot);

    #[test]
    fn a_form_is_read_whole_or_refused() {
        let value = (vec![Shape::Dot, Shape::Line { length: 7 }], Some(true), "é".to_owned());
        let bytes = bytes_of(&value);
        assert_eq!(Wire::whole(&bytes), Ok((value.0, value.1, value.2)));
        type Form = (Vec<Shape>, Option<bool>, String);
        for end in 0..bytes.len() {
            assert!(Form::whole(&bytes[..end]).is_err(), "cut after {end} bytes");
        }
        assert_eq!(Form::whole(&[&bytes[..], &[0]].concat()), Err(Malformed("bytes are left over")));
        assert_eq!(Shape::whole(&[9]), Err(Malformed("it is of no known kind")));
        assert_eq!(bytes_of(&Shape::Other), [1], "it travels as what stands for it");
        assert_eq!(bool::whole(&[2]), Err(Malformed("a flag is neither 0 nor 1")));
        // A length is believed as far as bytes follow.
        assert_eq!(Vec::<u8>::whole(&[255, 255, 255, 255, 1]), Err(Malformed("a count is out of bounds")));
    }

    #[test]
    fn texts_keep_their_bounds() {
        let long = "é".repeat(TEXT_MAX);
        let out = bytes_of(&format!("a{long}"));
        assert_eq!(out.len(), 2 + TEXT_MAX - 1, "no half of a letter");
        assert_eq!(String::whole(&out).map(|text| text.len()), Ok(TEXT_MAX - 1));
        assert_eq!(String::whole(&[1, 0, 0xff]), Err(Malformed("a text is not UTF-8")));
        let longer = [&(TEXT_MAX as u16 + 1).to_le_bytes()[..], &[b'a'; TEXT_MAX + 1]].concat();
        assert_eq!(String::whole(&longer), Err(Malformed("a text is too long")));
    }
}
