//! From the shape of a scenario to a scenario that makes sense.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use peerbar_report::Module;
use toml::Spanned;

use super::error::Problem;
use super::file::{File, MachineTable, ModuleTable, NamespaceTable, NvmeTable};
use super::{Machine, Namespace, Nvme, Scenario};
use crate::size::Size;

/// Linux takes p2pmem in units of this size only (`pci_p2pdma_add_resource` needs whole memory sections).
const CMB_UNIT: u64 = 2 << 20;
/// A serial number has 20 characters (NVMe Base 2.0, 5.17.2.1).
const LONGEST_SERIAL: usize = 20;
const LONGEST_SCENARIO: usize = 40;
const LONGEST_MODULE: usize = 55;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
const DEFAULT_MEMORY: u64 = 512 << 20;

/// Checks the file as a whole; images are relative to `folder`.
pub(super) fn scenario(file: File, folder: &Path) -> Result<Scenario, Problem> {
    let name = fitting(file.name, LONGEST_SCENARIO)?;
    let switches = unique(
        file.switch.into_iter().map(|switch| switch.name),
        &[],
        LONGEST_SERIAL,
    )?;
    let names = file.nvme.iter().map(|nvme| nvme.name.clone());
    unique(names, &switches, LONGEST_SERIAL)?;
    let nvmes: Vec<Nvme> = file
        .nvme
        .into_iter()
        .map(|table| nvme(table, &switches, folder))
        .collect::<Result<_, _>>()?;
    let labels = file.check.iter().map(|table| table.name.clone()).collect();
    let checks = file
        .check
        .into_iter()
        .map(|table| table.into_check(&nvmes))
        .collect::<Result<_, _>>()?;
    Ok(Scenario {
        name,
        text: String::new(),
        timeout: file.timeout.map_or(DEFAULT_TIMEOUT, |timeout| timeout.0),
        machine: machine(file.machine)?,
        switches,
        nvmes,
        modules: modules(file.module)?,
        tools: file.tools,
        checks,
        labels,
    })
}

fn machine(table: MachineTable) -> Result<Machine, Problem> {
    let cpus = match table.cpus {
        Some(cpus) if !(1..=64).contains(cpus.get_ref()) => {
            return Err(Problem::new(
                cpus.span(),
                format!("`cpus = {}`: a machine has 1 to 64", cpus.get_ref()),
            ));
        }
        cpus => cpus.map_or(2, Spanned::into_inner),
    };
    Ok(Machine {
        cpu: table.cpu.unwrap_or_else(|| "EPYC".to_owned()),
        memory: table.memory.map_or(DEFAULT_MEMORY, |size| size.0),
        cpus,
        kernel_parameters: table.kernel_parameters,
    })
}

fn nvme(table: NvmeTable, switches: &[String], folder: &Path) -> Result<Nvme, Problem> {
    let name = table.name.into_inner();
    if let Some(below) = table
        .below
        .as_ref()
        .filter(|below| !switches.contains(below.get_ref()))
    {
        let message = format!(
            "no [[switch]] is named `{}`: declare it, or leave `below` out",
            below.get_ref()
        );
        return Err(Problem::new(below.span(), message));
    }
    let cmb = cmb(table.cmb)?;
    let queues_span = table.cmb_queues.as_ref().map(Spanned::span);
    let cmb_queues = table.cmb_queues.is_some_and(Spanned::into_inner);
    if let (true, None, Some(at)) = (cmb_queues, cmb, queues_span) {
        return Err(Problem::new(
            at,
            format!("`{name}` has no CMB for queues: give it a `cmb`"),
        ));
    }
    let block_size = match table.block_size {
        Some(size) if ![512, 4096].contains(size.get_ref()) => {
            let message = format!(
                "`block-size = {}`: blocks have 512 or 4096 bytes",
                size.get_ref()
            );
            return Err(Problem::new(size.span(), message));
        }
        size => size.map_or(512, Spanned::into_inner),
    };
    let at = table.namespaces.span();
    let tables = table.namespaces.into_inner();
    if tables.is_empty() {
        return Err(Problem::new(
            at,
            format!("`{name}` has no namespace: write `namespaces = [{{ ram = \"64M\" }}]`"),
        ));
    }
    let (namespaces, sizes): (Vec<Namespace>, Vec<u64>) = tables
        .into_iter()
        .map(|table| namespace(table, block_size, folder))
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .unzip();
    let below = table.below.map(Spanned::into_inner);
    Ok(Nvme {
        name,
        below,
        cmb,
        cmb_queues,
        block_size,
        disk_bytes: sizes.first().copied().unwrap_or(0),
        namespaces,
    })
}

