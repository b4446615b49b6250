//! All mistakes of a scenario file at once.
//!
//! Reading a scenario ends at its first mistake. To find the next one, a review corrects the
//! document in memory and reads it again: it corrects a misspelt name, leaves out other mistakes,
//! and inserts a value for a key that a table must have. Complaints that only result from such
//! omissions or insertions are not reported.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use peerbar_report::{OWN_PROGRAMS, TableError};
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use super::catalogue::{self, file_text};
use super::contents::Scenario;
use super::error::Problem;
use super::error::ScenarioError;
use super::group::{self, GuestGroup};
use super::{names, program};
use crate::exit::Failure;
use crate::shell_word::quoted;

/// Most mistakes that a review looks for.
const MOST: usize = 100;
/// Values of the types that keys have.
const STAND_INS: &str =
    "values = ['guest-ram', [{ ram = '64M' }], ['4K'], [0], '4K', 1, '.', '/mnt/stand-in']";
/// More bytes than a value of those has places.
const STAND_IN_BYTES: usize = 16;
/// Stands for a scenario's name that is refused.
const ANY_NAME: &str = "scenario";

/// The result of a review of a scenario file.
#[derive(Debug)]
pub struct Review {
    /// The mistakes, in the order of their lines.
    pub mistakes: Vec<ScenarioError>,
    /// Number of checks in the file.
    pub checks: usize,
}

/// Facts from outside a scenario with which it is compared; `None` if they are not known.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// QEMU's processor models.
    pub cpus: Option<BTreeSet<String>>,
    /// The names of Debian's packages.
    pub packages: Option<BTreeSet<String>>,
    /// The names of the modules that a guest can load, as in `/proc/modules`.
    pub modules: Option<BTreeSet<String>>,
}

/// Reviews a scenario file, or the shipped one of a bare name.
///
/// # Errors
/// The file is missing or cannot be read.
pub fn review(path: &Path, known: &Known) -> Result<Review, ScenarioError> {
    let path = catalogue::resolve(path);
    let text = file_text(&path)?;
    Ok(review_text(&path, &text.into(), known))
}

/// Reviews the `text` of the file at `path`.
pub(super) fn review_text(path: &Path, text: &Arc<str>, known: &Known) -> Review {
    let (document, errors) = DeTable::parse_recoverable(text);
    let checks = document.get_ref().get("check").map(Spanned::get_ref);
    let checks = checks.and_then(DeValue::as_array);
    let checks = checks.map_or(0, |tables| tables.len());
    let mut problems: Vec<Problem> = errors.into_iter().map(Problem::from).collect();
    // The rest of a file with wrong syntax would be misread.
    if problems.is_empty() {
        let outside = outside(&document, path, known);
        problems = Reviewed::of(document, text.len(), path).problems();
        let is_new = |new: &Problem| !problems.iter().any(|problem| problem.at == new.at);
        let outside: Vec<Problem> = outside.into_iter().filter(is_new).collect();
        problems.extend(outside);
    }
    problems.sort_by_key(|problem| problem.at.start);
    let mistakes = problems.into_iter();
    let mistakes = mistakes.map(|problem| problem.locate(path.to_owned(), Arc::clone(text)));
    let mut mistakes: Vec<ScenarioError> = mistakes.collect();
    // Words that are no TOML are as many mistakes of syntax.
    mistakes.dedup_by_key(|mistake| mistake.to_string());
    Review { mistakes, checks }
}

/// A document under review.
struct Reviewed<'i, 'p> {
    document: Spanned<DeTable<'i>>,
    /// Bytes of the file.
    bytes: usize,
    path: &'p Path,
    /// The starts of tables from which something was left out.
    damaged: BTreeSet<usize>,
    /// The spans that were left out.
    removed: Vec<Range<usize>>,
    /// The names of those, and of tables that were left out.
    lost: BTreeSet<String>,
    /// The starts of the corrected parts: a correction that does not help is left out.
    corrected: BTreeSet<usize>,
    /// The keys that were left out, each with the start of its table.
    removed_keys: BTreeSet<(usize, String)>,
    /// Inserted values for missing keys.
    stand_ins: Vec<StandIn<'i>>,
}

impl<'i, 'p> Reviewed<'i, 'p> {
    fn of(document: Spanned<DeTable<'i>>, bytes: usize, path: &'p Path) -> Self {
        Self {
            document,
            bytes,
            path,
            damaged: BTreeSet::new(),
            removed: Vec::new(),
            lost: BTreeSet::new(),
            corrected: BTreeSet::new(),
            removed_keys: BTreeSet::new(),
            stand_ins: Vec::new(),
        }
    }

