//! Requests to the kernel through the device file of an adapter, for which Debian's libibverbs has
//! no functions (Linux, `include/uapi/rdma/rdma_user_ioctl_cmds.h`).

#![expect(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::io;

/// `RDMA_VERBS_IOCTL`: read and write, of the magic number 1bh, number 1, with the length of [`Header`].
const REQUEST: libc::c_ulong = 0xc018_1b01;
/// `RDMA_DRIVER_EFA`.
const DRIVER: u32 = 17;
/// `UVERBS_ATTR_F_MANDATORY`.
const MANDATORY: u16 = 1;
/// The longest value that is stored in its attribute.
const LONGEST_INLINE: usize = size_of::<u64>();
/// Limit of the attributes of a request.
const ATTRIBUTES: usize = 9;

/// `struct ib_uverbs_ioctl_hdr`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    length: u16,
    object: u16,
    method: u16,
    attributes: u16,
    reserved: u64,
    driver: u32,
    reserved2: u32,
}

/// `struct ib_uverbs_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Raw {
    id: u16,
    length: u16,
    flags: u16,
    reserved: u16,
    data: u64,
}

#[repr(C)]
struct Request {
    header: Header,
    attributes: [Raw; ATTRIBUTES],
}

/// `struct ib_uverbs_buffer_desc`: memory that the adapter will use.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferDescription {
    pub(crate) kind: u32,
    pub(crate) descriptor: c_int,
    pub(crate) flags: u32,
    pub(crate) optional_flags: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    /// An existing object, or 0 for one that the kernel makes.
    Object(u32),
    /// A constant or a number.
    Number(u64),
    /// A number of 32 bits.
    Word(u32),
    /// An open file.
    File(c_int),
    /// A buffer.
    Buffer(&'a BufferDescription),
    /// A driver-specific structure, longer than a number.
    Driver(&'a [u8]),
    /// Receives a number of 32 bits from the kernel.
    Answer(&'a Cell<u32>),
    /// Receives a number of 64 bits from the kernel.
    LongAnswer(&'a Cell<u64>),
}

/// Calls a method of an object, with its attributes by their numbers. Returns the object in the
/// first attribute, which the kernel may have made.
pub(crate) fn call(
    device: c_int,
    (object, method): (u16, u16),
    attributes: &[(u16, Value<'_>)],
) -> io::Result<u32> {
    let mut raw = [Raw::default(); ATTRIBUTES];
    if attributes.len() > raw.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (raw, (id, value)) in raw.iter_mut().zip(attributes) {
        let (length, data) = match *value {
            Value::Object(handle) => (0, handle.into()),
            Value::Number(number) => (LONGEST_INLINE, number),
            Value::Word(number) => (size_of::<u32>(), number.into()),
            // The kernel interprets it as a signed number of 64 bits.
            Value::File(descriptor) => (0, u64::from_ne_bytes(i64::from(descriptor).to_ne_bytes())),
            Value::Buffer(buffer) => (
                size_of::<BufferDescription>(),
                (&raw const *buffer).expose_provenance() as u64,
            ),
            Value::Driver(bytes) if bytes.len() <= LONGEST_INLINE => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            Value::Driver(bytes) => (bytes.len(), bytes.as_ptr().expose_provenance() as u64),
            Value::Answer(answer) => (size_of::<u32>(), answer.as_ptr().expose_provenance() as u64),
            Value::LongAnswer(answer) => {
                (size_of::<u64>(), answer.as_ptr().expose_provenance() as u64)
            }
        };
        *raw = Raw {
            id: *id,
            length: u16::try_from(length).unwrap_or(u16::MAX),
            flags: MANDATORY,
            reserved: 0,
            data,
        };
    }
    let length = size_of::<Header>() + attributes.len() * size_of::<Raw>();
    let mut request = Request {
        header: Header {
            length: u16::try_from(length).unwrap_or(u16::MAX),
            object,
            method,
            attributes: u16::try_from(attributes.len()).unwrap_or(u16::MAX),
            reserved: 0,
            driver: DRIVER,
            reserved2: 0,
        },
        attributes: raw,
    };
    // SAFETY: the request is as long as its header says, and everything that it names lives until
    // the call returns. The kernel writes to the request and to the cells of answers, whose lengths
    // it is told.
    let status = unsafe { libc::ioctl(device, REQUEST, &raw mut request) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    let [first, ..] = request.attributes;
    u32::try_from(first.data).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::mem::offset_of;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Sizes and offsets that a C compiler gives on x86-64.
    #[test]
    fn structures_are_those_of_the_kernel() {
        assert_eq!((size_of::<Header>(), size_of::<Raw>()), (24, 16));
        assert_eq!(offset_of!(Request, attributes), 24);
        assert_eq!(offset_of!(Header, driver), 16);
        assert_eq!(size_of::<BufferDescription>(), 32);
        assert_eq!(offset_of!(BufferDescription, address), 16);
        assert_eq!(REQUEST >> 16 & 0x3fff, size_of::<Header>() as u64);
    }

    #[test]
    fn file_that_is_no_adapter_s_refuses_a_request() {
        let file = File::open("/dev/null").unwrap();
        let error = call(file.as_raw_fd(), (0, 0), &[]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        let short = [(0, Value::Driver(&[0; LONGEST_INLINE]))];
        let error = call(file.as_raw_fd(), (0, 0), &short).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let many = [(0, Value::Number(0)); ATTRIBUTES + 1];
        let error = call(file.as_raw_fd(), (0, 0), &many).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
