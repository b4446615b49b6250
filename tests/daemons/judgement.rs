//! Judges the result of a transfer by its status and by the part of the machine that is affected.

use anyhow::ensure;

/// The status of success.
const SUCCESS: u16 = 0;

/// The permitted outcomes other than success with the right data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Permitted {
    /// A status that is an error, because an affected part takes part in the transfer.
    pub(crate) errors: bool,
    /// Success with zeroes: the memory of a killed server, or of a client that has left, starts
    /// again as zeroes.
    pub(crate) zeroes: bool,
}

impl Permitted {
    /// Returns the permitted outcomes of a transfer that begins where `self` is, and ends where
    /// `end` is.
    pub(crate) fn or(self, end: Self) -> Self {
        Self {
            errors: self.errors || end.errors,
            zeroes: self.zeroes || end.zeroes,
        }
    }

    /// Returns `true` if a command has succeeded, or an error if it must not fail.
    pub(crate) fn is_success(self, status: u16) -> anyhow::Result<bool> {
        let is_success = status == SUCCESS;
        ensure!(is_success || self.errors, "a command ends with {status:#x}");
        Ok(is_success)
    }

    /// Returns the possible stamps of a block after a Write of `stamp` with this status, and after
    /// a Flush. `before` are the possible ones before.
    pub(crate) fn stamps_after_write(
        self,
        status: u16,
        before: &[u64],
        stamp: u64,
    ) -> anyhow::Result<Vec<u64>> {
        let mut stamps = vec![stamp];
        if !self.is_success(status)? {
            stamps.extend(before);
        }
        if self.zeroes {
            stamps.push(0);
        }
        Ok(stamps)
    }

    /// Returns `true` if the data of a successful transfer is `expected`, or an error if it is
    /// anything else than permitted zeroes.
    pub(crate) fn is_right(self, found: &[u8], expected: &[u8]) -> anyhow::Result<bool> {
        let is_right = found == expected;
        let is_zeroed = |(found, expected): (&u8, &u8)| *found == 0 || found == expected;
        let is_zeroed = self.zeroes
            && found.len() == expected.len()
            && found.iter().zip(expected).all(is_zeroed);
        ensure!(is_right || is_zeroed, "success with wrong data");
        Ok(is_right)
    }
}

#[cfg(test)]
mod tests {
    use super::Permitted;
    use crate::memory::block;

    const ERROR: u16 = 0x004;
    const NONE: Permitted = Permitted {
        errors: false,
        zeroes: false,
    };
    const ERRORS: Permitted = Permitted {
        errors: true,
        zeroes: false,
    };
    const ZEROES: Permitted = Permitted {
        errors: true,
        zeroes: true,
    };

    #[test]
    fn read_that_lies_about_success_is_found() {
        let (right, foreign) = (block(7), block(6));
        for permitted in [NONE, ERRORS, ZEROES] {
            assert!(permitted.is_right(&right, &right).unwrap());
            permitted.is_right(&foreign, &right).unwrap_err();
        }
        let zeroed = [&right[..2048], &[0; 2048]].concat();
        NONE.is_right(&zeroed, &right).unwrap_err();
        ERRORS.is_right(&zeroed, &right).unwrap_err();
        assert!(!ZEROES.is_right(&zeroed, &right).unwrap());
    }

    #[test]
    fn write_that_succeeds_may_not_leave_old_data() {
        let after = |permitted: Permitted, status| permitted.stamps_after_write(status, &[3], 7);
        assert_eq!(after(NONE, 0).unwrap(), [7]);
        assert_eq!(after(ERRORS, 0).unwrap(), [7]);
        assert_eq!(after(ZEROES, 0).unwrap(), [7, 0]);
        assert_eq!(after(ERRORS, ERROR).unwrap(), [7, 3]);
        assert_eq!(after(ZEROES, ERROR).unwrap(), [7, 3, 0]);
    }

    #[test]
    fn error_is_permitted_only_to_affected_transfers() {
        NONE.is_success(ERROR).unwrap_err();
        NONE.stamps_after_write(ERROR, &[3], 7).unwrap_err();
        assert!(!ERRORS.is_success(ERROR).unwrap());
        assert_eq!(NONE.or(ERRORS), ERRORS);
        assert_eq!(ZEROES.or(NONE), ZEROES);
    }
}
