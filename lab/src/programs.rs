//! The paths of this project's programs: the servers, the agent, the parent-death wrapper, and the
//! sources of the kernel modules.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use rustix::fs::{Access, access};

use crate::exit::Failure;

/// Environment variable that names the folder, if it is neither the running program's nor above it.
pub const FOLDER: &str = "PEERBAR_PROGRAMS";
/// Name of the folder that `scripts/build` makes.
const BUILT: &str = "peerbar";

/// Returns the file `name` of this project: in the folder that [`FOLDER`] names; else in the folder
/// of this program; else, for a test, in the folder `peerbar` of the target folder in which it was
/// built.
pub fn program(name: &str) -> Result<PathBuf, Failure> {
    let own = env::current_exe().context("cannot find this program's own file")?;
    let named = env::var_os(FOLDER).map(PathBuf::from);
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

/// Checks that the program of another project can be started: an executable file, or the name of one
/// in PATH.
///
/// # Errors
/// It cannot, for the reason that the message gives.
pub fn check_foreign(program: &Path) -> anyhow::Result<()> {
    let name = program.display();
    let is_executable = |file: &Path| file.is_file() && access(file, Access::EXEC_OK).is_ok();
    if program.components().count() == 1 {
        let is_found = in_path(program).any(|file| is_executable(&file));
        ensure!(
            is_found,
            "`command`: {name} is not in PATH; install it, or write its path"
        );
        return Ok(());
    }
    ensure!(
        program.is_file(),
        "`command`: {name} is not a file; correct the path"
    );
    let is_executable = is_executable(program);
    ensure!(
        is_executable,
        "`command`: {name} is not executable; run chmod +x, or put its interpreter first"
    );
    Ok(())
}

/// Returns the files that may have this name in the folders of PATH.
pub fn in_path(name: &Path) -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    folders.into_iter().map(move |folder| folder.join(name))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

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

    #[test]
    fn program_of_another_project_is_executable_or_in_path() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("server");
        let mistake = |program: &Path| {
            let checked = check_foreign(program).map_err(|error| error.to_string());
            let folder = format!("{}/", folder.path().display());
            checked.map_err(|message| message.replace(&folder, ""))
        };
        let expected = "`command`: server is not a file; correct the path";
        assert_eq!(mistake(&file), Err(expected.to_owned()));
        fs::write(&file, "").unwrap();
        let expected =
            "`command`: server is not executable; run chmod +x, or put its interpreter first";
        assert_eq!(mistake(&file), Err(expected.to_owned()));
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(mistake(&file), Ok(()));
        assert_eq!(mistake(Path::new("sh")), Ok(()));
        let expected = "`command`: no-such-server is not in PATH; install it, or write its path";
        assert_eq!(
            mistake(Path::new("no-such-server")),
            Err(expected.to_owned())
        );
    }
}
