//! Pipes to this machine's programs.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::ImageError;
use crate::error::io_error;

/// The end to read and the end to write of a pipe to `program`. A child has an end only if it is
/// given it.
pub(crate) fn pipe_to(program: &Path) -> Result<(File, OwnedFd), ImageError> {
    let (output, input) = pipe_with(PipeFlags::CLOEXEC)
        .map_err(|errno| io_error("make a pipe for", program)(errno.into()))?;
    Ok((File::from(output), input))
}
