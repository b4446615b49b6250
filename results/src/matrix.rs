//! What `peerbar matrix` leaves for programs: `matrix.json`.

use std::fmt;

use anyhow::bail;
use peerbar_lab::started::Versions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Name of the file in a matrix' folder.
pub const MATRIX: &str = "matrix.json";
/// Version of it; it changes with what a reader would have to change for.
pub const MATRIX_FORMAT: u32 = 1;

/// The file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MatrixFile {
    /// Version of this format: 1.
    format: u32,
    /// What `peerbar matrix` ended with.
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
    /// The series that it belongs to, if it is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
    /// The devices that were tried.
    pub device: String,
    /// Versions of what the boots consisted of.
    pub versions: Versions,
    /// How long it took.
    pub seconds: f64,
    /// Why the rule may not be that of this kernel.
    pub caveat: Option<String>,
    /// What went wrong with boots beyond their cells.
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
    /// Where the devices are.
    pub topology: String,
    /// What they do.
    pub flow: String,
    /// The device that owns the memory.
    pub provider: String,
    /// The device that issues the DMA.
    pub client: String,
    /// What the kernel's rule says.
    pub rule: CellWay,
    /// What has happened.
    pub seen: CellWay,
    /// What keeps the two from agreeing.
    pub disagreement: Option<String>,
}

/// The outcome of a transfer, and its details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CellWay {
    /// The way in one word.
    pub way: TransferOutcome,
    /// All else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The path of data between two devices, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TransferOutcome {
    /// Inside the device whose own memory it is.
    OwnMemory,
    /// Straight from device to device below a switch.
    Peer,
    /// Up, through the host bridge or bridges, and down.
    HostBridge,
    /// The kernel refuses it: an error reaches the program, and no DMA is tried.
    Refused,
    /// The data is right, and there is no record of its route.
    Unrecorded,
    /// The data is right, but it took more than one way, or another than these.
    Mixed,
    /// An error reaches the program.
    Failed,
    /// Success reaches the program, with wrong data.
    Wrong,
    /// Not tried.
    NotRun,
}

impl MatrixFile {
    /// The matrix of this file.
    ///
    /// # Errors
    /// It is of another format.
    pub fn into_matrix(self) -> anyhow::Result<MatrixResults> {
        if self.format != MATRIX_FORMAT {
            bail!(
                "it is of format {}, this peerbar reads format {MATRIX_FORMAT}",
                self.format
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
    /// Whether the command that filled it, or all that filled parts of it, ended well.
    pub fn is_passed(&self) -> bool {
        self.exit_code == 0
    }

    /// Adds another part of the same matrix. A cell that is there already is replaced.
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
    /// Its CPU, IOMMU, topology and flow, which no other cell of a matrix shares.
    pub(crate) fn coordinates(&self) -> [&str; 4] {
        [&self.cpu, &self.iommu, &self.topology, &self.flow]
    }
}

impl TransferOutcome {
    /// As a table calls it.
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
            Self::Refused => {
                "refused by the kernel: an error reaches the program, and nothing moves"
            }
            Self::Unrecorded => "right data, by a way of which there is no record",
            Self::Mixed => "right data, by more than one way or none of the known ones",
            Self::Failed => "an error reaches the program",
            Self::Wrong => "success reaches the program, with wrong data",
            Self::NotRun => "not tried",
        })
    }
}
