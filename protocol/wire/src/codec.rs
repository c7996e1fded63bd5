//! The encoding of values: little-endian, packed, in order of declaration.
//!
//! Decoding is total: any bytes decode to a value or to a [`DecodeError`], and a payload
//! must be consumed completely.

use thiserror::Error;

/// Why a payload does not match its call's declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The payload ends inside a field.
    #[error("payload ends inside a field")]
    Truncated,
    /// Bytes remain after the last field.
    #[error("{0} bytes remain after the last field")]
    Trailing(usize),
    /// A text field is not UTF-8.
    #[error("text is not UTF-8")]
    NotText,
    /// A field has a value that its type does not allow.
    #[error("value {value} is not a valid {field}")]
    BadValue {
        /// The meaning of the field.
        field: &'static str,
        /// The value.
        value: u64,
    },
    /// No call or control frame has this number.
    #[error("there is no call number {0:#06x}")]
    UnknownCall(u16),
}

/// Decodes fields from the front of a payload.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// The next field.
    ///
    /// # Errors
    /// Those of the field's type.
    pub fn field<T: Field<'a>>(&mut self) -> Result<T, DecodeError> {
        T::decode(self)
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Checks that nothing is left over.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`].
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing(left)),
        }
    }
}

/// A value that can be encoded on the wire.
pub trait Field<'a>: Sized {
    /// Appends the value to `out`. Trailing bytes may be returned instead, so that they are
    /// sent without a copy.
    fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8];

    /// Decodes the value from the front of `reader`.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not such a value.
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

macro_rules! number_fields {
    ($($number:ty),*) => {$(
        impl Field<'_> for $number {
            fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
                out.extend_from_slice(&self.to_le_bytes());
                &[]
            }
            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                reader.array().map(Self::from_le_bytes)
            }
        }
    )*};
}
number_fields!(u8, u16, u32, u64, i32, i64, f32);

impl Field<'_> for () {
    fn encode<'s>(&'s self, _: &mut Vec<u8>) -> &'s [u8] {
        &[]
    }
    fn decode(_: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl Field<'_> for bool {
    fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
        out.push(u8::from(*self));
        &[]
    }
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::BadValue {
                field: "bool",
                value: other.into(),
            }),
        }
    }
}

impl<const N: usize> Field<'_> for [u8; N] {
    fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
        out.extend_from_slice(self);
        &[]
    }
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.array()
    }
}

impl Field<'_> for [u32; 3] {
    fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
        // Every launch has three of these, so each is checked for room only once.
        let mut bytes = [0; 12];
        for (place, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(self) {
            *place = value.to_le_bytes();
        }
        out.extend_from_slice(&bytes);
        &[]
    }
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok([reader.field()?, reader.field()?, reader.field()?])
    }
}

impl<const N: usize> Field<'_> for [u64; N] {
    fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
        for value in self {
            out.extend_from_slice(&value.to_le_bytes());
        }
        &[]
    }
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut values = [0; N];
        for value in &mut values {
            *value = reader.field()?;
        }
        Ok(values)
    }
}

/// A byte string: a `u32` count, then the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes<'a>(pub &'a [u8]);

impl std::fmt::Debug for Bytes<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} bytes", self.0.len())
    }
}

impl<'a> Field<'a> for Bytes<'a> {
    fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
        // A count beyond u32 exceeds the limit of a frame too, and the communicator refuses
        // the frame by its true length.
        let count = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&count.to_le_bytes());
        self.0
    }
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count: u32 = reader.field()?;
        let count = usize::try_from(count).map_err(|_| DecodeError::Truncated)?;
        reader.bytes(count).map(Bytes)
    }
}

/// UTF-8 text: as [`Bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Text<'a>(pub &'a str);

impl<'a> Field<'a> for Text<'a> {
    fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
        let count = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&count.to_le_bytes());
        self.0.as_bytes()
    }
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes: Bytes<'a> = reader.field()?;
        std::str::from_utf8(bytes.0)
            .map(Text)
            .map_err(|_| DecodeError::NotText)
    }
}

/// Declares structs whose fields are encoded in order of declaration.
#[macro_export]
macro_rules! record {
    ($(
        $(#[$meta:meta])*
        $name:ident $(<$life:lifetime>)? { $( $(#[$field_meta:meta])* $field:ident : $type:ty ),* $(,)? }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $name $(<$life>)? { $( $(#[$field_meta])* pub $field: $type ),* }

        $crate::record!(@impl $name $(<$life>)? { $( $field ),* });
    )*};
    (@impl $name:ident <$life:lifetime> { $( $field:ident ),* }) => {
        impl<$life> $crate::codec::Field<$life> for $name<$life> {
            $crate::record!(@body $life { $( $field ),* });
        }
    };
    (@impl $name:ident { $( $field:ident ),* }) => {
        impl<'wire> $crate::codec::Field<'wire> for $name {
            $crate::record!(@body 'wire { $( $field ),* });
        }
    };
    (@body $life:lifetime { $( $field:ident ),* }) => {
        #[allow(unused_assignments, unused_mut, unused_variables)]
        fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
            let mut tail: &[u8] = &[];
            $(
                out.extend_from_slice(tail);
                tail = $crate::codec::Field::encode(&self.$field, out);
            )*
            tail
        }
        #[allow(unused_variables)]
        fn decode(
            reader: &mut $crate::codec::Reader<$life>,
        ) -> Result<Self, $crate::codec::DecodeError> {
            Ok(Self { $( $field: reader.field()? ),* })
        }
    };
}

/// Decodes one value that must fill `payload` exactly.
pub fn decode_all<'a, T: Field<'a>>(payload: &'a [u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::new(payload);
    let value = reader.field()?;
    reader.finish()?;
    Ok(value)
}

/// Encodes a value into a new buffer, for tests and code that is not hot.
#[must_use]
pub fn encode_all<'a, T: Field<'a>>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    let tail = value.encode(&mut out);
    out.extend_from_slice(tail);
    out
}
