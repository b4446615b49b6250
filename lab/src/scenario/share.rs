//! `[[share]]`: folders of the host that the guest mounts.

use std::path::{Component, Path, PathBuf};

use toml::Spanned;

use super::error::Problem;
use super::file::ShareTable;
use crate::guest_files::MOUNTED;

/// A folder of the host that the guest mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The folder.
    pub folder: PathBuf,
    /// Its place in the guest's root: an absolute path without `.` and `..`.
    pub at: String,
    /// Set if the guest may write into it.
    pub writable: bool,
}

/// Checks the tables; paths of the host are relative to `base`.
pub(super) fn shares(tables: Vec<ShareTable>, base: &Path) -> Result<Vec<Share>, Problem> {
    let mut shares: Vec<Share> = Vec::new();
    for table in tables {
        let folder = base.join(table.path.get_ref());
        if !folder.is_dir() {
            let folder = folder.display();
            let message = format!(
                "`path`: {folder} is not a folder of the host: make it, or correct the path"
            );
            return Err(Problem::new(table.path.span(), message));
        }
        let at = place(&table.at)?;
        if let Some(other) = shares.iter().find(|other| overlap(&other.at, &at)) {
            let (one, other) = (other.folder.display(), &other.at);
            let message = match *other == at {
                true => format!("`at = \"{at}\"`: {one} is there already: choose another path"),
                false => format!(
                    "`at = \"{at}\"`: one of it and {other}, where {one} is, would be inside the other: choose another path"
                ),
            };
            return Err(Problem::new(table.at.span(), message));
        }
        shares.push(Share {
            folder,
            at,
            writable: table.writable,
        });
    }
    Ok(shares)
}

/// Returns the mount point in the guest.
fn place(at: &Spanned<String>) -> Result<String, Problem> {
    let path = Path::new(at.get_ref());
    let names = path.components().skip(1).map(|component| match component {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let names: Option<Vec<&str>> = names.collect();
    let names = names.filter(|names| path.is_absolute() && !names.is_empty());
    let wrong = |message: String| Err(Problem::new(at.span(), message));
    let Some(names) = names else {
        return wrong(format!(
            "`at = \"{}\"` is not an absolute path of a folder: write it as `/mnt/data`, without `..`",
            at.get_ref()
        ));
    };
    match names.first().filter(|first| MOUNTED.contains(first)) {
        Some(first) => wrong(format!(
            "`at = \"{}\"`: the guest mounts /{first} itself: choose another path, such as `/mnt/data`",
            at.get_ref()
        )),
        None => Ok(format!("/{}", names.join("/"))),
    }
}

/// Returns `true` if one of two places is the other, or inside it.
fn overlap(one: &str, other: &str) -> bool {
    let (one, other) = (Path::new(one), Path::new(other));
    one.starts_with(other) || other.starts_with(one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_needs::GuestNeeds;
    use crate::scenario::Scenario;

    fn parse(shares: &[&str]) -> Result<Scenario, String> {
        let shares: String = shares
            .iter()
            .map(|share| format!("[[share]]\n{share}\n"))
            .collect();
        let text = format!(
            "name = \"x\"\n{shares}[[nvme]]\nname = \"d0\"\nnamespaces = [{{ ram = \"1M\" }}]\n[[check]]\nkind = \"command\"\nrun = \"true\"\n"
        );
        Scenario::parse(Path::new("src/x.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn shares_are_relative_to_the_scenario_and_imply_the_tools_root() {
        let one = "path = \"scenario\"\nat = \"/mnt/one/\"";
        let scenario = parse(&[one, "path = \"..\"\nat = \"/two\"\nwritable = true"]).unwrap();
        let share = |folder: &str, at: &str, writable| Share {
            folder: folder.into(),
            at: at.to_owned(),
            writable,
        };
        let expected = [
            share("src/scenario", "/mnt/one", false),
            share("src/..", "/two", true),
        ];
        assert_eq!(scenario.shares, expected);
        let plan = scenario.plan();
        assert!(plan.tools && GuestNeeds::of(&scenario).layers);
        assert_eq!(plan.shares.len(), 2);
    }

    #[test]
    fn mistakes_of_shares_are_named_with_their_line() {
        let at = |at: &str| format!("path = \".\"\nat = \"{at}\"");
        for (share, wanted) in [
            (
                "path = \"none\"\nat = \"/mnt/x\"".to_owned(),
                "x.toml:6: `path`: src/none is not a folder of the host",
            ),
            (
                at("mnt/x"),
                "x.toml:7: `at = \"mnt/x\"` is not an absolute path",
            ),
            (at("/"), "`at = \"/\"` is not an absolute path"),
            (at("/mnt/../x"), "without `..`"),
            (at("/proc/x"), "the guest mounts /proc itself"),
            (at("/host"), "the guest mounts /host itself"),
            (
                at("/mnt/first"),
                "`at = \"/mnt/first\"`: src/. is there already",
            ),
            (at("/mnt"), "would be inside the other"),
            (at("/mnt/first/x"), "would be inside the other"),
        ] {
            let error = parse(&[&at("/mnt/first"), &share]).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        assert!(parse(&[&at("/mnt/first"), &at("/mnt/firsts")]).is_ok());
    }
}
