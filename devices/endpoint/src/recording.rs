//! The flight recorder and the counter file, as a part of every daemon's command line.

use std::path::PathBuf;

use clap::ValueEnum;
use peerbar_dma::{CounterFile, CounterFileError};
use peerbar_flight::{Level, RecordError, Recorder};
use peerbar_pci::Function;
use thiserror::Error;

use crate::Endpoint;

/// Whether, where and how much a device records.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Recording {
    /// Record mappings and DMA in this file, which is replaced; `peerbar iommu` reads it [default: none]
    #[arg(long, value_name = "FILE")]
    flight: Option<PathBuf>,
    /// How much is recorded
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = What::Maps, requires = "flight")]
    record: What,
    /// Count DMA in this file, which is replaced; other processes may read it at any time [default: none]
    #[arg(long, value_name = "FILE")]
    counters: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// Mappings, windows, resets, and every DMA that failed
    Maps,
    /// Every DMA and every command too
    All,
}

/// Why a device cannot record.
#[derive(Debug, Error)]
pub(crate) enum RecordingError {
    /// Its flight record cannot be made.
    #[error(transparent)]
    Flight(#[from] RecordError),
    /// Its counter file cannot be made.
    #[error(transparent)]
    Counters(#[from] CounterFileError),
}

impl Recording {
    /// Has the device record, under the name of the flight record's file, and count.
    pub(crate) fn start<F: Function>(&self, endpoint: &Endpoint<F>) -> Result<(), RecordingError> {
        if let Some(path) = &self.counters {
            endpoint.count_in(CounterFile::create(path)?);
        }
        let Some(path) = &self.flight else {
            return Ok(());
        };
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let level = match self.record {
            What::Maps => Level::Maps,
            What::All => Level::All,
        };
        endpoint.record_in(Recorder::create(path, &name, level)?);
        Ok(())
    }
}