fn cmb(size: Option<Spanned<Size>>) -> Result<Option<u64>, Problem> {
    match size {
        Some(size) if size.get_ref().0 == 0 || size.get_ref().0 % CMB_UNIT != 0 => {
            let message = format!(
                "`cmb = \"{}\"`: Linux takes multiples of {} only",
                size.get_ref(),
                Size(CMB_UNIT)
            );
            Err(Problem::new(size.span(), message))
        }
        size => Ok(size.map(|size| size.into_inner().0)),
    }
}

fn namespace(
    table: Spanned<NamespaceTable>,
    block_size: u32,
    folder: &Path,
) -> Result<(Namespace, u64), Problem> {
    let at = table.span();
    let namespace = match table.into_inner() {
        NamespaceTable {
            ram: Some(Size(bytes)),
            file: None,
            size: None,
        } => Namespace::Ram(bytes),
        NamespaceTable {
            ram: None,
            file: Some(file),
            size,
        } => Namespace::File {
            path: folder.join(file),
            create: size.map(|size| size.0),
        },
        _ => {
            let message = "a namespace is `{ ram = SIZE }`, `{ file = PATH }` or `{ file = PATH, size = SIZE }`";
            return Err(Problem::new(at, message));
        }
    };
    let bytes = namespace_bytes(&namespace).map_err(|message| Problem::new(at.clone(), message))?;
    if bytes < u64::from(block_size) {
        let message =
            format!("a namespace of {bytes} bytes is smaller than one block of {block_size}");
        return Err(Problem::new(at, message));
    }
    Ok((namespace, bytes))
}

/// Size of a namespace as it will be, without touching anything.
fn namespace_bytes(namespace: &Namespace) -> Result<u64, String> {
    let (path, create) = match namespace {
        Namespace::Ram(bytes) => return Ok(*bytes),
        Namespace::File { path, create } => (path, *create),
    };
    let shown = path.display();
    match (fs::metadata(path), create) {
        (Ok(metadata), _) if !metadata.is_file() => {
            Err(format!("image {shown} is no regular file"))
        }
        (Ok(metadata), Some(wanted)) if metadata.len() != wanted => Err(format!(
            "image {shown} has {} bytes, not {wanted}: leave `size` out to use it as it is",
            metadata.len()
        )),
        (Ok(metadata), _) => Ok(metadata.len()),
        (Err(_), Some(wanted)) => Ok(wanted),
        (Err(error), None) => Err(format!(
            "image {shown} cannot be used ({error}): give a `size` to have it created"
        )),
    }
}

/// The driver under test always comes; a `[[module]]` of its name only sets its parameters.
fn modules(tables: Vec<ModuleTable>) -> Result<Vec<Module>, Problem> {
    unique(
        tables.iter().map(|table| table.name.clone()),
        &[],
        LONGEST_MODULE,
    )?;
    let mut modules: Vec<Module> = tables
        .into_iter()
        .map(|table| Module {
            name: table.name.into_inner(),
            parameters: table.parameters,
        })
        .collect();
    if !modules.iter().any(|module| module.name == "nvme") {
        modules.push(Module {
            name: "nvme".to_owned(),
            parameters: String::new(),
        });
    }
    Ok(modules)
}

fn unique(
    names: impl Iterator<Item = Spanned<String>>,
    taken: &[String],
    longest: usize,
) -> Result<Vec<String>, Problem> {
    let mut seen: Vec<String> = Vec::new();
    for name in names {
        if seen.contains(name.get_ref()) || taken.contains(name.get_ref()) {
            let message = format!(
                "the name `{}` is taken: every switch, device and module needs its own",
                name.get_ref()
            );
            return Err(Problem::new(name.span(), message));
        }
        seen.push(fitting(name, longest)?);
    }
    Ok(seen)
}

/// Names become file names, QEMU identifiers and serial numbers.
fn fitting(name: Spanned<String>, longest: usize) -> Result<String, Problem> {
    let at: Range<usize> = name.span();
    let name = name.into_inner();
    let starts = name.starts_with(|first: char| first.is_ascii_alphabetic());
    let fits = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if !starts || !fits || name.len() > longest {
        let message = format!(
            "`{name}` is no name: a letter first, then letters, digits, `-` and `_`, {longest} at most"
        );
        return Err(Problem::new(at, message));
    }
    Ok(name)
}
