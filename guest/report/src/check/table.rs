//! A `[[check]]` table of a scenario file: values by key, each with its span. Remaining keys are
//! refused.
//!
//! serde's tagged enums lose the span of a mistake, so kinds of checks take their values out of the
//! table one by one.

use std::fmt::Display;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, Error, ValueDeserializer};

use super::inventory::Inventory;
use super::{Buffer, Check, KINDS, Kind};
use crate::similar::{all_of, did_you_mean};
use crate::{Gpu, NvmeDevice, Size, Timeout, similar};

/// Allowed numbers of threads of one check.
const THREADS: std::ops::RangeInclusive<u32> = 1..=64;

/// A key of a kind of check, for the reference.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The key.
    pub name: &'static str,
    /// Its description.
    pub about: &'static str,
    /// Its value if the table lacks it. A key without a default is required.
    pub default: Option<&'static str>,
}

impl Key {
    /// Makes a key that a table must have. `about` may start with a space, since doc comments do.
    pub const fn required(name: &'static str, about: &'static str) -> Self {
        Self {
            name,
            about: about.trim_ascii_start(),
            default: None,
        }
    }

    /// Makes the key optional. `default` describes its value if the table lacks it.
    pub const fn or(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }
}

/// The keys that every kind has in addition to `kind`.
pub const COMMON_KEYS: [Key; 2] = [
    Key::required(
        "name",
        "Name of the check in the table of results. Must be unique.",
    )
    .or("made from the kind and its keys"),
    Key::required(
        "timeout",
        "Time limit, such as `\"90s\"`: less than the scenario's `timeout`.",
    )
    .or("half of the scenario's, at most 60s"),
];

/// A mistake in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableError {
    /// The bytes of the file with the mistake.
    pub at: Range<usize>,
    /// The mistake, and the allowed values.
    pub message: String,
    /// The name that was probably meant.
    pub meant: Option<String>,
    /// The missing key, if that is the mistake.
    pub missing: Option<String>,
}

impl TableError {
    /// Makes an error with `message` about the bytes `at`.
    pub fn new(at: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            at,
            message: message.into(),
            meant: None,
            missing: None,
        }
    }

    /// Makes an error with `message` about the `name` at the bytes `at`, which is not among
    /// `known`. The message suggests the name that was probably meant, otherwise all of them.
    pub fn unknown<'k>(
        at: Range<usize>,
        message: impl Display,
        name: &str,
        known: impl IntoIterator<Item = &'k str> + Clone,
    ) -> Self {
        Self::unknown_or(at, message, name, known.clone(), || all_of(known))
    }

    /// Like [`TableError::unknown`], with the suggestion `otherwise` if no name was probably meant.
    pub fn unknown_or<'k>(
        at: Range<usize>,
        message: impl Display,
        name: &str,
        known: impl IntoIterator<Item = &'k str>,
        otherwise: impl FnOnce() -> String,
    ) -> Self {
        match similar(name, known) {
            Some(similar) => Self {
                meant: Some(similar.to_owned()),
                ..Self::new(at, format!("{message}: {}", did_you_mean(similar)))
            },
            None => Self::new(at, format!("{message}: {}", otherwise())),
        }
    }

    /// Converts an error of the parser about the value of `key` to one line without the names of
    /// our types. `at` replaces a missing place.
    pub fn of_toml(error: &Error, key: Option<&str>, at: Range<usize>) -> Self {
        let at = error.span().unwrap_or(at);
        let message = error.message().replace('\n', ", ");
        if let Some(unknown) = Self::unknown_name(&message, &at) {
            return unknown;
        }
        if let Some(missing) = message.strip_prefix("missing field ") {
            return Self {
                missing: Some(missing.trim_matches('`').to_owned()),
                ..Self::new(at, format!("the key {missing} is missing"))
            };
        }
        let message = match (key, other_type(&message)) {
            (Some(key), Some((found, wanted))) => format!("`{key}` takes {wanted}, not {found}"),
            (None, Some((found, wanted))) => format!("expected {wanted}, not {found}"),
            (_, None) => message,
        };
        Self::new(at, message)
    }

    /// Converts the error about a mistyped key or value, which serde reports as "unknown field `a`,
    /// expected one of `b`, `c`".
    fn unknown_name(message: &str, at: &Range<usize>) -> Option<Self> {
        let is_key = message.starts_with("unknown field ");
        if !is_key && !message.starts_with("unknown variant ") {
            return None;
        }
        let mut names = message.split('`').skip(1).step_by(2);
        let (name, known) = (names.next()?, names);
        let message = match is_key {
            true => format!("unknown key `{name}`"),
            false => format!("`{name}` is unknown"),
        };
        Some(Self::unknown(at.clone(), message, name, known))
    }
}

