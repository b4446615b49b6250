//! The user's own kernels and machines: a kernel tree, the accelerator, a debugger.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};

use crate::launched::Launched;
use crate::{PEERBAR, peerbar};

/// A scenario with less time than any boot takes.
const SCENARIO: &str = r#"
name = "kernel"
timeout = "1s"
tools = true

[[nvme]]
name = "disk"
namespaces = [{ ram = "16M" }]

[[check]]
kind = "command"
run = "cat /proc/cmdline"
expect = ["peerbar.test=1"]
"#;

/// Runs `peerbar run --dry-run` in `folder`.
pub(crate) fn dry_run(folder: &Path, words: &[&str]) -> anyhow::Result<Output> {
    let mut peerbar = Command::new(&*PEERBAR);
    peerbar.args(["run", "--dry-run"]).args(words);
    let output = peerbar.current_dir(folder).output();
    output.context("peerbar does not start")
}

fn refusal(folder: &Path) -> anyhow::Result<String> {
    let output = dry_run(folder, &[])?;
    ensure!(output.status.code() == Some(2), "{output:?}");
    Ok(String::from_utf8(output.stderr)?)
}

/// Makes a kernel tree whose vmlinux is peerbar's own kernel.
pub(crate) fn kernel_tree() -> anyhow::Result<tempfile::TempDir> {
    let tree = tempfile::tempdir()?;
    let own = String::from_utf8(dry_run(tree.path(), &[])?.stdout)?;
    let kernel = own.split(" -kernel ").nth(1).context("no -kernel")?;
    let kernel = kernel.split(' ').next().context("no kernel")?;
    fs::copy(kernel, tree.path().join("vmlinux")).context(kernel.to_owned())?;
    fs::create_dir_all(tree.path().join("arch/x86"))?;
    fs::create_dir(tree.path().join("drivers"))?;
    fs::write(tree.path().join("Kconfig"), "")?;
    fs::write(
        tree.path().join("Makefile"),
        "VERSION = 7\nPATCHLEVEL = 3\n",
    )?;
    Ok(tree)
}

#[test]
#[ignore = "needs what scripts/build makes; scripts/test runs it"]
fn kernel_tree_is_taken_and_its_lacks_are_named() {
    let tree = kernel_tree().unwrap();
    let inside = tree.path().join("drivers");
    let config = tree.path().join(".config");
    fs::write(&config, "CONFIG_PCI=y\n# CONFIG_PCI_P2PDMA is not set\n").unwrap();
    let image = tree.path().join("vmlinux");
    let built = |time: SystemTime| fs::File::open(&image).unwrap().set_modified(time).unwrap();
    built(SystemTime::now() - Duration::from_secs(60));
    let text = refusal(&inside).unwrap();
    assert!(
        text.contains("is older than") && text.contains("make"),
        "{text}"
    );
    built(SystemTime::now());
    let text = refusal(&inside).unwrap();
    assert!(text.contains("of the kernel tree here"), "{text}");
    assert!(
        text.contains("CONFIG_PCI_P2PDMA (for peer-to-peer DMA)"),
        "{text}"
    );
    let own = dry_run(&inside, &["--kernel", "default"]).unwrap();
    assert_eq!(own.status.code(), Some(0), "{own:?}");
    fs::remove_file(&image).unwrap();
    let text = refusal(&inside).unwrap();
    assert!(text.contains("has no build"), "{text}");
}

#[test]
#[ignore = "needs what scripts/build makes; scripts/test runs it"]
fn kvm_is_taken_only_where_it_runs_a_guest() {
    let folder = tempfile::tempdir().unwrap();
    let words = |accel| {
        let output = dry_run(folder.path(), &["--accel", accel]).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, forced, reason) = words("kvm");
    let (_, chosen, said) = words("auto");
    let (_, emulated, _) = words("tcg");
    if code == Some(0) {
        assert!(forced.contains("-accel kvm") && chosen.contains("-accel kvm"));
    } else {
        assert_eq!(code, Some(69));
        assert!(
            reason.starts_with("peerbar: KVM does not work here: "),
            "{reason}"
        );
        assert!(chosen.contains("-accel tcg"), "{chosen}");
    }
    assert!(!said.contains("KVM"), "{said}");
    assert!(emulated.contains("-accel tcg"), "{emulated}");
}

/// Connects to the port, which QEMU opens soon after its start.
fn connected(run: &mut Launched, port: u16) -> anyhow::Result<TcpStream> {
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stub) => return Ok(stub),
            Err(error) => ensure!(run.launcher.try_wait()?.is_none(), "{error}"),
        }
    }
}

