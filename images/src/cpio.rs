//! The archive that a kernel unpacks into its first root (Linux,
//! `Documentation/driver-api/early-userspace/buffer-format.rst`: "newc").

use crate::ImageError;

const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const CHARACTER: u32 = 0o020_000;
/// The entry at the end of an archive.
const TRAILER: &str = "TRAILER!!!";

/// An archive under construction. Every entry belongs to root and has time 0, so that equal content
/// gives an equal archive.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

struct Entry<'a> {
    name: &'a str,
    mode: u32,
    device: (u32, u32),
    content: &'a [u8],
}

impl Archive {
    pub(crate) fn directory(&mut self, name: &str) -> Result<(), ImageError> {
        self.push(&Entry {
            name,
            mode: DIRECTORY | 0o755,
            device: (0, 0),
            content: &[],
        })
    }

    /// Adds a file with the permissions `mode`.
    pub(crate) fn file(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<(), ImageError> {
        self.push(&Entry {
            name,
            mode: REGULAR | mode,
            device: (0, 0),
            content,
        })
    }

    /// Adds a character device that only root may use.
    pub(crate) fn character_device(
        &mut self,
        name: &str,
        major: u32,
        minor: u32,
    ) -> Result<(), ImageError> {
        self.push(&Entry {
            name,
            mode: CHARACTER | 0o600,
            device: (major, minor),
            content: &[],
        })
    }

    pub(crate) fn finish(mut self) -> Result<Vec<u8>, ImageError> {
        self.push(&Entry {
            name: TRAILER,
            mode: 0,
            device: (0, 0),
            content: &[],
        })?;
        Ok(self.bytes)
    }

    fn push(&mut self, entry: &Entry<'_>) -> Result<(), ImageError> {
        let too_big = |bytes| ImageError::TooBig {
            name: entry.name.to_owned(),
            bytes,
        };
        let size = u32::try_from(entry.content.len()).map_err(|_| too_big(entry.content.len()))?;
        // The name counts with the zero byte that ends it.
        let name_size =
            u32::try_from(entry.name.len() + 1).map_err(|_| too_big(entry.name.len()))?;
        self.inode += 1;
        let (major, minor) = entry.device;
        // inode, mode, user, group, links, time, size, device of the file (2), device that it
        // represents (2), name, checksum
        let fields = [
            self.inode, entry.mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").into_bytes());
        }
        self.bytes.extend(entry.name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(entry.content);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_has_the_newc_layout() {
        let mut archive = Archive::default();
        archive.directory("dev").unwrap();
        archive.character_device("dev/console", 5, 1).unwrap();
        archive.file("init", 0o755, b"hello").unwrap();
        let expected = concat!(
            "070701",
            "00000001",
            "000041ed",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000004",
            "00000000",
            "dev\0\0\0",
            "070701",
            "00000002",
            "00002180",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000005",
            "00000001",
            "0000000c",
            "00000000",
            "dev/console\0\0\0",
            "070701",
            "00000003",
            "000081ed",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000005",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000005",
            "00000000",
            "init\0\0",
            "hello\0\0\0",
            "070701",
            "00000004",
            "00000000",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "0000000b",
            "00000000",
            "TRAILER!!!\0\0\0\0",
        );
        assert_eq!(
            String::from_utf8(archive.finish().unwrap()).unwrap(),
            expected
        );
    }

    #[test]
    fn every_entry_starts_at_a_multiple_of_four() {
        let mut archive = Archive::default();
        for length in 0..9 {
            archive
                .file(&"n".repeat(length + 1), 0o644, &vec![b'x'; length])
                .unwrap();
            assert_eq!(archive.bytes.len() % 4, 0);
        }
    }
}
