//! The table `files`: files of the host that the guest gets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::error::Problem;
use crate::guest_files::GuestFile;

/// Checks the table; paths of the host are relative to `folder`.
pub(super) fn files(
    table: BTreeMap<Spanned<String>, Spanned<PathBuf>>,
    folder: &Path,
) -> Result<Vec<GuestFile>, Problem> {
    let mut files: Vec<GuestFile> = Vec::new();
    let mut table: Vec<_> = table.into_iter().collect();
    // The first mistake in the file is reported.
    table.sort_by_key(|(guest, _)| guest.span().start);
    for (guest, host) in table {
        let at = guest.span();
        let path = folder.join(host.get_ref());
        let file = GuestFile::new(path, guest.get_ref(), "`files`")
            .map_err(|error| Problem::new(at.clone(), error.to_string()))?;
        if files.iter().any(|known| known.guest() == file.guest()) {
            let message = format!("`{}` is in `files` twice", file.guest().display());
            return Err(Problem::new(at, message));
        }
        file.exists()
            .map_err(|error| Problem::new(host.span(), format!("{error:#}")))?;
        files.push(file);
    }
    Ok(files)
}