    /// Reads and corrects the document until it makes sense.
    fn problems(mut self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for _ in 0..MOST {
            let Err(problem) = read(self.document.clone(), self.path) else {
                break;
            };
            let Some(place) = Place::of(self.document.get_ref(), &problem.at) else {
                problems.push(problem);
                break;
            };
            let follows = self.follows_from_others(&problem, &place);
            let goes_on = self.correct(&problem, &place);
            if !follows {
                problems.push(problem);
            }
            if !goes_on {
                break;
            }
        }
        problems
    }

    /// Returns `true` if the problem may result from others.
    fn follows_from_others(&self, problem: &Problem, place: &Place) -> bool {
        if problem.meant.is_some() {
            return false;
        }
        if let (Some(key), Some(table)) = (&problem.missing, &place.table) {
            return self.removed_keys.contains(&(table.span.start, key.clone()));
        }
        let is_around =
            |inner: &Range<usize>| place.span.start <= inner.start && inner.end <= place.span.end;
        if self.corrected.contains(&place.span.start) || self.removed.iter().any(is_around) {
            return true;
        }
        let Some(table) = &place.table else {
            // A valid name represents the file as a whole.
            return place.is_name && place.has_fitting_name() && !self.removed.is_empty();
        };
        let is_whole = place.is_whole();
        if is_whole && self.damaged.contains(&table.span.start) {
            return true;
        }
        let names = if is_whole { &table.words } else { &place.words };
        names.iter().any(|word| self.names_lost(word)) || self.follows_from_stand_in(problem, table)
    }

    /// Returns `true` if a word is a lost name, or has a placeholder for one.
    fn names_lost(&self, word: &str) -> bool {
        let mut lost = self.lost.iter();
        lost.any(|name| word == name || word.contains(&format!("{{{name}")))
    }

    /// Returns `true` if the problem in `table` would disappear with another inserted value.
    fn follows_from_stand_in(&self, problem: &Problem, table: &Table) -> bool {
        let mut of_table = self.stand_ins.iter();
        let is_same = |other: &Problem| other.at == problem.at && other.message == problem.message;
        of_table.any(|stand_in| {
            stand_in.table == table.span
                && stand_in.others.iter().any(|other| {
                    let changed = stand_in.with(other, &self.document);
                    !matches!(read(changed, self.path), Err(problem) if is_same(&problem))
                })
        })
    }

    /// Corrects the mistake at `place`, or leaves it out. Returns `false` if neither can be done.
    fn correct(&mut self, problem: &Problem, place: &Place) -> bool {
        if let (Some(key), Some(table)) = (&problem.missing, &place.table) {
            // A name must be one that others can mean.
            if place.is_whole() && key != "name" && self.stand_in(key, table) {
                return true;
            }
        }
        let is_new = self.corrected.insert(place.span.start);
        let edit = match (&problem.meant, &place.table) {
            (Some(meant), _) if is_new => Edit::Rename(meant.clone()),
            // The name of the scenario represents the file as a whole.
            (_, None) if place.is_name && is_new => Edit::Rename(ANY_NAME.to_owned()),
            (_, None) if place.is_name => return false,
            _ => Edit::Remove,
        };
        let before = names_of_tables(self.document.get_ref());
        let keys = place.table.as_ref();
        let keys = keys.map(|table| keys_of(self.document.get_mut(), &table.span));
        let Some(edit) = edit.apply(self.document.get_mut(), &place.span) else {
            return false;
        };
        if matches!(edit, Edit::Remove) {
            self.removed.push(place.span.clone());
            let after = names_of_tables(self.document.get_ref());
            self.lost.extend(before.difference(&after).cloned());
            if let Some(table) = &place.table {
                self.damaged.insert(table.span.start);
                self.lost.extend(table.name.clone());
                let left = keys_of(self.document.get_mut(), &table.span);
                let gone = keys.iter().flat_map(|keys| keys.difference(&left));
                let gone = gone.map(|key| (table.span.start, key.clone()));
                self.removed_keys.extend(gone);
            }
        }
        true
    }

