//! Servers that outlive the guest of their run, for another guest.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::counters::counter_file;
use crate::servers::flight_record;

/// The switches and devices of a [`crate::Lab`] whose servers still serve: see [`crate::Lab::survivors`].
#[derive(Clone, Debug, Default)]
pub struct Survivors {
    names: BTreeSet<String>,
    /// The folder of their sockets.
    sockets: PathBuf,
    /// The folder of their run.
    run: PathBuf,
}

impl Survivors {
    pub(crate) fn new(names: BTreeSet<String>, sockets: &Path, run: &Path) -> Self {
        Self {
            names,
            sockets: sockets.to_owned(),
            run: run.to_owned(),
        }
    }

    /// Their names in the scenario.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Whether the switch or the device of that name is one of them.
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The folder of the sockets of `name`, if it is one of them.
    pub(crate) fn sockets_of(&self, name: &str) -> Option<&Path> {
        self.contains(name).then_some(&self.sockets)
    }

    /// Shows the counters and the flight record of a device in the folder of another run.
    ///
    /// # Errors
    /// Links that cannot be made.
    pub(crate) fn show(&self, device: &str, run: &Path) -> anyhow::Result<()> {
        for file in [counter_file, flight_record] {
            let (from, to) = (file(&self.run, device), file(run, device));
            symlink(&from, &to)
                .with_context(|| format!("cannot make the link {}", to.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_survivor_are_shown_in_another_run() {
        let [old, new] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        std::fs::write(old.path().join("disk0.counters"), "counted").unwrap();
        let names = BTreeSet::from(["disk0".to_owned()]);
        let survivors = Survivors::new(names, Path::new("/s"), old.path());
        assert_eq!(survivors.sockets_of("disk0"), Some(Path::new("/s")));
        assert_eq!(survivors.sockets_of("disk1"), None);
        survivors.show("disk0", new.path()).unwrap();
        let shown = std::fs::read(new.path().join("disk0.counters")).unwrap();
        assert_eq!(shown, b"counted");
        assert!(survivors.show("disk0", new.path()).is_err());
    }
}
