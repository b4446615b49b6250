//! What the launcher asks of the agent.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::gpu::{Gpu, GpuCopy, GpuFile};
use crate::probe::Probe;

/// Everything that the agent is asked to do in one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Modules to load before the first check, in order; their dependencies come by themselves.
    pub modules: Vec<Module>,
    /// The devices under test; the agent waits until the guest's kernel shows all of them.
    pub devices: Vec<Device>,
    /// The GPUs under test, waited for like the devices.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// Whether all devices are below one switch, which routes between them: what one does with another's memory never
    /// goes up to the root.
    #[serde(default)]
    pub one_switch: bool,
    /// Whether a read-only tools root is exported over 9p under the tag [`Plan::TOOLS_TAG`].
    pub tools: bool,
    /// Seconds after which a check that has not ended counts as hung.
    #[serde(default = "default_check_seconds")]
    pub check_seconds: u32,
    /// The checks, in order.
    pub checks: Vec<Check>,
}

impl Plan {
    /// 9p mount tag of the tools root.
    pub const TOOLS_TAG: &str = "tools";

    /// [`Plan::check_seconds`] where nobody says otherwise.
    pub const CHECK_SECONDS: u32 = 60;
}

fn default_check_seconds() -> u32 {
    Plan::CHECK_SECONDS
}

/// A kernel module and its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Module {
    /// Name, as in `/proc/modules`.
    pub name: String,
    /// Parameters, as on `insmod`'s command line: `use_cmb_sqes=0`.
    #[serde(default)]
    pub parameters: String,
}

/// An NVMe controller under test, known to the guest by its serial number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name in the scenario, and serial number of the controller.
    pub name: String,
    /// Size of its Controller Memory Buffer in bytes, 0 if it has none.
    pub cmb_bytes: u64,
}

/// One check. A scenario file's `[[check]]` table is one of these, told apart by `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Check {
    /// `device` has published its whole CMB, or aperture, as p2pmem: sysfs `p2pmem/{size,published,available}`.
    Provider {
        /// A device's or GPU's name.
        device: String,
    },
    /// The submission queues of `device` lie in its CMB: submission entries were fetched from own memory during
    /// some I/O, and none of the I/O queues' from guest RAM.
    QueuesInCmb {
        /// A device's name.
        device: String,
    },
    /// Copies between two devices and compares the contents.
    Copy(Copy),
    /// A buffered read of `from` into p2pmem of `provider`: right data, and no byte of payload goes peer to peer.
    BufferedRead {
        /// The disk that is read.
        from: String,
        /// The device whose p2pmem is the destination.
        provider: String,
    },
    /// An mmap of more than the pool of `provider` holds fails with ENOMEM when it is touched by I/O or mapped.
    PoolExhausted {
        /// A device's name.
        provider: String,
    },
    /// Tries out peer-to-peer DMA between two devices and reports what became of it.
    Probe(Probe),
    /// Resets the controller through sysfs and waits until it is live again; p2pmem is still there.
    ControllerReset {
        /// A device's name.
        device: String,
    },
    /// Runs a command of the tools root.
    Command(Command),
    /// Data goes from disks to GPU memory, is verified there, and goes back.
    GpuFile(GpuFile),
    /// A read of `disk` into memory of `gpu` that starts and ends within a block is refused with the reason; where a
    /// bounce is allowed it is done, and what bounced is counted to the byte.
    GpuUnaligned {
        /// A GPU's name.
        gpu: String,
        /// A device's name.
        disk: String,
    },
    /// A batch of reads and writes, and a queue of them, between `disk` and memory of `gpu`: each entry has an outcome of its
    /// own, whatever becomes of the others.
    GpuBatch {
        /// A GPU's name.
        gpu: String,
        /// A device's name.
        disk: String,
    },
    /// The kernel has no way from `disk` to memory of `gpu`: transfers are refused with the reason, and where a bounce is
    /// allowed all of them bounces.
    GpuRefused {
        /// A GPU's name.
        gpu: String,
        /// A device's name.
        disk: String,
    },
    /// Two vectors of `from` go through every kernel of `gpu`, in launches of many shapes, and what comes out goes to `to`: no
    /// byte of it is in guest RAM.
    GpuCompute {
        /// A GPU's name.
        gpu: String,
        /// The disk that is read.
        from: String,
        /// The disk that is written.
        to: String,
    },
    /// The threads of a launch add to one counter in guest RAM, and none of them is lost.
    GpuAtomics {
        /// A GPU's name.
        gpu: String,
    },
    /// The GPU's copy engine copies from its memory to another's and back.
    GpuCopy(GpuCopy),
    /// The GPU's copy engine reads and writes memory that somebody else has exported as a dma-buf: a program's, or, in a
    /// guest with an IOMMU, the aperture of another GPU, which vfio-pci has meanwhile.
    GpuDmaBuf {
        /// A GPU's name.
        gpu: String,
        /// Whose memory.
        with: Buffer,
    },
    /// The GPU and the guest's virtio-gpu lend memory to each other as dma-bufs, where the kernel lets them.
    GpuVirtio {
        /// A GPU's name.
        gpu: String,
    },
    /// A program and a driver that misbehave, each on a channel of its own, get an error, an interrupt and a record; other
    /// channels go on. Not behind an IOMMU, whose own driver would complain.
    GpuFaults {
        /// A GPU's name.
        gpu: String,
    },
    /// VRAM that the aperture of `gpu` does not show is reached: through a window that is moved to it, or by commands.
    GpuBeyondAperture {
        /// A GPU's name.
        gpu: String,
    },
    /// The processor loads from GPU memory and stores to it through mappings, which outlive what they are made of.
    GpuMapping {
        /// A GPU's name.
        gpu: String,
    },
    /// Another driver pins GPU memory, transfers between it and a disk, and loses it, in each order of events.
    GpuPins {
        /// A GPU's name.
        gpu: String,
        /// A device's name.
        disk: String,
    },
    /// Processes that use the GPU while a disk writes to its memory are killed, pass descriptors on, close files early:
    /// nothing is lost.
    GpuLifetimes {
        /// A GPU's name.
        gpu: String,
        /// A device's name.
        disk: String,
    },
    /// The GPU is reset under load: no command and no contents are lost, but for a command that cannot be repeated, which is
    /// told to be lost.
    GpuReset {
        /// A GPU's name.
        gpu: String,
    },
    /// Commands on more memory than the device takes at once.
    GpuLong {
        /// Name of a GPU with more than 1 GiB of memory.
        gpu: String,
    },
    /// Memory of the GPU that comes to a new owner is all zeros.
    GpuOwners {
        /// A GPU's name.
        gpu: String,
    },
    /// The server behind the GPU is killed while a disk writes to its memory: programs get errors, nothing hangs, the disk goes
    /// on. Nothing can be done with the GPU afterwards.
    GpuLost {
        /// A GPU's name.
        gpu: String,
        /// A device's name.
        disk: String,
    },
    /// The GPU's driver is taken away under load and comes back, then the GPU itself; the driver is unloaded and loaded again.
    GpuUnload {
        /// A GPU's name.
        gpu: String,
        /// A device's name.
        disk: String,
    },
}