    /// Inserts a value for the missing `key` of `table`, so that its other keys are read. Returns
    /// `false` if no value fits.
    fn stand_in(&mut self, key: &str, table: &Table) -> bool {
        let has_one = |old: &StandIn<'_>| old.table == table.span && old.key == key;
        if self.stand_ins.iter().any(has_one) {
            return false;
        }
        let mut stand_in = StandIn {
            table: table.span.clone(),
            key: key.to_owned(),
            others: Vec::new(),
        };
        // Its bytes are outside of the file, so a problem there is known to concern it.
        let at = self.bytes + STAND_IN_BYTES * (self.stand_ins.len() + 1);
        let mut best = None;
        for value in values(self.document.get_ref(), at) {
            let document = stand_in.with(&value, &self.document);
            let is_in_table = match read(document.clone(), self.path) {
                Ok(()) => false,
                Err(next) => match Place::of(document.get_ref(), &next.at) {
                    Some(place) if place.span.start < at => {
                        let is_in_table = place.is_in(table);
                        let lacks_another = next.missing.is_some_and(|other| other != key);
                        if is_in_table && place.is_whole() && !lacks_another {
                            continue;
                        }
                        is_in_table
                    }
                    _ => continue,
                },
            };
            stand_in.others.push(value);
            // A value with which the table is correct does not cause complaints about correct
            // parts.
            if best.is_none() || !is_in_table {
                best = Some(document);
                if !is_in_table {
                    break;
                }
            }
        }
        let Some(document) = best else {
            return false;
        };
        self.document = document;
        self.damaged.insert(table.span.start);
        self.stand_ins.push(stand_in);
        true
    }
}

/// A value for a key that a table lacks.
struct StandIn<'i> {
    table: Range<usize>,
    key: String,
    /// The values that fit, which are as good.
    others: Vec<Spanned<DeValue<'i>>>,
}

impl<'i> StandIn<'i> {
    /// Returns the `document` with `value` in its place.
    fn with(
        &self,
        value: &Spanned<DeValue<'i>>,
        document: &Spanned<DeTable<'i>>,
    ) -> Spanned<DeTable<'i>> {
        let mut document = document.clone();
        if let Some(table) = table_at(document.get_mut(), &self.table) {
            let key = Spanned::new(value.span(), Cow::Owned(self.key.clone()));
            table.insert(key, value.clone());
        }
        document
    }
}

/// Values of all types that keys have, those with the names of tables first, at the bytes from `at`
/// on.
fn values<'i>(document: &DeTable<'i>, at: usize) -> Vec<Spanned<DeValue<'i>>> {
    let name = |name: &str| DeValue::String(Cow::Owned(name.to_owned()));
    let mut values = Vec::new();
    for known in names_of_tables(document) {
        values.push(name(&known));
        for key in ["p2pmem", "vram"] {
            let mut table = DeTable::new();
            let inner = Spanned::new(at..at, name(&known));
            table.insert(Spanned::new(at..at, Cow::Borrowed(key)), inner);
            values.push(DeValue::Table(table));
        }
    }
    let others = DeTable::parse(STAND_INS).map(Spanned::into_inner);
    let others = others.ok().and_then(|mut others| others.remove("values"));
    let others = others.map(Spanned::into_inner);
    if let Some(DeValue::Array(others)) = others {
        values.extend(others.into_iter().map(Spanned::into_inner));
    }
    let moved = values.into_iter().map(|value| moved(value, at));
    moved.collect()
}

