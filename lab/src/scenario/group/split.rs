//! The document of a file with several guests, divided among them. Values keep their spans in the
//! file.

use std::borrow::Cow;

use peerbar_report::TableError;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue, Deserializer, ValueDeserializer};

use crate::scenario::error::Problem;
use crate::scenario::file::GuestTable;
use crate::scenario::names;

/// Tables that belong to one guest each.
const OWNED: [&str; 6] = ["host-bridge", "switch", "nvme", "gpu", "nic", "device"];
/// Tables that belong to one guest, or to all.
const COMMON: [&str; 2] = ["module", "share"];
/// Tables that belong to one guest, or are across guests.
const CHECK: &str = "check";
/// Names in the folder of a run that no guest's folder can have.
const TAKEN: [&str; 2] = ["verdict", "latest"];

/// The document of a file with several guests, divided.
pub(super) struct GroupDocument<'i> {
    /// The file without anything about guests.
    pub(super) whole: DeTable<'i>,
    /// The checks across guests.
    pub(super) across: DeTable<'i>,
    /// The guests, in the order of the file.
    pub(super) guests: Vec<GuestTables<'i>>,
}

/// A guest's part of a file.
pub(super) struct GuestTables<'i> {
    /// Its name.
    pub(super) name: String,
    /// The keys of `[machine]` that are its own.
    machine: Option<Spanned<DeValue<'i>>>,
    /// The tables that name it, by kind.
    tables: Vec<(&'static str, DeArray<'i>)>,
}

impl<'i> GroupDocument<'i> {
    /// Divides a file.
    pub(super) fn of(mut file: DeTable<'i>) -> Result<Self, Problem> {
        let mut guests = take_guests(&mut file)?;
        let mut across = DeTable::new();
        let mut common = Vec::new();
        for kind in OWNED.into_iter().chain(COMMON).chain([CHECK]) {
            let Some(tables) = file.get_mut(kind) else {
                continue;
            };
            let DeValue::Array(tables) = tables.get_mut() else {
                continue;
            };
            let (owned, ownerless) = divide(tables, &guests)?;
            if let Some(first) = ownerless.iter().next().filter(|_| OWNED.contains(&kind)) {
                let names = guests.iter().map(|guest| guest.name.as_str());
                let message = format!("[[{kind}]] belongs to a guest: add {}", one_of(names));
                return Err(Problem::new(first.span(), message));
            }
            for (number, table) in owned {
                if let Some(guest) = guests.get_mut(number) {
                    guest.add(kind, table);
                }
            }
            match kind {
                CHECK => drop(across.insert(key(kind), array(ownerless))),
                _ => common.push((kind, ownerless)),
            }
        }
        for guest in &mut guests {
            for (kind, tables) in &common {
                tables
                    .iter()
                    .for_each(|table| guest.add(kind, table.clone()));
            }
        }
        Ok(Self {
            whole: file,
            across,
            guests,
        })
    }

    /// Returns the file of one guest alone.
    pub(super) fn of_guest(&self, guest: &GuestTables<'i>) -> Result<DeTable<'i>, Problem> {
        let mut own = self.whole.clone();
        own.remove("fabric");
        for kind in OWNED.into_iter().chain(COMMON).chain([CHECK]) {
            own.remove(kind);
        }
        for (kind, tables) in &guest.tables {
            own.insert(key(kind), array(tables.clone()));
        }
        if let Some(DeValue::String(text)) = own.get_mut("name").map(Spanned::get_mut) {
            *text = Cow::Owned(format!("{text}-{}", guest.name));
        }
        if let Some(machine) = &guest.machine {
            override_machine(&mut own, machine)?;
        }
        Ok(own)
    }
}

impl<'i> GuestTables<'i> {
    fn add(&mut self, kind: &'static str, table: Spanned<DeValue<'i>>) {
        match self.tables.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, tables)) => tables.push(table),
            None => self.tables.push((kind, [table].into_iter().collect())),
        }
    }
}

