//! The tools root: the host's Debian tree, writable, with the layers of the plan on top.

use std::ffi::CString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, ensure};
use peerbar_report::{HostFolder, Plan};
use rustix::mount::{MountFlags, mount, mount_bind_recursive};

use crate::modules::Modules;
use crate::mounts;

/// Its path for the agent, which is outside of it.
pub(crate) const ROOT: &str = "/tools";
/// The folder where its layers are mounted.
const LAYERS: &str = "/layers";
/// The folder for files that programs write.
const WRITTEN: &str = "/layers/written";

/// Mounts the tools root below `layers`, the topmost first, and the file systems that programs
/// expect in it.
pub(crate) fn mount_root(modules: &Modules, layers: &[String]) -> anyhow::Result<()> {
    modules.load("9pnet_virtio", "")?;
    modules.load("9p", "")?;
    modules.load("overlay", "")?;
    if mounts::is_supported("overlay")? {
        mount_layers(layers)?;
    } else {
        ensure!(
            layers.is_empty(),
            "the kernel has no overlayfs, which the scenario's {} require: build it with CONFIG_OVERLAY_FS",
            layers.join(" and ")
        );
        attach(Plan::TOOLS_TAG, ROOT)?;
        mounts::scratch(&inside("/root")?)?;
    }
    modules.load("configfs", "")?;
    mounts::debugging()?;
    mounts::for_programs()?;
    for shared in ["/proc", "/sys", "/dev"] {
        let inside = inside(shared)?;
        mount_bind_recursive(shared, &inside)
            .with_context(|| format!("cannot bind {shared} to {inside}"))?;
    }
    for scratch in ["/tmp", "/run"] {
        mounts::scratch(&inside(scratch)?)?;
    }
    lend(Path::new(ROOT), Path::new("/"))
}

/// Links files of the tools `root` into `outside` where they are missing. The kernel starts its own
/// helpers there: `/sbin/modprobe` for a module that it needs, such as that of a file system
/// (Linux, Documentation/admin-guide/sysctl/kernel.rst, `modprobe`).
fn lend(root: &Path, outside: &Path) -> anyhow::Result<()> {
    let entries = fs::read_dir(root).with_context(|| format!("cannot list {}", root.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", root.display()))?;
        let link = outside.join(entry.file_name());
        match symlink(entry.path(), &link) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot create {}", link.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Stacks the folder for written files on `layers`, and those on the tree.
fn mount_layers(layers: &[String]) -> anyhow::Result<()> {
    let tags = layers.iter().map(String::as_str).chain([Plan::TOOLS_TAG]);
    let mut lower = Vec::new();
    for tag in tags {
        let folder = format!("{LAYERS}/{tag}");
        attach(tag, &folder)?;
        lower.push(folder);
    }
    mounts::scratch(WRITTEN)?;
    let (upper, work) = (format!("{WRITTEN}/upper"), format!("{WRITTEN}/work"));
    for folder in [&upper, &work] {
        fs::create_dir(folder).with_context(|| format!("cannot create {folder}"))?;
    }
    let lower = lower.join(":");
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work},xino=off,index=off");
    let options = CString::new(options).context("bad options of an overlay")?;
    mount("overlay", ROOT, "overlay", MountFlags::empty(), &*options)
        .with_context(|| format!("cannot lay {lower} over each other"))
}

/// Mounts the host's folder `tag` at `folder`. The launcher shares it read-only and nothing changes
/// it during the run, so the guest may cache all of it.
fn attach(tag: &str, folder: &str) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {folder}"))?;
    let options = c"trans=virtio,version=9p2000.L,msize=524288,cache=loose";
    mount(tag, folder, "9p", MountFlags::RDONLY, options).with_context(|| {
        format!("cannot mount the host's {tag}; QEMU needs a 9p export with the mount tag {tag:?}")
    })
}

/// Mounts a folder of the host at `at` of the tools root. It changes while the guest runs, so the
/// guest caches nothing of it.
pub(crate) fn mount_host_folder(tag: &str, at: &str, allowed: HostFolder) -> anyhow::Result<()> {
    let folder = format!("{ROOT}{at}");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {at} in the tools root"))?;
    // Links of the tools root are meant for programs in it: absolute ones lead out of it here.
    let place = fs::canonicalize(&folder).with_context(|| format!("cannot find {at}"))?;
    ensure!(
        place.starts_with(ROOT),
        "cannot mount a folder of the host at {at}: a link on the way leads to {}: choose another path",
        place.display()
    );
    let flags = match allowed {
        HostFolder::ReadOnly => MountFlags::RDONLY,
        HostFolder::ReadWrite => MountFlags::empty(),
    };
    let options = c"trans=virtio,version=9p2000.L,msize=524288,cache=none";
    mount(tag, &folder, "9p", flags, options)
        .with_context(|| format!("cannot mount a folder of the host at {at}"))
}

pub(crate) fn inside(directory: &str) -> anyhow::Result<String> {
    let path = format!("{ROOT}{directory}");
    ensure!(
        Path::new(&path).is_dir(),
        "the tools root has no directory {directory}; build it again"
    );
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_tools_root_are_lent_and_none_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [root, outside] = ["tools", "outside"].map(|name| folder.path().join(name));
        for made in [root.join("sbin"), root.join("proc"), outside.join("proc")] {
            fs::create_dir_all(made).unwrap();
        }
        for file in [root.join("sbin/modprobe"), outside.join("proc/cmdline")] {
            fs::write(file, "").unwrap();
        }
        lend(&root, &outside).unwrap();
        lend(&root, &outside).unwrap();
        assert!(outside.join("sbin/modprobe").exists());
        assert!(outside.join("proc/cmdline").exists());
    }
}
