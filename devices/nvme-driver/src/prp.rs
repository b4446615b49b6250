//! PRP entries of a command (NVMe Base 2.0, 4.1.1).

use std::io;

use crate::access::DmaMemory;

/// Bytes of a memory page (CC.MPS is 0).
pub const PAGE: u64 = 4096;

/// Returns the PRP entries of a command whose data lies in `pages`, each except the first at the
/// start of its page. More than two pages need a list, which is written at the address that `list`
/// returns, one page for up to 513 pages of data.
pub fn prps<E: From<io::Error>>(
    pages: &[u64],
    memory: &impl DmaMemory,
    list: impl FnOnce() -> Result<u64, E>,
) -> Result<[u64; 2], E> {
    match pages {
        [] => Ok([0, 0]),
        [only] => Ok([*only, 0]),
        [first, second] => Ok([*first, *second]),
        [first, rest @ ..] => {
            let list = list()?;
            let entries: Vec<u8> = rest.iter().flat_map(|page| page.to_le_bytes()).collect();
            memory.write(list, &entries)?;
            Ok([*first, list])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doorbell::tests::Bytes;

    #[test]
    fn prps_of_three_pages_take_a_list() {
        let memory = Bytes::new();
        let list = || Ok::<_, io::Error>(0x1000);
        let of = |pages: &[u64]| prps(pages, &memory, list).unwrap();
        assert_eq!(of(&[]), [0, 0]);
        assert_eq!(of(&[0x5000]), [0x5000, 0]);
        assert_eq!(of(&[0x5010, 0x7000]), [0x5010, 0x7000]);
        assert_eq!(memory.load64(0x1000).unwrap(), 0, "no list so far");
        assert_eq!(of(&[0x5010, 0x7000, 0x9000]), [0x5010, 0x1000]);
        let entries = [0x1000, 0x1008].map(|at| memory.load64(at).unwrap());
        assert_eq!(entries, [0x7000, 0x9000]);
    }
}
