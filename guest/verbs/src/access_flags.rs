//! Rights to a memory region.

use std::ops::BitOr;

/// Rights to a memory region (libibverbs, `enum ibv_access_flags`). Reading by the region's own adapter is always permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFlags(libc::c_int);

impl AccessFlags {
    /// No rights: its own adapter may only read it.
    pub const LOCAL_READ: Self = Self(0);
    /// Its own adapter may write it: receives, and the results of RDMA reads.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Others may write it by RDMA, which also requires [`AccessFlags::LOCAL_WRITE`].
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Others may read it by RDMA.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// All of these.
    pub const ALL: Self = Self(0b111);

    /// Returns the flags in the library's form.
    pub(crate) fn bits(self) -> libc::c_int {
        self.0
    }
}

impl BitOr for AccessFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rights_are_the_sum_of_each() {
        let sum = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        assert_eq!(sum | AccessFlags::LOCAL_READ, AccessFlags::ALL);
        assert_eq!(AccessFlags::ALL.bits(), 7);
    }
}
