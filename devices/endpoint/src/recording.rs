//! The flight recorder and the counter file, as a part of every daemon's command line.

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use peerbar_dma::CounterFile;
use peerbar_flight::{Level, MappedFileError, Recorder};
use peerbar_pci::Function;

use crate::Endpoint;

/// Whether, where and how much a device records.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Recording {
    /// File to record mappings and DMA in, for `peerbar iommu`; it is overwritten [default: none]
    #[arg(long, value_name = "FILE")]
    flight: Option<PathBuf>,
    /// Extent of the record
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = What::Maps, requires = "flight")]
    record: What,
    /// File to count DMA in, which other processes may read at any time; it is overwritten
    /// [default: none]
    #[arg(long, value_name = "FILE")]
    counters: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// Mappings, windows, resets, and every DMA that failed or was lost
    Maps,
    /// Also every DMA and every command
    All,
}

/// The counter file cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot count DMA in {}", path.display())]
pub(crate) struct CountersError {
    path: PathBuf,
    source: MappedFileError,
}

impl Recording {
    /// Returns `true` if each DMA is recorded.
    pub(crate) fn is_of_all(&self) -> bool {
        self.flight.is_some() && matches!(self.record, What::All)
    }

    /// Makes the files. A device whose flight record cannot be made continues without it.
    ///
    /// # Errors
    /// The counter file cannot be made.
    pub(crate) fn make(&self) -> Result<RecordFiles, CountersError> {
        let counters = self.counters.as_deref().map(|path| {
            let counters = CounterFile::create(path);
            counters.map_err(|source| CountersError {
                path: path.to_owned(),
                source,
            })
        });
        Ok(RecordFiles {
            counters: counters.transpose()?,
            flight: self.flight.as_deref().and_then(|path| self.recorder(path)),
        })
    }

    /// Makes the recorder that writes to `path`, named after that file.
    fn recorder(&self, path: &Path) -> Option<Recorder> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let level = match self.record {
            What::Maps => Level::Maps,
            What::All => Level::All,
        };
        match Recorder::create(path, &name, level) {
            Ok(recorder) => Some(recorder),
            Err(error) => {
                let cause = error.source().map(|cause| format!(": {cause}"));
                let cause = cause.unwrap_or_default();
                log::warn!("{}: {error}{cause}; continuing without it", path.display());
                None
            }
        }
    }
}

/// The files in which the device records.
pub(crate) struct RecordFiles {
    counters: Option<CounterFile>,
    flight: Option<Recorder>,
}

impl RecordFiles {
    /// Starts recording and counting for the device.
    pub(crate) fn start<F: Function>(self, endpoint: &Endpoint<F>) {
        if let Some(counters) = self.counters {
            endpoint.count_in(counters);
        }
        if let Some(recorder) = self.flight {
            endpoint.record_in(recorder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_file_that_cannot_be_made_is_named() {
        let recording = Recording {
            flight: None,
            record: What::Maps,
            counters: Some("/nowhere/disk0.counters".into()),
        };
        let error = recording.make().map(|_| ()).unwrap_err();
        let reason = error.source().map(ToString::to_string);
        assert_eq!(
            (error.to_string().as_str(), reason.as_deref()),
            (
                "cannot count DMA in /nowhere/disk0.counters",
                Some("counter file: cannot make the file")
            )
        );
    }
}
