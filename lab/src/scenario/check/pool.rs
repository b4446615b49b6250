//! Buffers of a check in p2pmem: the pool must be able to hold them.

use peerbar_report::Buffer;

use super::Devices;
use crate::size::Size;

/// Most that Linux takes of a CMB for one submission queue: `io_queue_depth` entries, 1024 unless set, of 64 bytes.
const QUEUE: u64 = 64 << 10;

/// Checks that `threads` buffers of each the largest of `sizes` fit the p2pmem that they are to lie in.
pub(super) fn holds(
    buffer: &Buffer,
    sizes: &[u64],
    threads: u32,
    devices: &Devices<'_>,
) -> Result<(), String> {
    let Buffer::P2pmem(name) = buffer else {
        return Ok(());
    };
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let needed = largest.saturating_mul(threads.into());
    let (pool, queues) = pool(name, devices);
    if needed <= pool.saturating_sub(queues) {
        return Ok(());
    }
    let beside = match queues {
        0 => String::new(),
        queues => format!(", of which its queues may take {}", Size(queues)),
    };
    Err(format!(
        "{threads} x {} do not fit the p2pmem of `{name}`: it has {}{beside}",
        Size(largest),
        Size(pool)
    ))
}

/// Bytes of p2pmem that the device `name` has, and how many of them may be taken by queues, one for each processor.
fn pool(name: &str, devices: &Devices<'_>) -> (u64, u64) {
    if let Some(gpu) = devices.gpus.iter().find(|gpu| gpu.name == name) {
        return (gpu.aperture, 0);
    }
    let nvme = devices.nvmes.iter().find(|nvme| nvme.name == name);
    let queues = match nvme {
        Some(nvme) if nvme.cmb_queues => QUEUE * u64::from(devices.cpus),
        _ => 0,
    };
    (nvme.and_then(|nvme| nvme.cmb).unwrap_or(0), queues)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::scenario::Scenario;

    /// A scenario whose disk has a CMB of 2 MiB and whose only check, from line 15 on, is these lines.
    fn refused(queues: bool, check: &str) -> Option<String> {
        let text = format!(
            "name = \"x\"\n\n[[nvme]]\nname = \"d0\"\ncmb = \"2M\"\ncmb-queues = {queues}\n\
             namespaces = [{{ ram = \"64M\" }}]\n\n[[gpu]]\nname = \"g0\"\nvram = \"4M\"\n\n\
             [[check]]\nkind = {check}\n"
        );
        let parsed = Scenario::parse(Path::new("x.toml"), text);
        parsed.err().map(|error| error.to_string())
    }

    fn copy(provider: &str, size: &str, threads: u32) -> String {
        format!(
            "\"copy\"\nfrom = \"d0\"\nto = \"d0\"\nthrough = {{ p2pmem = \"{provider}\" }}\n\
             sizes = [\"4K\", \"{size}\"]\noffsets = [0]\nthreads = {threads}"
        )
    }

    #[test]
    fn each_thread_has_a_buffer() {
        assert_eq!(refused(false, &copy("d0", "2M", 1)), None);
        assert_eq!(refused(false, &copy("d0", "512K", 4)), None);
        let message = "x.toml:18: 2 x 2M do not fit the p2pmem of `d0`: it has 2M";
        assert_eq!(refused(false, &copy("d0", "2M", 2)).unwrap(), message);
        let message = "x.toml:18: 1 x 8M do not fit the p2pmem of `g0`: it has 4M";
        assert_eq!(refused(false, &copy("g0", "8M", 1)).unwrap(), message);
    }

    #[test]
    fn queues_have_their_room() {
        assert_eq!(refused(true, &copy("d0", "1920K", 1)), None);
        let message = "x.toml:18: 1 x 1924K do not fit the p2pmem of `d0`: it has 2M, of which its queues may take 128K";
        assert_eq!(refused(true, &copy("d0", "1924K", 1)).unwrap(), message);
    }

    #[test]
    fn a_copy_engine_is_no_exception() {
        let check = "\"gpu-copy\"\ngpu = \"g0\"\nwith = { p2pmem = \"d0\" }\nsizes = [\"4M\"]";
        let message = "x.toml:17: 1 x 4M do not fit the p2pmem of `d0`: it has 2M";
        assert_eq!(refused(false, check).unwrap(), message);
    }
}
