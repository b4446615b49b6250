//! The setup header of an x86 kernel image (Linux, `Documentation/arch/x86/boot.rst`, "The
//! Real-Mode Kernel Header").

use std::borrow::Cow;
use std::ops::Range;

use crate::unpack::unpack;
use object::LittleEndian;
use object::elf::{FileHeader64, NoteType, PT_NOTE};
use object::read::elf::{FileHeader, ProgramHeader};

/// Offsets in the image.
const SETUP_SECTS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PROTOCOL: usize = 0x206;
const KERNEL_VERSION: usize = 0x20e;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// The boot protocol that added the payload's range.
const PAYLOAD_PROTOCOL: u16 = 0x0208;
const SECTOR: usize = 512;
/// Type of the ELF note, of the owner "Xen", with the entry point of a PVH boot (Xen,
/// `public/elfnote.h`).
const XEN_ELFNOTE_PHYS32_ENTRY: NoteType = NoteType(18);

/// Returns the release of the kernel, as in `uname -r`, or `None` if this is not a bzImage.
pub(crate) fn release(image: &[u8]) -> Option<String> {
    if image.get(MAGIC..PROTOCOL)? != b"HdrS" {
        return None;
    }
    let start = usize::from(u16_at(image, KERNEL_VERSION)?).checked_add(SECTOR)?;
    let text = image
        .get(start..)?
        .split(|&byte| byte == b' ' || byte == 0)
        .next()?;
    let text = std::str::from_utf8(text).ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns the least size in bytes that holds the whole payload of a bzImage, if `image` is
/// smaller.
pub(crate) fn cut(image: &[u8]) -> Option<usize> {
    payload_range(image)
        .map(|range| range.end)
        .filter(|&end| end > image.len())
}

/// Returns the uncompressed kernel if QEMU can start it, or the reason why it cannot.
///
/// Such a guest need not unpack itself, which takes seconds under emulation.
pub(crate) fn vmlinux(image: &[u8]) -> Result<Vec<u8>, String> {
    let payload = payload(image).ok_or("its header names no payload")?;
    let kernel =
        unpack(payload).map_err(|error| format!("its payload cannot be unpacked: {error}"))?;
    match has_pvh_entry(&kernel) {
        Some(true) if has_kasan(&kernel) => {
            Err("it has KASAN, whose shadow memory a PVH start does not map in time".to_owned())
        }
        Some(true) => Ok(kernel.into_owned()),
        Some(false) => Err("it has no PVH entry point (CONFIG_PVH)".to_owned()),
        None => Err("its payload is not packed with gzip, xz or zstd".to_owned()),
    }
}

/// Returns the kernel proper of a bzImage, even if QEMU cannot start it, or `None` for any other
/// file.
pub(crate) fn unpacked(image: &[u8]) -> Option<Cow<'_, [u8]>> {
    unpack(payload(image)?).ok()
}

/// Returns `true` if a kernel has KASAN, which the start of its reports shows (Linux,
/// `mm/kasan/report.c`).
pub(crate) fn has_kasan(kernel: &[u8]) -> bool {
    find(kernel, b"BUG: KASAN: ").is_some()
}

/// Returns the first position of `words` in `bytes`.
pub(crate) fn find(bytes: &[u8], words: &[u8]) -> Option<usize> {
    bytes
        .windows(words.len())
        .position(|window| window == words)
}

fn payload(image: &[u8]) -> Option<&[u8]> {
    image.get(payload_range(image)?)
}

/// Returns the payload's range according to the header, or `None` without such a header.
fn payload_range(image: &[u8]) -> Option<Range<usize>> {
    if image.get(MAGIC..PROTOCOL)? != b"HdrS" || u16_at(image, PROTOCOL)? < PAYLOAD_PROTOCOL {
        return None;
    }
    // Zero stands for four, for compatibility with old boot loaders.
    let setup = match *image.get(SETUP_SECTS)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (setup + 1)
        .checked_mul(SECTOR)?
        .checked_add(usize_at(image, PAYLOAD_OFFSET)?)?;
    Some(start..start.checked_add(usize_at(image, PAYLOAD_LENGTH)?)?)
}

/// Returns `Some(true)` if the kernel has a PVH entry point, or `None` if this is not an ELF file
/// for x86-64.
pub(crate) fn has_pvh_entry(kernel: &[u8]) -> Option<bool> {
    let header = FileHeader64::<LittleEndian>::parse(kernel).ok()?;
    let endian = header.endian().ok()?;
    let found = header
        .program_headers(endian, kernel)
        .ok()?
        .iter()
        .any(|segment| {
            segment.p_type(endian) == PT_NOTE
                && segment
                    .notes(endian, kernel)
                    .ok()
                    .flatten()
                    .is_some_and(|mut notes| {
                        std::iter::from_fn(|| notes.next().ok().flatten()).any(|note| {
                            note.name() == b"Xen" && note.n_type(endian) == XEN_ELFNOTE_PHYS32_ENTRY
                        })
                    })
        });
    Some(found)
}

