//! Commands that are outstanding on a queue, by their identifiers.

/// Most commands outstanding on a queue of 64 entries, since a queue that is full looks empty (NVMe Base 2.0, 3.3.1.5).
pub(crate) const DEPTH: usize = 63;

/// The opcodes of the outstanding commands, by CID.
#[derive(Debug)]
pub(crate) struct Outstanding([Option<u8>; DEPTH]);

impl Outstanding {
    pub(crate) fn new() -> Self {
        Self([None; DEPTH])
    }

    /// A CID for a new command; none if all are in use.
    pub(crate) fn begin(&mut self, opcode: u8) -> Option<u16> {
        let (cid, slot) = (0..).zip(&mut self.0).find(|(_, slot)| slot.is_none())?;
        *slot = Some(opcode);
        Some(cid)
    }

    /// Ends the command `cid`; returns its opcode, and none if no such command is outstanding: a controller may say anything.
    pub(crate) fn end(&mut self, cid: u16) -> Option<u8> {
        self.0.get_mut(usize::from(cid))?.take()
    }

    /// How many are outstanding.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// The opcode of one of them.
    pub(crate) fn any_opcode(&self) -> Option<u8> {
        self.0.iter().flatten().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifier_is_used_once_until_its_command_ends() {
        let mut commands = Outstanding::new();
        let cids: Vec<u16> = std::iter::from_fn(|| commands.begin(2)).collect();
        assert_eq!(cids.len(), DEPTH);
        assert_eq!((cids[0], cids[62]), (0, 62));
        assert_eq!(commands.end(7), Some(2));
        assert_eq!((commands.count(), commands.begin(1)), (62, Some(7)));
    }

    #[test]
    fn completion_of_no_command_is_noticed() {
        let mut commands = Outstanding::new();
        let cid = commands.begin(1).unwrap();
        assert_eq!(commands.any_opcode(), Some(1));
        assert_eq!(commands.end(cid), Some(1));
        for stranger in [cid, 63, u16::MAX] {
            assert_eq!(commands.end(stranger), None, "{stranger}");
        }
        assert_eq!((commands.count(), commands.any_opcode()), (0, None));
    }
}
