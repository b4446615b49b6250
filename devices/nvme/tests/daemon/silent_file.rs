//! A FUSE file whose server, in this process, does not answer: fstat(2), read(2) and close(2) of
//! the file wait (Linux include/uapi/linux/fuse.h).

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use peerbar_rig::wait_until;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec, read, write};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const OPEN: u32 = 14;
const RELEASE: u32 = 18;
/// The request that close(2) waits for.
pub(crate) const FLUSH: u32 = 25;
const INIT: u32 = 26;

/// Bytes that a read of requests offers, at least (FUSE_MIN_READ_BUFFER).
const REQUEST_BYTES: usize = 8192;

/// The file. When it is dropped, its server answers all requests.
pub(crate) struct SilentFile {
    file: OwnedFd,
    server: Arc<Server>,
}

struct Server {
    device: OwnedFd,
    /// Requests that wait, or `None` while all are answered.
    waiting: Mutex<Option<Vec<FuseRequest>>>,
}

#[derive(Clone, Copy)]
struct FuseRequest {
    opcode: u32,
    unique: u64,
}

impl SilentFile {
    /// Mounts a file system that consists of this file. It needs root.
    #[track_caller]
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let point = folder.path().join("silent");
        File::create(&point).unwrap();
        let access = OFlags::RDWR | OFlags::CLOEXEC;
        let device = open("/dev/fuse", access, Mode::empty()).unwrap();
        let number = device.as_raw_fd();
        let options = format!("fd={number},rootmode=100600,user_id=0,group_id=0");
        let options = CString::new(options).unwrap();
        let flags = MountFlags::empty();
        mount("test", &point, "fuse", flags, options.as_c_str()).unwrap();
        let server = Arc::new(Server {
            device,
            waiting: Mutex::new(None),
        });
        let thread = server.clone();
        std::thread::spawn(move || thread.run());
        let file = open(&point, access, Mode::empty());
        // The file stays as long as a process has it.
        unmount(&point, UnmountFlags::DETACH).unwrap();
        // If this process is killed, the lower number is closed first, and no process waits any
        // more.
        let file = fcntl_dupfd_cloexec(file.unwrap(), number + 1).unwrap();
        *server.waiting.lock() = Some(Vec::new());
        Self { file, server }
    }

    /// Waits until a process waits for the file. Returns the opcode of the request.
    #[track_caller]
    pub(crate) fn awaited(&self) -> u32 {
        let first = || Some(self.server.waiting.lock().as_ref()?.first()?.opcode);
        wait_until("a request to the file system", first)
    }
}

impl AsFd for SilentFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SilentFile {
    fn drop(&mut self) {
        let waiting = self.server.waiting.lock().take();
        for request in waiting.into_iter().flatten() {
            self.server.answer(request);
        }
    }
}

impl Server {
    /// Serves until no process has the file any more.
    fn run(&self) {
        let mut space = [0; REQUEST_BYTES];
        loop {
            let bytes = match read(&self.device, &mut space) {
                Ok(count) => &space[..count],
                // The request was interrupted before it was read.
                Err(Errno::NOENT | Errno::INTR) => continue,
                Err(_) => return,
            };
            let request = FuseRequest {
                opcode: u32::from_ne_bytes(bytes[4..8].try_into().unwrap()),
                unique: u64::from_ne_bytes(bytes[8..16].try_into().unwrap()),
            };
            match self.waiting.lock().as_mut() {
                Some(waiting) if ![INIT, OPEN, RELEASE].contains(&request.opcode) => {
                    waiting.push(request);
                }
                _ => self.answer(request),
            }
        }
    }

    fn answer(&self, request: FuseRequest) {
        let data: &[u32] = match request.opcode {
            // Version 7.31 without any feature.
            INIT => &[7, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            OPEN => &[0; 4],
            _ => &[],
        };
        let error = match request.opcode {
            INIT | OPEN | RELEASE | FLUSH => 0,
            _ => -Errno::NOSYS.raw_os_error(),
        };
        let mut bytes = (16 + 4 * data.len() as u32).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&error.to_ne_bytes());
        bytes.extend_from_slice(&request.unique.to_ne_bytes());
        bytes.extend(data.iter().flat_map(|word| word.to_ne_bytes()));
        // Writing fails if no process waits any more.
        let _ = write(&self.device, &bytes);
    }
}