impl Check {
    /// The check's name in the report: what it does, and to which devices.
    pub fn name(&self) -> String {
        match self {
            Check::Provider { device } => format!("{device} provides its memory as p2pmem"),
            Check::QueuesInCmb { device } => format!("{device} has its queues in the CMB"),
            Check::Copy(copy) => {
                format!("copy {} to {} through {}", copy.from, copy.to, copy.through)
            }
            Check::BufferedRead { from, provider } => {
                format!("buffered read of {from} into p2pmem of {provider}")
            }
            Check::PoolExhausted { provider } => {
                format!("more than the p2pmem of {provider} is refused")
            }
            Check::Probe(Probe { provider, client }) => {
                format!("{client} to the memory of {provider}")
            }
            Check::ControllerReset { device } => format!("{device} survives a controller reset"),
            Check::Command(command) => format!("command {}", command.run),
            Check::GpuFile(file) => file.to_string(),
            Check::GpuUnaligned { gpu, disk } => {
                format!("unaligned reads of {disk} into VRAM of {gpu}")
            }
            Check::GpuBatch { gpu, disk } => {
                format!("batches between {disk} and VRAM of {gpu}")
            }
            Check::GpuRefused { gpu, disk } => {
                format!("no peer to peer from {disk} to VRAM of {gpu}")
            }
            Check::GpuCompute { gpu, from, to } => {
                format!("{from} to VRAM of {gpu}, every kernel, to {to}")
            }
            Check::GpuAtomics { gpu } => format!("atomic adds of {gpu} to guest RAM"),
            Check::GpuCopy(copy) => format!("copy engine of {}: VRAM and {}", copy.gpu, copy.with),
            Check::GpuDmaBuf { gpu, with } => format!("{gpu} and a dma-buf of {with}"),
            Check::GpuVirtio { gpu } => format!("{gpu} and dma-bufs of virtio-gpu"),
            Check::GpuFaults { gpu } => format!("{gpu} and those who misbehave"),
            Check::GpuBeyondAperture { gpu } => format!("VRAM of {gpu} beyond its aperture"),
            Check::GpuMapping { gpu } => format!("VRAM of {gpu} through mappings"),
            Check::GpuPins { gpu, .. } => format!("memory of {gpu} pinned by another driver"),
            Check::GpuLifetimes { gpu, .. } => format!("users of {gpu} die in any order"),
            Check::GpuReset { gpu } => format!("{gpu} is reset under load"),
            Check::GpuLong { gpu } => format!("commands of {gpu} on more than 1 GiB"),
            Check::GpuOwners { gpu } => format!("memory of {gpu} comes to a new owner"),
            Check::GpuLost { gpu, .. } => format!("{gpu} is gone without a word"),
            Check::GpuUnload { gpu, .. } => format!("the driver of {gpu} leaves under load"),
        }
    }
}

