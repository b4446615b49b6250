//! Why something could not be measured.

use std::io;
use std::path::PathBuf;

use peerbar_nvme_driver::DriverError;
use peerbar_nvme_spec::dma_log::DmaLogError;
use thiserror::Error;

/// Why something could not be measured.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// A server did not start.
    #[error("{program} does not start: {words}")]
    Server {
        /// Its program.
        program: PathBuf,
        /// The last that it said, or how it ended.
        words: String,
    },
    /// A request to the operating system failed.
    #[error("cannot {action}")]
    System {
        /// What was tried.
        action: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The client of the `vfio_user` crate gave up.
    #[error("the server at the socket does not do what its client asks")]
    Client(#[from] vfio_user::Error),
    /// Memory of ours could not be mapped.
    #[error("cannot map {bytes} bytes")]
    Map {
        /// Length of the mapping.
        bytes: usize,
        /// Why not.
        source: vm_memory::mmap::MmapRegionError,
    },
    /// An access left the memory that was set up for it: a mistake in this crate.
    #[error("an access leaves the memory of the benchmark")]
    Memory(#[from] vm_memory::VolatileMemoryError),
    /// The memory of the benchmark is used up.
    #[error("{asked} bytes are not left of {all} bytes of shared memory")]
    Full {
        /// How many were asked for.
        asked: usize,
        /// How many there are in all.
        all: usize,
    },
    /// The driver gave up.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A completion names a command that is not outstanding.
    #[error("queue {queue} completed command {cid}, which is not outstanding")]
    Stray {
        /// The queue.
        queue: u16,
        /// The command's identifier.
        cid: u16,
    },
    /// A read brought other data than was written.
    #[error("data at byte {offset} of namespace {nsid} are not what was written there")]
    Data {
        /// The namespace.
        nsid: u32,
        /// Where in it.
        offset: u64,
    },
    /// A device does not lend the memory behind one of its BARs.
    #[error("the memory behind BAR{bar} is not lent, so nothing can be compared in it")]
    NotLent {
        /// The BAR.
        bar: u8,
    },
    /// A device's record of its DMA makes no sense.
    #[error("a device's DMA log cannot be read")]
    DmaLog(#[source] DmaLogError),
    /// What was measured did not go the way that it was measured for.
    #[error("the devices moved {found}, not {expected}")]
    Route {
        /// What their records say.
        found: String,
        /// What they should.
        expected: String,
    },
    /// A figure came out as no number: nothing was transferred, or what stands beside it was not measured.
    #[error("{figure} is no number: there was nothing to measure")]
    NoNumber {
        /// Its name.
        figure: String,
    },
    /// The user has interrupted it.
    #[error("the measurement was interrupted")]
    Interrupted,
    /// A report cannot be read.
    #[error("{path} is no report of `peerbar-bench`")]
    Report {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        DriverError::from(error).into()
    }
}

impl Error {
    /// For `map_err`: a request to the operating system to do `action` failed.
    pub(crate) fn system<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |source| Self::System {
            action,
            source: source.into(),
        }
    }
}