/// Sends one packet of gdb's protocol (GDB manual, E.1), and reads its acknowledgement.
fn send(stub: &mut TcpStream, packet: &str) -> anyhow::Result<()> {
    let sum = packet.bytes().fold(0_u8, u8::wrapping_add);
    write!(stub, "${packet}#{sum:02x}")?;
    let mut acknowledgement = [0; 1];
    stub.read_exact(&mut acknowledgement)?;
    ensure!(&acknowledgement == b"+", "{acknowledgement:?}");
    Ok(())
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn guest_waits_for_a_debugger_without_time_limits() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("kernel.toml"), SCENARIO).unwrap();
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let gdb = format!("--gdb={port}");
    let words = ["run", "kernel.toml", &gdb, "--append", "peerbar.test=1"];
    let mut run = Launched::start(folder, &words).unwrap();
    run.wait_until_it_says(&format!("target remote :{port}"))
        .unwrap();
    assert_eq!(run.kept("console.log").unwrap(), "");
    let mut stub = connected(&mut run, port).unwrap();
    let second = peerbar(&["run", "kernel.toml", &gdb], run.folder.path()).unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{said}");
    let taken = format!("peerbar: port {port} is not free for the debugger (process ");
    let way_out = format!(
        ", qemu-system-x86_64, uses it): name another, as --gdb={}\n",
        port + 1
    );
    assert!(
        said.starts_with(&taken) && said.ends_with(&way_out),
        "{said}"
    );
    send(&mut stub, "D").unwrap();
    let (code, results, progress) = run.end().unwrap();
    assert_eq!(code, Some(0), "{results}{progress}");
}

/// Returns a kernel that fails at once if QEMU starts it by PVH: an ELF file whose entry point is
/// an invalid instruction (QEMU, `hw/i386/x86-common.c`, `load_elfboot`; Xen, `public/elfnote.h`).
fn dying_kernel() -> Vec<u8> {
    const BASE: u64 = 0x10_0000;
    const NOTE: usize = 0x100;
    const CODE: usize = 0x120;
    const ENTRY: u64 = BASE + CODE as u64;
    let half = |value: u16| value.to_le_bytes().to_vec();
    let word = |value: u32| value.to_le_bytes().to_vec();
    let wide = |value: u64| value.to_le_bytes().to_vec();
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // An executable for x86-64 with two program headers at offset 64.
    elf.extend([half(2), half(62), word(1), wide(ENTRY), wide(64), wide(0)].concat());
    elf.extend(
        [
            word(0),
            half(64),
            half(56),
            half(2),
            half(0),
            half(0),
            half(0),
        ]
        .concat(),
    );
    let segment = |kind, flags, at: u64, bytes: u64| {
        [
            word(kind),
            word(flags),
            wide(at),
            wide(BASE + at),
            wide(BASE + at),
            wide(bytes),
            wide(bytes),
            wide(4),
        ]
        .concat()
    };
    elf.extend(segment(1, 5, 0, 0x122));
    elf.extend(segment(4, 4, NOTE as u64, 24));
    elf.resize(NOTE, 0);
    // XEN_ELFNOTE_PHYS32_ENTRY
    elf.extend([word(4), word(8), word(18)].concat());
    elf.extend(b"Xen\0");
    elf.extend(wide(ENTRY));
    elf.resize(CODE, 0);
    elf.extend(b"\x0f\x0b");
    elf
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn kernel_that_dies_at_its_pvh_entry_is_started_as_bzimage() {
    let folder = tempfile::tempdir().unwrap();
    let own = dry_run(folder.path(), &[]).unwrap();
    let own = String::from_utf8(own.stdout).unwrap();
    let root = own.split(['=', ',']).find(|word| word.ends_with("/root"));
    let releases = fs::read_dir(format!("{}/usr/lib/modules", root.unwrap())).unwrap();
    let mut modules = releases.map(|entry| entry.unwrap().path());
    let modules = modules.find(|path| path.join("vmlinuz").exists()).unwrap();
    // A separate file has a separate entry in the cache.
    let kernel = folder.path().join("vmlinuz");
    fs::copy(modules.join("vmlinuz"), &kernel).unwrap();
    let (kernel, modules) = (kernel.to_str().unwrap(), modules.to_str().unwrap());
    let words = ["--kernel", kernel, "--modules", modules];
    let prepared = String::from_utf8(dry_run(folder.path(), &words).unwrap().stdout).unwrap();
    let unpacked = prepared.split(" -kernel ").nth(1).unwrap();
    let unpacked = unpacked.split(' ').next().unwrap();
    assert_ne!(unpacked, kernel);
    fs::write(unpacked, dying_kernel()).unwrap();

    let scenario = SCENARIO.replace("\"1s\"", "\"5m\"");
    let scenario = scenario.replace("expect = [\"peerbar.test=1\"]", "");
    fs::write(folder.path().join("own.toml"), scenario).unwrap();
    let mut words = words.to_vec();
    words.splice(..0, ["run", "own.toml"]);
    let unpacked = unpacked.to_owned();
    let mut run = Launched::start(folder, &words).unwrap();
    let (code, results, progress) = run.end().unwrap();
    fs::remove_file(unpacked).unwrap();
    assert_eq!(code, Some(0), "{results}{progress}");
    assert!(
        progress.contains("its bzImage is started instead"),
        "{progress}"
    );
}