/// Returns the text of a guest's file.
pub(super) fn text(file: DeTable<'_>) -> Result<String, Problem> {
    let deserializer = Deserializer::from(Spanned::new(0..0, file));
    Ok(toml::Table::deserialize(deserializer)?.to_string())
}

/// Returns the ways in which a table can name its guest.
pub(super) fn one_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let ways: Vec<String> = names.map(|name| format!("`guest = \"{name}\"`")).collect();
    ways.join(" or ")
}

/// Takes the `[[guest]]` tables out of `file`.
fn take_guests<'i>(file: &mut DeTable<'i>) -> Result<Vec<GuestTables<'i>>, Problem> {
    let taken = file.remove("guest");
    let taken = taken.unwrap_or_else(|| Spanned::new(0..0, DeValue::Array(DeArray::new())));
    let at = taken.span();
    let DeValue::Array(tables) = taken.into_inner() else {
        return Err(Problem::new(at, "`guest` is not a table: write [[guest]]"));
    };
    if tables.is_empty() {
        return Err(Problem::new(
            at,
            "`guest` is empty: write [[guest]], or leave it out",
        ));
    }
    let mut guests = Vec::new();
    for table in tables {
        let read = GuestTable::deserialize(ValueDeserializer::from(table.clone()))?;
        let machine = match table.into_inner() {
            DeValue::Table(mut table) => table.remove("machine"),
            _ => None,
        };
        guests.push((read.name, machine));
    }
    let names = guests.iter().map(|(name, _)| name.clone());
    names::unique(names, &TAKEN.map(str::to_owned), names::LONGEST_SERIAL)?;
    let guests = guests.into_iter().map(|(name, machine)| GuestTables {
        name: name.into_inner(),
        machine,
        tables: Vec::new(),
    });
    Ok(guests.collect())
}

type Owned<'i> = Vec<(usize, Spanned<DeValue<'i>>)>;

/// Takes the key `guest` out of each of `tables`: those that have one, with the number of the
/// guest, and those without.
fn divide<'i>(
    tables: &mut DeArray<'i>,
    guests: &[GuestTables<'i>],
) -> Result<(Owned<'i>, DeArray<'i>), Problem> {
    let (mut owned, mut ownerless) = (Vec::new(), DeArray::new());
    for table in tables.iter_mut() {
        let named = match table.get_mut() {
            DeValue::Table(table) => table.remove("guest"),
            _ => None,
        };
        let Some(named) = named else {
            ownerless.push(table.clone());
            continue;
        };
        let at = named.span();
        let name = String::deserialize(ValueDeserializer::from(named))?;
        let number = guests.iter().position(|guest| guest.name == name);
        let number = number.ok_or_else(|| {
            let known = guests.iter().map(|guest| guest.name.as_str());
            let message = format!("no [[guest]] is named `{name}`");
            TableError::unknown(at, message, &name, known)
        })?;
        owned.push((number, table.clone()));
    }
    Ok((owned, ownerless))
}

/// Sets the keys of `machine` in the machine of `file`.
fn override_machine<'i>(
    file: &mut DeTable<'i>,
    machine: &Spanned<DeValue<'i>>,
) -> Result<(), Problem> {
    let DeValue::Table(own) = machine.get_ref() else {
        return Err(Problem::new(machine.span(), "`machine` is not a table"));
    };
    match file.get_mut("machine").map(Spanned::get_mut) {
        Some(DeValue::Table(common)) => {
            for (key, value) in own {
                common.insert(key.clone(), value.clone());
            }
        }
        Some(_) => {}
        None => drop(file.insert(key("machine"), machine.clone())),
    }
    Ok(())
}

fn key(text: &'static str) -> Spanned<DeString<'static>> {
    Spanned::new(0..0, Cow::Borrowed(text))
}

fn array<'i>(tables: DeArray<'i>) -> Spanned<DeValue<'i>> {
    Spanned::new(0..0, DeValue::Array(tables))
}
