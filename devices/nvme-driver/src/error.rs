//! Why a controller could not be driven.

use std::io;

use thiserror::Error;

/// Why a controller could not be driven.
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
    /// An admin command failed.
    #[error("a command with opcode {opcode:#04x} ended with status {status:#06x}")]
    Command {
        /// Its opcode.
        opcode: u8,
        /// NVMe Base 2.0, 3.3.3.2.1, without the phase.
        status: u16,
    },
}
