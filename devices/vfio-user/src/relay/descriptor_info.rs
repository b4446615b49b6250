//! The file behind a descriptor, by its name.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};

use peerbar_host::Size;
use rustix::fs::{AtFlags, FileType, StatxFlags, readlink, statx};
use serde_json::{Value, json};

use crate::decode::printable;

/// The file of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorInfo {
    /// Its path, or a name such as `memfd:ram` or `eventfd`.
    pub file: String,
    /// Its inode, if it is a file with a size, or a device.
    pub inode: Option<u64>,
    /// Its size in bytes, if it is a regular file.
    pub size: Option<u64>,
}

impl DescriptorInfo {
    /// Asks the kernel, and no other process, about a descriptor.
    pub fn of(descriptor: impl AsFd) -> Self {
        let descriptor = descriptor.as_fd();
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let target = readlink(path, Vec::new()).unwrap_or_default();
        let file = name(&target.to_string_lossy());
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let mask = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE;
        let status = statx(descriptor, "", flags, mask).ok();
        let kind = |mode: u16| FileType::from_raw_mode(mode.into());
        let regular = status.filter(|status| kind(status.stx_mode) == FileType::RegularFile);
        Self {
            file,
            inode: regular.map(|status| status.stx_ino),
            size: regular.map(|status| status.stx_size),
        }
    }

    /// Returns it as JSON.
    pub fn json(&self) -> Value {
        match (self.inode, self.size) {
            (Some(inode), Some(size)) => {
                json!({ "file": self.file, "inode": inode, "size": size })
            }
            _ => json!({ "file": self.file }),
        }
    }
}

/// Returns the name of a file of procfs' `fd` (proc_pid_fd(5)) in short form.
fn name(target: &str) -> String {
    let target = target.strip_suffix(" (deleted)").unwrap_or(target);
    let anonymous = target.strip_prefix("anon_inode:");
    let memory = target.strip_prefix('/');
    let memory = memory.filter(|name| name.starts_with("memfd:"));
    let short = anonymous.map(|name| name.trim_matches(['[', ']']));
    short.or(memory).unwrap_or(target).to_owned()
}

impl fmt::Display for DescriptorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.file))?;
        match (self.inode, self.size) {
            (Some(inode), Some(size)) => write!(f, " inode {inode} {}", Size(size)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn memory_has_its_name_inode_and_size() {
        let memory = memfd_create("ram", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, 512 << 20).unwrap();
        let info = DescriptorInfo::of(&memory);
        let inode = info.inode.unwrap();
        assert_eq!(info.to_string(), format!("memfd:ram inode {inode} 512M"));
        let expected = json!({ "file": "memfd:ram", "inode": inode, "size": 512 << 20 });
        assert_eq!(info.json(), expected);
    }

    #[test]
    fn other_descriptors_have_their_kind() {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(DescriptorInfo::of(&event).to_string(), "eventfd");
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = DescriptorInfo::of(&socket).to_string();
        assert!(socket.starts_with("socket:["), "{socket}");
    }

    #[test]
    fn control_characters_of_a_name_are_escaped() {
        let memory = memfd_create("a\n\x1b[2J", MemfdFlags::CLOEXEC).unwrap();
        let info = DescriptorInfo::of(&memory).to_string();
        assert!(info.starts_with(r"memfd:a\n\u{1b}[2J inode "), "{info}");
    }
}