/// Returns the type that serde found, and the expected one, if its `message` is about types.
fn other_type(message: &str) -> Option<(&str, String)> {
    let types = ["invalid type: ", "invalid value: "];
    let about = types.iter().find_map(|start| message.strip_prefix(start))?;
    let (found, expected) = about.rsplit_once(", expected ")?;
    let number = |most: u64| format!("a whole number from 0 to {most}");
    let wanted = match expected {
        "a boolean" => "`true` or `false`".to_owned(),
        "a string" => "a text in quotes".to_owned(),
        "a sequence" => "a list in brackets".to_owned(),
        "a map" => "a table".to_owned(),
        "u8" => number(u8::MAX.into()),
        "u16" => number(u16::MAX.into()),
        "u32" => number(u32::MAX.into()),
        "u64" | "i64" => "a whole number".to_owned(),
        other if other.starts_with("struct ") => "a table".to_owned(),
        other => other.to_owned(),
    };
    Some((found, wanted))
}

/// A `[[check]]` table whose kind is known.
#[derive(Clone, Debug)]
pub struct CheckTable<'i> {
    kind: &'static Kind,
    /// Position of the kind.
    kind_at: Range<usize>,
    label: Option<Spanned<String>>,
    values: Values<'i>,
}

type Values<'i> = Vec<(Spanned<DeString<'i>>, Spanned<DeValue<'i>>)>;

impl<'i> CheckTable<'i> {
    /// Returns all `[[check]]` tables of a scenario file.
    ///
    /// # Errors
    /// A table without a known kind, or a label that is not a text.
    pub fn all(file: &DeTable<'i>) -> Result<Vec<Self>, TableError> {
        let checks = file
            .get("check")
            .and_then(|value| value.get_ref().as_array());
        let tables = checks.into_iter().flatten();
        let tables = tables.filter_map(|value| Some((value.span(), value.get_ref().as_table()?)));
        tables.map(|(at, table)| Self::new(at, table)).collect()
    }

    fn new(at: Range<usize>, table: &DeTable<'i>) -> Result<Self, TableError> {
        let values = table.iter();
        let mut values: Values<'i> = values
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        values.sort_by_key(|(_, value)| value.span().start);
        let kind: Option<Spanned<String>> = take(&mut values, "kind")?;
        let kind = kind.ok_or_else(|| {
            TableError::new(
                at,
                "the key `kind` is missing: `peerbar list` names all kinds",
            )
        })?;
        let found = KINDS.iter().find(|known| known.name == kind.get_ref());
        Ok(Self {
            kind: found.ok_or_else(|| unknown_kind(&kind))?,
            kind_at: kind.span(),
            label: take(&mut values, "name")?,
            values,
        })
    }

    /// Returns the check's name in the table of results, if the scenario sets one: the value of
    /// `name`.
    pub fn label(&self) -> Option<&Spanned<String>> {
        self.label.as_ref()
    }

    /// Returns the name of its kind.
    pub fn kind(&self) -> &'static str {
        self.kind.name
    }

    /// Returns the position of its kind: the bytes of the file.
    pub fn span(&self) -> Range<usize> {
        self.kind_at.clone()
    }

    /// Returns the check, if every key is valid for its kind and every name is a device of
    /// `inventory`.
    ///
    /// # Errors
    /// The first mistake.
    pub fn read(mut self, inventory: &Inventory) -> Result<Check, TableError> {
        self.knows_keys()?;
        let seconds = take(&mut self.values, "timeout")?;
        let mut keys = Keys {
            inventory,
            seconds: seconds
                .map(|limit| seconds_of(limit, inventory))
                .transpose()?,
            kind: self.kind,
            kind_at: self.kind_at,
            values: self.values,
        };
        let check = (self.kind.read)(&mut keys)?;
        match keys.values.first() {
            // A key without a use would be a demand that the run ignores.
            Some((key, _)) => {
                let message = format!("`{}` has no effect here: leave it out", key.get_ref());
                Err(TableError::new(key.span(), message))
            }
            None => Ok(check),
        }
    }

    /// Refuses a key that no check of this kind has. Otherwise a mistyped key would be reported as
    /// missing.
    fn knows_keys(&self) -> Result<(), TableError> {
        let known = self.kind.keys().chain(&COMMON_KEYS).map(|key| key.name);
        let mut keys = self.values.iter().map(|(key, _)| key);
        let unknown = keys.find(|key| !known.clone().any(|name| name == *key.get_ref()));
        match unknown {
            Some(key) => {
                let message = format!(
                    "a check of the kind `{}` has no key `{}`",
                    self.kind.name,
                    key.get_ref()
                );
                Err(TableError::unknown(
                    key.span(),
                    message,
                    key.get_ref(),
                    known,
                ))
            }
            None => Ok(()),
        }
    }
}

