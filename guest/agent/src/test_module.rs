//! Requests to the test modules of the GPU's driver (guest/gpu-driver/src/test_device.h).

#![expect(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use anyhow::Context;
use rustix::ioctl::{Opcode, opcode};
use zerocopy::{FromBytes, IntoBytes};

/// The group of all their requests.
const GROUP: u8 = b'P';

/// A request that needs only the id of an object.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes)]
pub(crate) struct IdRequest {
    id: u32,
    result: i32,
}

/// The device file of a test module.
#[derive(Debug)]
pub struct TestModule {
    file: File,
}

impl TestModule {
    /// Opens `node`, which `module` makes.
    pub fn open(node: &str, module: &str) -> anyhow::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(node);
        let file =
            file.with_context(|| format!("cannot open {node}; is the module {module} loaded?"))?;
        Ok(Self { file })
    }

    /// Sends request `number`, whose answer replaces `argument`.
    pub fn ask<T: FromBytes + IntoBytes>(&self, number: u8, argument: &mut T) -> io::Result<()> {
        let (file, code) = (self.file.as_raw_fd(), code::<T>(number));
        // SAFETY: a test module reads and writes as many bytes as the code of its request states,
        // which is the size of `T`. Any bytes are a valid `T`.
        let status = unsafe { libc::ioctl(file, code.into(), ptr::from_mut(argument)) };
        match status {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends request `number` about the object `id`. Returns 0 or a negative errno.
    pub fn ask_about(&self, number: u8, id: u32) -> io::Result<i32> {
        let mut request = IdRequest { id, result: 0 };
        self.ask(number, &mut request)?;
        Ok(request.result)
    }
}

/// Returns the code of request `number` with the argument `T`.
pub(crate) fn code<T>(number: u8) -> Opcode {
    opcode::read_write::<T>(GROUP, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_a_request_is_that_of_the_header() {
        assert_eq!(code::<IdRequest>(0x61), 0xc008_5061);
    }

    #[test]
    fn refused_request_is_an_error() {
        let module = TestModule {
            file: tempfile::tempfile().unwrap(),
        };
        let error = module.ask_about(0x61, 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }

    #[test]
    fn missing_device_file_names_the_module() {
        let error = TestModule::open("/dev/no-such-node", "peerbar_gpu_pin_test").unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot open /dev/no-such-node; is the module peerbar_gpu_pin_test loaded?"
        );
    }
}
