//! Time limits as people write them: `90`, `90s`, `2m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The time limit of a guest or a check: at least one second, at most a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Timeout(pub Duration);

/// The reason why a text is not a time limit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid time limit `{0}`: expected seconds or minutes from `1s` to `1440m`")]
pub struct TimeoutError(String);

const LONGEST: u64 = 24 * 60 * 60;

impl Timeout {
    /// Returns the limit in whole seconds.
    pub fn seconds(self) -> u32 {
        u32::try_from(self.0.as_secs()).unwrap_or(u32::MAX)
    }
}

impl FromStr for Timeout {
    type Err = TimeoutError;

    fn from_str(text: &str) -> Result<Self, TimeoutError> {
        let (digits, factor) = match (text.strip_suffix('s'), text.strip_suffix('m')) {
            (Some(digits), _) => (digits, 1),
            (None, Some(digits)) => (digits, 60),
            (None, None) => (text, 1),
        };
        let seconds = digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(factor));
        match seconds {
            Some(seconds @ 1..=LONGEST) => Ok(Self(Duration::from_secs(seconds))),
            _ => Err(TimeoutError(text.to_owned())),
        }
    }
}

impl<'de> Deserialize<'de> for Timeout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeoutVisitor;

        impl Visitor<'_> for TimeoutVisitor {
            type Value = Timeout;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time limit such as \"60s\" or \"2m\"")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Timeout, E> {
                value.to_string().parse().map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Timeout, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(TimeoutVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_minutes_are_read() {
        for (text, seconds) in [("1", 1), ("90s", 90), ("2m", 120), ("1440m", LONGEST)] {
            assert_eq!(text.parse(), Ok(Timeout(Duration::from_secs(seconds))));
        }
    }

    #[test]
    fn what_is_no_time_limit_is_refused() {
        for text in [
            "",
            "0",
            "0s",
            "1441m",
            "-1",
            "1h",
            "s",
            "99999999999999999999m",
        ] {
            let error = text.parse::<Timeout>().unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("invalid time limit `{text}`")),
                "{text}"
            );
        }
    }
}
