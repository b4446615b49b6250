//! Checks that a value fits a JSON schema (json-schema.org, 2020-12), for tests.
//!
//! It knows the keywords that the schemas of `docs/schema` use, and panics on any other: ignoring a
//! keyword would leave its promise untested.

use std::fmt::Display;

use serde_json::{Map, Value};

/// Returns the parts of `value` that do not fit `schema`, each with its place; an empty list if it
/// fits.
///
/// # Panics
/// The schema has a keyword, a type or a format that is unknown here, or a reference to nothing.
#[must_use]
pub fn misfits(schema: &Value, value: &Value) -> Vec<String> {
    let mut check = Check {
        root: schema,
        misfits: Vec::new(),
    };
    check.value(schema, value, "$");
    check.misfits
}

struct Check<'a> {
    root: &'a Value,
    misfits: Vec<String>,
}

impl<'a> Check<'a> {
    fn value(&mut self, schema: &'a Value, value: &Value, at: &str) {
        match schema {
            Value::Bool(true) => {}
            Value::Bool(false) => self.misfit(at, "nothing may be here"),
            Value::Object(keywords) => {
                for (keyword, wanted) in keywords {
                    self.keyword(keywords, (keyword, wanted), value, at);
                }
            }
            other => panic!("{at}: {other} is not a schema"),
        }
    }

    fn keyword(
        &mut self,
        schema: &'a Map<String, Value>,
        (keyword, wanted): (&str, &'a Value),
        value: &Value,
        at: &str,
    ) {
        match keyword {
            "$schema" | "$defs" | "title" | "description" | "default" => {}
            "$ref" => {
                let pointer = wanted.as_str().and_then(|text| text.strip_prefix('#'));
                let target = pointer.and_then(|pointer| self.root.pointer(pointer));
                let target = target.unwrap_or_else(|| panic!("{at}: no schema at {wanted}"));
                self.value(target, value, at);
            }
            "type" => {
                let is_one = |name: &Value| is_of_type(value, name.as_str().unwrap_or_default());
                let fits = match wanted {
                    Value::Array(names) => names.iter().any(is_one),
                    name => is_one(name),
                };
                self.expect(fits, at, format_args!("{value} is not of type {wanted}"));
            }
            "format" => self.format(wanted.as_str().unwrap_or_default(), value, at),
            "const" => self.expect(value == wanted, at, format_args!("{value} is not {wanted}")),
            "minimum" | "maximum" => {
                let (limit, number) = (wanted.as_f64(), value.as_f64());
                let limit = limit.unwrap_or_else(|| panic!("{at}: {keyword} {wanted}"));
                let fits = |number| match keyword {
                    "minimum" => number >= limit,
                    _ => number <= limit,
                };
                self.expect(
                    number.is_none_or(fits),
                    at,
                    format_args!("{value} is beyond the {keyword} {wanted}"),
                );
            }
            "anyOf" | "oneOf" => {
                let fitting = schemas(wanted).filter(|schema| self.fits(schema, value, at));
                let fits = match (keyword, fitting.count()) {
                    ("anyOf", count) => count > 0,
                    (_, count) => count == 1,
                };
                self.expect(fits, at, format_args!("{value} does not fit {keyword}"));
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.value(wanted, item, &format!("{at}[{index}]"));
                }
            }
            "required" => {
                for key in schemas(wanted).filter_map(Value::as_str) {
                    let has = value.as_object().is_none_or(|it| it.contains_key(key));
                    self.expect(has, at, format_args!("`{key}` is missing"));
                }
            }
            "properties" => {
                for (key, schema) in wanted.as_object().into_iter().flatten() {
                    if let Some(value) = value.get(key) {
                        self.value(schema, value, &format!("{at}.{key}"));
                    }
                }
            }
            "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                for (key, value) in value.as_object().into_iter().flatten() {
                    if known.is_none_or(|known| !known.contains_key(key)) {
                        self.value(wanted, value, &format!("{at}.{key}"));
                    }
                }
            }
            other => panic!("{at}: keyword {other} is unknown here"),
        }
    }

    /// Checks a format. Strings have formats, and in schemars also numbers.
    fn format(&mut self, format: &str, value: &Value, at: &str) {
        let fits = match format {
            "date-time" => value
                .as_str()
                .map(|text| humantime::parse_rfc3339(text).is_ok()),
            "uint8" => value.as_number().map(|_| is_in::<u8>(value)),
            "uint16" => value.as_number().map(|_| is_in::<u16>(value)),
            "uint32" => value.as_number().map(|_| is_in::<u32>(value)),
            "uint64" | "uint" => value.as_number().map(|_| is_in::<u64>(value)),
            "int32" => value.as_number().map(|_| is_in::<i32>(value)),
            "double" => value.as_number().map(|_| value.is_number()),
            other => panic!("{at}: format {other} is unknown here"),
        };
        self.expect(
            fits.unwrap_or(true),
            at,
            format_args!("{value} is not a valid {format}"),
        );
    }

    fn fits(&self, schema: &'a Value, value: &Value, at: &str) -> bool {
        let mut check = Check {
            root: self.root,
            misfits: Vec::new(),
        };
        check.value(schema, value, at);
        check.misfits.is_empty()
    }

    fn expect(&mut self, fits: bool, at: &str, otherwise: impl Display) {
        if !fits {
            self.misfit(at, otherwise);
        }
    }

    fn misfit(&mut self, at: &str, what: impl Display) {
        self.misfits.push(format!("{at}: {what}"));
    }
}

