//! The parts of a decoded message, as text and as JSON.

use std::fmt;

use serde_json::{Map, Value};

use super::payload::MOST_SHOWN;

/// A part of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name in JSON.
    pub name: &'static str,
    /// Its value in JSON.
    pub value: Value,
    /// Its text, without control characters. Empty if people need not see it.
    pub text: String,
}

/// The parts of a message in their order. Displayed as one line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields(Vec<Field>);

impl Fields {
    /// Adds a field for people and programs.
    pub fn show(&mut self, name: &'static str, value: impl Into<Value>, text: impl Into<String>) {
        let (value, text) = (value.into(), text.into());
        self.0.push(Field { name, value, text });
    }

    /// Adds a field that only programs see.
    pub fn hide(&mut self, name: &'static str, value: impl Into<Value>) {
        self.show(name, value, "");
    }

    /// Adds a list. Its text has the first items only.
    pub(super) fn list(&mut self, name: &'static str, items: Vec<Self>) {
        let mut texts: Vec<String> = items.iter().take(MOST_SHOWN).map(Self::to_string).collect();
        if let Some(more) = items.len().checked_sub(MOST_SHOWN).filter(|more| *more > 0) {
            texts.push(format!("and {more} more"));
        }
        let value: Vec<Value> = items.into_iter().map(|item| item.json()).collect();
        self.show(name, value, texts.join(", "));
    }

    /// Adds a violation of the protocol.
    pub fn malformed(&mut self, reason: &str) {
        self.show("malformed", reason, format!("MALFORMED: {reason}"));
    }

    /// Returns the fields.
    pub fn iter(&self) -> impl Iterator<Item = &Field> {
        self.0.iter()
    }

    /// Returns an object with all fields. Of two with one name it has the last.
    pub fn json(&self) -> Value {
        let fields = self.0.iter();
        let fields = fields.map(|field| (field.name.to_owned(), field.value.clone()));
        Value::Object(fields.collect::<Map<_, _>>())
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.0.iter().map(|field| field.text.as_str());
        let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
        f.write_str(&texts.join(" "))
    }
}

/// Returns a text of somebody else's with its control characters escaped, so that it stays one line
/// and cannot control a terminal.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => shown.extend(character.escape_debug()),
            false => shown.push(character),
        }
    }
    shown
}
