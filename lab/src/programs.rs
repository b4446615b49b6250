//! The paths of this project's programs: the servers, the agent, the parent-death wrapper, and the
//! sources of the kernel modules.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

use crate::exit::Failure;

/// Environment variable that names the folder, if it is neither the running program's nor above it.
pub const FOLDER: &str = "PEERBAR_PROGRAMS";
/// Name of the folder that `scripts/build` makes.
const BUILT: &str = "peerbar";

/// Returns the file `name` of this project: in the folder that [`FOLDER`] names; else in the folder
/// of this program; else, for a test, in the folder `peerbar` of the target folder in which it was
/// built.
pub fn program(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let named = std::env::var_os(FOLDER).map(PathBuf::from);
    find(name, named.as_deref(), &own).map_err(Failure::from)
}

fn find(name: &str, named: Option<&Path>, own: &Path) -> anyhow::Result<PathBuf> {
    let path = match named {
        Some(folder) => folder.join(name),
        None => {
            let above = own.ancestors().skip(1);
            let built = above.map(|folder| folder.join(BUILT).join(name));
            let beside = own.with_file_name(name);
            [beside.clone()]
                .into_iter()
                .chain(built)
                .find(|path| path.is_file())
                .unwrap_or(beside)
        }
    };
    if !path.is_file() {
        return Err(anyhow!(
            "{name} is missing: {} is not a file; run scripts/build, or set {FOLDER} to the folder target/peerbar of a built peerbar",
            path.display()
        ));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn programs_are_named_then_beside_then_built() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path();
        let (named, built, debug) = (
            target.join("named"),
            target.join(BUILT),
            target.join("debug/deps"),
        );
        for dir in [&named, &built, &debug] {
            fs::create_dir_all(dir).unwrap();
        }
        let test = debug.join("test-1");
        let find = |named| find("p", named, &test).map_err(|error| error.to_string());
        let missing = format!(
            "p is missing: {} is not a file; run scripts/build, or set PEERBAR_PROGRAMS to the folder target/peerbar of a built peerbar",
            debug.join("p").display()
        );
        assert_eq!(find(None), Err(missing));
        for dir in [&built, &debug] {
            fs::write(dir.join("p"), "").unwrap();
            assert_eq!(find(None), Ok(dir.join("p")));
        }
        assert!(find(Some(&named)).unwrap_err().starts_with("p is missing"));
        fs::write(named.join("p"), "").unwrap();
        assert_eq!(find(Some(&named)), Ok(named.join("p")));
    }
}
