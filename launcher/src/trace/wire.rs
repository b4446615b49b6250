//! The encoding of Protocol Buffers (protobuf.dev, "Encoding"): a tag before each field, a length
//! before each message and text.

/// Types of a field on the wire.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;

/// A message that can be written.
pub(super) trait Message {
    /// Writes all fields, in the order of their numbers.
    fn write(&self, fields: &mut Fields<'_>);
}

/// The destination for the fields of one message.
pub(super) struct Fields<'a>(&'a mut Vec<u8>);

impl<'a> Fields<'a> {
    /// Fields that are added to `bytes`.
    pub(super) fn of(bytes: &'a mut Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Writes a number, unless it is 0: a reader assumes 0 for a missing field.
    pub(super) fn number(&mut self, field: u64, value: impl Into<u64>) {
        let value = value.into();
        self.optional(field, (value != 0).then_some(value));
    }

    /// Writes a number that may be missing, which is not the same as 0.
    pub(super) fn optional(&mut self, field: u64, value: Option<u64>) {
        if let Some(value) = value {
            self.varint(field << 3 | VARINT);
            self.varint(value);
        }
    }

    /// Writes each number in 8 bytes.
    pub(super) fn fixed(&mut self, field: u64, values: &[u64]) {
        for value in values {
            self.varint(field << 3 | FIXED_64);
            self.0.extend(value.to_le_bytes());
        }
    }

    /// Writes a text that may be missing.
    pub(super) fn text(&mut self, field: u64, text: Option<&str>) {
        if let Some(text) = text {
            self.varint(field << 3 | LENGTH_DELIMITED);
            self.varint(text.len() as u64);
            self.0.extend(text.as_bytes());
        }
    }

    /// Writes each message.
    pub(super) fn messages<'m, M: Message + 'm>(
        &mut self,
        field: u64,
        messages: impl IntoIterator<Item = &'m M>,
    ) {
        for message in messages {
            self.varint(field << 3 | LENGTH_DELIMITED);
            let start = self.0.len();
            message.write(self);
            // The length is known now, and belongs before the message.
            let end = self.0.len();
            self.varint((end - start) as u64);
            let length_bytes = self.0.len() - end;
            if let Some(written) = self.0.get_mut(start..) {
                written.rotate_right(length_bytes);
            }
        }
    }

    fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }
}

/// A reader, for tests.
#[cfg(test)]
pub(super) mod read {
    use super::{FIXED_64, LENGTH_DELIMITED, VARINT};

    /// A field's value.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in super::super) enum Value<'a> {
        Varint(u64),
        Fixed(u64),
        Bytes(&'a [u8]),
    }

    impl<'a> Value<'a> {
        #[track_caller]
        pub(in super::super) fn number(self) -> u64 {
            match self {
                Self::Varint(number) | Self::Fixed(number) => number,
                Self::Bytes(bytes) => panic!("{bytes:?} in place of a number"),
            }
        }

        #[track_caller]
        pub(in super::super) fn bytes(self) -> &'a [u8] {
            match self {
                Self::Bytes(bytes) => bytes,
                other => panic!("{other:?} in place of bytes"),
            }
        }

        #[track_caller]
        pub(in super::super) fn text(self) -> String {
            String::from_utf8(self.bytes().to_vec()).unwrap()
        }
    }

    /// Returns the fields of a message, with their numbers.
    ///
    /// # Panics
    /// The message is cut off, or has a field of another type.
    pub(in super::super) fn fields(mut message: &[u8]) -> Vec<(u64, Value<'_>)> {
        let mut fields = Vec::new();
        while !message.is_empty() {
            let tag = varint(&mut message);
            let value = match tag & 7 {
                VARINT => Value::Varint(varint(&mut message)),
                FIXED_64 => {
                    let bytes = take(&mut message, 8).try_into().unwrap();
                    Value::Fixed(u64::from_le_bytes(bytes))
                }
                LENGTH_DELIMITED => {
                    let length = varint(&mut message);
                    Value::Bytes(take(&mut message, usize::try_from(length).unwrap()))
                }
                other => panic!("a field of type {other}"),
            };
            fields.push((tag >> 3, value));
        }
        fields
    }

    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = take(bytes, 1)[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return value;
            }
        }
        panic!("a number of more than ten bytes");
    }

    fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(count);
        *bytes = rest;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::read::{Value, fields};
    use super::*;

    /// Fields of the specification's examples, and fields without a value.
    struct Example {
        depth: u64,
        text: &'static str,
    }

    impl Message for Example {
        fn write(&self, fields: &mut Fields<'_>) {
            fields.number(1, 150_u64);
            fields.number(2, 0_u64);
            fields.optional(2, Some(0));
            fields.text(3, Some(self.text));
            fields.fixed(4, &[1, u64::MAX]);
            let below = Self {
                depth: self.depth.saturating_sub(1),
                text: self.text,
            };
            fields.messages(5, (self.depth > 0).then_some(&below));
        }
    }

    fn written(example: &Example) -> Vec<u8> {
        let mut bytes = Vec::new();
        example.write(&mut Fields::of(&mut bytes));
        bytes
    }

    #[test]
    fn fields_are_those_of_the_specification() {
        let text = "testing";
        let bytes = written(&Example { depth: 0, text });
        assert_eq!(bytes[..5], [0x08, 0x96, 0x01, 0x10, 0x00]);
        assert_eq!(bytes[5..14], *b"\x1a\x07testing");
        assert_eq!(bytes[14..23], [0x21, 1, 0, 0, 0, 0, 0, 0, 0]);
        let expected = [
            (1, Value::Varint(150)),
            (2, Value::Varint(0)),
            (3, Value::Bytes(text.as_bytes())),
            (4, Value::Fixed(1)),
            (4, Value::Fixed(u64::MAX)),
        ];
        assert_eq!(fields(&bytes), expected);
    }

    #[test]
    fn length_of_a_message_is_before_it_whatever_its_size() {
        let text = String::from_utf8(vec![b'a'; 20_000]).unwrap().leak();
        for text in ["", &text[..200], text] {
            let bytes = written(&Example { depth: 2, text });
            let first = fields(&bytes);
            let second = fields(first[5].1.bytes());
            let third = fields(second[5].1.bytes());
            assert_eq!(third[..], second[..5]);
            assert_eq!(third[2].1.text(), text);
        }
    }
}
