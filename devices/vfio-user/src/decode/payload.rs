//! A payload of any content, and the parts that all commands have.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::field::Fields;

/// Items of a list that the text has.
pub(super) const MOST_SHOWN: usize = 8;
/// Data of this size is always shown, because it is the value of a register.
const REGISTER: usize = 8;

/// A payload, or the start of one.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    /// Its first bytes, or all of them.
    pub start: &'a [u8],
    /// Length of the whole payload in bytes.
    pub length: usize,
    /// The most bytes of data that are shown.
    pub most_data: usize,
}

impl Payload<'_> {
    /// Decodes a structure that bytes may follow, which `decode` gets.
    pub(super) fn structure<T>(
        &self,
        fields: &mut Fields,
        decode: impl FnOnce(&T, &[u8], &mut Fields),
    ) where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        match T::ref_from_prefix(self.start) {
            Ok((start, rest)) => decode(start, rest, fields),
            Err(_) => fields.malformed(&format!("{} of {} bytes", self.length, size_of::<T>())),
        }
    }

    /// Decodes a structure that nothing may follow.
    pub(super) fn fixed<T>(&self, fields: &mut Fields, decode: impl FnOnce(&T, &mut Fields))
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        self.structure::<T>(fields, |start, _, fields| {
            decode(start, fields);
            self.no_more(size_of::<T>(), fields);
        });
    }

    /// Decodes a payload without content.
    pub(super) fn empty(&self, fields: &mut Fields) {
        self.no_more(0, fields);
    }

    /// Complains if the payload is longer.
    pub(super) fn no_more(&self, length: usize, fields: &mut Fields) {
        self.expect(length, Some(0), fields);
    }

    /// Complains if not `count` bytes follow the first `at`.
    pub(super) fn expect(&self, at: usize, count: Option<u64>, fields: &mut Fields) {
        let follow = self.length.saturating_sub(at);
        if u64::try_from(follow).ok() != count {
            let expected = count.map_or("too many".to_owned(), |count| count.to_string());
            fields.malformed(&format!("{follow} bytes follow, not {expected}"));
        }
    }

    /// Adds the data that begins at `at`, and complains if it has not `count` bytes.
    pub(super) fn data(&self, at: usize, count: u64, fields: &mut Fields) {
        self.add_data(at, fields);
        self.expect(at, Some(count), fields);
    }

    /// Adds a payload of unknown content.
    pub(super) fn opaque(&self, fields: &mut Fields) {
        if self.length > 0 {
            fields.show("bytes", self.length, format!("{} bytes", self.length));
            self.add_data(0, fields);
        }
    }

    fn add_data(&self, at: usize, fields: &mut Fields) {
        let data = self.start.get(at..).unwrap_or_default();
        let length = self.length.saturating_sub(at);
        if length <= REGISTER && data.len() == length {
            return number(data, fields);
        }
        let shown = data.get(..self.most_data).unwrap_or(data);
        if shown.is_empty() {
            return;
        }
        let words = shown.chunks(4).map(hex).collect::<Vec<_>>().join(" ");
        let more = if shown.len() < length { " …" } else { "" };
        fields.show("data", hex(shown), words + more);
    }
}

/// Adds at most 8 bytes as the number that they are in little-endian order.
pub(super) fn number(data: &[u8], fields: &mut Fields) {
    if data.is_empty() {
        return;
    }
    let value = data.iter().rev().fold(0_u64, |value, byte| {
        value.wrapping_shl(8) | u64::from(*byte)
    });
    fields.hide("data", hex(data));
    let digits = data.len().saturating_mul(2);
    fields.show("value", value, format!("0x{value:0digits$x}"));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
