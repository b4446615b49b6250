//! Memory regions.

#![expect(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::rc::Rc;

use peerbar_gds::Mapping;

use crate::layout::Mr;
use crate::{AccessFlags, Error, Local, ProtectionDomain, Remote, Result};

/// Memory that is registered with an adapter, until the value is dropped.
pub struct Region {
    mr: NonNull<Mr>,
    domain: ProtectionDomain,
    /// The address of the first byte in work requests.
    address: u64,
    size: u64,
    local_key: u32,
    remote_key: u32,
    /// Keeps host memory mapped.
    _memory: Option<Rc<Mapping>>,
}

impl Region {
    /// Registers memory of this process.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn of_memory(
        domain: &ProtectionDomain,
        memory: Rc<Mapping>,
        access: AccessFlags,
    ) -> Result<Self> {
        let what = || format!("register {} bytes of memory", memory.size());
        let pointer = memory.pointer(0..memory.size());
        let (start, length) = pointer.map_err(|source| Error::Refused {
            what: what(),
            source,
        })?;
        let register = domain.context().functions().reg_mr;
        let start = start.as_ptr();
        // SAFETY: the span is mapped, and stays so as long as the region holds `memory`.
        let mr = unsafe { register(domain.as_ptr(), start.cast(), length, access.bits()) };
        let mr = NonNull::new(mr).ok_or_else(|| Error::last(what()))?;
        let address = start.expose_provenance() as u64;
        let size = memory.size();
        Ok(Self::new(mr, domain, address, size, Some(memory)))
    }

    /// Registers `size` bytes of a dma-buf, from its start on. The first byte has the address
    /// `address` in work requests, which must be a multiple of the page size.
    ///
    /// # Errors
    /// [`Error::Refused`]: with EOPNOTSUPP if the exporter does not allow its memory to be pinned,
    /// with EINVAL if the dma-buf is shorter.
    pub fn of_dma_buf(
        domain: &ProtectionDomain,
        dma_buf: impl AsFd,
        size: u64,
        address: u64,
        access: AccessFlags,
    ) -> Result<Self> {
        let what = || format!("register {size} bytes of a dma-buf");
        let length = usize::try_from(size).map_err(|_| Error::OutOfBounds {
            offset: 0,
            length: size,
            size: 0,
        })?;
        let descriptor = dma_buf.as_fd().as_raw_fd();
        let register = domain.context().functions().reg_dmabuf_mr;
        // SAFETY: the domain is allocated. No memory of this process is named.
        let mr = unsafe {
            register(
                domain.as_ptr(),
                0,
                length,
                address,
                descriptor,
                access.bits(),
            )
        };
        let mr = NonNull::new(mr).ok_or_else(|| Error::last(what()))?;
        Ok(Self::new(mr, domain, address, size, None))
    }

    fn new(
        mr: NonNull<Mr>,
        domain: &ProtectionDomain,
        address: u64,
        size: u64,
        memory: Option<Rc<Mapping>>,
    ) -> Self {
        // SAFETY: the library has returned the region, and does not change its keys.
        let (local_key, remote_key) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        Self {
            mr,
            domain: domain.clone(),
            address,
            size,
            local_key,
            remote_key,
            _memory: memory,
        }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns `length` bytes at `offset`, for its own adapter. The adapter must refuse bytes
    /// outside the region.
    #[must_use]
    pub fn local(&self, offset: u64, length: u32) -> Local {
        Local {
            key: self.local_key,
            address: self.address.wrapping_add(offset),
            length,
        }
    }

    /// Returns the byte at `offset`, for others.
    #[must_use]
    pub fn remote(&self, offset: u64) -> Remote {
        Remote {
            key: self.remote_key,
            address: self.address.wrapping_add(offset),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region is registered, and its last user is gone.
        unsafe { (self.domain.context().functions().dereg_mr)(self.mr.as_ptr()) };
    }
}
