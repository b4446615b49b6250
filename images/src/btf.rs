//! Facts about the kernel that the agent needs to watch it, from the kernel's debugging information
//! (BTF; Linux, `Documentation/bpf/btf.rst`). The guest's kernel could look them up itself, but
//! that is slow under emulation.

use crate::elf;

/// First two bytes of the information.
const MAGIC: u16 = 0xeb9f;
/// Bytes of a type before the part that depends on its kind.
const TYPE_SIZE: usize = 12;
const MEMBER_SIZE: usize = 12;
const PARAMETER_SIZE: usize = 8;

/// Kinds of types.
const STRUCT: u32 = 4;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const FUNCTION: u32 = 12;
const PROTOTYPE: u32 = 13;

/// The function that decides how one PCI function reaches another's memory (Linux,
/// drivers/pci/p2pdma.c).
const DECIDES: &str = "calc_map_type_and_dist";

/// Returns lines for the agent: `pci_dev.dev.kobj.name BYTES`, the offset of the pointer to its
/// name in a `pci_dev`; `provider N` and `client N`, the positions of these parameters of the
/// function that decides on peer-to-peer DMA. Facts that `kernel`, an ELF file, does not contain
/// are left out.
pub(crate) fn facts(kernel: &[u8]) -> String {
    let Some(btf) = elf::section(kernel, ".BTF").and_then(Btf::parse) else {
        return String::new();
    };
    [
        (
            "pci_dev.dev.kobj.name",
            btf.offset("pci_dev", &["dev", "kobj", "name"]),
        ),
        ("provider", btf.parameter(DECIDES, "provider")),
        ("client", btf.parameter(DECIDES, "client")),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(format!("{name} {}\n", value?)))
    .collect()
}

/// The types of a kernel, numbered from 1, and their names.
struct Btf<'a> {
    types: Vec<Type<'a>>,
    names: &'a [u8],
}

#[derive(Clone, Copy)]
struct Type<'a> {
    name: u32,
    kind: u32,
    /// Offsets of members share their word with the size of a bit field.
    bit_fields: bool,
    /// The type that this one refers to, if any.
    of: u32,
    /// Members, or parameters.
    parts: &'a [u8],
}

impl<'a> Btf<'a> {
    fn parse(section: &'a [u8]) -> Option<Self> {
        if section
            .first_chunk()
            .map(|bytes| u16::from_le_bytes(*bytes))
            != Some(MAGIC)
        {
            return None;
        }
        let subsection = |field: usize| {
            let start = word(section, 1)?.checked_add(word(section, field)?)?;
            let end = start.checked_add(word(section, field.checked_add(1)?)?)?;
            section.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
        };
        let (mut rest, names) = (subsection(2)?, subsection(4)?);
        let mut types = Vec::new();
        while !rest.is_empty() {
            let (one, next) = Type::parse(rest)?;
            types.push(one);
            rest = next;
        }
        Some(Self { types, names })
    }

    /// Returns the bytes from the start of the structure `name` to the member at the end of `path`.
    fn offset(&self, name: &str, path: &[&str]) -> Option<u32> {
        let mut at = *self.named(STRUCT, name)?;
        let mut bits = 0_u32;
        for member in path {
            let (offset, kind) = self.member(&at, member)?;
            bits = bits.checked_add(offset)?;
            at = self.plain(kind)?;
        }
        (bits % 8 == 0).then_some(bits / 8)
    }

    /// Returns the number of the parameter of `function` with this name; the first is 1.
    fn parameter(&self, function: &str, name: &str) -> Option<u32> {
        let prototype = self.numbered(self.named(FUNCTION, function)?.of)?;
        if prototype.kind != PROTOTYPE {
            return None;
        }
        let mut parameters = prototype.parts.chunks_exact(PARAMETER_SIZE);
        let index = parameters.position(|parameter| self.is_named(word(parameter, 0), name))?;
        u32::try_from(index.checked_add(1)?).ok()
    }

    /// Returns the bits from the start of the structure `of` to its member `name`, and the number
    /// of the member's type.
    fn member(&self, of: &Type<'_>, name: &str) -> Option<(u32, u32)> {
        if of.kind != STRUCT {
            return None;
        }
        let mut members = of.parts.chunks_exact(MEMBER_SIZE);
        let member = members.find(|member| self.is_named(word(member, 0), name))?;
        let mask = if of.bit_fields { 0xff_ffff } else { u32::MAX };
        Some((word(member, 2)? & mask, word(member, 1)?))
    }

