//! Checks of GPUs.

use peerbar_report::{Buffer, Check, GpuCopy, GpuFile, Medium};
use toml::Spanned;

use super::{CheckTable, Devices, PAGE, buffer, fits, known, multiples, pool, required};
use crate::scenario::error::Problem;
use crate::scenario::{Gpu, Nvme};
use crate::size::Size;

/// What the GPU's driver moves with one command at the most.
const LONGEST_COMMAND: u64 = 1 << 30;
/// The smallest disk that mkfs.xfs takes.
const LEAST_XFS: u64 = 300 << 20;
/// What a file system keeps to itself: so much, and an eighth of the disk.
const OVERHEAD: u64 = 16 << 20;

impl CheckTable {
    pub(super) fn gpu<'a>(&mut self, devices: &Devices<'a>) -> Result<&'a Gpu, Problem> {
        let name = required(self.gpu.take(), "gpu", self.kind.span())?;
        let found = devices.gpus.iter().find(|gpu| gpu.name == *name.get_ref());
        found.ok_or_else(|| {
            let names: Vec<&str> = devices.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
            let message = format!(
                "no [[gpu]] is named `{}`: there is {}",
                name.get_ref(),
                if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                }
            );
            Problem::new(name.span(), message)
        })
    }

    /// A GPU of whose VRAM the aperture shows a part.
    pub(super) fn gpu_with_hidden_vram(
        &mut self,
        devices: &Devices<'_>,
    ) -> Result<String, Problem> {
        let gpu = self.gpu(devices)?;
        if gpu.vram > gpu.aperture {
            return Ok(gpu.name.clone());
        }
        let message = format!(
            "the aperture of `{}` shows all of its VRAM, {}: give it a smaller `aperture`",
            gpu.name,
            Size(gpu.vram)
        );
        Err(Problem::new(self.kind.span(), message))
    }

    /// A GPU whose aperture is longer than what its driver moves with one command.
    pub(super) fn gpu_with_long_aperture(
        &mut self,
        devices: &Devices<'_>,
    ) -> Result<String, Problem> {
        let gpu = self.gpu(devices)?;
        if gpu.aperture > LONGEST_COMMAND {
            return Ok(gpu.name.clone());
        }
        let message = format!(
            "the aperture of `{}` has {}: give it a `vram` and an `aperture` of more than {}",
            gpu.name,
            Size(gpu.aperture),
            Size(LONGEST_COMMAND)
        );
        Err(Problem::new(self.kind.span(), message))
    }

    pub(super) fn gpu_file(&mut self, devices: &Devices<'_>) -> Result<GpuFile, Problem> {
        let gpu = self.gpu(devices)?.name.clone();
        let disks = required(self.disks.take(), "disks", self.kind.span())?;
        let disks = disks
            .into_inner()
            .into_iter()
            .map(|name| known(name, devices.nvmes))
            .collect::<Result<Vec<&Nvme>, _>>()?;
        let on = self.medium(devices)?;
        let sizes = required(self.sizes.take(), "sizes", self.kind.span())?;
        let at = sizes.span();
        let offsets = required(self.offsets.take(), "offsets", self.kind.span())?;
        let block = disks.iter().map(|disk| disk.block_size).max();
        let block = block.ok_or_else(|| Problem::new(at.clone(), "no disk is named".to_owned()))?;
        let file = GpuFile {
            gpu,
            disks: disks.iter().map(|disk| disk.name.clone()).collect(),
            on,
            by: self
                .by
                .take()
                .map_or_else(Default::default, Spanned::into_inner),
            bounce: self.bounce.take().is_some_and(Spanned::into_inner),
            sizes: multiples(sizes, "sizes", PAGE, 1)?,
            offsets: multiples(offsets, "offsets", block.into(), 0)?,
            threads: self.threads()?,
        };
        for disk in disks {
            room(on, disk)
                .and_then(|room| fits(&file.sizes, &file.offsets, file.threads, room))
                .map_err(|message| Problem::new(at.clone(), message))?;
        }
        Ok(file)
    }

    pub(super) fn gpu_and_disk(
        &mut self,
        devices: &Devices<'_>,
    ) -> Result<(String, String), Problem> {
        let disk = required(self.disk.take(), "disk", self.kind.span())?;
        let disk = known(disk, devices.nvmes)?.name.clone();
        Ok((self.gpu(devices)?.name.clone(), disk))
    }

    pub(super) fn gpu_compute(&mut self, devices: &Devices<'_>) -> Result<Check, Problem> {
        Ok(Check::GpuCompute {
            gpu: self.gpu(devices)?.name.clone(),
            from: known(self.from()?, devices.nvmes)?.name.clone(),
            to: known(self.to()?, devices.nvmes)?.name.clone(),
        })
    }

    pub(super) fn gpu_dma_buf(&mut self, devices: &Devices<'_>) -> Result<Check, Problem> {
        let gpu = self.gpu(devices)?.name.clone();
        let with = required(self.with.take(), "with", self.kind.span())?;
        let at = with.span();
        let with = buffer(with, devices)?;
        match &with {
            Buffer::P2pmem(name)
                if *name == gpu || devices.gpus.iter().all(|gpu| gpu.name != *name) =>
            {
                let message = format!(
                    "vfio-pci exports the aperture of another GPU than `{gpu}`, and `{name}` is none"
                );
                Err(Problem::new(at, message))
            }
            _ => Ok(Check::GpuDmaBuf { gpu, with }),
        }
    }

    pub(super) fn gpu_virtio(&mut self, devices: &Devices<'_>) -> Result<Check, Problem> {
        if !devices.virtio_gpu {
            let message =
                "the machine has no virtio-gpu: write `virtio-gpu = true` below [machine]";
            return Err(Problem::new(self.kind.span(), message));
        }
        Ok(Check::GpuVirtio {
            gpu: self.gpu(devices)?.name.clone(),
        })
    }

    pub(super) fn gpu_copy(&mut self, devices: &Devices<'_>) -> Result<GpuCopy, Problem> {
        let gpu = self.gpu(devices)?.name.clone();
        let with = required(self.with.take(), "with", self.kind.span())?;
        let sizes = required(self.sizes.take(), "sizes", self.kind.span())?;
        let at = sizes.span();
        let copy = GpuCopy {
            gpu,
            with: buffer(with, devices)?,
            sizes: multiples(sizes, "sizes", PAGE, 1)?,
        };
        pool::holds(&copy.with, &copy.sizes, 1, devices)
            .map_err(|message| Problem::new(at, message))?;
        Ok(copy)
    }

    /// What the data lies in. File systems are made by programs of the tools root.
    fn medium(&mut self, devices: &Devices<'_>) -> Result<Medium, Problem> {
        match self.on.take() {
            Some(on) if *on.get_ref() != Medium::Raw && !devices.tools => Err(Problem::new(
                on.span(),
                "a file system is made by the tools root: write `tools = true` at the top"
                    .to_owned(),
            )),
            on => Ok(on.map_or_else(Default::default, Spanned::into_inner)),
        }
    }
}