fn schemas(of: &Value) -> impl Iterator<Item = &Value> {
    of.as_array().into_iter().flatten()
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("type {other} is unknown here"),
    }
}

fn is_in<T: TryFrom<u64> + TryFrom<i64>>(value: &Value) -> bool {
    let unsigned = value.as_u64().map(|number| T::try_from(number).is_ok());
    let signed = || value.as_i64().map(|number| T::try_from(number).is_ok());
    unsigned.or_else(signed).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_keyword_has_values_that_fit_and_values_that_do_not() {
        let cases = [
            (json!({ "type": "string" }), json!("a"), json!(1)),
            (
                json!({ "type": ["string", "null"] }),
                json!(null),
                json!({}),
            ),
            (json!({ "type": "integer" }), json!(2), json!(2.5)),
            (json!({ "type": "number" }), json!(2.5), json!("2.5")),
            (json!({ "type": "boolean" }), json!(true), json!(0)),
            (json!({ "type": "array" }), json!([]), json!({})),
            (json!({ "const": "a" }), json!("a"), json!("b")),
            (json!({ "minimum": 1 }), json!(1), json!(0)),
            (json!({ "maximum": 255 }), json!(255), json!(256)),
            (json!({ "format": "uint8" }), json!(255), json!(256)),
            (json!({ "format": "uint64" }), json!(u64::MAX), json!(-1)),
            (json!({ "format": "int32" }), json!(-1), json!(1_u64 << 31)),
            (
                json!({ "format": "date-time" }),
                json!("2026-11-21T03:28:38Z"),
                json!("noon"),
            ),
            (
                json!({ "anyOf": [{ "const": 1 }, { "type": "number" }] }),
                json!(1),
                json!("a"),
            ),
            (
                json!({ "oneOf": [{ "const": 1 }, { "type": "number" }] }),
                json!(2),
                json!(1),
            ),
            (
                json!({ "items": { "const": 1 } }),
                json!([1, 1]),
                json!([1, 2]),
            ),
            (
                json!({ "required": ["a"] }),
                json!({ "a": 1 }),
                json!({ "b": 1 }),
            ),
            (
                json!({ "properties": { "a": { "const": 1 } } }),
                json!({ "b": 2 }),
                json!({ "a": 2 }),
            ),
            (
                json!({ "properties": { "a": true }, "additionalProperties": false }),
                json!({ "a": 2 }),
                json!({ "b": 2 }),
            ),
            (
                json!({ "additionalProperties": { "type": "string" } }),
                json!({ "a": "2" }),
                json!({ "b": 2 }),
            ),
            (
                json!({ "$ref": "#/$defs/a", "$defs": { "a": { "const": 1 } } }),
                json!(1),
                json!(2),
            ),
        ];
        for (schema, good, bad) in cases {
            assert_eq!(misfits(&schema, &good), [""; 0], "{schema}");
            assert_ne!(misfits(&schema, &bad), [""; 0], "{schema}");
        }
    }

    #[test]
    fn misfit_has_its_place() {
        let schema = json!({ "properties": { "a": { "items": { "type": "string" } } } });
        let found = misfits(&schema, &json!({ "a": ["b", 3] }));
        assert_eq!(found, ["$.a[1]: 3 is not of type \"string\""]);
    }

    #[test]
    #[should_panic(expected = "keyword pattern is unknown here")]
    fn unknown_keyword_is_not_passed_over() {
        let _ = misfits(&json!({ "pattern": "a" }), &json!("a"));
    }
}
