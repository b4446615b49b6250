//! The book's reference of scenario files against the tables that are read.

use serde::Deserialize;
use serde::de::value::Error;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

use super::file::{
    File, GpuTable, HostBridgeTable, MachineTable, ModuleTable, NamespaceTable, NvmeTable,
    SwitchTable,
};

const BOOK: &str = include_str!("../../../docs/src/scenario.md");

/// Takes the names of a structure's fields, as its derived `Deserialize` announces them.
struct Fields<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error::custom("only the fields are wanted"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("no structure"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn keys<'de, T: Deserialize<'de>>() -> Vec<&'static str> {
    let mut fields: &'static [&'static str] = &[];
    assert!(T::deserialize(Fields(&mut fields)).is_err());
    fields.to_vec()
}

/// The keys in the first column of the table below the heading of the book.
fn documented(heading: &str) -> Vec<&'static str> {
    let mut lines = BOOK.lines().skip_while(|line| *line != heading).skip(1);
    let section = lines
        .by_ref()
        .take_while(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    section.map(|(key, _)| key).collect()
}

#[test]
fn book_has_every_key_of_every_table_in_order() {
    assert_eq!(documented("## Top level"), keys::<File>());
    assert_eq!(documented("## [machine]"), keys::<MachineTable>());
    assert_eq!(documented("## [[host-bridge]]"), keys::<HostBridgeTable>());
    assert_eq!(documented("## [[switch]]"), keys::<SwitchTable>());
    assert_eq!(documented("## [[nvme]]"), keys::<NvmeTable>());
    assert_eq!(documented("### Namespaces"), keys::<NamespaceTable>());
    assert_eq!(documented("## [[gpu]]"), keys::<GpuTable>());
    assert_eq!(documented("## [[module]]"), keys::<ModuleTable>());
}
