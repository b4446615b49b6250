//! Requests to the test modules of the GPU's driver (guest/gpu-driver/include/peerbar_gpu_import_test.h and
//! peerbar_gpu_pin_test.h).

use std::fs::{File, OpenOptions};

use anyhow::Context;

/// The group of all their requests.
pub(crate) const GROUP: u8 = b'P';

/// A request that answers in its own structure. The number must name exactly this type, which must be plain numbers without
/// holes.
macro_rules! ask {
    ($file:expr, $number:literal, $type:ty, $value:expr) => {{
        use rustix::ioctl::{Updater, ioctl, opcode};
        use $crate::test_module::GROUP;
        // SAFETY: the number names exactly this type, which is plain numbers without holes.
        let request = unsafe {
            Updater::<{ opcode::read_write::<$type>(GROUP, $number) }, $type>::new($value)
        };
        // SAFETY: as above; the driver touches nothing but the structure.
        unsafe { ioctl($file, request) }.map_err(io::Error::from)
    }};
}
pub(crate) use ask;

/// Opens `node`, which `module` makes.
pub(crate) fn open(node: &str, module: &str) -> anyhow::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(node);
    file.with_context(|| format!("cannot open {node}; is the module {module} loaded?"))
}
