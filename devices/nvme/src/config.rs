//! The configuration of a controller.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ArgAction;
use peerbar_dma::MemoryError;
use peerbar_endpoint::{FileAccess, Size};
use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

use crate::cmb::{self, Cmb, CmbError};
use crate::io_queue::poll::PollPolicy;
use crate::namespace::{Backend, FileBackend, ImageError, Namespace, NullBackend, RamBackend};
use crate::pmr::{PersistentMemory, PmrError};
use crate::registers::QUEUE_PAIRS;
use crate::seeded_fault::SeededFault;

/// Longest serial number (NVMe Base 2.0, 5.17.2.1, Identify Controller, SN).
const SERIAL_BYTES: usize = 20;

/// The sizes of a logical block, in bytes.
pub const BLOCK_SIZES: [u32; 2] = [512, 4096];

/// MDTS: the largest transfer as a power of two, in units of 4 KiB (NVMe Base 2.0, 5.17.2.1).
pub const MDTS: RangeInclusive<u8> = 1..=10;

/// Threads that may share the I/O queues.
pub const WORKERS: RangeInclusive<u8> = 1..=64;

/// The most queue pairs that may be granted in addition to those that the host asks for: all but
/// one.
pub const MOST_SPARE_QUEUES: u16 = QUEUE_PAIRS - 2;

/// Errors of a controller's configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The serial number does not fit its field.
    #[error("serial number {0:?}: must be 1 to 20 printable ASCII characters")]
    Serial(String),
    /// The block size is not supported.
    #[error("block size {0}: must be 512 or 4096")]
    BlockSize(u32),
    /// The data transfer limit is out of bounds.
    #[error("MDTS {0}: must be 1 (8 KiB) to 10 (4 MiB)")]
    Mdts(u8),
    /// The number of workers is zero or too large.
    #[error("{} workers: must be {} to {}, as there are 64 I/O queues to share", .0, WORKERS.start(), WORKERS.end())]
    Workers(u8),
    /// More spare queue pairs than the controller has.
    #[error("{0} spare queues: at most {MOST_SPARE_QUEUES}, of 64 queue pairs for I/O")]
    SpareQueues(u16),
    /// A setting of a Controller Memory Buffer without a size for it.
    #[error("no CMB: give it a size with `cmb`")]
    NoCmb,
    /// There is no namespace.
    #[error("no namespace: name at least one, as ram=64M or file=disk.img")]
    NoNamespace,
    /// There are more namespaces than fit one namespace list.
    #[error("{0} namespaces: at most 1024")]
    TooManyNamespaces(usize),
    /// A namespace holds no block.
    #[error("{what}: {bytes} bytes are less than one block of {block_bytes}; make it larger")]
    TooSmall {
        /// The namespace.
        what: String,
        /// Its size.
        bytes: u64,
        /// Size of a block.
        block_bytes: u32,
    },
    /// An image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Memory for a namespace could not be allocated.
    #[error("namespace of {bytes} bytes of RAM")]
    Ram {
        /// The requested size.
        bytes: u64,
        /// The cause.
        source: MemoryError,
    },
    /// The Controller Memory Buffer cannot be made.
    #[error(transparent)]
    Cmb(#[from] CmbError),
    /// The Persistent Memory Region cannot be made.
    #[error(transparent)]
    Pmr(#[from] PmrError),
}

/// The storage of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Memory, zero at start, of this many bytes.
    Ram(u64),
    /// A raw image or a block device.
    File(PathBuf),
    /// No storage; the namespace appears to have this many bytes.
    Null(u64),
}

impl Source {
    /// Returns the path of its image, if it has one.
    fn image(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Ram(_) | Self::Null(_) => None,
        }
    }
}

/// Parses a namespace's source from the command line.
fn source(text: &str) -> Result<Source, String> {
    let size = |text: &str| match text.parse() {
        Ok(Size(bytes)) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    };
    match text.split_once('=') {
        Some(("ram", bytes)) => size(bytes).map(Source::Ram),
        Some(("null", bytes)) => size(bytes).map(Source::Null),
        Some(("file", path)) if !path.is_empty() => Ok(Source::File(path.into())),
        _ => Err("must be ram=SIZE, file=PATH or null=SIZE".to_owned()),
    }
}

