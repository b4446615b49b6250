//! `gpu-initiated`: reads that the GPU starts.

use toml::Spanned;

use super::{Keys, TableError, VfioBackend, check};

/// Commands in progress, if the table says nothing.
const DEPTH: u8 = 32;

check! {
    /// The GPU has a pair of queues of the disk in its memory and reads blocks by them: it writes the submission entries and the doorbells and
    /// polls the completions. A program of the guest, which has both devices by vfio-pci, makes the queues and puts one command on the GPU's
    /// channel. The counters must show that all commands came out of the GPU's memory, and every doorbell from the GPU; the same reads by the
    /// processor are timed beside it. Both devices use I/O addresses, so all goes through the root.
    "gpu-initiated": "{gpu} reads {disk} by itself, {depth} at a time"
    pub struct GpuInitiated {
        /// Name of a `[[gpu]]`. The contents of its memory are lost.
        pub gpu: String = Keys::gpu_with_p2pmem,
        /// Name of an `[[nvme]]`. Its data are lost.
        pub disk: String = Keys::disk_name,
        /// The most commands in progress, 1 to 255.
        #[default = "`32`"]
        #[serde(default = "default_depth")]
        pub depth: u8 = depth,
    }

    const ON_DEMAND: &'static [&'static str] = VfioBackend::DEBIAN_MODULES;

    fn modules_on_demand(&self) -> &'static [&'static str] {
        VfioBackend::Type1.modules()
    }
}

fn default_depth() -> u8 {
    DEPTH
}

fn depth(keys: &mut Keys<'_, '_>, key: &str) -> Result<u8, TableError> {
    let depth: Option<Spanned<u8>> = keys.optional(key)?;
    match depth {
        None => Ok(DEPTH),
        Some(depth) if *depth.get_ref() == 0 => {
            let message = "`depth` is 1 to 255: the most commands in progress";
            Err(TableError::new(depth.span(), message))
        }
        Some(depth) => Ok(depth.into_inner()),
    }
}
