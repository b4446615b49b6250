//! The devices that a check names.

use serde_json::Value;

use super::Check;

/// Keys of commands whose texts name no devices.
const TEXTS: [&str; 2] = ["expect", "matches"];

impl Check {
    /// Returns `true` if a key of it has the name of `device`, or a placeholder for it.
    pub fn mentions(&self, device: &str) -> bool {
        serde_json::to_value(self).is_ok_and(|values| names(&values, device))
    }
}

/// Returns `true` if a value is the name of `device`, or a text with a placeholder for it.
fn names(value: &Value, device: &str) -> bool {
    match value {
        Value::String(text) => {
            let placeholders = [format!("{{{device}}}"), format!("{{{device}:")];
            text == device
                || placeholders
                    .iter()
                    .any(|placeholder| text.contains(placeholder))
        }
        Value::Array(values) => values.iter().any(|value| names(value, device)),
        Value::Object(keys) => keys
            .iter()
            .any(|(key, value)| !TEXTS.contains(&key.as_str()) && names(value, device)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_mentions_a_device_by_name_or_placeholder() {
        for (text, mentioned) in [
            (r#"{"kind":"provider","device":"dev0"}"#, true),
            (
                r#"{"kind":"command","run":"lspci -s {dev0:pci}","expected":{"expect":[]}}"#,
                true,
            ),
            (
                r#"{"kind":"command","run":"true","expected":{"expect":["dev0"]}}"#,
                false,
            ),
            (
                r#"{"kind":"command","run":"lspci -s {dev01:pci}","expected":{"expect":[]}}"#,
                false,
            ),
        ] {
            let check: Check = serde_json::from_str(text).unwrap();
            assert_eq!(check.mentions("dev0"), mentioned, "{text}");
        }
    }
}