/// Returns the release of the kernel in an ELF file, from its version banner, or `None` without a
/// banner.
pub(crate) fn release_of_elf(kernel: &[u8]) -> Option<String> {
    const BANNER: &[u8] = b"Linux version ";
    if !kernel.starts_with(b"\x7fELF") {
        return None;
    }
    let start = find(kernel, BANNER)?.checked_add(BANNER.len())?;
    let text = kernel
        .get(start..)?
        .split(|byte| byte.is_ascii_whitespace() || *byte == 0)
        .next()?;
    std::str::from_utf8(text)
        .ok()
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

fn u16_at(image: &[u8], offset: usize) -> Option<u16> {
    image
        .get(offset..)?
        .first_chunk()
        .copied()
        .map(u16::from_le_bytes)
}

fn usize_at(image: &[u8], offset: usize) -> Option<usize> {
    let value = u32::from_le_bytes(*image.get(offset..)?.first_chunk()?);
    usize::try_from(value).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::unpack::tests::{gzip, zstd};

    /// Returns an ELF file with one segment, a note of `owner`.
    pub(crate) fn elf(owner: &[u8; 4], n_type: u32) -> Vec<u8> {
        let note_at = 64 + 56;
        let mut file = Vec::new();
        file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"); // 64 bits, little endian
        file.extend([2, 0, 62, 0, 1, 0, 0, 0]); // executable, x86-64
        file.extend([0_u64, 64, 0].map(u64::to_le_bytes).concat()); // program headers follow
        file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
        file.extend([4, 0, 0, 0, 4, 0, 0, 0]); // PT_NOTE, readable
        file.extend([note_at, 0, 0, 20, 20, 4].map(u64::to_le_bytes).concat());
        file.extend([4, 4, n_type].map(u32::to_le_bytes).concat());
        file.extend(owner);
        file.extend(0x0100_0000_u32.to_le_bytes());
        file.extend(b"Linux version 7.2.12+deb13-amd64 (somebody)");
        file
    }

    /// Returns a kernel image of one setup sector that carries `payload` and a trailer, like real
    /// kernels.
    pub(crate) fn bzimage(payload: &[u8], setup_sectors: u8) -> Vec<u8> {
        let code = SECTOR * (usize::from(if setup_sectors == 0 { 4 } else { setup_sectors }) + 1);
        let mut image = vec![0; code + 16];
        image[SETUP_SECTS] = setup_sectors;
        image[MAGIC..PROTOCOL].copy_from_slice(b"HdrS");
        image[PROTOCOL..PROTOCOL + 2].copy_from_slice(&0x020f_u16.to_le_bytes());
        image[KERNEL_VERSION..KERNEL_VERSION + 2].copy_from_slice(&0x100_u16.to_le_bytes());
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&16_u32.to_le_bytes());
        let length = u32::try_from(payload.len()).unwrap();
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image[SECTOR + 0x100..SECTOR + 0x100 + 14].copy_from_slice(b"7.2.12-x (a@b)");
        image.extend(payload);
        image.extend([0xff; 32]);
        image
    }

    #[test]
    fn payload_is_unpacked() {
        let kernel = elf(b"Xen\0", 18);
        assert_eq!(vmlinux(&bzimage(&gzip(&kernel), 1)).unwrap(), kernel);
        assert_eq!(vmlinux(&bzimage(&zstd(&kernel), 0)).unwrap(), kernel);
        assert_eq!(vmlinux(&bzimage(&kernel, 3)).unwrap(), kernel);
    }

    #[test]
    fn kernel_without_pvh_or_known_packing_names_the_reason() {
        let reason = |kernel: &[u8]| vmlinux(&bzimage(kernel, 1)).unwrap_err();
        assert!(reason(&elf(b"Xen\0", 17)).contains("CONFIG_PVH"));
        assert!(reason(&elf(b"GNU\0", 18)).contains("CONFIG_PVH"));
        assert!(reason(b"\x04\x22\x4d\x18 lz4").contains("not packed with"));
        assert!(reason(&gzip(&[1; 64])[..8]).contains("cannot be unpacked"));
        assert!(vmlinux(b"\x7fELF").unwrap_err().contains("no payload"));
    }

    #[test]
    fn header_with_wrong_payload_range_is_refused() {
        let mut image = bzimage(b"x", 1);
        for offset in [PAYLOAD_OFFSET, PAYLOAD_LENGTH] {
            image[offset..offset + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            assert_eq!(payload(&image), None);
        }
        assert_eq!(payload(&image[..PAYLOAD_LENGTH]), None);
    }

    #[test]
    fn truncated_image_names_the_needed_size() {
        let image = bzimage(&[7; 100], 1);
        let whole = image.len() - 32;
        assert_eq!(cut(&image), None);
        assert_eq!(cut(&image[..whole]), None);
        assert_eq!(cut(&image[..whole - 1]), Some(whole));
        assert_eq!(cut(b"nonsense"), None);
    }

    #[test]
    fn release_is_read_from_bzimage_and_elf() {
        let image = bzimage(b"x", 1);
        assert_eq!(release(&image).as_deref(), Some("7.2.12-x"));
        assert_eq!(release(&image[..SECTOR]), None);
        assert_eq!(release(b"nonsense"), None);
        assert_eq!(
            release_of_elf(&elf(b"Xen\0", 18)).as_deref(),
            Some("7.2.12+deb13-amd64")
        );
        assert_eq!(release_of_elf(b"Linux version 1"), None);
    }
}
