//! ARCHITECTURE.md's table of crates lists the crates of the workspace, and the dependencies of
//! each.

// Clippy recognises tests only by their attribute, not functions that they call.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use toml::Table;

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn manifest(folder: &str) -> Table {
    let path = project().join(folder).join("Cargo.toml");
    let text = fs::read_to_string(path).unwrap();
    text.parse().unwrap()
}

/// Returns the folders of the workspace's crates, and the project's crates on which each depends,
/// without their prefix.
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

/// Returns the rows of the table.
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

/// Returns the first two numbers of a version such as `1.85` or `1.85.0`.
fn release(version: &str) -> (u64, u64) {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap_or(0))
}

/// `scripts/test --only debian13` builds with that Rust. A newer Rust does not notice a dependency that needs more.
#[test]
fn dependencies_build_with_the_workspace_s_rust() {
    let workspace = manifest("");
    let package = workspace["workspace"]["package"].as_table().unwrap();
    let own = package["rust-version"].as_str().unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(project())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    // `packages` also contains packages for other platforms, but nothing here is built with them.
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let is_built = |package: &&Value| nodes.iter().any(|node| node["id"] == package["id"]);
    let packages = metadata["packages"].as_array().unwrap();
    for package in packages.iter().filter(is_built) {
        let needed = package["rust_version"].as_str();
        let is_enough = needed.is_none_or(|needed| release(needed) <= release(own));
        let name = package["name"].as_str().unwrap();
        assert!(
            is_enough,
            "{name} needs Rust {needed:?}, and {own} is to do"
        );
    }
}
