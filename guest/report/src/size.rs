//! Byte counts: written as `4K` or `64M`, shown as `1.5 GiB`.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A number of bytes; in a scenario an integer or a string with one of the suffixes K, M, G (powers of 1024).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Size(pub u64);

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no size: write bytes, or a number with K, M or G, such as `64M`")]
pub struct SizeError(String);

const UNITS: [(char, u64); 3] = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let unit = UNITS.iter().find(|(suffix, _)| text.ends_with(*suffix));
        let (digits, factor) = match unit {
            Some(&(suffix, factor)) => (text.trim_end_matches(suffix), factor),
            None => (text, 1),
        };
        let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let suffix_length = usize::from(factor != 1);
        if !all_digits || digits.len() + suffix_length != text.len() {
            return Err(SizeError(text.to_owned()));
        }
        let number = digits.parse::<u64>().ok();
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
            .find(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor));
        match unit {
            Some((suffix, factor)) => write!(f, "{}{suffix}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Sizes as a table of results has them: the smallest and the largest, as in `4K-8M`.
pub fn size_range(sizes: &[u64]) -> String {
    match sizes.iter().min().zip(sizes.iter().max()) {
        Some((least, most)) if least == most => Size(*most).to_string(),
        Some((least, most)) => format!("{}-{}", Size(*least), Size(*most)),
        None => String::new(),
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;

        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size in bytes or with K, M or G, such as \"64M\"")
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
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn text_that_is_no_size_is_refused() {
        for text in [
            "",
            "K",
            "4k",
            "4KB",
            "4KK",
            "-1",
            "+1",
            "1.5G",
            " 4K",
            "99999999999999999999",
            "99999999999G",
        ] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("`{text}` is no size")),
                "{text}"
            );
        }
    }

    #[test]
    fn sizes_are_shown_as_a_range() {
        assert_eq!(size_range(&[8 << 20, 4096, 65536]), "4K-8M");
        assert_eq!(size_range(&[512]), "512");
        assert_eq!(size_range(&[]), "");
    }
}
