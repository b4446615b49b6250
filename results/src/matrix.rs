//! The result file of `peerbar matrix` for programs: `matrix.json`.

use std::fmt;

use anyhow::bail;
use peerbar_lab::started::Versions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Name of the file in a matrix' folder.
pub const MATRIX: &str = "matrix.json";
/// Name of the devices of this project.
const OURS: &str = "peerbar";
/// Version of the file; it changes when readers would have to change.
pub const MATRIX_FORMAT: u32 = 1;

/// The file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MatrixFile {
    /// Version of this format: 1.
    format: u32,
    /// Exit code of `peerbar matrix`.
    exit_code: u8,
    /// The series that it belongs to: that of all runs of one process.
    #[serde(default)]
    series: Option<String>,
    /// The matrix.
    matrix: MatrixResults,
}

/// A matrix that is filled.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MatrixResults {
    /// Exit code of the command that filled it; of parts, the first that is not 0.
    #[serde(default)]
    pub exit_code: u8,
    /// The series that it belongs to, if it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
    /// The devices that were tried.
    pub device: String,
    /// Versions of the components of the boots.
    pub versions: Versions,
    /// Its duration in seconds.
    pub seconds: f64,
    /// The reason why the rule may not be that of this kernel.
    pub caveat: Option<String>,
    /// Failures of boots that belong to no cell.
    pub flaws: Vec<String>,
    /// The cells.
    pub cells: Vec<MatrixCell>,
}

/// A cell of a matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MatrixCell {
    /// CPU model of the guest.
    pub cpu: String,
    /// Its IOMMU.
    pub iommu: String,
    /// The positions of the devices.
    pub topology: String,
    /// The transfer.
    pub flow: String,
    /// The device that owns the memory.
    pub provider: String,
    /// The device that issues the DMA.
    pub client: String,
    /// The result by the kernel's rule.
    pub rule: CellWay,
    /// The observed result.
    pub seen: CellWay,
    /// The reason why the two disagree.
    pub disagreement: Option<String>,
}

/// The outcome of a transfer, and its details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CellWay {
    /// The outcome in one word.
    pub way: TransferOutcome,
    /// All other details.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The path of data between two devices, or the reason why data has no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TransferOutcome {
    /// Inside the device whose own memory it is.
    OwnMemory,
    /// Directly from device to device below a switch.
    Peer,
    /// Up, through the host bridge or bridges, and down.
    HostBridge,
    /// The kernel refuses it: the program gets an error, and no DMA is tried.
    Refused,
    /// The data is correct, but its route is not recorded.
    Unrecorded,
    /// The data is correct, but it took more than one route, or another route than these.
    Mixed,
    /// The program gets an error.
    Failed,
    /// The program gets a success, with wrong data.
    Wrong,
    /// Not tried.
    NotRun,
}

impl MatrixFile {
    /// Returns the matrix of this file.
    ///
    /// # Errors
    /// It has another format.
    pub fn into_matrix(self) -> anyhow::Result<MatrixResults> {
        if self.format != MATRIX_FORMAT {
            bail!(
                "it is of format {}, this peerbar reads format {MATRIX_FORMAT}",
                self.format
            );
        }
        let flaw = self.matrix.flaw().filter(|_| self.exit_code == 0);
        if let Some(flaw) = flaw {
            bail!(
                "its exit code is 0, and it has a failure: {flaw}: no matrix leaves that, so the file was changed"
            );
        }
        Ok(MatrixResults {
            exit_code: self.exit_code,
            series: self.series,
            ..self.matrix
        })
    }
}

impl MatrixResults {
    /// Returns a failure of the command that filled it, if there is one. Cells of QEMU's devices
    /// need not agree with the rule.
    fn flaw(&self) -> Option<&str> {
        let cells = self.cells.iter().filter(|_| self.device == OURS);
        let mut of_cells = cells.filter_map(|cell| cell.disagreement.as_deref());
        let flaw = self.flaws.first().map(String::as_str);
        flaw.or_else(|| of_cells.next())
    }

    /// Returns `true` if the command that filled it, or all commands that filled parts of it,
    /// succeeded.
    pub fn is_passed(&self) -> bool {
        self.exit_code == 0
    }

    /// Adds another part of the same matrix. Replaces cells that are there already.
    pub(crate) fn add(&mut self, other: Self) {
        if self.exit_code == 0 {
            self.exit_code = other.exit_code;
        }
        self.series = self
            .series
            .take()
            .filter(|id| Some(id) == other.series.as_ref());
        self.seconds += other.seconds;
        self.flaws.extend(other.flaws);
        self.caveat = self.caveat.take().or(other.caveat);
        for cell in other.cells {
            self.cells
                .retain(|known| known.coordinates() != cell.coordinates());
            self.cells.push(cell);
        }
    }
}

impl MatrixCell {
    /// Returns its CPU, IOMMU, topology and flow, which no other cell of a matrix shares.
    pub(crate) fn coordinates(&self) -> [&str; 4] {
        [&self.cpu, &self.iommu, &self.topology, &self.flow]
    }
}

impl TransferOutcome {
    /// Returns its name in a table.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::OwnMemory => "OWN",
            Self::Peer => "PEER",
            Self::HostBridge => "PHB",
            Self::Refused => "NO",
            Self::Unrecorded => "ok",
            Self::Mixed => "MIXED",
            Self::Failed => "ERROR",
            Self::Wrong => "WRONG",
            Self::NotRun => "-",
        }
    }
}

impl fmt::Display for TransferOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OwnMemory => "the device's own memory, never left",
            Self::Peer => "straight from device to device below their switch",
            Self::HostBridge => "up and through the host bridge",
            Self::Refused => "refused by the kernel: the program gets an error, and nothing moves",
            Self::Unrecorded => "data correct, route not recorded",
            Self::Mixed => "data correct, by more than one route or an unknown one",
            Self::Failed => "the program gets an error",
            Self::Wrong => "the program gets success, with wrong data",
            Self::NotRun => "not tried",
        })
    }
}