impl fmt::Display for Source {
    /// Writes the source as on a command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ram(bytes) => write!(f, "ram={}", Size(*bytes)),
            Self::Null(bytes) => write!(f, "null={}", Size(*bytes)),
            Self::File(path) => write!(f, "file={}", path.display()),
        }
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A controller's settings: the options of `peerbar-nvme`, with these texts as their help, and the
/// keys of an `[[nvme]]` table. A scenario sets the serial number and the files itself.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Serial number, 1 to 20 characters
    #[arg(long)]
    #[serde(skip_deserializing)]
    pub serial: String,
    /// Size of the Controller Memory Buffer, a multiple of 2M [default: none]
    #[arg(long, value_name = "SIZE")]
    pub cmb: Option<Size>,
    /// Allow queues in the Controller Memory Buffer
    #[arg(long, requires = "cmb")]
    pub cmb_queues: bool,
    /// Expose the Controller Memory Buffer as in NVMe 1.3, always open at the addresses of its BAR,
    /// for hosts without CMBMSC
    #[arg(long, requires = "cmb")]
    pub cmb_legacy: bool,
    /// File of 2M to 64G, a power of two, to keep a Persistent Memory Region in [default: no
    /// region]
    #[arg(long = "pmr", value_name = "FILE")]
    #[serde(skip_deserializing)]
    pub pmr: Option<PathBuf>,
    /// A namespace: ram=SIZE, file=PATH or null=SIZE, which drops writes and transfers nothing for
    /// reads; repeat it for more
    #[arg(long = "namespace", value_name = "SOURCE", value_parser = source, required = true)]
    #[serde(rename = "namespace", skip_deserializing)]
    pub namespaces: Vec<Source>,
    /// Bytes of a logical block: 512 or 4096
    #[arg(long = "block-size", value_name = "BYTES", default_value_t = 512)]
    #[serde(rename = "block-size")]
    pub block_bytes: u32,
    /// Maximum data transfer size as a power of two of 4 KiB pages, 1 to 10
    #[arg(long, value_name = "POWER", default_value_t = 8)]
    pub mdts: u8,
    /// Accept Scatter Gather Lists (SGLs) for the data of I/O commands, besides PRPs
    #[arg(long)]
    pub sgl: bool,
    /// Queue pairs in addition to those that the host requests, for a second driver such as a GPU's
    /// [default: none]
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true,
          value_parser = clap::value_parser!(u16).range(..=i64::from(MOST_SPARE_QUEUES)))]
    pub spare_queues: u16,
    /// Threads that share the I/O queues, 1 to 64
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub workers: u8,
    /// Poll policy of those threads: never (block when idle), adaptive (poll or sleep for a short
    /// time, then block), or always, which also lets a client map the doorbells, as SPDK requires
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub poll: PollPolicy,
    /// Read and write images by system calls, one command of a worker at a time, as on a kernel
    /// without io_uring
    #[arg(long = "no-io-uring", action = ArgAction::SetFalse)]
    #[serde(skip)]
    pub io_uring: bool,
    /// Execute commands that start at this logical block wrongly, to test the checks that find
    /// faults. KIND is unmapped, beyond-52-bits, wraps, after-unmap or past-end (a wrong address),
    /// or write-back (writes zeros instead of reading); repeat it for more
    #[arg(long = "seed-fault", value_name = "KIND:BLOCK")]
    #[serde(rename = "seed-fault")]
    pub seeded_faults: Vec<SeededFault>,
}

impl Default for Config {
    /// Returns the settings of a controller that lacks only a serial number and namespaces.
    fn default() -> Self {
        Self {
            serial: String::new(),
            cmb: None,
            cmb_queues: false,
            cmb_legacy: false,
            pmr: None,
            namespaces: Vec::new(),
            block_bytes: 512,
            mdts: 8,
            sgl: false,
            spare_queues: 0,
            workers: 1,
            poll: PollPolicy::default(),
            io_uring: true,
            seeded_faults: Vec::new(),
        }
    }
}

/// The files and memory that a configuration opens.
pub(crate) struct Opened {
    pub(crate) cmb: Option<Cmb>,
    pub(crate) pmr: Option<Arc<PersistentMemory>>,
    pub(crate) namespaces: Vec<Namespace>,
}

