//! Servers that outlive the guest of their run, for another guest.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::counters::counter_file;
use crate::injecting::link_name;
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

    /// Shows the counters, the flight record and the control socket of a device in the folder of another run.
    ///
    /// # Errors
    /// Links that cannot be made.
    pub(crate) fn show(&self, device: &str, control: &Path, run: &Path) -> anyhow::Result<()> {
        let [counters, flight] =
            [counter_file, flight_record].map(|file| (file(&self.run, device), file(run, device)));
        let control = (control.to_owned(), run.join(link_name(device)));
        for (from, to) in [counters, flight, control] {
            symlink(&from, &to)
                .with_context(|| format!("cannot make the link {}", to.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use crate::injecting::inject;

    #[test]
    fn survivor_is_shown_in_another_run() {
        let [old, new] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        std::fs::write(old.path().join("disk0.counters"), "counted").unwrap();
        let names = BTreeSet::from(["disk0".to_owned()]);
        let survivors = Survivors::new(names, Path::new("/s"), old.path());
        assert_eq!(survivors.sockets_of("disk0"), Some(Path::new("/s")));
        assert_eq!(survivors.sockets_of("disk1"), None);
        let control = old.path().join("nvme-disk0.control");
        let device = UnixListener::bind(&control).unwrap();
        let device = thread::spawn(move || {
            let (stream, _) = device.accept().unwrap();
            let mut asked = String::new();
            BufReader::new(&stream).read_line(&mut asked).unwrap();
            (&stream).write_all(b"ok in force\n").unwrap();
            asked
        });
        survivors.show("disk0", &control, new.path()).unwrap();
        let rule = "drop dma nth=2";
        let done = inject(new.path(), "disk0", &rule.parse().unwrap());
        assert_eq!(done.unwrap(), "in force");
        assert_eq!(device.join().unwrap().trim_end(), rule);
        let shown = std::fs::read(new.path().join("disk0.counters")).unwrap();
        assert_eq!(shown, b"counted");
        assert!(survivors.show("disk0", &control, new.path()).is_err());
    }
}