    /// Returns the type with this number, without typedefs and qualifiers.
    fn plain(&self, number: u32) -> Option<Type<'a>> {
        let mut found = self.numbered(number)?;
        // At most one step for each type, since broken types may form a cycle.
        for _ in &self.types {
            match found.kind {
                TYPEDEF | VOLATILE | CONST => found = self.numbered(found.of)?,
                _ => return Some(found),
            }
        }
        None
    }

    fn numbered(&self, number: u32) -> Option<Type<'a>> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.types.get(index).copied()
    }

    fn named(&self, kind: u32, name: &str) -> Option<&Type<'a>> {
        let mut types = self.types.iter();
        types.find(|one| one.kind == kind && self.is_named(Some(one.name), name))
    }

    fn is_named(&self, at: Option<u32>, name: &str) -> bool {
        let found = at
            .and_then(|at| usize::try_from(at).ok())
            .and_then(|at| self.names.get(at..)?.strip_prefix(name.as_bytes()));
        found.is_some_and(|end| end.first() == Some(&0))
    }
}

impl<'a> Type<'a> {
    /// Returns the type at the start of `bytes`, and the rest.
    fn parse(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (name, info, of) = (word(bytes, 0)?, word(bytes, 1)?, word(bytes, 2)?);
        let kind = info >> 24 & 0x1f;
        let count = usize::try_from(info & 0xffff).ok()?;
        let size = match kind {
            // Pointers, forward declarations, qualifiers, functions, floats, tags of types.
            2 | 7 | TYPEDEF | VOLATILE | CONST | 11 | FUNCTION | 16 | 18 => 0,
            // Integers, variables, tags of declarations.
            1 | 14 | 17 => 4,
            // Arrays.
            3 => 12,
            // Structures, unions, sections, large enumerations.
            STRUCT | 5 | 15 | 19 => MEMBER_SIZE.checked_mul(count)?,
            // Enumerations, prototypes.
            6 | PROTOTYPE => PARAMETER_SIZE.checked_mul(count)?,
            _ => return None,
        };
        let (parts, rest) = bytes.get(TYPE_SIZE..)?.split_at_checked(size)?;
        let bit_fields = info >> 31 == 1;
        let one = Self {
            name,
            kind,
            bit_fields,
            of,
            parts,
        };
        Some((one, rest))
    }
}

/// Returns the 32-bit word with this number in `bytes`.
fn word(bytes: &[u8], number: usize) -> Option<u32> {
    let bytes = bytes.get(number.checked_mul(4)?..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::tests::with_section;

    const NAMES: &str =
        "\0pci_dev\0dev\0device\0kobj\0kobject\0name\0provider\0client\0calc_map_type_and_dist\0";

    fn at(name: &str) -> u32 {
        let offset = NAMES.find(&format!("\0{name}\0")).unwrap() + 1;
        u32::try_from(offset).unwrap()
    }

    fn one(name: u32, kind: u32, flag: bool, of: u32, parts: &[[u32; 3]]) -> Vec<u32> {
        let info = u32::from(flag) << 31 | kind << 24 | u32::try_from(parts.len()).unwrap();
        [vec![name, info, of], parts.concat()].concat()
    }

    /// Returns a kernel whose `pci_dev` has its device, of the type with this number, 16 bytes from
    /// its start.
    fn kernel(device: u32) -> Vec<u8> {
        let parameters = [at("client"), 0, at("provider"), 0];
        let types = [
            one(
                at("device"),
                STRUCT,
                false,
                40,
                &[[at("name"), 6, 0], [at("kobj"), 5, 64]],
            ),
            one(0, CONST, false, 1, &[]),
            one(at("device"), TYPEDEF, false, 2, &[]),
            one(
                at("pci_dev"),
                STRUCT,
                true,
                64,
                &[[at("name"), 6, 0], [at("dev"), device, 1 << 24 | 128]],
            ),
            one(at("kobject"), STRUCT, false, 8, &[[at("name"), 6, 32]]),
            one(0, 2, false, 0, &[]),
            [vec![0, PROTOTYPE << 24 | 2, 0], parameters.to_vec()].concat(),
            one(at(DECIDES), FUNCTION, false, 7, &[]),
        ]
        .concat();
        let words = |words: &[u32]| {
            words
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let size = u32::try_from(types.len() * 4).unwrap();
        let header = [
            u32::from(MAGIC) | 1 << 16,
            24,
            0,
            size,
            size,
            u32::try_from(NAMES.len()).unwrap(),
        ];
        let section = [words(&header), words(&types), NAMES.as_bytes().to_vec()].concat();
        with_section(".BTF", &section)
    }

    #[test]
    fn member_is_found_through_structures_and_typedefs() {
        let expected = "pci_dev.dev.kobj.name 28\nprovider 2\nclient 1\n";
        for device in [1, 2, 3] {
            assert_eq!(facts(&kernel(device)), expected);
        }
    }

    #[test]
    fn facts_that_a_kernel_lacks_are_left_out() {
        for device in [0, 4, 5, 6, 9, u32::MAX] {
            assert_eq!(facts(&kernel(device)), "provider 2\nclient 1\n", "{device}");
        }
        assert_eq!(facts(b"no kernel"), "");
        let whole = kernel(1);
        let section = elf::section(&whole, ".BTF").unwrap();
        for end in 0..section.len() {
            assert_eq!(facts(&with_section(".BTF", &section[..end])), "");
        }
    }
}
