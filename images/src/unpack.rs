//! Compressed kernels and modules.

use std::borrow::Cow;
use std::io::{self, Read};

use ruzstd::decoding::StreamingDecoder;

/// No kernel and no module is bigger than this once unpacked; a damaged one may claim to be.
const LIMIT: u64 = 1 << 30;

/// Returns the contents of a gzip, xz or zstd stream, which may have trailing bytes; other input
/// unchanged.
pub(crate) fn unpack(bytes: &[u8]) -> io::Result<Cow<'_, [u8]>> {
    match bytes {
        [0x1f, 0x8b, ..] => read(flate2::bufread::GzDecoder::new(bytes)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => read(lzma_rust2::XzReader::new(bytes, false)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => read(zstd(bytes)?),
        _ => Ok(Cow::Borrowed(bytes)),
    }
}

/// Decodes a zstd stream. The decoder keeps as much of the contents as the stream's header
/// requests.
fn zstd(bytes: &[u8]) -> io::Result<impl Read> {
    /// A kernel is packed with the longest window that zstd has for ordinary use.
    const LONGEST_WINDOW: u64 = 1 << 27;
    let stream = StreamingDecoder::new(bytes).map_err(io::Error::other)?;
    let window = zstd_window(bytes).unwrap_or_else(|| stream.decoder.content_size());
    match window {
        0..=LONGEST_WINDOW => Ok(stream),
        _ => Err(io::Error::other(format!(
            "a zstd window of {window} bytes: at most {LONGEST_WINDOW} are possible"
        ))),
    }
}

/// Returns the window that a frame's header requests (RFC 8878, 3.1.1.1.2), or `None` if it is the
/// whole contents.
fn zstd_window(frame: &[u8]) -> Option<u64> {
    const SINGLE_SEGMENT: u8 = 1 << 5;
    let [_, _, _, _, flags, window, ..] = *frame else {
        return None;
    };
    let base = 1_u64 << (10 + (window >> 3));
    (flags & SINGLE_SEGMENT == 0).then(|| base + base / 8 * u64::from(window & 7))
}

fn read(stream: impl Read) -> io::Result<Cow<'static, [u8]>> {
    let mut content = Vec::new();
    stream.take(LIMIT).read_to_end(&mut content)?;
    Ok(Cow::Owned(content))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Write;

    pub(crate) fn gzip(content: &[u8]) -> Vec<u8> {
        let mut stream = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        stream.write_all(content).unwrap();
        stream.finish().unwrap()
    }

    pub(crate) fn zstd(content: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(content, ruzstd::encoding::CompressionLevel::Fastest)
    }

    /// "peerbar\n" as `xz --check=crc32` packs it.
    pub(crate) const XZ: &[u8] = &[
        0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x00, 0x21,
        0x01, 0x10, 0x00, 0x00, 0x00, 0xa8, 0x70, 0x8e, 0x86, 0x01, 0x00, 0x07, 0x70, 0x65, 0x65,
        0x72, 0x62, 0x61, 0x72, 0x0a, 0x00, 0x08, 0x6c, 0x31, 0xee, 0x00, 0x01, 0x1c, 0x08, 0x44,
        0x60, 0x2a, 0xc8, 0x90, 0x42, 0x99, 0x0d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x01, 0x59, 0x5a,
    ];

    #[test]
    fn each_format_is_known_by_its_first_bytes() {
        assert_eq!(*unpack(&gzip(b"peerbar\n")).unwrap(), *b"peerbar\n");
        assert_eq!(*unpack(&zstd(b"peerbar\n")).unwrap(), *b"peerbar\n");
        assert_eq!(*unpack(XZ).unwrap(), *b"peerbar\n");
        assert_eq!(*unpack(b"peerbar\n").unwrap(), *b"peerbar\n");
    }

    #[test]
    fn bytes_after_a_stream_are_ignored() {
        for mut stream in [gzip(b"peerbar\n"), zstd(b"peerbar\n"), XZ.to_vec()] {
            stream.extend([8, 0, 0, 0]);
            assert_eq!(*unpack(&stream).unwrap(), *b"peerbar\n");
        }
    }

    #[test]
    fn zstd_window_of_a_kernel_is_possible_and_a_longer_one_is_not() {
        // An empty last block, after a window of 128 MiB, and of the next length.
        let frame = |window| [0x28, 0xb5, 0x2f, 0xfd, 0, window, 1, 0, 0];
        assert!(unpack(&frame(17 << 3)).unwrap().is_empty());
        assert!(unpack(&frame(17 << 3 | 1)).is_err());
        // A single segment that claims 512 MiB.
        let claimed = [0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0x20, 1, 0, 0];
        assert!(unpack(&claimed).is_err());
    }

    #[test]
    fn damaged_stream_is_an_error() {
        for stream in [gzip(b"peerbar\n"), zstd(b"peerbar\n"), XZ.to_vec()] {
            assert!(unpack(&stream[..stream.len() / 2]).is_err());
        }
    }
}
