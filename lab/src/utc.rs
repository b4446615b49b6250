//! A moment of UTC, as files and reports have it.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment of UTC from 1970 on. Displayed, it has the form of RFC 3339, as `2026-11-21T03:28:38Z`,
/// and a fraction of the second if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UtcTime(SystemTime);

impl UtcTime {
    /// Returns the moment `seconds` ago.
    pub fn ago(seconds: f64) -> Self {
        let now = SystemTime::now();
        let ago = Duration::try_from_secs_f64(seconds).ok();
        let then = ago.and_then(|ago| now.checked_sub(ago)).unwrap_or(now);
        Self::from(then)
    }

    /// To the second and without punctuation, for names of files: `20261121T032838Z`.
    pub fn compact(self) -> String {
        let text = humantime::format_rfc3339_seconds(self.0).to_string();
        text.replace(['-', ':'], "")
    }

    /// To the minute, for people: `2026-11-21 03:28 UTC`.
    pub fn to_minutes(self) -> String {
        let text = humantime::format_rfc3339_seconds(self.0).to_string();
        let minutes = text.get(..16).unwrap_or(&text);
        format!("{} UTC", minutes.replace('T', " "))
    }

    /// To the millisecond, with an offset: `2026-11-21T03:28:38.000+00:00`.
    pub fn to_milliseconds(self) -> String {
        with_offset(humantime::format_rfc3339_millis(self.0))
    }

    /// With an offset, and a fraction of the second if there is one: `2026-11-21T03:28:38+00:00`.
    pub fn to_rfc3339(self) -> String {
        with_offset(self)
    }
}

/// Converts the `Z`, which some readers reject.
fn with_offset(time: impl fmt::Display) -> String {
    time.to_string().replace('Z', "+00:00")
}

impl From<SystemTime> for UtcTime {
    /// A moment before 1970 is one that a clock without a battery shows; 1970 stands for it.
    fn from(time: SystemTime) -> Self {
        Self(time.max(UNIX_EPOCH))
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339(self.0).fmt(f)
    }
}

impl Serialize for UtcTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UtcTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let time = humantime::parse_rfc3339(&text);
        time.map(Self).map_err(|error| {
            D::Error::custom(format_args!(
                "invalid time `{text}`: {error}: expected `2026-11-21T03:28:38Z` or the like"
            ))
        })
    }
}

impl JsonSchema for UtcTime {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "UtcTime".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(nanos: u64) -> UtcTime {
        UtcTime::from(UNIX_EPOCH + Duration::from_secs(1_795_231_718) + Duration::from_nanos(nanos))
    }

    #[test]
    fn each_form_is_as_its_readers_expect() {
        assert_eq!(time(0).to_string(), "2026-11-21T03:28:38Z");
        assert_eq!(time(120).to_string(), "2026-11-21T03:28:38.000000120Z");
        assert_eq!(time(0).to_rfc3339(), "2026-11-21T03:28:38+00:00");
        assert_eq!(
            time(1_900_000).to_milliseconds(),
            "2026-11-21T03:28:38.001+00:00"
        );
        assert_eq!(time(5).compact(), "20261121T032838Z");
        assert_eq!(time(5).to_minutes(), "2026-11-21 03:28 UTC");
    }

    #[test]
    fn file_keeps_the_moment() {
        for time in [time(0), time(120), time(1_900_000)] {
            let json = serde_json::to_string(&time).unwrap();
            assert_eq!(serde_json::from_str::<UtcTime>(&json).unwrap(), time);
        }
        // Files of earlier versions have this form.
        let earlier = serde_json::from_str("\"2026-11-21T03:28:38.001900Z\"");
        assert_eq!(earlier.unwrap_or_else(|_| time(0)), time(1_900_000));
        let error = serde_json::from_str::<UtcTime>("\"noon\"").unwrap_err();
        assert!(error.to_string().contains("invalid time `noon`"), "{error}");
    }

    #[test]
    fn no_duration_leads_before_1970() {
        assert_eq!(UtcTime::ago(1e12), UtcTime::from(UNIX_EPOCH));
        assert!(UtcTime::ago(-1.0) > time(0) || UtcTime::ago(f64::NAN) > UtcTime::from(UNIX_EPOCH));
    }
}
