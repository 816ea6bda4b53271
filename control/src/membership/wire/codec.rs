//! Values as bytes: little-endian, lengths first.
//!
//! Invariant: taking never panics and never holds more than the bytes that are there: a length is believed only
//! as far as bytes follow.

use std::sync::Arc;
use std::time::Duration;

/// What is still to be read.
pub(super) struct Reader<'a> {
    pub(super) rest: &'a [u8],
}

/// A value with a form on the wire.
pub(super) trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);
    /// `None` when the bytes are not of this form.
    fn take(reader: &mut Reader<'_>) -> Option<Self>;
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*first)
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn take(reader: &mut Reader<'_>) -> Option<Self> {
                reader.array().map(<$number>::from_le_bytes)
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(reader: &mut Reader<'_>) -> Option<Self> {
        match u8::take(reader)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Wire for [u8; 16] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn take(reader: &mut Reader<'_>) -> Option<Self> {
        reader.array()
    }
}

/// In nanoseconds; longer than 584 years does not occur.
impl Wire for Duration {
    fn put(&self, out: &mut Vec<u8>) {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Option<Self> {
        u64::take(reader).map(Duration::from_nanos)
    }
}

/// The longest text kept, in bytes: what a person reads.
const TEXT_MAX: usize = 8 << 10;

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        let mut end = self.len().min(TEXT_MAX);
        while !self.is_char_boundary(end) {
            end -= 1;
        }
        (end as u32).put(out);
        out.extend_from_slice(&self.as_bytes()[..end]);
    }

    fn take(reader: &mut Reader<'_>) -> Option<Self> {
        let length = u32::take(reader)? as usize;
        let (first, rest) = reader.rest.split_at_checked(length)?;
        reader.rest = rest;
        Some(String::from_utf8_lossy(first).into_owned())
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Option<Self> {
        Some(if bool::take(reader)? { Some(T::take(reader)?) } else { None })
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(reader: &mut Reader<'_>) -> Option<Self> {
        let length = u32::take(reader)?;
        // Every value takes a byte at least, so this grows no further than the frame.
        if length as usize > reader.rest.len() {
            return None;
        }
        (0..length).map(|_| T::take(reader)).collect()
    }
}

impl<T: Wire> Wire for Arc<T> {
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }

    fn take(reader: &mut Reader<'_>) -> Option<Self> {
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

            fn take(reader: &mut Reader<'_>) -> Option<Self> {
                Some(($($part::take(reader)?,)*))
            }
        }
    )*};
}

tuples!((A, B), (A, B, C));

/// The form of a struct: its fields, in this order.
macro_rules! wire_struct {
    ($name:ty { $($field:ident),* $(,)? }) => {
        impl $crate::membership::wire::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(reader: &mut $crate::membership::wire::codec::Reader<'_>) -> Option<Self> {
                Some(Self { $($field: $crate::membership::wire::codec::Wire::take(reader)?),* })
            }
        }
    };
}

/// The form of an enum: a number, then the variant's fields, in this order.
macro_rules! wire_enum {
    ($name:ty { $($code:literal => $variant:ident $({ $($field:ident),* $(,)? })? $(( $($part:ident),* ))?),* $(,)? }) => {
        impl $crate::membership::wire::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(( $($part),* ))? => {
                        out.push($code);
                        $($($field.put(out);)*)?
                        $($($part.put(out);)*)?
                    })*
                }
            }

            fn take(reader: &mut $crate::membership::wire::codec::Reader<'_>) -> Option<Self> {
                Some(match u8::take(reader)? {
                    $($code => Self::$variant
                        $({ $($field: $crate::membership::wire::codec::Wire::take(reader)?),* })?
                        $(( $({ let $part = $crate::membership::wire::codec::Wire::take(reader)?; $part }),* ))?,)*
                    _ => return None,
                })
            }
        }
    };
}

pub(super) use {wire_enum, wire_struct};
