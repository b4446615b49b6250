//! ELF files for x86-64.

use object::LittleEndian;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader};

/// Returns the contents of section `name` of `file`, or `None` if there is no such section, or if
/// `file` is not an ELF file.
pub(crate) fn section<'a>(file: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let header = FileHeader64::<LittleEndian>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, file).ok()?;
    let (_, section) = sections.section_by_name(endian, name.as_bytes())?;
    section.data(endian, file).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns an ELF file with only one section.
    pub(crate) fn with_section(name: &str, content: &[u8]) -> Vec<u8> {
        let names = format!("\0{name}\0.shstrtab\0");
        let content_at = 64_u64;
        let names_at = content_at + content.len() as u64;
        let sections_at = names_at + names.len() as u64;
        let section = |name: u32, kind: u32, at: u64, size: usize| {
            let mut header = [name, kind].map(u32::to_le_bytes).concat();
            header.extend([0, 0, at, size as u64].map(u64::to_le_bytes).concat());
            header.extend([0; 24]);
            header
        };
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend([1, 0, 62, 0, 1, 0, 0, 0]);
        file.extend([0, 0, sections_at].map(u64::to_le_bytes).concat());
        file.extend([0, 0, 0, 0, 64, 0, 0, 0, 0, 0, 64, 0, 3, 0, 2, 0]);
        file.extend(content);
        file.extend(names.as_bytes());
        file.extend(section(0, 0, 0, 0));
        file.extend(section(1, 1, content_at, content.len()));
        let own_name = u32::try_from(name.len() + 2).unwrap();
        file.extend(section(own_name, 3, names_at, names.len()));
        file
    }

    #[test]
    fn section_is_found_by_name() {
        let file = with_section(".BTF", b"abc");
        assert_eq!(section(&file, ".BTF"), Some(b"abc".as_slice()));
        assert_eq!(section(&file, ".modinfo"), None);
        for end in 0..file.len() {
            assert_eq!(section(&file[..end], ".BTF"), None);
        }
    }
}
