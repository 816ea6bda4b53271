//! Values as bytes: little-endian, lengths first.
//!
//! Invariant: taking never panics and never holds more than the bytes that are there: a length is believed only
//! as far as bytes follow.

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

    /// What [`put_counted`] wrote, `most` bytes at most.
    pub fn counted(&mut self, most: usize) -> Taken<&'a [u8]> {
        let count = usize::from(self.take::<u16>()?);
        if count > most {
            return Err(Malformed("a length is out of bounds"));
        }
        self.bytes(count)
    }

    /// What [`put_text`] wrote, `most` bytes at most.
    pub fn text(&mut self, most: usize) -> Taken<String> {
        let bytes = self.counted(most)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed("a text is not UTF-8"))
    }

    /// A count of things of at least `least` bytes each, so that it can be reserved without fear.
    pub fn count(&mut self, most: usize, least: usize) -> Taken<usize> {
        let count = self.take::<u32>()? as usize;
        if count > most || count.saturating_mul(least) > self.0.len() {
            return Err(Malformed("a count is out of bounds"));
        }
        Ok(count)
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

/// The bytes, their length as a `u16` first.
pub fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    (bytes.len() as u16).put(out);
    out.extend_from_slice(bytes);
}

/// As much of the text as `most` bytes hold.
fn shortened(text: &str, most: usize) -> &[u8] {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

/// The text, or as much of it as fits, its length as a `u16` first.
pub fn put_text(out: &mut Vec<u8>, text: &str, most: usize) {
    put_counted(out, shortened(text, most));
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

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        let bytes = shortened(self, TEXT_MAX);
        (bytes.len() as u32).put(out);
        out.extend_from_slice(bytes);
    }

    fn take(reader: &mut Reader<'_>) -> Taken<Self> {
        let length = u32::take(reader)? as usize;
        reader.bytes(length).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
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
        // Every value takes a byte at least, so this grows no further than the frame.
        let length = reader.count(usize::MAX, 1)?;
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

/// The form of an enum: a number, then the variant's fields, in this order; what else there is by hand.
macro_rules! wire_enum {
    ($name:ty { $($variants:tt)* }) => {
        wire_enum!($name { $($variants)* } else _other, _out => {}; _code, _reader => {
            Err($crate::codec::Malformed("it is of no known kind"))
        });
    };
    (
        $name:ty { $($code:literal => $variant:ident $({ $($field:ident),* $(,)? })? $(( $($part:ident),* ))?),* $(,)? }
        else $other:ident, $out:ident => $put:block; $number:ident, $reader:ident => $take:block
    ) => {
        impl $crate::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                #[allow(unreachable_patterns, reason = "nothing else in most enums")]
                match self {
                    $(Self::$variant $({ $($field),* })? $(( $($part),* ))? => {
                        out.push($code);
                        $($($field.put(out);)*)?
                        $($($part.put(out);)*)?
                    })*
                    $other => {
                        let $out = out;
                        $put
                    }
                }
            }

            fn take(reader: &mut $crate::codec::Reader<'_>) -> $crate::codec::Taken<Self> {
                match reader.take::<u8>()? {
                    $($code => Ok(Self::$variant
                        $({ $($field: reader.take()?),* })?
                        $(( $({ let $part = reader.take()?; $part }),* ))?),)*
                    $number => {
                        let $reader = reader;
                        $take
                    }
                }
            }
        }
    };
}

pub(crate) use {wire_enum, wire_struct};

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq, Debug)]
    enum Shape {
        Dot,
        Line { length: u32 },
        Other(u8),
    }

    wire_enum!(Shape { 1 => Dot, 2 => Line { length } } else other, out => {
        let Shape::Other(number) = other else { return };
        out.push(*number);
    }; number, _reader => {
        if number < 9 { Ok(Shape::Other(number)) } else { Err(Malformed("no shape")) }
    });

    #[test]
    fn a_form_is_read_whole_or_refused() {
        let value =
            (vec![Shape::Dot, Shape::Line { length: 7 }, Shape::Other(5)], Some(true), "é".to_owned());
        let bytes = bytes_of(&value);
        assert_eq!(Wire::whole(&bytes), Ok((value.0, value.1, value.2)));
        type Form = (Vec<Shape>, Option<bool>, String);
        for end in 0..bytes.len() {
            assert!(Form::whole(&bytes[..end]).is_err(), "cut after {end} bytes");
        }
        assert_eq!(Form::whole(&[&bytes[..], &[0]].concat()), Err(Malformed("bytes are left over")));
        assert_eq!(Shape::whole(&[9]), Err(Malformed("no shape")));
        assert_eq!(bool::whole(&[2]), Err(Malformed("a flag is neither 0 nor 1")));
        // A length is believed as far as bytes follow.
        assert_eq!(Vec::<u8>::whole(&[255, 255, 255, 255, 1]), Err(Malformed("a count is out of bounds")));
    }

    #[test]
    fn counted_bytes_and_texts_keep_their_bounds() {
        let mut out = Vec::new();
        put_text(&mut out, "éé", 3);
        assert_eq!(out, [2, 0, 0xc3, 0xa9], "no half of a letter");
        assert_eq!(Reader::new(&out).text(2), Ok("é".to_owned()));
        assert_eq!(Reader::new(&out).text(1), Err(Malformed("a length is out of bounds")));
        assert_eq!(Reader::new(&[1, 0, 0xff]).text(8), Err(Malformed("a text is not UTF-8")));
        assert_eq!(Reader::new(&[2, 0, 0, 0, 0]).count(9, 1), Err(Malformed("a count is out of bounds")));
    }
}
