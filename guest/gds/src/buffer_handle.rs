//! The common part of all kinds of buffers: a handle of the driver that is freed once.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver::Driver;
use crate::uapi::{self, Space};
use crate::{Error, Result};

/// A handle of the driver.
pub(crate) struct BufferHandle {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) space: Space,
    pub(crate) handle: u32,
    pub(crate) size: u64,
    freed: AtomicBool,
}

impl BufferHandle {
    pub(crate) fn new(driver: &Arc<dyn Driver>, space: Space, handle: u32, size: u64) -> Self {
        BufferHandle {
            driver: Arc::clone(driver),
            space,
            handle,
            size,
            freed: AtomicBool::new(false),
        }
    }

    /// Returns the handle. It must not be used once it is freed, since the driver then gives its
    /// number to another buffer.
    pub(crate) fn live(&self) -> Result<uapi::Handle> {
        if self.freed.load(Ordering::Acquire) {
            return Err(Error::Freed);
        }
        Ok(uapi::Handle {
            handle: self.handle,
            pad: 0,
        })
    }

    /// Returns the handle, for a request to `driver`: handles are numbers of one opening, and refer
    /// to other memory in another.
    pub(crate) fn live_for(&self, driver: &Arc<dyn Driver>) -> Result<uapi::Handle> {
        if !Arc::ptr_eq(&self.driver, driver) {
            return Err(Error::ForeignBuffer);
        }
        self.live()
    }

    pub(crate) fn free(&self) -> Result<()> {
        let handle = self.live()?;
        if self.freed.swap(true, Ordering::AcqRel) {
            return Err(Error::Freed);
        }
        self.driver
            .free(handle)
            .map_err(|source| Error::driver(format!("free buffer {}", self.handle), source))
    }
}

impl fmt::Debug for BufferHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} buffer {} of {} bytes",
            self.space, self.handle, self.size
        )
    }
}

impl Drop for BufferHandle {
    fn drop(&mut self) {
        // There is no caller to report a failure to, and closing the device file frees the handle
        // at last.
        let _ = self.free();
    }
}