/// Returns `value` at the bytes from `at` on, with more bytes than any of its parts.
fn moved(value: DeValue<'_>, at: usize) -> Spanned<DeValue<'_>> {
    let value = match value {
        DeValue::Array(elements) => {
            let elements = elements.into_iter();
            let elements = elements.map(|one| moved(one.into_inner(), at));
            DeValue::Array(elements.collect())
        }
        DeValue::Table(table) => {
            let entries = table.into_iter().map(|(key, value)| {
                let key = Spanned::new(at..at, key.into_inner());
                (key, moved(value.into_inner(), at))
            });
            DeValue::Table(entries.collect())
        }
        other => other,
    };
    let inner = match &value {
        DeValue::Array(elements) => elements.iter().map(|one| one.span().len()).max(),
        DeValue::Table(table) => table.values().map(|one| one.span().len()).max(),
        _ => None,
    };
    Spanned::new(at..at + inner.unwrap_or(0) + 1, value)
}

/// Returns the table of the top level at `span`, or the element of an array there.
fn table_at<'d, 'i>(
    document: &'d mut DeTable<'i>,
    span: &Range<usize>,
) -> Option<&'d mut DeTable<'i>> {
    let mut tables: Vec<&'d mut Spanned<DeValue<'i>>> = Vec::new();
    for (_, value) in document.iter_mut() {
        if value.get_ref().is_table() {
            tables.push(value);
        } else if let DeValue::Array(elements) = value.get_mut() {
            tables.extend(elements.iter_mut());
        }
    }
    let mut tables = tables.into_iter();
    match tables.find(|table| table.span() == *span)?.get_mut() {
        DeValue::Table(table) => Some(table),
        _ => None,
    }
}

/// Returns the keys of the table at `span`.
fn keys_of(document: &mut DeTable<'_>, span: &Range<usize>) -> BTreeSet<String> {
    let table = table_at(document, span);
    let keys = table.into_iter().flat_map(|table| table.keys());
    keys.map(|key| key.get_ref().to_string()).collect()
}

/// Mistakes about things outside `document` that do not exist: processor models, packages, modules,
/// and the programs of checks.
fn outside(document: &Spanned<DeTable<'_>>, path: &Path, known: &Known) -> Vec<Problem> {
    let tables = document.get_ref();
    let mut problems = Vec::new();
    let elements = |key: &str| -> &[Spanned<DeValue<'_>>] {
        let value = tables.get(key).map(Spanned::get_ref);
        let elements = value.and_then(DeValue::as_array);
        elements.map_or(&[], |elements| elements.iter().as_slice())
    };
    let guests = elements("guest").iter();
    let machines = guests.filter_map(|guest| guest.get_ref().get("machine"));
    for machine in tables.get("machine").into_iter().chain(machines) {
        let (Some(cpu), Some(known)) = (machine.get_ref().get("cpu"), &known.cpus) else {
            continue;
        };
        problems.extend(unknown_cpu(cpu, known));
    }
    if let Some(known) = &known.packages {
        let names = elements("packages").iter();
        problems.extend(names.filter_map(|name| unknown_package(name, known)));
    }
    let checks = elements("check");
    if let Some(known) = &known.modules {
        let named = elements("module").iter();
        problems.extend(named.filter_map(|module| unknown_module(module.get_ref(), known)));
        problems.extend(missing_modules(document, checks, path, known));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    problems.extend(
        checks
            .iter()
            .filter_map(|check| missing_program(check.get_ref(), folder)),
    );
    problems
}

fn unknown_cpu(cpu: &Spanned<DeValue<'_>>, known: &BTreeSet<String>) -> Option<Problem> {
    // Properties follow a comma. QEMU lists `host` only if it is available.
    let model = cpu.get_ref().as_str()?.split(',').next()?;
    if known.contains(model) || model == "host" {
        return None;
    }
    let message = format!("QEMU has no processor model `{model}`");
    let known = known.iter().map(String::as_str);
    let error = TableError::unknown_or(cpu.span(), message, model, known, || {
        "`peerbar qemu -- -cpu help` lists all".to_owned()
    });
    Some(error.into())
}

fn unknown_package(package: &Spanned<DeValue<'_>>, known: &BTreeSet<String>) -> Option<Problem> {
    let name = package.get_ref().as_str()?;
    if known.contains(name) || name.starts_with('@') {
        return None;
    }
    let message = format!("`packages`: Debian has no package `{name}`");
    let known = known.iter().map(String::as_str);
    let error = TableError::unknown_or(package.span(), message, name, known, || {
        "correct the name, or leave it out".to_owned()
    });
    Some(error.into())
}

/// Returns the problem with the name of a module that is not built from a folder.
fn unknown_module(module: &DeValue<'_>, known: &BTreeSet<String>) -> Option<Problem> {
    let at = module.get("name")?;
    let name = at.get_ref().as_str()?;
    if module.get("path").is_some() || known.contains(&name.replace('-', "_")) {
        return None;
    }
    let message = format!("no kernel in the cache has a module `{name}`");
    let known = known.iter().map(String::as_str);
    let error = TableError::unknown_or(at.span(), message, name, known, || {
        "correct the name, or leave it to a run with `--kernel`".to_owned()
    });
    Some(error.into())
}

/// Returns the problems with checks that need a module which no kernel has. Nothing is known of a
/// document with other mistakes, or with several guests.
fn missing_modules(
    document: &Spanned<DeTable<'_>>,
    tables: &[Spanned<DeValue<'_>>],
    path: &Path,
    known: &BTreeSet<String>,
) -> Vec<Problem> {
    let scenario = Scenario::of_document(document.clone(), path, true);
    let checks = scenario.map_or_else(|_| Vec::new(), |scenario| scenario.checks);
    let missing = checks.iter().zip(tables).filter_map(|(check, table)| {
        let mut needed = check.modules_on_demand().iter();
        let missing = needed.find(|name| !known.contains(**name))?;
        let message = format!(
            "the check needs the module `{missing}`, which no kernel in the cache has: leave it to a run with `--kernel`"
        );
        Some(Problem::new(table.span(), message))
    });
    missing.collect()
}

/// Returns the program of a check that no `build` makes and that is not one of peerbar's.
fn missing_program(check: &DeValue<'_>, folder: &Path) -> Option<Problem> {
    let text = |key: &str| check.get(key).and_then(|value| value.get_ref().as_str());
    let path = check.get("path")?;
    if text("kind") != Some("program") || text("build").is_some() {
        return None;
    }
    let relative = path.get_ref().as_str()?;
    if relative.starts_with(OWN_PROGRAMS) {
        return None;
    }
    let file = folder.join(relative);
    let file = text("program").map_or(file.clone(), |program| file.join(program));
    let message = program::runnable(&file, None).err()?;
    Some(Problem::new(path.span(), message))
}

/// Returns the names of all tables.
fn names_of_tables(document: &DeTable<'_>) -> BTreeSet<String> {
    let arrays = document
        .values()
        .filter_map(|value| value.get_ref().as_array());
    let names = arrays.flat_map(|tables| tables.iter().filter_map(name));
    names.collect()
}

/// Returns the value of a table's `name`.
fn name(table: &Spanned<DeValue<'_>>) -> Option<String> {
    let name = table.get_ref().get("name")?;
    name.get_ref().as_str().map(str::to_owned)
}

/// Reads the scenario, whose text is not kept.
fn read(document: Spanned<DeTable<'_>>, path: &Path) -> Result<(), Problem> {
    if document.get_ref().contains_key("guest") {
        return GuestGroup::of_document(document, path, true).map(drop);
    }
    group::refuse(document.get_ref())?;
    Scenario::of_document(document, path, true).map(drop)
}

/// The smallest key, value or table around a problem.
struct Place {
    span: Range<usize>,
    /// Set for a `name` or a `kind`, to which errors about a whole table point.
    is_name: bool,
    /// The strings in it.
    words: Vec<String>,
    /// The table of the top level that it is in.
    table: Option<Table>,
}

/// An element of an array of tables, as `[[nvme]]`, or a table, as `[machine]`.
struct Table {
    span: Range<usize>,
    name: Option<String>,
    /// The strings in it.
    words: Vec<String>,
}

impl Place {
    fn of(document: &DeTable<'_>, at: &Range<usize>) -> Option<Self> {
        let mut items = Vec::new();
        for (key, value) in document.iter() {
            items.push(Item::of_key(key, None));
            let elements = match value.get_ref() {
                DeValue::Array(elements) if elements.iter().all(|one| one.get_ref().is_table()) => {
                    elements.iter().as_slice()
                }
                _ => std::slice::from_ref(value),
            };
            for element in elements {
                let table = Some(element).filter(|element| element.get_ref().is_table());
                Item::collect(key.get_ref(), element, table, &mut items);
            }
        }
        let around = |item: &Item<'_, '_>| item.span.start <= at.start && at.end <= item.span.end;
        let around = items.into_iter().filter(around);
        // Of equal spans, the innermost comes last.
        let smallest = around.rev().min_by_key(|item| item.span.len())?;
        let checks = document.get("check").map(Spanned::get_ref);
        let mut checks = checks
            .and_then(DeValue::as_array)
            .into_iter()
            .flat_map(|all| all.iter());
        let table = smallest.table.map(Spanned::span);
        let is_check = checks.any(|check| Some(check.span()) == table);
        Some(Self {
            // The name of a check is its label alone.
            is_name: smallest.key == if is_check { "kind" } else { "name" },
            words: smallest.value.map(words).unwrap_or_default(),
            table: smallest.table.map(Table::of),
            span: smallest.span,
        })
    }

    /// Returns `true` if it represents its table as a whole.
    fn is_whole(&self) -> bool {
        let is_table = |table: &Table| table.span == self.span;
        self.is_name || self.table.as_ref().is_some_and(is_table)
    }

    fn is_in(&self, table: &Table) -> bool {
        let own = self.table.as_ref();
        own.is_some_and(|own| own.span == table.span)
    }

    fn has_fitting_name(&self) -> bool {
        let name = self.words.first().cloned().unwrap_or_default();
        names::fitting(Spanned::new(0..0, name), names::LONGEST_SCENARIO).is_ok()
    }
}

impl Table {
    fn of(table: &Spanned<DeValue<'_>>) -> Self {
        Self {
            span: table.span(),
            name: name(table),
            words: words(table.get_ref()),
        }
    }
}

/// A key or a value of a document.
struct Item<'d, 'i> {
    span: Range<usize>,
    key: &'d str,
    value: Option<&'d DeValue<'i>>,
    table: Option<&'d Spanned<DeValue<'i>>>,
}

impl<'d, 'i> Item<'d, 'i> {
    fn of_key(key: &'d Spanned<DeString<'i>>, table: Option<&'d Spanned<DeValue<'i>>>) -> Self {
        Self {
            span: key.span(),
            key: "",
            value: None,
            table,
        }
    }

    /// The `value` of `key`, and all in it.
    fn collect(
        key: &'d str,
        value: &'d Spanned<DeValue<'i>>,
        table: Option<&'d Spanned<DeValue<'i>>>,
        items: &mut Vec<Self>,
    ) {
        items.push(Self {
            span: value.span(),
            key,
            value: Some(value.get_ref()),
            table,
        });
        match value.get_ref() {
            DeValue::Array(elements) => {
                let elements = elements.iter();
                elements.for_each(|element| Self::collect("", element, table, items));
            }
            DeValue::Table(inner) => {
                for (key, value) in inner.iter() {
                    items.push(Self::of_key(key, table));
                    Self::collect(key.get_ref(), value, table, items);
                }
            }
            _ => {}
        }
    }
}

/// Returns the strings in `value`.
fn words(value: &DeValue<'_>) -> Vec<String> {
    match value {
        DeValue::String(word) => vec![word.clone().into_owned()],
        DeValue::Array(elements) => elements
            .iter()
            .flat_map(|one| words(one.get_ref()))
            .collect(),
        DeValue::Table(table) => table
            .values()
            .flat_map(|one| words(one.get_ref()))
            .collect(),
        _ => Vec::new(),
    }
}

/// A change of the key or the value at a span.
#[derive(Clone)]
enum Edit {
    Rename(String),
    Remove,
}

impl Edit {
    /// Changes the first key or value of `table` that is at `span`, and returns how. A key whose
    /// new name is taken is removed.
    fn apply(&self, table: &mut DeTable<'_>, span: &Range<usize>) -> Option<Self> {
        let is_value = |value: &Spanned<DeValue<'_>>| {
            // An array of tables is where its first one is.
            let inner = value.get_ref().as_array();
            let mut inner = inner.into_iter().flat_map(|elements| elements.iter());
            value.span() == *span && !inner.any(|element| element.span() == *span)
        };
        let is_at = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
            key.span() == *span || (matches!(self, Self::Remove) && is_value(value))
        };
        let found = table.iter().find(|&entry| is_at(entry));
        let Some(key) = found.map(|(key, _)| key.get_ref().clone().into_owned()) else {
            let mut values = table.iter_mut().map(|(_, value)| value);
            return values.find_map(|value| self.apply_to(value, span));
        };
        let value = table.remove(key.as_str());
        match (self, value) {
            (Self::Rename(name), Some(value)) if !table.contains_key(name.as_str()) => {
                let name = Spanned::new(span.clone(), Cow::Owned(name.clone()));
                table.insert(name, value);
                Some(self.clone())
            }
            _ => Some(Self::Remove),
        }
    }

    fn apply_to(&self, value: &mut Spanned<DeValue<'_>>, span: &Range<usize>) -> Option<Self> {
        if let (Self::Rename(name), true) = (self, value.span() == *span) {
            *value.get_mut() = DeValue::String(Cow::Owned(name.clone()));
            return Some(self.clone());
        }
        match value.get_mut() {
            DeValue::Table(table) => self.apply(table, span),
            DeValue::Array(elements) => {
                let is_removed = |element: &Spanned<DeValue<'_>>| {
                    matches!(self, Self::Remove) && element.span() == *span
                };
                if elements.iter().any(is_removed) {
                    let others = elements.iter().filter(|element| !is_removed(element));
                    *elements = others.cloned().collect::<DeArray<'_>>();
                    return Some(Self::Remove);
                }
                elements
                    .iter_mut()
                    .find_map(|element| self.apply_to(element, span))
            }
            _ => None,
        }
    }
}

