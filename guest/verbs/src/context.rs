//! An open adapter.

#![expect(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::fmt;
use std::net::Ipv6Addr;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::layout::{self, PortAttr};
use crate::library::{Functions, functions};
use crate::{Error, Result};

/// An EFA has one port.
pub(crate) const PORT: u8 = 1;

/// The address of an adapter: 16 bytes, written as an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid(pub [u8; 16]);

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// An open adapter. Clones share it; it is closed with the last user.
#[derive(Clone)]
pub struct Context(Rc<Open>);

pub(crate) struct Open {
    pub(crate) functions: &'static Functions,
    pub(crate) context: NonNull<layout::Context>,
}

impl Context {
    /// Opens the adapter that the kernel calls `name`, such as `efa_0`.
    ///
    /// # Errors
    /// [`Error::Library`], [`Error::NoDevice`], [`Error::Refused`].
    pub fn open(name: &str) -> Result<Self> {
        let functions = functions()?;
        let list = DeviceList::read(functions)?;
        let mut known = Vec::new();
        for &device in list.devices() {
            // SAFETY: the device is from the list, and so is its name.
            let own = unsafe { CStr::from_ptr((functions.get_device_name)(device)) };
            let own = own.to_string_lossy().into_owned();
            if own == name {
                // SAFETY: as above; an open device outlives the list.
                let context = unsafe { (functions.open_device)(device) };
                let context = NonNull::new(context);
                let context = context.ok_or_else(|| Error::last(format!("open {name}")))?;
                return Ok(Self(Rc::new(Open { functions, context })));
            }
            known.push(own);
        }
        let name = name.to_owned();
        Err(Error::NoDevice { name, known })
    }

    /// Returns its address.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn gid(&self) -> Result<Gid> {
        let mut gid = layout::Gid::default();
        // SAFETY: the context is open, and `gid` is written only during the call.
        let status = unsafe { (self.0.functions.query_gid)(self.as_ptr(), PORT, 0, &raw mut gid) };
        match status {
            0 => Ok(Gid(gid.0)),
            _ => Err(Error::last("read the adapter's GID")),
        }
    }

    /// Returns the largest message of a send in bytes.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn largest_message(&self) -> Result<u32> {
        let mut port = PortAttr::default();
        // SAFETY: as for `gid`.
        let status = unsafe { (self.0.functions.query_port)(self.as_ptr(), PORT, &raw mut port) };
        Error::check(status, "read the attributes of the adapter's port")?;
        Ok(port.max_msg_sz)
    }

    /// Returns the adapter's device file, as the library has opened it.
    pub(crate) fn device_file(&self) -> c_int {
        // SAFETY: the context is open, and its file does not change.
        unsafe { (*self.as_ptr()).cmd_fd }
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        self.0.functions
    }

    pub(crate) fn as_ptr(&self) -> *mut layout::Context {
        self.0.context.as_ptr()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: the context was opened, and its last user is gone.
        unsafe { (self.functions.close_device)(self.context.as_ptr()) };
    }
}

/// The list of all adapters.
struct DeviceList {
    functions: &'static Functions,
    first: NonNull<*mut layout::Device>,
    count: usize,
}

impl DeviceList {
    fn read(functions: &'static Functions) -> Result<Self> {
        let mut count = 0;
        // SAFETY: `count` is written only during the call.
        let first = unsafe { (functions.get_device_list)(&raw mut count) };
        let first = NonNull::new(first).ok_or_else(|| Error::last("list the RDMA devices"))?;
        let count = usize::try_from(count).unwrap_or(0);
        Ok(Self {
            functions,
            first,
            count,
        })
    }

    fn devices(&self) -> &[*mut layout::Device] {
        // SAFETY: the library has returned this number of devices.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list belongs to the library, and no device of it is used any more.
        unsafe { (self.functions.free_device_list)(self.first.as_ptr()) };
    }
}
