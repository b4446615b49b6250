//! The errors of driving a controller.

use std::io;

use thiserror::Error;

/// The errors of driving a controller.
#[derive(Debug, Error)]
pub enum DriverError {
    /// Registers or shared memory could not be reached.
    #[error("cannot reach the controller's registers or the memory that it shares")]
    Access(#[from] io::Error),
    /// The controller did not do something in time.
    #[error("{what} did not come within {seconds} s")]
    Late {
        /// The awaited change.
        what: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// The controller reports a fatal error (CSTS.CFS), or does not answer: then registers read as
    /// all ones.
    #[error(
        "the controller has a fatal error, or no longer answers: Controller Status is {csts:#010x}"
    )]
    Dead {
        /// CSTS (NVMe Base 2.0, 3.1.3.6).
        csts: u32,
    },
    /// The controller does not support pages of 4 KiB.
    #[error("the controller's smallest page is {bytes} bytes, and this driver has pages of 4096")]
    LargePages {
        /// The smallest page, by CAP.MPSMIN (NVMe Base 2.0, 3.1.3.1).
        bytes: u64,
    },
    /// The controller does not support I/O queues of that length.
    #[error("the controller's queues have at most {most} entries, and {entries} are wanted")]
    LongQueues {
        /// Entries of the longer queue.
        entries: u16,
        /// The limit, by CAP.MQES (NVMe Base 2.0, 3.1.3.1).
        most: u32,
    },
    /// An admin command failed.
    #[error("a command with opcode {opcode:#04x} ended with status {status:#06x}")]
    Command {
        /// Its opcode.
        opcode: u8,
        /// NVMe Base 2.0, 3.3.3.2.1, without the phase.
        status: u16,
    },
}
