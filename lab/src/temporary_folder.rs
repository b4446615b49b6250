//! The folder for temporary files.

use std::env;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

const VARIABLE: &str = "TMPDIR";

/// The folder for temporary files does not exist, or no file can be made there.
#[derive(Debug, Error)]
#[error("{problem}; {way_out}")]
pub struct TemporaryFolderError {
    /// The folder, and the reason.
    pub problem: String,
    /// The way out.
    pub way_out: String,
}

/// Returns the folder for temporary files: that of `TMPDIR`, or `/tmp`.
///
/// # Errors
/// [`TemporaryFolderError`].
pub fn temporary_folder() -> Result<PathBuf, TemporaryFolderError> {
    let folder = env::temp_dir();
    match try_file(&folder) {
        Ok(()) => Ok(folder),
        Err(error) => {
            let is_default = env::var_os(VARIABLE).is_none();
            Err(refusal(&folder, is_default, &error))
        }
    }
}

/// Makes a file in `folder`, and removes it.
pub(crate) fn try_file(folder: &Path) -> io::Result<()> {
    let file = tempfile::Builder::new().make_in(folder, |path| File::create_new(path))?;
    file.close()
}

fn refusal(folder: &Path, is_default: bool, error: &io::Error) -> TemporaryFolderError {
    let folder = folder.display();
    match is_default {
        true => TemporaryFolderError {
            problem: format!("no file can be made in {folder}: {error}"),
            way_out: format!("set {VARIABLE} to a folder that you can write"),
        },
        false => TemporaryFolderError {
            problem: format!("{VARIABLE} is {folder}, and no file can be made there: {error}"),
            way_out: "set it to a folder that you can write, or unset it".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_without_room_for_a_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        try_file(folder.path()).unwrap();
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        let missing = folder.path().join("missing");
        let error = try_file(&missing).unwrap_err();
        let expected = format!(
            "TMPDIR is {}, and no file can be made there: No such file or directory (os error 2); \
             set it to a folder that you can write, or unset it",
            missing.display()
        );
        assert_eq!(refusal(&missing, false, &error).to_string(), expected);
        let default = refusal(Path::new("/tmp"), true, &error).to_string();
        assert!(
            default.ends_with("; set TMPDIR to a folder that you can write"),
            "{default}"
        );
        let file = folder.path().join("file");
        File::create(&file).unwrap();
        assert_eq!(
            try_file(&file).unwrap_err().kind(),
            io::ErrorKind::NotADirectory
        );
    }
}
