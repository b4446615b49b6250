//! Servers that outlive the guest of their run, for another guest.

use std::collections::BTreeSet;
use std::fs::hard_link;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::bridge_watch::SwitchSocket;
use crate::counters::counter_file;
use crate::folder::flight_record;
use crate::injecting::link_name;

/// The switches and devices of a [`crate::Lab`] whose servers still serve: see
/// [`crate::Lab::survivors`].
#[derive(Clone, Debug, Default)]
pub struct Survivors {
    names: BTreeSet<String>,
    /// The folder of their sockets.
    sockets: PathBuf,
    /// The folder of their run.
    run: PathBuf,
    /// The sockets of its switches for questions about the windows of their ports.
    switches: Vec<SwitchSocket>,
}

impl Survivors {
    pub(crate) fn new(
        names: BTreeSet<String>,
        sockets: &Path,
        run: &Path,
        switches: Vec<SwitchSocket>,
    ) -> Self {
        Self {
            names,
            switches,
            sockets: sockets.to_owned(),
            run: run.to_owned(),
        }
    }

    /// Their names in the scenario.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Returns `true` if the switch or the device with that name is one of them.
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns the sockets of its switches for questions about the windows of their ports.
    pub(crate) fn switches(&self) -> impl Iterator<Item = SwitchSocket> {
        self.switches.iter().cloned()
    }

    /// Returns the folder of the sockets of `name`, if it is one of them.
    pub(crate) fn sockets_of(&self, name: &str) -> Option<&Path> {
        self.contains(name).then_some(&self.sockets)
    }

    /// Shows the counters, the flight record and the control socket of a device in the folder of
    /// another run. The files are hard links: readers of a run follow no symbolic ones.
    ///
    /// # Errors
    /// Links that cannot be made, as between two file systems.
    pub(crate) fn show(&self, device: &str, control: &Path, run: &Path) -> anyhow::Result<()> {
        let [counters, flight] =
            [counter_file, flight_record].map(|file| (file(&self.run, device), file(run, device)));
        for (from, to) in [counters, flight] {
            hard_link(&from, &to).with_context(|| {
                let (from, to) = (from.display(), to.display());
                format!("cannot link {from} as {to}: keep both runs on one file system")
            })?;
        }
        let link = run.join(link_name(device));
        symlink(control, &link).with_context(|| format!("cannot make the link {}", link.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use peerbar_flight::{FlightFile, Level, Recorder};

    use super::*;
    use crate::injecting::inject;

    #[test]
    fn survivor_is_shown_in_another_run() {
        let [old, new] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        std::fs::write(old.path().join("disk0.counters"), "counted").unwrap();
        let record = flight_record(old.path(), "disk0");
        drop(Recorder::create(&record, "disk0", Level::Maps).unwrap());
        let names = BTreeSet::from(["disk0".to_owned()]);
        let survivors = Survivors::new(names, Path::new("/s"), old.path(), Vec::new());
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
        let record = FlightFile::open(&flight_record(new.path(), "disk0")).unwrap();
        assert_eq!(record.read().unwrap().header.name, "disk0");
        assert!(survivors.show("disk0", &control, new.path()).is_err());
    }
}