/// Returns a time limit in seconds. A check that outlives the guest could not report.
fn seconds_of(limit: Spanned<Timeout>, inventory: &Inventory) -> Result<u32, TableError> {
    let (seconds, of_guest) = (limit.get_ref().seconds(), inventory.timeout.as_secs());
    if u64::from(seconds) < of_guest {
        return Ok(seconds);
    }
    let message = format!(
        "`timeout`: the guest ends after {of_guest} s: give the check less than its {seconds} s, or the scenario a longer \
         `timeout`"
    );
    Err(TableError::new(limit.span(), message))
}

fn unknown_kind(kind: &Spanned<String>) -> TableError {
    let name = kind.get_ref();
    let message = format!("unknown kind of check `{name}`");
    let known = KINDS.iter().map(|kind| kind.name);
    TableError::unknown_or(kind.span(), message, name, known, || {
        "`peerbar list` names all kinds".to_owned()
    })
}

fn take<'i, T: Deserialize<'i>>(
    values: &mut Values<'i>,
    key: &str,
) -> Result<Option<Spanned<T>>, TableError> {
    let Some(index) = values.iter().position(|(name, _)| name.get_ref() == key) else {
        return Ok(None);
    };
    let (_, value) = values.remove(index);
    let at = value.span();
    Spanned::deserialize(ValueDeserializer::from(value))
        .map(Some)
        .map_err(|error| TableError::of_toml(&error, Some(key), at))
}

/// The keys of one table, while a kind of check takes their values.
#[derive(Debug)]
pub struct Keys<'i, 's> {
    /// The devices that the check can name.
    pub inventory: &'s Inventory,
    /// The value of `timeout` in seconds.
    pub seconds: Option<u32>,
    kind: &'static Kind,
    kind_at: Range<usize>,
    values: Values<'i>,
}