/// A copy from one disk to another through a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Copy {
    /// The disk that is read.
    pub from: String,
    /// The disk that is written.
    pub to: String,
    /// Where the data lies in between.
    pub through: Buffer,
    /// Size of each single transfer in bytes, each a multiple of 4096.
    pub sizes: Vec<u64>,
    /// Byte offsets on the disks at which each size is tried, each a multiple of the block size; the
    /// destination's offset differs from the source's. A disk must hold
    /// `threads * 2 * (largest offset + largest size)` bytes.
    pub offsets: Vec<u64>,
    /// Threads that copy at once, each in a part of its own of the disks.
    #[serde(default = "one")]
    pub threads: u32,
}

pub(crate) fn one() -> u32 {
    1
}

/// The buffer of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Buffer {
    /// p2pmem of the named device or GPU: the copy must be peer to peer.
    P2pmem(String),
    /// The guest's own memory: the control, which must go through guest RAM.
    GuestRam,
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buffer::P2pmem(device) => write!(f, "p2pmem of {device}"),
            Buffer::GuestRam => f.write_str("guest RAM"),
        }
    }
}

/// A command of the tools root, as a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// A line for `sh -c`. `{name}` stands for a device's character device, `{name:disk}` for its first
    /// namespace's block device, `{name:p2pmem}` for its p2pmem file in sysfs.
    pub run: String,
    /// Exit status that passes.
    #[serde(default)]
    pub status: i32,
    /// Texts that must all appear in what it prints.
    #[serde(default)]
    pub expect: Vec<String>,
    /// Texts that must all appear in the kernel's log meanwhile. A complaint with one of them is no failure of the check.
    #[serde(default)]
    pub kernel: Vec<String>,
    /// Where the data that it moves must lie, all of it; the devices' counters are asked.
    #[serde(default)]
    pub through: Option<Buffer>,
    /// Whether what it prints is reported also if it passes.
    #[serde(default)]
    pub show: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_without_its_optional_fields_has_their_defaults() {
        let text = r#"{"modules":[{"name":"nvme"}],"devices":[],"tools":false,"checks":[
            {"kind":"copy","from":"a","to":"b","through":{"p2pmem":"a"},"sizes":[4096],"offsets":[0]},
            {"kind":"copy","from":"a","to":"b","through":"guest-ram","sizes":[4096],"offsets":[0]}]}"#;
        let plan: Plan = serde_json::from_str(text).unwrap();
        assert_eq!(plan.check_seconds, Plan::CHECK_SECONDS);
        let names: Vec<String> = plan.checks.iter().map(Check::name).collect();
        assert_eq!(
            names,
            [
                "copy a to b through p2pmem of a",
                "copy a to b through guest RAM"
            ]
        );
    }

    #[test]
    fn a_gpu_s_checks_are_named_after_what_they_do() {
        let text = r#"[
            {"kind":"gpu-file","gpu":"g","disks":["a","b"],"sizes":[4096],"offsets":[0]},
            {"kind":"gpu-file","gpu":"g","disks":["a"],"on":"ext4","by":"io-uring","bounce":true,"sizes":[4096],"offsets":[0]},
            {"kind":"gpu-copy","gpu":"g","with":{"p2pmem":"a"},"sizes":[4096]},
            {"kind":"gpu-mapping","gpu":"g"}]"#;
        let checks: Vec<Check> = serde_json::from_str(text).unwrap();
        let names: Vec<String> = checks.iter().map(Check::name).collect();
        assert_eq!(
            names,
            [
                "a and b to VRAM of g and back",
                "a to VRAM of g and back, ext4, io_uring, bounced",
                "copy engine of g: VRAM and p2pmem of a",
                "VRAM of g through mappings"
            ]
        );
    }

    #[test]
    fn an_unknown_field_is_refused_by_its_name() {
        let text = r#"{"kind":"provider","device":"a","colour":"red"}"#;
        let error = serde_json::from_str::<Check>(text).unwrap_err();
        assert!(error.to_string().contains("colour"), "{error}");
    }
}
