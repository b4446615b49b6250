//! Byte counts as scenarios and command lines have them: `4K`, `64M`.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

/// A number of bytes. As text it is a decimal number, or one with the suffix K, M, G or T in either case: powers of 1024. A scenario may
/// have an integer in place of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid size `{0}`: expected bytes, or a number with K, M, G or T, such as `64M`")]
pub struct SizeError(String);

const UNITS: [(char, u64); 4] = [
    ('K', 1 << 10),
    ('M', 1 << 20),
    ('G', 1 << 30),
    ('T', 1 << 40),
];

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let has_suffix = |(suffix, factor): (char, u64)| {
            let digits = text.strip_suffix([suffix, suffix.to_ascii_lowercase()])?;
            Some((digits, factor))
        };
        let (digits, factor) = UNITS.into_iter().find_map(has_suffix).unwrap_or((text, 1));
        // The standard parser takes a sign.
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse::<u64>().ok().filter(|_| is_number);
        let bytes = number.and_then(|number| number.checked_mul(factor));
        bytes.map(Self).ok_or_else(|| SizeError(text.to_owned()))
    }
}

/// The shortest exact form that [`Size::from_str`] reads back: `4K`, `8M`, `513`.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS
            .iter()
            .rev()
            .find(|(_, factor)| self.0 != 0 && self.0 % *factor == 0);
        match unit {
            Some((suffix, factor)) => write!(f, "{}{suffix}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;

        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size in bytes or with K, M, G or T, such as \"64M\"")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Size, E> {
                let bytes =
                    u64::try_from(value).map_err(|_| E::custom(SizeError(value.to_string())))?;
                Ok(Size(bytes))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_back() {
        for (text, bytes) in [
            ("0", 0),
            ("513", 513),
            ("4K", 4096),
            ("64M", 64 << 20),
            ("2G", 2 << 30),
            ("3T", 3 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn suffix_of_either_case_is_read() {
        for (text, bytes) in [
            ("4k", 4096),
            ("1m", 1 << 20),
            ("1g", 1 << 30),
            ("1t", 1 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
        }
    }

    #[test]
    fn text_that_is_no_size_is_refused() {
        for text in [
            "",
            "K",
            "4KB",
            "4KK",
            "4Kk",
            "1X",
            "1MiB",
            "8\u{fc}",
            "-1",
            "+1",
            "1.5G",
            " 4K",
            "99999999999999999999",
            "99999999999G",
            "99999999T",
        ] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("invalid size `{text}`")),
                "{text}"
            );
        }
    }
}