/// A mistake in a scenario is the user's. If there are more, the message says how to see all.
impl From<ScenarioError> for Failure {
    fn from(error: ScenarioError) -> Self {
        let ScenarioError::Invalid { path, text, .. } = &error else {
            return Self::Usage(error.into());
        };
        Self::Usage(
            match review_text(path, text, &Known::default()).mistakes.len() {
                0 | 1 => error.into(),
                mistakes => anyhow!(
                    "{error} (`peerbar check {}` shows all {mistakes} mistakes)",
                    quoted(&path.to_string_lossy())
                ),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines with mistakes, and the mistakes.
    fn mistakes(text: &str) -> Vec<String> {
        mistakes_with(text, &Known::default())
    }

    fn mistakes_with(text: &str, known: &Known) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.toml");
        std::fs::write(&file, text).unwrap();
        let review = review(&file, known).unwrap();
        let start = format!("{}:", file.display());
        let mistakes = review.mistakes.iter().map(ToString::to_string);
        mistakes
            .map(|mistake| mistake.strip_prefix(&start).unwrap().to_owned())
            .collect()
    }

    const DISK: &str = "name = \"x\"\n[[nvme]]\nname = \"disk0\"\ncmb = \"64M\"\nnamespaces = [{ ram = \"1M\" }]\n";

    /// Each of `found` must have the start in the same place.
    fn assert_starts(found: &[String], starts: &[&str]) {
        assert_eq!(found.len(), starts.len(), "{found:#?}");
        for (mistake, start) in found.iter().zip(starts) {
            assert!(mistake.starts_with(start), "{mistake:?} {start:?}");
        }
    }

    #[test]
    fn every_mistake_is_reported_with_its_line() {
        let text = "name = \"a b\"\ntimeot = \"60s\"\n[machine]\nmemory = \"97M\"\niommu = \"intle\"\n\
            [[nvme]]\nname = \"disk0\"\ncmbb = \"64M\"\nblock-size = 513\nnamespaces = [{ ram = \"1M\" }]\n\
            [[gpu]]\nname = \"gpu0\"\nvram = \"64MB\"\nbelow = \"sw\"\n\
            [[check]]\nkind = \"provder\"\ndevice = \"dsk0\"\n\
            [[check]]\nkind = \"provider\"\ndevise = \"disk0\"\n\
            [[check]]\nkind = \"provider\"\ndevice = \"disk7\"\n";
        let found = mistakes(text);
        let starts = [
            "1: invalid name `a b`",
            "2: unknown key `timeot`: did you mean `timeout`?",
            "4: `memory = \"97M\"`: ",
            "5: `intle` is unknown: did you mean `intel`?",
            "8: unknown key `cmbb`: did you mean `cmb`?",
            "9: ",
            "13: `vram`: invalid size `64MB`",
            "14: no [[switch]] or [[host-bridge]] is named `sw`: declare it",
            "16: unknown kind of check `provder`: did you mean `provider`?",
            "17: no [[nvme]] or [[gpu]] is named `dsk0`: did you mean `disk0`?",
            "20: a check of the kind `provider` has no key `devise`: did you mean `device`?",
            "23: no [[nvme]] or [[gpu]] is named `disk7`: there are `disk0`, `gpu0`",
        ];
        assert_starts(&found, &starts);
    }

    #[test]
    fn every_value_of_a_check_is_read() {
        let disk = "[[nvme]]\nname = \"disk1\"\nnamespaces = [{ rom = \"1M\" }]\n";
        let text = format!(
            "tools = true\n{DISK}{disk}\
             [[check]]\nkind = \"copy\"\nfrom = \"disk00\"\nto = \"disk7\"\nthrough = {{ p2pmem = \"gpu1\" }}\n\
             sizes = [\"4K\", \"5\"]\noffsets = [1]\nthreads = 0\n\
             [[check]]\nkind = \"command\"\nname = \" \"\nrun = \"cat {{dsk0:disk}}\"\nmatches = [\"(\"]\nstatus = 300\n\
             timeout = \"10m\"\n\
             [[check]]\nkind = \"provider\"\n\
             [[check]]\nkind = \"copy\"\n"
        );
        let found = mistakes(&text);
        let starts = [
            "9: unknown key `rom`",
            "12: no [[nvme]] is named `disk00`: there are `disk0`, `disk1`",
            "13: no [[nvme]] is named `disk7`: there are `disk0`, `disk1`",
            "14: no ",
            "15: `sizes`: 5 is not a multiple of 4K",
            "16: `offsets`: 1 is not a multiple of 512",
            "17: `threads = 0`",
            "20: the name \" \" is blank",
            "21: unknown placeholder `{dsk0:disk}`",
            "22: `matches`: invalid regular expression \"(\"",
            "23: `status = 300`: ",
            "24: `timeout`: the guest ends after 60 s",
            "26: a check of this kind needs the key `device`",
            "28: a check of this kind needs the key `from`",
            "28: a check of this kind needs the key `to`",
            "28: a check of this kind needs the key `through`",
            "28: a check of this kind needs the key `sizes`",
            "28: a check of this kind needs the key `offsets`",
        ];
        assert_starts(&found, &starts);
    }

    #[test]
    fn value_of_another_type_names_its_key() {
        let text = format!("tools = \"yes\"\n{DISK}workers = true\ncmb-queues = 1\nmdts = 300\n");
        let found = mistakes(&text);
        let expected = [
            "1: `tools` takes `true` or `false`, not string \"yes\"",
            "7: `workers` takes a whole number from 0 to 255, not boolean `true`",
            "8: `cmb-queues` takes `true` or `false`, not integer `1`",
            "9: `mdts` takes a whole number from 0 to 255, not integer `300`",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_stands_in_for_a_key_is_not_blamed() {
        // The inserted disk for `disk7` may be too small for the check.
        let small = "[[nvme]]\nname = \"disk1\"\nnamespaces = [{ ram = \"64K\" }]\n";
        let check = "[[check]]\nkind = \"copy\"\nfrom = \"disk7\"\nto = \"disk0\"\nthrough = \"guest-ram\"\n\
                     sizes = [\"128K\"]\noffsets = [0]\n";
        for text in [format!("{DISK}{small}{check}"), format!("{DISK}{check}")] {
            let found = mistakes(&text);
            assert_eq!(found.len(), 1, "{found:#?}");
        }
    }

    #[test]
    fn mistake_has_no_followers() {
        // A disk without its CMB, and one without a name, are named by checks.
        let check = "[[check]]\nkind = \"provider\"\ndevice = \"disk0\"\n";
        for (from, to) in [("64M", "64Q"), ("disk0\"\ncmb", "0\"\ncmb"), ("1M", "1Q")] {
            let found = mistakes(&format!("{DISK}{check}").replacen(from, to, 1));
            assert_eq!(found.len(), 1, "{found:#?}");
        }
        assert!(mistakes(&format!("{DISK}{check}")).is_empty());
    }

    #[test]
    fn what_is_not_there_is_a_mistake() {
        let top =
            "tools = true\npackages = [\"prf\", \"gdb\"]\nmachine = { cpu = \"EPIC,+svm\" }\n";
        let check = "[[check]]\nkind = \"program\"\npath = \"missing\"\n";
        let text = format!("{top}{DISK}{check}");
        let found = mistakes(&text);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].contains(" not found: "), "{found:#?}");
        let set = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        let known = Known {
            cpus: set(&["EPYC", "max"]),
            packages: set(&["perf", "gdb"]),
            modules: None,
        };
        let found = mistakes_with(&text, &known);
        let starts = [
            "2: `packages`: Debian has no package `prf`: did you mean `perf`?",
            "3: QEMU has no processor model `EPIC`: did you mean `EPYC`?",
            "11: ",
        ];
        assert_starts(&found, &starts);
    }

    #[test]
    fn module_that_no_kernel_has_is_a_mistake() {
        let modules = "[[module]]\nname = \"nvme-core\"\n[[module]]\nname = \"nmve\"\n[[module]]\nname = \"zzzzzz\"\n";
        let check = "[[check]]\nkind = \"vfio-nvme\"\ndisk = \"disk0\"\nwith = \"guest-ram\"\n";
        let text = format!("machine = {{ iommu = \"intel\" }}\n{DISK}{modules}{check}");
        assert_starts(&mistakes(&text), &[]);
        let known = ["nvme", "nvme_core"].map(str::to_owned);
        let known = Known {
            modules: Some(known.into()),
            ..Known::default()
        };
        let found = mistakes_with(&text, &known);
        let starts = [
            "10: no kernel in the cache has a module `nmve`: did you mean `nvme`?",
            "12: no kernel in the cache has a module `zzzzzz`: correct the name, ",
            "13: the check needs the module `vfio_iommu_type1`, ",
        ];
        assert_starts(&found, &starts);
    }

    #[test]
    fn table_that_is_left_out_hides_no_other() {
        let check = "[[check]]\nname = \"a\"\n[[check]]\nkind = \"provider\"\ndevice = \"disk7\"\n";
        let found = mistakes(&format!("{DISK}{check}"));
        assert_eq!(found.len(), 2, "{found:#?}");
    }

    #[test]
    fn file_as_a_whole_is_wrong_once() {
        let found = mistakes("name = \"x\"\n");
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].starts_with("1: no device"), "{found:#?}");
        let found = mistakes("nmae = \"x\"\n");
        assert_eq!(found.len(), 2, "{found:#?}");
    }

