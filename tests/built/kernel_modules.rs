//! The user's kernel tree with drivers as modules: the agent loads those of the initramfs, and
//! modprobe finds all of the tree. Also a tree without overlayfs, whose guest cannot write to its
//! root.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::kernel::{dry_run, kernel_tree};
use crate::launched::Launched;

/// Modules that every guest with a root and a disk loads.
const NEEDED: [&str; 3] = ["nvme", "9p", "9pnet_virtio"];

const DISK: &str = r#"
name = "modules"
timeout = "2m"
tools = true

[[nvme]]
name = "disk0"
namespaces = [{ ram = "16M" }]
"#;

const WRITABLE: &str = r#"
[[check]]
kind = "command"
run = """
set -e
test $(modinfo --filename loop) = /lib/modules/$(uname -r)/drivers/block/loop.ko.xz
modprobe loop
ls /dev/loop-control
cat /sys/module/loop/parameters/max_part
cat /sys/module/nvme_core/parameters/io_timeout
touch /usr/x
grep -x CONFIG_BLK_DEV_NVME=m /boot/config-$(uname -r)
"""
expect = ["/dev/loop-control\n", "7\n", "9\n", "=m\n"]
"#;

const READ_ONLY: &str = r#"
[[check]]
kind = "command"
run = """
set -e
if touch /usr/x; then exit 1; fi
touch /tmp/x /run/x /root/x /dev/shm/x
bash -c 'cat <(echo by /dev/fd)'
test -c /dev/pts/ptmx -a -e /sys/kernel/tracing/trace
nvme list
"""
expect = ["Read-only file system", "by /dev/fd\n", "/dev/nvme0n1"]
"#;

/// Returns the modules of peerbar's own kernel: `usr/lib/modules/RELEASE` of the tools root.
fn own_modules(folder: &Path) -> anyhow::Result<PathBuf> {
    fs::write(folder.join("own.toml"), format!("{DISK}{READ_ONLY}"))?;
    let output = dry_run(folder, &["own.toml", "--kernel", "default"])?;
    ensure!(output.status.success(), "{output:?}");
    let words = String::from_utf8(output.stdout)?;
    let export = words.split("local,id=tools,path=").nth(1);
    let root = export.context("no tools root")?.split(',').next();
    let releases = Path::new(root.context("no path")?).join("usr/lib/modules");
    let release = fs::read_dir(&releases)?.next().context("no modules")??;
    Ok(release.path())
}

/// Returns `names` and the modules that they need, as paths below the modules' folder.
fn with_needs(modules: &Path, names: &[&str]) -> anyhow::Result<BTreeSet<String>> {
    let index = fs::read_to_string(modules.join("modules.dep"))?;
    let mut paths = BTreeSet::new();
    for name in names {
        let file = format!("/{name}.ko");
        let line = index.lines().find(|line| {
            let path = line.split(':').next();
            path.is_some_and(|path| path.contains(&file))
        });
        let line = line.with_context(|| format!("no module {name}"))?;
        let words = line.split_whitespace();
        paths.extend(words.map(|path| path.trim_end_matches(':').to_owned()));
    }
    Ok(paths)
}

/// Makes a kernel tree with these modules where a build leaves them, next to the sources.
fn tree_with(names: &[&str]) -> anyhow::Result<TempDir> {
    let tree = kernel_tree()?;
    let modules = own_modules(tree.path())?;
    for path in with_needs(&modules, names)? {
        let from = modules.join(&path);
        let to = tree.path().join(path.trim_start_matches("kernel/"));
        fs::create_dir_all(to.parent().context("no folder")?)?;
        fs::copy(&from, &to).with_context(|| from.display().to_string())?;
    }
    for list in ["modules.builtin", "modules.builtin.modinfo"] {
        fs::copy(modules.join(list), tree.path().join(list))?;
    }
    fs::copy(modules.join("config"), tree.path().join(".config"))?;
    let image = fs::File::open(tree.path().join("vmlinux"))?;
    image.set_modified(SystemTime::now())?;
    Ok(tree)
}

/// Runs a check on a kernel tree.
fn run(tree: &TempDir, check: &str, words: &[&str]) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("modules.toml"), format!("{DISK}{check}"))?;
    let tree = tree.path().to_str().context("not UTF-8")?;
    let words = [&["run", "modules.toml", "--kernel", tree], words].concat();
    let (code, results, progress) = Launched::start(folder, &words)?.end()?;
    ensure!(code == Some(0), "{results}{progress}");
    Ok(())
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn modules_of_a_kernel_tree_load_with_their_parameters() {
    let tree = tree_with(&[&NEEDED[..], &["overlay", "loop"]].concat()).unwrap();
    let parameters = "nvme-core.io_timeout=9 loop.max_part=7";
    run(&tree, WRITABLE, &["--append", parameters]).unwrap();
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn kernel_without_overlayfs_has_a_read_only_root() {
    let tree = tree_with(&NEEDED).unwrap();
    run(&tree, READ_ONLY, &[]).unwrap();
}