/// Bytes that files on `disk` can have.
fn room(on: Medium, disk: &Nvme) -> Result<u64, String> {
    let bytes = disk.disk_bytes;
    let less = (bytes / 8).saturating_add(OVERHEAD);
    match on {
        Medium::Raw => Ok(bytes),
        Medium::Xfs if bytes < LEAST_XFS => Err(format!(
            "XFS takes no disk of less than {}, and `{}` has {}: enlarge its namespace",
            Size(LEAST_XFS),
            disk.name,
            Size(bytes)
        )),
        Medium::Ext4 | Medium::Xfs => Ok(bytes.saturating_sub(less)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::scenario::Scenario;

    const HEAD: &str = "name = \"x\"\n\n[[nvme]]\nname = \"d0\"\nnamespaces = [{ ram = \"64M\" }]\n\n\
        [[gpu]]\nname = \"g0\"\nvram = \"64M\"\n";

    fn parse(top: &str, lines: &str) -> Result<Scenario, String> {
        let text = format!("{top}{HEAD}\n[[check]]\n{lines}\n");
        Scenario::parse(Path::new("x.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_gpu_brings_its_driver_and_a_file_system_its_module() {
        let lines = "kind = \"gpu-file\"\ngpu = \"g0\"\ndisks = [\"d0\"]\non = \"ext4\"\nsizes = [\"4K\"]\noffsets = [0]";
        let scenario = parse("tools = true\n", lines).unwrap();
        let modules = scenario.initramfs_modules();
        assert_eq!(
            modules,
            ["nvme", "peerbar_gpu", "9p", "9pnet_virtio", "ext4"]
        );
        assert_eq!(scenario.machine.kernel_parameters, "iomem=relaxed");
        let [gpu] = &scenario.plan().gpus[..] else {
            panic!("{:?}", scenario.gpus)
        };
        assert_eq!((gpu.vram_bytes, gpu.aperture_bytes), (64 << 20, 64 << 20));
        assert!(!gpu.window);
    }

    #[test]
    fn mistakes_about_a_gpu_are_told_with_their_line() {
        let file = "kind = \"gpu-file\"\ngpu = \"g0\"\nsizes = [\"4K\"]\noffsets = [0]\n";
        for (lines, wanted) in [
            (
                "kind = \"gpu-mapping\"\ngpu = \"g1\"".to_owned(),
                "x.toml:13: no [[gpu]] is named `g1`: there is g0",
            ),
            (
                "kind = \"gpu-beyond-aperture\"\ngpu = \"g0\"".to_owned(),
                "x.toml:12: the aperture of `g0` shows all of its VRAM, 64M: give it a smaller `aperture`",
            ),
            (
                "kind = \"gpu-long\"\ngpu = \"g0\"".to_owned(),
                "x.toml:12: the aperture of `g0` has 64M: give it a `vram` and an `aperture` of more than 1G",
            ),
            (
                "kind = \"gpu-lost\"\ngpu = \"g0\"\ndisk = \"d0\"\n\n[[check]]\nkind = \"gpu-atomics\"\ngpu = \"g0\"".to_owned(),
                "x.toml:12: nothing is left to check once a GPU is lost: move this check to the end",
            ),
            (format!("{file}disks = []"), "x.toml:14: no disk is named"),
            (
                format!("{file}disks = [\"d1\"]"),
                "x.toml:16: no [[nvme]] is named `d1`: there is d0",
            ),
            (
                format!("{file}disks = [\"d0\"]\non = \"xfs\""),
                "x.toml:17: a file system is made by the tools root: write `tools = true` at the top",
            ),
            (
                format!("{file}disks = [\"d0\"]\nstatus = 1"),
                "x.toml:17: a check of this kind has no key `status`",
            ),
        ] {
            assert_eq!(parse("", &lines).unwrap_err(), wanted, "{lines}");
        }
        let error = parse(
            "tools = true\n",
            &format!("{file}disks = [\"d0\"]\non = \"xfs\""),
        );
        let error = error.unwrap_err();
        assert!(
            error.starts_with("x.toml:15: XFS takes no disk of less than 300M"),
            "{error}"
        );
    }

    #[test]
    fn a_gpu_that_vfio_exports_brings_its_modules_and_is_another_one() {
        let second = "[[gpu]]\nname = \"g1\"\nvram = \"64M\"\n\n[[check]]\n";
        let check = "kind = \"gpu-dma-buf\"\ngpu = \"g0\"\nwith = ";
        let text = |with: &str| {
            let text = format!("{HEAD}{second}{check}{with}\n");
            Scenario::parse(Path::new("x.toml"), text).map_err(|error| error.to_string())
        };
        let lent = text("{ p2pmem = \"g1\" }").unwrap().initramfs_modules();
        assert_eq!(
            lent,
            ["nvme", "peerbar_gpu", "vfio_iommu_type1", "vfio_pci"]
        );
        let own = text("\"guest-ram\"").unwrap().initramfs_modules();
        assert_eq!(own, ["nvme", "peerbar_gpu"]);
        let error = text("{ p2pmem = \"g0\" }").unwrap_err();
        assert!(error.contains("another GPU than `g0`"), "{error}");
    }

    #[test]
    fn a_virtio_gpu_brings_its_module_and_is_asked_for() {
        let lines = "kind = \"gpu-virtio\"\ngpu = \"g0\"";
        assert_eq!(
            parse("", lines).unwrap_err(),
            "x.toml:12: the machine has no virtio-gpu: write `virtio-gpu = true` below [machine]"
        );
        let machine = "[machine]\nvirtio-gpu = true\n\n[[check]]";
        let text = format!("{HEAD}\n{machine}\n{lines}\n");
        let scenario = Scenario::parse(Path::new("x.toml"), text).unwrap();
        assert_eq!(
            scenario.initramfs_modules(),
            ["nvme", "peerbar_gpu", "virtio_gpu"]
        );
    }

    #[test]
    fn p2pmem_of_a_gpu_can_be_named_like_a_disk_s() {
        let lines = "kind = \"copy\"\nfrom = \"d0\"\nto = \"d0\"\nthrough = { p2pmem = \"g0\" }\nsizes = [\"4K\"]\noffsets = [0]";
        assert!(parse("", lines).is_ok());
        let error = parse("", &lines.replace("\"g0\"", "\"d0\"")).unwrap_err();
        assert!(error.contains("`d0` has no p2pmem"), "{error}");
    }
}