impl<'i, 's> Keys<'i, 's> {
    /// Takes the value of an optional key.
    ///
    /// # Errors
    /// A value of another type.
    pub fn optional<T: Deserialize<'i>>(
        &mut self,
        key: &str,
    ) -> Result<Option<Spanned<T>>, TableError> {
        debug_assert!(
            self.kind.keys().any(|known| known.name == key),
            "the reference of `{}` lacks its key `{key}`",
            self.kind.name
        );
        take(&mut self.values, key)
    }

    /// Takes the value of a required key.
    ///
    /// # Errors
    /// The key is missing, or its value has another type.
    pub fn required<T: Deserialize<'i>>(&mut self, key: &str) -> Result<Spanned<T>, TableError> {
        self.optional(key)?.ok_or_else(|| TableError {
            missing: Some(key.to_owned()),
            ..self.refused(format!("a check of this kind needs the key `{key}`"))
        })
    }

    /// Takes the value of an optional key, or returns the type's default.
    ///
    /// # Errors
    /// A value of another type.
    pub fn or_default<T: Deserialize<'i> + Default>(&mut self, key: &str) -> Result<T, TableError> {
        Ok(self
            .optional(key)?
            .map_or_else(T::default, Spanned::into_inner))
    }

    /// Returns an error about the check as a whole, at the span of its kind.
    pub fn refused(&self, message: impl Into<String>) -> TableError {
        TableError::new(self.kind_at.clone(), message)
    }

    /// Takes the disk that this key names.
    ///
    /// # Errors
    /// The key is missing, or there is no such disk.
    pub fn disk(&mut self, key: &str) -> Result<&'s NvmeDevice, TableError> {
        self.inventory.disk(self.required(key)?)
    }

    /// Takes the name of [`Keys::disk`].
    ///
    /// # Errors
    /// As there.
    pub fn disk_name(&mut self, key: &str) -> Result<String, TableError> {
        Ok(self.disk(key)?.name.clone())
    }

    /// Takes the GPU that this key names.
    ///
    /// # Errors
    /// The key is missing, or there is no such GPU.
    pub fn gpu(&mut self, key: &str) -> Result<&'s Gpu, TableError> {
        self.inventory.gpu(self.required(key)?)
    }

    /// Takes the name of [`Keys::gpu`].
    ///
    /// # Errors
    /// As there.
    pub fn gpu_name(&mut self, key: &str) -> Result<String, TableError> {
        Ok(self.gpu(key)?.name.clone())
    }

    /// Takes the name of the RDMA network adapter that this key names.
    ///
    /// # Errors
    /// The key is missing, or there is no such adapter.
    pub fn nic_name(&mut self, key: &str) -> Result<String, TableError> {
        Ok(self.inventory.nic(self.required(key)?)?.name.clone())
    }

    /// Takes the name of a GPU that a disk can write to.
    ///
    /// # Errors
    /// As for [`Keys::gpu`], or the GPU has no p2pmem.
    pub fn gpu_with_p2pmem(&mut self, key: &str) -> Result<String, TableError> {
        let name: Spanned<String> = self.required(key)?;
        self.inventory.gpu(name.clone())?;
        self.inventory.provider(name)
    }

    /// Takes the name of a disk or a GPU.
    ///
    /// # Errors
    /// The key is missing, or there is no such device.
    pub fn device(&mut self, key: &str) -> Result<String, TableError> {
        let name = self.required(key)?;
        self.inventory.device(name)
    }

    /// Takes the device of this key, if it is there: a disk, a GPU, or any other with a server of
    /// another project.
    ///
    /// # Errors
    /// There is no such device.
    pub fn optional_server(&mut self, key: &str) -> Result<Option<String>, TableError> {
        let name: Option<Spanned<String>> = self.optional(key)?;
        let device = |name: Spanned<String>| match self.inventory.functions.contains(name.get_ref())
        {
            true => Ok(name.into_inner()),
            false => self.inventory.device(name),
        };
        name.map(device).transpose()
    }

    /// Takes the device with p2pmem that this key names.
    ///
    /// # Errors
    /// The key is missing, or there is no such device.
    pub fn provider(&mut self, key: &str) -> Result<String, TableError> {
        self.inventory.provider(self.required(key)?)
    }

    /// Takes the buffer of this key.
    ///
    /// # Errors
    /// The key is missing, or the device has no p2pmem.
    pub fn buffer(&mut self, key: &str) -> Result<Spanned<Buffer>, TableError> {
        let buffer = self.required(key)?;
        self.inventory.buffer(buffer)
    }

    /// Takes the sizes of this key: not empty, each a multiple of `unit` and at least `least`.
    ///
    /// # Errors
    /// The key is missing, or a size is refused.
    pub fn sizes(
        &mut self,
        key: &str,
        unit: u64,
        least: u64,
    ) -> Result<Spanned<Vec<u64>>, TableError> {
        let sizes: Spanned<Vec<Size>> = self.required(key)?;
        let at = sizes.span();
        let bytes: Vec<u64> = sizes.into_inner().into_iter().map(|size| size.0).collect();
        if bytes.is_empty() {
            let message = format!("`{key}` is empty: write one size or more");
            return Err(TableError::new(at, message));
        }
        let mut bad = bytes.iter();
        match bad.find(|&&bytes| bytes % unit != 0 || bytes < least) {
            Some(&bad) if bad < least => {
                let message = format!(
                    "`{key}`: {} is too small: write {} or more",
                    Size(bad),
                    Size(unit.max(least))
                );
                Err(TableError::new(at, message))
            }
            Some(&bad) => {
                let message = format!("`{key}`: {} is not a multiple of {}", Size(bad), Size(unit));
                Err(TableError::new(at, message))
            }
            None => Ok(Spanned::new(at, bytes)),
        }
    }

    /// Takes the number of threads.
    ///
    /// # Errors
    /// Too few or too many.
    pub fn threads(&mut self) -> Result<u32, TableError> {
        match self.optional("threads")? {
            Some(threads) if !THREADS.contains(threads.get_ref()) => {
                let message = format!(
                    "`threads = {}`: expected {} to {}",
                    threads.get_ref(),
                    THREADS.start(),
                    THREADS.end()
                );
                Err(TableError::new(threads.span(), message))
            }
            threads => Ok(threads.map_or(1, Spanned::into_inner)),
        }
    }
}
