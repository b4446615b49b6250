//! The interface to the GPU's driver: one method for each request of its device file.

#![expect(unsafe_code)]

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::ioctl::{Getter, Setter, Updater, ioctl};

use crate::uapi;

/// The driver's requests. The tests have an implementation without a GPU.
pub(crate) trait Driver: fmt::Debug + Send + Sync {
    /// Returns the device file: mappings are made of it, and it can be polled.
    fn file(&self) -> BorrowedFd<'_>;
    fn info(&self) -> io::Result<uapi::Info>;
    fn alloc(&self, alloc: &mut uapi::Alloc) -> io::Result<()>;
    fn free(&self, handle: uapi::Handle) -> io::Result<()>;
    fn query(&self, query: &mut uapi::Query) -> io::Result<()>;
    /// # Safety
    /// The GPU may write to the memory as long as the handle lives: it must not be memory that Rust
    /// has references to, and it must stay mapped.
    unsafe fn register(&self, register: &mut uapi::Register) -> io::Result<()>;
    fn submit(&self, submit: &mut uapi::Submit) -> io::Result<()>;
    fn wait(&self, wait: &mut uapi::Wait) -> io::Result<()>;
    fn eventfd(&self, eventfd: uapi::EventFd) -> io::Result<()>;
    fn export(&self, export: &mut uapi::Export) -> io::Result<()>;
    fn import(&self, import: &mut uapi::Import) -> io::Result<()>;
    fn revoke(&self, handle: uapi::Handle) -> io::Result<()>;
}

/// `/dev/peerbar-gpuN`.
#[derive(Debug)]
pub(crate) struct Node {
    file: File,
}

impl Node {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Node { file })
    }
}

/// A request that takes a structure and returns its results in it.
macro_rules! update {
    ($self:ident, $request:ident, $value:ident) => {{
        // SAFETY: the request's number names exactly this type, which is plain numbers without holes.
        let request = unsafe { Updater::<{ uapi::$request }, _>::new($value) };
        // SAFETY: as above; the driver touches nothing but the structure.
        Ok(unsafe { ioctl(&$self.file, request)? })
    }};
}

/// A request that only takes a structure.
macro_rules! set {
    ($self:ident, $request:ident, $value:ident) => {{
        // SAFETY: as for `update`.
        let request = unsafe { Setter::<{ uapi::$request }, _>::new($value) };
        // SAFETY: as above; the driver touches nothing but the structure.
        Ok(unsafe { ioctl(&$self.file, request)? })
    }};
}

impl Driver for Node {
    fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn info(&self) -> io::Result<uapi::Info> {
        // SAFETY: as for `update`.
        let request = unsafe { Getter::<{ uapi::INFO }, uapi::Info>::new() };
        // SAFETY: as above; the driver touches nothing but the structure.
        Ok(unsafe { ioctl(&self.file, request)? })
    }

    fn alloc(&self, alloc: &mut uapi::Alloc) -> io::Result<()> {
        update!(self, ALLOC, alloc)
    }

    fn free(&self, handle: uapi::Handle) -> io::Result<()> {
        set!(self, FREE, handle)
    }

    fn query(&self, query: &mut uapi::Query) -> io::Result<()> {
        update!(self, QUERY, query)
    }

    unsafe fn register(&self, register: &mut uapi::Register) -> io::Result<()> {
        update!(self, REGISTER, register)
    }

    fn submit(&self, submit: &mut uapi::Submit) -> io::Result<()> {
        update!(self, SUBMIT, submit)
    }

    fn wait(&self, wait: &mut uapi::Wait) -> io::Result<()> {
        update!(self, WAIT, wait)
    }

    fn eventfd(&self, eventfd: uapi::EventFd) -> io::Result<()> {
        set!(self, EVENTFD, eventfd)
    }

    fn export(&self, export: &mut uapi::Export) -> io::Result<()> {
        update!(self, EXPORT, export)
    }

    fn import(&self, import: &mut uapi::Import) -> io::Result<()> {
        update!(self, IMPORT, import)
    }

    fn revoke(&self, handle: uapi::Handle) -> io::Result<()> {
        set!(self, REVOKE, handle)
    }
}
