//! Asynchronous events: dword 0 of the completion of an Asynchronous Event Request (NVMe Base 2.0,
//! 5.2.1).

use bitfield_struct::bitfield;

use crate::log::lid;

/// Dword 0 of the completion of an Asynchronous Event Request (NVMe Base 2.0, 5.2.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEvent {
    /// Asynchronous Event Type, one of [`kind`].
    #[bits(3)]
    pub kind: u8,
    #[bits(5)]
    __: u8,
    /// Asynchronous Event Information: the event within its type.
    pub info: u8,
    /// Log Page Identifier: the page whose reading clears the event.
    pub lid: u8,
    __: u8,
}

/// Asynchronous Event Types (NVMe Base 2.0, 5.2.1).
pub mod kind {
    /// Error status.
    pub const ERROR: u8 = 0;
    /// SMART / Health status.
    pub const SMART: u8 = 1;
    /// Notice.
    pub const NOTICE: u8 = 2;
    /// I/O command specific status.
    pub const IO: u8 = 6;
}

const fn event(kind: u8, info: u8, lid: u8) -> AsyncEvent {
    AsyncEvent::new()
        .with_kind(kind)
        .with_info(info)
        .with_lid(lid)
}

impl AsyncEvent {
    /// The host wrote a doorbell of a queue that does not exist.
    pub const INVALID_DOORBELL_REGISTER: Self = event(kind::ERROR, 0x00, lid::ERROR);
    /// The host set a doorbell beyond its queue, or to its previous value.
    pub const INVALID_DOORBELL_VALUE: Self = event(kind::ERROR, 0x01, lid::ERROR);
    /// The NVM subsystem is less reliable than it was.
    pub const RELIABILITY_DEGRADED: Self = event(kind::SMART, 0x00, lid::SMART);
    /// A temperature is beyond its threshold.
    pub const TEMPERATURE_THRESHOLD: Self = event(kind::SMART, 0x01, lid::SMART);
    /// A sanitize operation has completed.
    pub const SANITIZE_COMPLETED: Self = event(kind::IO, 0x01, lid::SANITIZE_STATUS);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns type, information and log page, extracted from the dword as in Linux's
    /// `nvme_complete_async_event`.
    fn as_linux_sees_it(event: AsyncEvent) -> (u32, u32, u32) {
        let result = event.into_bits();
        (result & 0x07, (result & 0xff00) >> 8, (result >> 16) & 0xff)
    }

    #[test]
    fn kinds_are_linux_nvme_aer() {
        assert_eq!(kind::ERROR, 0); // NVME_AER_ERROR
        assert_eq!(kind::SMART, 1); // NVME_AER_SMART
        assert_eq!(kind::NOTICE, 2); // NVME_AER_NOTICE
    }

    #[test]
    fn events_are_linux_nvme_aer() {
        let expected = [
            // libnvme NVME_AER_ERROR_INVALID_DB_REG and the one after it; NVME_LOG_ERROR is 1
            (AsyncEvent::INVALID_DOORBELL_REGISTER, (0, 0x00, 1)),
            (AsyncEvent::INVALID_DOORBELL_VALUE, (0, 0x01, 1)),
            // libnvme NVME_AER_SMART_SUBSYSTEM_RELIABILITY
            (AsyncEvent::RELIABILITY_DEGRADED, (1, 0x00, 2)),
            // libnvme NVME_AER_SMART_TEMPERATURE_THRESHOLD; NVME_LOG_SMART is 2
            (AsyncEvent::TEMPERATURE_THRESHOLD, (1, 0x01, 2)),
            // SPDK_NVME_ASYNC_EVENT_SANITIZE_COMPLETED of SPDK_NVME_ASYNC_EVENT_TYPE_IO
            (AsyncEvent::SANITIZE_COMPLETED, (6, 0x01, 0x81)),
        ];
        for (event, seen) in expected {
            assert_eq!(as_linux_sees_it(event), seen, "{event:?}");
        }
    }
}
