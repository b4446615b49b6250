//! The outstanding commands of a queue, by their identifiers.
//!
//! An identifier is a slot and the number of uses of the slot. A completion that arrives twice, or
//! too late, is therefore not mistaken for that of a later command in the same slot.

/// Maximum number of outstanding commands on a queue of 64 entries, since a full queue would look
/// empty (NVMe Base 2.0, 3.3.1.5).
pub(crate) const DEPTH: usize = 63;

/// Bits of an identifier for the slot. The bits above are the number of uses.
const SLOT_BITS: u32 = 6;

/// The outstanding commands.
#[derive(Debug)]
pub(crate) struct Outstanding([Slot; DEPTH]);

/// A slot for one command.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Identifier of its latest command, if there was one.
    cid: u16,
    /// Opcode of the outstanding command.
    opcode: Option<u8>,
}

impl Outstanding {
    pub(crate) fn new() -> Self {
        let mut slots = [Slot {
            cid: 0,
            opcode: None,
        }; DEPTH];
        for (cid, slot) in (0..).zip(&mut slots) {
            slot.cid = cid;
        }
        Self(slots)
    }

    /// Returns a CID for a new command, or `None` if all slots are in use. A slot has the same CID
    /// again after 1024 of its commands.
    pub(crate) fn begin(&mut self, opcode: u8) -> Option<u16> {
        let slot = self.0.iter_mut().find(|slot| slot.opcode.is_none())?;
        slot.cid = slot.cid.wrapping_add(1 << SLOT_BITS);
        slot.opcode = Some(opcode);
        Some(slot.cid)
    }

    /// Ends the command `cid`. Returns its opcode, or `None` if no such command is outstanding: a
    /// controller may send anything.
    pub(crate) fn end(&mut self, cid: u16) -> Option<u8> {
        let slot = self.0.get_mut(usize::from(slot_of(cid)))?;
        match slot.cid == cid {
            true => slot.opcode.take(),
            false => None,
        }
    }

    /// Returns the number of outstanding commands.
    pub(crate) fn count(&self) -> usize {
        self.opcodes().count()
    }

    /// Returns the opcode of one of them.
    pub(crate) fn any_opcode(&self) -> Option<u8> {
        self.opcodes().next()
    }

    fn opcodes(&self) -> impl Iterator<Item = u8> {
        self.0.iter().filter_map(|slot| slot.opcode)
    }
}

/// Returns the slot of a command: below 64, and below [`DEPTH`] for commands of this driver.
pub(crate) fn slot_of(cid: u16) -> u16 {
    cid & ((1 << SLOT_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_used_once_until_its_command_ends() {
        let mut commands = Outstanding::new();
        let cids: Vec<u16> = std::iter::from_fn(|| commands.begin(2)).collect();
        assert_eq!(cids.len(), DEPTH);
        let slots: Vec<u16> = cids.iter().map(|cid| slot_of(*cid)).collect();
        assert_eq!(slots, (0..63).collect::<Vec<_>>());
        assert_eq!(commands.end(cids[7]), Some(2));
        assert_eq!(commands.begin(1).map(slot_of), Some(7));
        assert_eq!(commands.count(), DEPTH);
    }

    #[test]
    fn completion_of_no_command_is_a_stranger() {
        let mut commands = Outstanding::new();
        let cid = commands.begin(1).unwrap();
        assert_eq!(commands.any_opcode(), Some(1));
        for stranger in [0, 1, 63, u16::MAX] {
            assert_eq!(commands.end(stranger), None, "{stranger}");
        }
        assert_eq!(commands.end(cid), Some(1));
        assert_eq!(commands.end(cid), None);
        assert_eq!((commands.count(), commands.any_opcode()), (0, None));
    }

    #[test]
    fn completion_of_a_former_command_is_a_stranger() {
        let mut commands = Outstanding::new();
        let first = commands.begin(1).unwrap();
        assert_eq!(commands.end(first), Some(1));
        for _ in 1..1024 {
            let next = commands.begin(2).unwrap();
            assert_eq!(commands.end(first), None);
            assert_eq!(commands.end(next), Some(2));
        }
        assert_eq!(commands.begin(2), Some(first));
    }
}