impl Config {
    /// Returns the images of the namespaces, and the file of the Persistent Memory Region.
    pub fn files(&self) -> Vec<FileAccess<'_>> {
        let sources = self.namespaces.iter();
        let images = sources.filter_map(Source::image).map(FileAccess::Image);
        let pmr = self.pmr.as_deref().map(FileAccess::Memory);
        images.chain(pmr).collect()
    }

    /// Checks the keys of a scenario. An error names the key.
    ///
    /// # Errors
    /// A value that no controller can have.
    pub fn check_keys(&self) -> Result<(), (&'static str, ConfigError)> {
        match self.cmb.map(|Size(bytes)| cmb::check_size(bytes)) {
            Some(Err(error)) => return Err(("cmb", error.into())),
            Some(Ok(())) => {}
            None if self.cmb_queues => return Err(("cmb-queues", ConfigError::NoCmb)),
            None if self.cmb_legacy => return Err(("cmb-legacy", ConfigError::NoCmb)),
            None => {}
        }
        if !BLOCK_SIZES.contains(&self.block_bytes) {
            return Err(("block-size", ConfigError::BlockSize(self.block_bytes)));
        }
        if !MDTS.contains(&self.mdts) {
            return Err(("mdts", ConfigError::Mdts(self.mdts)));
        }
        if self.spare_queues > MOST_SPARE_QUEUES {
            return Err(("spare-queues", ConfigError::SpareQueues(self.spare_queues)));
        }
        if !WORKERS.contains(&self.workers) {
            return Err(("workers", ConfigError::Workers(self.workers)));
        }
        Ok(())
    }

    /// Checks the settings that can be checked without opening a file.
    fn check(&self) -> Result<(), ConfigError> {
        let printable = self.serial.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if self.serial.is_empty() || self.serial.len() > SERIAL_BYTES || !printable {
            return Err(ConfigError::Serial(self.serial.clone()));
        }
        self.check_keys().map_err(|(_, error)| error)?;
        match self.namespaces.len() {
            0 => Err(ConfigError::NoNamespace),
            1..=1024 => Ok(()),
            count => Err(ConfigError::TooManyNamespaces(count)),
        }
    }

    /// Checks the configuration, makes the Controller Memory Buffer and opens the Persistent Memory
    /// Region and the namespaces.
    pub(crate) fn open(&self) -> Result<Opened, ConfigError> {
        self.check()?;
        let cmb = |Size(bytes)| Cmb::new(bytes, self.cmb_queues, self.cmb_legacy);
        let cmb = self.cmb.map(cmb);
        let pmr = self.pmr.as_deref().map(PersistentMemory::open);
        Ok(Opened {
            cmb: cmb.transpose()?,
            pmr: pmr.transpose()?.map(Arc::new),
            namespaces: self.open_namespaces()?,
        })
    }

    fn open_namespaces(&self) -> Result<Vec<Namespace>, ConfigError> {
        let mut known = BTreeSet::new();
        for path in self.namespaces.iter().filter_map(Source::image) {
            // A missing image is reported when it is opened.
            let file = fs::metadata(path).ok();
            if file.is_some_and(|file| !known.insert((file.dev(), file.ino()))) {
                return Err(ImageError::Twice(path.to_owned()).into());
            }
        }
        let opened = self.namespaces.iter().map(|source| self.open_one(source));
        opened.collect()
    }

    fn open_one(&self, source: &Source) -> Result<Namespace, ConfigError> {
        let backend: Box<dyn Backend> = match source {
            Source::Ram(bytes) => {
                self.holds_a_block("namespace in RAM", *bytes)?;
                let bytes = *bytes;
                Box::new(
                    RamBackend::new(bytes).map_err(|source| ConfigError::Ram { bytes, source })?,
                )
            }
            Source::Null(bytes) => {
                self.holds_a_block("null namespace", *bytes)?;
                Box::new(NullBackend::new(*bytes))
            }
            Source::File(path) => {
                let file = FileBackend::open(path)?;
                self.holds_a_block(&format!("image {}", path.display()), file.size())?;
                Box::new(file)
            }
        };
        Ok(Namespace::new(backend, self.block_bytes, self.workers > 1))
    }

    fn holds_a_block(&self, what: &str, bytes: u64) -> Result<(), ConfigError> {
        let block_bytes = self.block_bytes;
        if bytes < block_bytes.into() {
            return Err(ConfigError::TooSmall {
                what: what.to_owned(),
                bytes,
                block_bytes,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn config() -> Config {
        Config {
            serial: "disk0".to_owned(),
            namespaces: vec![Source::Ram(1 << 20)],
            ..Config::default()
        }
    }

    #[test]
    fn image_of_two_namespaces_is_named_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let [image, other] = ["disk.img", "other.img"].map(|name| folder.path().join(name));
        fs::write(&image, [0; 4096]).unwrap();
        fs::hard_link(&image, &other).unwrap();
        let config = Config {
            namespaces: [&image, &other]
                .map(|path| Source::File(path.clone()))
                .into(),
            ..config()
        };
        let error = config.open_namespaces().err().unwrap().to_string();
        assert!(
            error.contains("other.img: used by two namespaces"),
            "{error}"
        );
    }

    #[test]
    fn invalid_setting_is_refused_with_its_value() {
        assert!(config().check().is_ok());
        let message = |change: &dyn Fn(&mut Config)| {
            let mut config = config();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(message(&|c| c.serial = "x".repeat(21)).contains("xxxxx"));
        assert!(message(&|c| c.serial = "ä".to_owned()).contains("printable"));
        assert!(message(&|c| c.serial.clear()).contains("1 to 20"));
        assert!(message(&|c| c.block_bytes = 1024).contains("1024"));
        assert!(message(&|c| c.mdts = 11).contains("11"));
        for workers in [0, 65] {
            assert!(message(&|c| c.workers = workers).contains("1 to 64"));
        }
        assert!(message(&|c| c.namespaces.clear()).contains("ram=64M"));
    }

    #[test]
    fn a_namespace_smaller_than_a_block_is_refused() {
        let mut config = config();
        config.namespaces = vec![Source::Ram(511)];
        let error = config.open_namespaces().err().unwrap().to_string();
        assert_eq!(
            error,
            "namespace in RAM: 511 bytes are less than one block of 512; make it larger"
        );
        let image = tempfile::NamedTempFile::new().unwrap();
        config.namespaces = vec![Source::File(image.path().into())];
        assert!(matches!(
            config.open_namespaces(),
            Err(ConfigError::TooSmall { bytes: 0, .. })
        ));
    }
}
