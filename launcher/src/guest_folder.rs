//! The folder of one guest in the run of several.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use peerbar_lab::exit::Failure;
use peerbar_lab::guests_of;
use peerbar_lab::scenario::{GuestGroup, Scenario, ScenarioError};

/// The selected guest of a run.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct GuestName {
    /// Guest of a run or scenario with several.
    #[arg(long, value_name = "NAME")]
    pub guest: Option<String>,
}

impl GuestName {
    /// Returns the folder of the selected guest in `run`.
    ///
    /// # Errors
    /// A run of several guests without a selected guest, or an unknown name.
    pub(crate) fn folder(&self, run: &Path) -> Result<PathBuf, Failure> {
        let guest = self.find(run, guests_of(run)?)?;
        Ok(guest.map_or_else(|| run.to_owned(), |guest| run.join(guest)))
    }

    /// Returns the selected one of `guests`, or `None` for a run or scenario at `path` that has one
    /// guest.
    fn find(&self, path: &Path, guests: Vec<String>) -> Result<Option<String>, Failure> {
        let path = path.display();
        match &self.guest {
            None if guests.is_empty() => Ok(None),
            Some(name) if guests.contains(name) => Ok(Some(name.clone())),
            None => Err(Failure::Usage(anyhow!(
                "{path} has several guests: add --guest {}",
                guests.join(" or --guest ")
            ))),
            Some(name) if guests.is_empty() => Err(Failure::Usage(anyhow!(
                "{path} has one guest: leave --guest {name} out"
            ))),
            Some(name) => Err(Failure::Usage(anyhow!(
                "{path} has no guest {name}: there is {}",
                guests.join(", ")
            ))),
        }
    }

    /// Returns the scenario of the selected guest in the file `path`. That of a file with one guest
    /// is read by `load`.
    ///
    /// # Errors
    /// A file of several guests without a selected guest, an unknown name, or an invalid file.
    pub(crate) fn scenario(
        &self,
        path: &Path,
        load: impl FnOnce(&Path) -> Result<Scenario, ScenarioError>,
    ) -> Result<Scenario, Failure> {
        let Some(group) = GuestGroup::load_interactive(path)? else {
            self.find(path, Vec::new())?;
            return Ok(load(path)?);
        };
        let names = group.guests.iter().map(|guest| guest.name.clone());
        let wanted = self.find(path, names.collect())?;
        let mut guests = group.guests.into_iter();
        let guest = guests.find(|guest| Some(&guest.name) == wanted.as_ref());
        let guest = guest.context("the guest is not there")?;
        Ok(guest.scenario)
    }

    /// Returns the folders of the selected guests in `run`, each with the guest's name: all of
    /// several if none is selected.
    ///
    /// # Errors
    /// An unknown name.
    pub(crate) fn folders(&self, run: &Path) -> Result<Vec<(Option<String>, PathBuf)>, Failure> {
        let guests = guests_of(run)?;
        if self.guest.is_some() || guests.is_empty() {
            return Ok(vec![(None, self.folder(run)?)]);
        }
        let folders = guests.into_iter();
        Ok(folders
            .map(|name| (Some(name.clone()), run.join(name)))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn guest_of_several_must_be_named() {
        let run = tempfile::tempdir().unwrap();
        let folder = |guest: Option<&str>| {
            let guest = guest.map(str::to_owned);
            let found = GuestName { guest }.folder(run.path());
            found.map_err(|error| error.to_string())
        };
        assert_eq!(folder(None).unwrap(), run.path());
        let error = folder(Some("left")).unwrap_err();
        assert!(
            error.ends_with("has one guest: leave --guest left out"),
            "{error}"
        );
        fs::write(run.path().join("guests.json"), r#"["left", "right"]"#).unwrap();
        assert_eq!(folder(Some("left")).unwrap(), run.path().join("left"));
        for (guest, wanted) in [
            (
                None,
                "has several guests: add --guest left or --guest right",
            ),
            (Some("x"), "has no guest x: there is left, right"),
        ] {
            let error = folder(guest).unwrap_err();
            assert!(error.ends_with(wanted), "{error}");
        }
        let file = run.path().join("x.toml");
        let text = "name = \"x\"\ntools = true\n[[guest]]\nname = \"left\"\n[[nic]]\nguest = \"left\"\nname = \"n\"\n\
            [[check]]\nguest = \"left\"\nkind = \"command\"\nrun = \"true\"\n";
        fs::write(&file, text).unwrap();
        let guest = Some("left".to_owned());
        let scenario = GuestName { guest }.scenario(&file, Scenario::load);
        assert_eq!(scenario.unwrap().name, "x-left");
        let error = GuestName::default().scenario(&file, Scenario::load);
        let error = error.unwrap_err().to_string();
        assert!(
            error.ends_with("has several guests: add --guest left"),
            "{error}"
        );
        let all = GuestName::default().folders(run.path()).unwrap();
        assert_eq!(all.len(), 2);
    }
}
