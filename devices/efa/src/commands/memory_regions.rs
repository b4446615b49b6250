//! Memory regions.

use peerbar_efa_spec::admin::Status;
use peerbar_efa_spec::admin::memory_region::{
    AllocMr, AllocatedMr, DeregMr, Permissions, RegMr, RegisteredMr,
};

use super::page_list::PageListReader;
use super::{DONE, answer, possible, reserved};
use crate::admin_queue::{Answer, Command};
use crate::engine::Engine;
use crate::limits;
use crate::objects::{self, RegisterRegion, VerbsAccess};

impl Engine {
    pub(super) fn register_region(&mut self, command: &Command) -> Result<Answer, Status> {
        let parameters = command.view::<RegMr>()?;
        let permissions = parameters.permissions;
        reserved(!parameters.flags.reserved() && permissions.reserved() == 0)?;
        // Only privileged clients may register physical memory, and there are no such clients.
        possible(!parameters.flags.physical())?;
        let count = page_count(&parameters)?;
        let reader = PageListReader::new(&self.requester, command.origin());
        let pages = reader.read(command.flags, &parameters, count)?;
        let keys = self.data.objects().register_region(RegisterRegion {
            protection_domain: parameters.pd.get(),
            address: parameters.iova.get(),
            length: parameters.length.get(),
            page_shift: parameters.flags.page_shift(),
            pages: &pages,
            access: permissions.into(),
        })?;
        Ok(answer(&RegisteredMr {
            local_key: keys.local.into(),
            remote_key: keys.remote.into(),
            // There is only one interconnect, so the answer names none.
            validity: 0,
            receive_interconnect: 0,
            read_interconnect: 0,
            write_interconnect: 0,
        }))
    }

    /// Allocates a region without memory, which work requests add later. No Linux driver uses this.
    pub(super) fn allocate_region(&mut self, command: &Command) -> Result<Answer, Status> {
        let parameters = command.view::<AllocMr>()?;
        reserved(parameters.reserved.get() == 0)?;
        let max_pages = usize::try_from(parameters.max_pages.get()).unwrap_or(usize::MAX);
        let mut objects = self.data.objects();
        let keys = objects.allocate_region(parameters.pd.get(), max_pages)?;
        Ok(answer(&AllocatedMr {
            local_key: keys.local.into(),
            remote_key: keys.remote.into(),
        }))
    }

    pub(super) fn deregister_region(&mut self, command: &Command) -> Result<Answer, Status> {
        let key = command.view::<DeregMr>()?.local_key.get();
        self.data.objects().deregister_region(key)?;
        Ok(DONE)
    }
}

impl From<Permissions> for VerbsAccess {
    fn from(permissions: Permissions) -> Self {
        Self {
            local_write: permissions.local_write(),
            remote_write: permissions.remote_write(),
            remote_read: permissions.remote_read(),
        }
    }
}

/// Returns the number of pages of a region, from its address and length.
fn page_count(parameters: &RegMr) -> Result<usize, Status> {
    let shift = parameters.flags.page_shift();
    let (iova, length) = (parameters.iova.get(), parameters.length.get());
    let count = objects::page_count(iova, length, shift);
    let count = count.filter(|count| *count <= limits::PAGES_PER_REGION);
    let count = count.ok_or(Status::IllegalParameter)?;
    // Linux' driver lets the device count the pages.
    let given = parameters.pages.get();
    possible(given == 0 || u32::try_from(count) == Ok(given))?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use peerbar_efa_spec::admin::memory_region::RegMrFlags;
    use zerocopy::FromZeros;

    use super::*;

    fn region(iova: u64, length: u64, shift: u8) -> RegMr {
        let mut region = RegMr::new_zeroed();
        region.iova = iova.into();
        region.length = length.into();
        region.flags = RegMrFlags::new().with_page_shift(shift);
        region
    }

    #[test]
    fn pages_are_counted_from_the_first_to_the_last_byte() {
        for (iova, length, count) in [
            (0, 1, 1),
            (0xfff, 2, 2),
            (0x1000, 0x1000, 1),
            (0x1001, 0x1000, 2),
            (u64::MAX, 1, 1),
        ] {
            let region = region(iova, length, 12);
            assert_eq!(page_count(&region), Ok(count), "{iova:#x}+{length:#x}");
        }
    }

    #[test]
    fn impossible_regions_are_refused() {
        let most = (limits::PAGES_PER_REGION as u64) << 12;
        assert_eq!(
            page_count(&region(0, most, 12)),
            Ok(limits::PAGES_PER_REGION)
        );
        for (iova, length, shift) in [
            (0, 0, 12),
            (0, 1, 11),
            (0, 1, 63),
            (0, most + 1, 12),
            (0xfff, u64::MAX, 12),
        ] {
            let refused = page_count(&region(iova, length, shift));
            assert_eq!(
                refused,
                Err(Status::IllegalParameter),
                "{length:#x}, {shift}"
            );
        }
        let mut wrong = region(0, 1, 12);
        wrong.pages = 2.into();
        assert_eq!(page_count(&wrong), Err(Status::IllegalParameter));
    }
}
