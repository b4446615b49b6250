//! The status of commands whose blocks could not be read or written.

use std::io;

use peerbar_file_ring::Differs;
use peerbar_nvme_spec::completion::Status;
use rustix::io::Errno;

use crate::namespace::{Namespace, OutOfRange};

/// Returns the status of a command whose data the kernel could not move, because of the memory or
/// for another reason.
pub(super) fn data_error(other: impl Fn(io::Error) -> Status) -> impl Fn(io::Error) -> Status {
    move |error| match Errno::from_io_error(&error) {
        Some(Errno::FAULT) => Status::DATA_TRANSFER_ERROR,
        _ => other(error),
    }
}

/// Returns the status of a command whose blocks could not be read, or differ from the host's data.
pub(super) fn check_error(namespace: &Namespace) -> impl Fn(io::Error) -> Status {
    move |error| match error.get_ref() {
        Some(cause) if cause.is::<Differs>() => Status::COMPARE_FAILURE,
        _ => data_error(read_error(namespace))(error),
    }
}

pub(super) fn out_of_range(error: OutOfRange) -> Status {
    log::debug!("{error}");
    Status::LBA_OUT_OF_RANGE.with_dnr(true)
}

/// Returns the status of a command whose blocks the backend could not read.
pub(super) fn read_error(namespace: &Namespace) -> impl Fn(io::Error) -> Status {
    |error| {
        namespace.complain("read", &error);
        Status::UNRECOVERED_READ_ERROR
    }
}

/// Returns the status of a command whose blocks the backend could not write.
pub(crate) fn write_error(namespace: &Namespace) -> impl Fn(io::Error) -> Status {
    |error| {
        namespace.complain("written", &error);
        match error.kind() {
            io::ErrorKind::StorageFull => Status::CAPACITY_EXCEEDED,
            _ => Status::WRITE_FAULT,
        }
    }
}
