//! The book's reference of scenario files, and the template, against the tables that are read.

use std::fs;

use serde::Deserialize;

use super::file::{
    DeviceTable, FabricTable, File, GpuTable, GuestTable, HostBridgeTable, MachineTable,
    ModuleTable, NamespaceTable, NicTable, NvmeTable, ShareTable, SwitchTable,
};
use super::settings::fields;
use super::{Scenario, Twin};

const BOOK: &str = include_str!("../../../docs/src/scenario.md");

fn keys<'de, T: Deserialize<'de>>() -> Vec<&'static str> {
    fields::<T>().to_vec()
}

/// The keys of a device's table with its settings, sorted.
fn all_keys<'de, T: Deserialize<'de>, C: Deserialize<'de>>() -> Vec<&'static str> {
    sorted([keys::<T>(), keys::<C>()].concat())
}

fn sorted(mut keys: Vec<&str>) -> Vec<&str> {
    keys.sort_unstable();
    keys
}

/// Returns the keys in the first column of the table below the heading of the book.
fn documented(heading: &str) -> Vec<&'static str> {
    let mut lines = BOOK.lines().skip_while(|line| *line != heading).skip(1);
    let section = lines
        .by_ref()
        .skip_while(|line| !line.starts_with("| key "))
        .take_while(|line| line.starts_with('|'))
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    section.map(|(key, _)| key).collect()
}

#[test]
fn book_has_every_key_of_every_table_in_order() {
    assert_eq!(documented("## Top level"), keys::<File>());
    assert_eq!(documented("## [machine]"), keys::<MachineTable>());
    assert_eq!(documented("## [[host-bridge]]"), keys::<HostBridgeTable>());
    assert_eq!(documented("## [[switch]]"), keys::<SwitchTable>());
    let nvme = sorted(documented("## [[nvme]]"));
    assert_eq!(nvme, all_keys::<NvmeTable, peerbar_nvme::Config>());
    assert_eq!(documented("### Namespaces"), keys::<NamespaceTable>());
    let gpu = sorted(documented("## [[gpu]]"));
    assert_eq!(gpu, all_keys::<GpuTable, peerbar_gpu::Config>());
    assert_eq!(documented("## [[nic]]"), keys::<NicTable>());
    assert_eq!(documented("## [[device]]"), keys::<DeviceTable>());
    assert_eq!(documented("## [fabric]"), keys::<FabricTable>());
    assert_eq!(documented("## [[guest]]"), keys::<GuestTable>());
    assert_eq!(documented("## [[module]]"), keys::<ModuleTable>());
    assert_eq!(documented("## [[share]]"), keys::<ShareTable>());
    assert_eq!(documented("## [twin]"), keys::<Twin>());
}

/// Returns the template with every key that is off turned on.
fn all_on() -> String {
    let lines = Scenario::TEMPLATE
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key)
                if key.trim_start() != "" && !key.starts_with(" ") || key.starts_with("    {") =>
            {
                key
            }
            _ => line,
        });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the keys that the template has in tables with this heading, sorted.
fn in_template(heading: &str) -> Vec<String> {
    let text = all_on();
    let mut keys = Vec::new();
    let mut is_inside = heading.is_empty();
    for line in text.lines() {
        if line.starts_with('[') {
            is_inside = line.split_whitespace().next() == Some(heading);
        } else if let Some((key, _)) = line
            .split_once(" = ")
            .filter(|(key, _)| is_inside && key.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
        {
            keys.push(key.to_owned());
        }
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

#[test]
fn template_has_every_key_of_every_table() {
    let text = all_on();
    let has_table =
        |key: &str| text.contains(&format!("\n[{key}]")) || text.contains(&format!("\n[[{key}]]"));
    let top = sorted(keys::<File>())
        .into_iter()
        .filter(|key| !has_table(key));
    assert_eq!(in_template(""), top.collect::<Vec<&str>>());
    let machine = sorted(keys::<MachineTable>());
    assert_eq!(in_template("[machine]"), machine);
    assert_eq!(
        in_template("[[host-bridge]]"),
        sorted(keys::<HostBridgeTable>())
    );
    assert_eq!(in_template("[[switch]]"), sorted(keys::<SwitchTable>()));
    let nvme = all_keys::<NvmeTable, peerbar_nvme::Config>();
    assert_eq!(in_template("[[nvme]]"), nvme);
    let gpu = all_keys::<GpuTable, peerbar_gpu::Config>();
    assert_eq!(in_template("[[gpu]]"), gpu);
    assert_eq!(in_template("[[nic]]"), sorted(keys::<NicTable>()));
    assert_eq!(in_template("[[device]]"), sorted(keys::<DeviceTable>()));
    assert_eq!(in_template("[fabric]"), sorted(keys::<FabricTable>()));
    assert_eq!(in_template("[[module]]"), sorted(keys::<ModuleTable>()));
    assert_eq!(in_template("[[share]]"), sorted(keys::<ShareTable>()));
    assert_eq!(in_template("[twin]"), sorted(keys::<Twin>()));
    for key in keys::<NamespaceTable>() {
        assert!(
            text.contains(&format!("{key} = \"64M\"")) || text.contains(&format!("{{ {key} = ")),
            "{key}"
        );
    }
}

#[test]
fn template_makes_sense_with_every_key_on_and_off() {
    let folder = tempfile::tempdir().unwrap();
    for named in ["scenarios/build/x", "scenarios/data", "my-driver"] {
        fs::create_dir_all(folder.path().join(named)).unwrap();
    }
    fs::write(folder.path().join("my-driver/Kbuild"), "").unwrap();
    let path = folder.path().join("scenarios/template.toml");
    for text in [Scenario::TEMPLATE.to_owned(), all_on()] {
        let scenario = Scenario::parse(&path, text);
        let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
        assert!(scenario.checks.len() >= 2);
        assert_eq!(scenario.name, "my-scenario");
    }
}
