//! `nvme-queue-requests`: random requests to `/dev/peerbar-nvme-queues`.

use super::gpu_beside_nvme::{GpuBesideNvme, with_spare_queues};
use super::{Keys, check};

check! {
    /// Three threads make random requests to the module that gives a GPU queues of a disk that Linux' nvme keeps, most of them nearly
    /// right, on files, buffers and queues that come and go, while memory is revoked and the disk is reset. The kernel must not complain,
    /// and afterwards all memory and all queues can be had, and Linux reads the disk.
    "nvme-queue-requests": "{requests} random requests for queues of {disk} in memory of {gpu}, seed {seed}"
    pub struct NvmeQueueRequests {
        /// Name of a `[[gpu]]`.
        pub gpu: String = Keys::gpu_name,
        /// Name of an `[[nvme]]` with `spare-queues`.
        pub disk: String = with_spare_queues,
        /// How many requests.
        pub requests: u32 = Keys::number,
        /// What they are made of: the same seed makes the same requests, if not at the same time.
        pub seed: u32 = Keys::number,
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        &[GpuBesideNvme::MODULE]
    }
}
