//! The keys of a device's table that the device's own crate defines: its configuration, as its
//! server has it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

use peerbar_report::TableError;
use serde::de::{DeserializeOwned, Error, Visitor};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer as TableDeserializer};

use super::error::Problem;

/// A device's configuration, and where the file has its keys.
pub(super) struct Settings<C> {
    pub(super) config: C,
    keys: BTreeMap<String, Range<usize>>,
}

impl<C> Settings<C> {
    /// The keys of the table, with the places of their values.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&str, Range<usize>)> {
        let keys = self.keys.iter();
        keys.map(|(key, at)| (key.as_str(), at.clone()))
    }

    /// The mistake that the value of `key` is.
    pub(super) fn problem(&self, key: &str, message: impl std::fmt::Display) -> Problem {
        let at = self.keys.get(key).cloned().unwrap_or_default();
        Problem::new(at, format!("`{key}`: {message}"))
    }
}

impl<C: DeserializeOwned> Settings<C> {
    /// Takes the keys of `C` out of each table of this kind. Those of `T` stay.
    ///
    /// # Errors
    /// A key of neither, or a value that no `C` has.
    pub(super) fn take<'i, T: Deserialize<'i>>(
        document: &mut DeTable<'i>,
        kind: &str,
    ) -> Result<Vec<Self>, Problem> {
        let tables = document.get_mut(kind).map(Spanned::get_mut);
        let Some(DeValue::Array(tables)) = tables else {
            return Ok(Vec::new());
        };
        let tables = tables.iter_mut().filter_map(|table| {
            let at = table.span();
            match table.get_mut() {
                DeValue::Table(table) => Some((table, at)),
                _ => None,
            }
        });
        let (own, others) = (fields::<C>(), fields::<T>());
        tables
            .map(|(table, at)| Self::take_from(table, at, own, others))
            .collect()
    }

    fn take_from(
        table: &mut DeTable<'_>,
        at: Range<usize>,
        own: &[&str],
        others: &[&str],
    ) -> Result<Self, Problem> {
        let mut settings = DeTable::new();
        let mut keys = BTreeMap::new();
        let mut unknown = None;
        for (key, value) in std::mem::take(table) {
            let name: &str = key.get_ref();
            if own.contains(&name) {
                keys.insert(name.to_owned(), value.span());
                settings.insert(key, value);
                continue;
            }
            if !others.contains(&name) {
                unknown.get_or_insert((name.to_owned(), key.span()));
            }
            table.insert(key, value);
        }
        if let Some((name, at)) = unknown {
            let known = others.iter().chain(own).copied();
            let message = format!("unknown key `{name}`");
            return Err(TableError::unknown(at, message, &name, known).into());
        }
        let config = C::deserialize(TableDeserializer::from(Spanned::new(at, settings.clone())));
        let config = config.map_err(|error| Problem::of_setting(&error, &settings))?;
        Ok(Self { config, keys })
    }
}

/// The names of the fields of a struct, as its derived `Deserialize` announces them.
pub(super) fn fields<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let found = Cell::new(&[][..]);
    // It ends once the fields are known.
    let _ = T::deserialize(Fields(&found));
    found.get()
}

/// Notes the fields of the struct that is to be read, and reads nothing.
struct Fields<'f>(&'f Cell<&'static [&'static str]>);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.set(fields);
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_the_keys_of_a_table() {
        let keys = fields::<peerbar_nvme::Config>();
        assert!(keys.contains(&"cmb-queues") && keys.contains(&"block-size"));
        assert!(!keys.contains(&"serial"), "a scenario does not set it");
        let of_table = fields::<crate::scenario::file::NvmeTable>();
        assert!(of_table.contains(&"link-latency"));
        assert!(!of_table.iter().any(|key| keys.contains(key)));
    }
}