    #[test]
    fn errors_of_syntax_are_reported_alone() {
        let found = mistakes("name = \"x\ncolour = 1\n[[nvme]\nnames = 1\n");
        assert!(found.len() >= 2, "{found:#?}");
        assert!(found[0].starts_with("1: "), "{found:#?}");
    }

    #[test]
    fn line_of_plain_words_is_one_mistake() {
        let found = mistakes("root:x:0:0:root:/root:/bin/bash\n");
        assert!(!found.is_empty());
        assert_eq!(found.len(), BTreeSet::from_iter(&found).len(), "{found:#?}");
    }

    #[test]
    fn guests_of_several_are_reviewed_together() {
        let text = format!(
            "{}[[guest]]\nname = \"left\"\n[[guest]]\nname = \"right\"\ncolour = 1\n\
             [[check]]\nguest = \"lft\"\nkind = \"provider\"\ndevice = \"disk0\"\nsizes = 4\n",
            DISK.replacen("[[nvme]]", "[[nvme]]\nguest = \"left\"", 1)
        );
        let found = mistakes(&text);
        let lines: Vec<&str> = found
            .iter()
            .filter_map(|one| one.split(':').next())
            .collect();
        assert_eq!(lines, ["11", "13", "16"], "{found:#?}");
    }

    #[test]
    fn project_s_scenarios_have_no_mistake() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        for file in super::super::in_folder(&folder) {
            let review = review(&file.path, &Known::default()).unwrap();
            assert!(
                review.mistakes.is_empty(),
                "{}: {:#?}",
                file.name,
                review.mistakes
            );
            assert!(review.checks > 0, "{}", file.name);
        }
    }
}
