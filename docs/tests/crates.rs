//! ARCHITECTURE.md's table of crates has the crates of the workspace, and what each depends on.

// Clippy sees tests only in functions that are marked so, not in what they call.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use toml::Table;

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn manifest(folder: &str) -> Table {
    let path = project().join(folder).join("Cargo.toml");
    let text = fs::read_to_string(path).unwrap();
    text.parse().unwrap()
}

/// The folders of the workspace's crates, and the names of the project's crates that each depends on, without their prefix.
fn built() -> BTreeMap<String, Vec<String>> {
    let workspace = manifest("");
    let members = workspace.get("workspace").unwrap().get("members").unwrap();
    let members = members.as_array().unwrap().iter();
    let folders = members.map(|member| member.as_str().unwrap().to_owned());
    folders
        .map(|folder| {
            let crate_manifest = manifest(&folder);
            let dependencies = crate_manifest.get("dependencies");
            let names = dependencies.and_then(|table| table.as_table());
            let names = names.into_iter().flat_map(|table| table.keys());
            let names = names.filter_map(|name| name.strip_prefix("peerbar-"));
            let mut names: Vec<String> = names.map(str::to_owned).collect();
            names.sort();
            (folder, names)
        })
        .collect()
}

/// What the table says of them.
fn documented() -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(project().join("ARCHITECTURE.md")).unwrap();
    let (_, table) = text
        .split_once("| folder | content | depends on |")
        .unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let quoted = |cell: &str| -> Vec<String> {
        let names = cell.split('`').skip(1).step_by(2);
        names.map(str::to_owned).collect()
    };
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let folder = quoted(cells.get(1).unwrap());
        (folder.concat(), quoted(cells.get(3).unwrap()))
    })
    .collect()
}

#[test]
fn table_of_crates_has_what_manifests_have() {
    let mut documented = documented();
    for (folder, dependencies) in built() {
        let row = documented.remove(&folder);
        assert_eq!(row, Some(dependencies), "ARCHITECTURE.md's row of {folder}");
    }
    for (folder, dependencies) in documented {
        assert!(
            dependencies.is_empty() && project().join(&folder).is_dir(),
            "ARCHITECTURE.md's row of {folder} is of no crate"
        );
    }
}
