//! The chapter's section on libvirt, with a session's libvirtd.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::devices::{Serving, commands};
use crate::own_guest::OwnGuest;

const SCENARIO: &str = include_str!("../../docs/src/two-disks.toml");
/// A GPU below the switch of the disks.
const GPU: &str = "\n[[gpu]]\nname = \"gpu0\"\nbelow = \"switch0\"\n";
/// The name of the scenario and its domain.
const DOMAIN: &str = "two-disks";
/// Time limit of a domain from its start to its end, in seconds.
const LIMIT: &str = "240";

/// A session's libvirtd, with its files in the test's folder.
struct Session {
    runtime: PathBuf,
}

impl Session {
    /// Starts it, and waits until it listens.
    fn start(folder: &Path) -> anyhow::Result<Self> {
        let runtime = folder.join("runtime");
        fs::create_dir(&runtime)?;
        // It ends by itself if this process cannot end it.
        let mut command = as_user(&["libvirtd", "--daemon", "--timeout", "60"]);
        in_session(&mut command, &runtime);
        let session = Self { runtime };
        let output = command.output();
        let output = output.context("run scripts/needs libvirtd:libvirt-daemon")?;
        ensure!(output.status.success(), "libvirtd: {output:?}");
        Ok(session)
    }

    /// Returns its process.
    fn process(&self) -> anyhow::Result<Pid> {
        let text = fs::read_to_string(self.runtime.join("libvirt/libvirtd.pid"))?;
        Pid::from_raw(text.trim().parse()?).context("no process")
    }

    /// Returns a virsh with these words.
    fn virsh(&self, words: &[&str]) -> Command {
        let all = [&["virsh", "--quiet", "--connect", "qemu:///session"], words].concat();
        let mut command = as_user(&all);
        in_session(&mut command, &self.runtime);
        command.stdin(Stdio::null());
        command
    }

    /// Starts to watch the life cycles of its domains.
    fn watch(&self) -> anyhow::Result<Watch> {
        let words = [
            "event",
            "--event",
            "lifecycle",
            "--loop",
            "--timeout",
            LIMIT,
        ];
        let mut child = self.virsh(&words).stdout(Stdio::piped()).spawn()?;
        let stdout = BufReader::new(child.stdout.take().context("no stdout")?);
        Ok(Watch { child, stdout })
    }

    /// Runs `line` on a terminal, which virsh needs for a console. Returns its output.
    fn run(&self, guest: &OwnGuest, folder: &Path, line: &str) -> anyhow::Result<String> {
        let shell = guest.shell(folder, line);
        let words = [
            "timeout",
            "--foreground",
            LIMIT,
            "script",
            "--quiet",
            "--return",
            "--flush",
            "--command",
            line,
            "/dev/null",
        ];
        let mut command = as_user(&words);
        command.current_dir(folder).stdin(Stdio::null());
        command.envs(
            shell
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        in_session(&mut command, &self.runtime);
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{line}: {}: {text}", output.status);
        Ok(text)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // For a failed test: libvirtd leaves its domains running.
        let _ = self
            .virsh(&["destroy", DOMAIN])
            .stderr(Stdio::null())
            .status();
        if let Ok(process) = self.process() {
            let _ = kill_process(process, Signal::TERM);
        }
    }
}

/// libvirt's events about the life cycles of its domains.
struct Watch {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Watch {
    /// Waits for the end of a domain. Returns libvirt's name for it.
    fn end(mut self) -> anyhow::Result<String> {
        let mut told = String::new();
        loop {
            let from = told.len();
            let more = self.stdout.read_line(&mut told)? > 0;
            ensure!(more, "no domain ends: {told}");
            let line = told.get(from..).unwrap_or_default();
            if let Some((_, how)) = line.split_once(": Stopped ") {
                return Ok(how.trim().to_owned());
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command of a user other than root, because root's libvirtd is never that of a session.
fn as_user(words: &[&str]) -> Command {
    let user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"];
    let user = user.into_iter().filter(|_| geteuid().is_root());
    let mut words = user.chain(words.iter().copied());
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Makes libvirt keep its files below `runtime`.
fn in_session(command: &mut Command, runtime: &Path) {
    command.env("XDG_RUNTIME_DIR", runtime).env("HOME", runtime);
    for name in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"] {
        command.env_remove(name);
    }
}

#[test]
#[ignore = "boots a guest by libvirt; scripts/test runs it"]
fn domain_boots_and_has_the_peers_of_its_switch() {
    let folder = tempfile::tempdir().unwrap();
    let modules = ["nvme", "peerbar_gpu", "9p", "9pnet_virtio"];
    let guest = OwnGuest::with_modules(folder.path(), &modules).unwrap();
    let guest = guest.without_qemu();
    let scenario = folder.path().join("two-disks.toml");
    fs::write(scenario, SCENARIO.to_owned() + GPU).unwrap();
    let [devices, start] = commands("## libvirt")[..] else {
        panic!("not two blocks of commands");
    };
    let (edit, create) = start.split_once('\n').unwrap();
    let (serving, printed) = Serving::start(&guest, folder.path(), devices, "</domain>").unwrap();
    assert!(printed.contains("# started by QEMU "), "{printed}");
    let edited = guest.shell(folder.path(), edit).status().unwrap();
    assert!(edited.success());
    // The tools, on a device of libvirt among those of the scenario.
    let tools = guest.tools().unwrap().display();
    let tools = format!(
        "<filesystem type='mount' accessmode='squash'><source dir='{tools}'/><target dir='tools'/><readonly/></filesystem></devices>"
    );
    let path = folder.path().join("two-disks.xml");
    let domain = fs::read_to_string(&path).unwrap();
    fs::write(&path, domain.replace("</devices>", &tools)).unwrap();

    let session = Session::start(folder.path()).unwrap();
    let watch = session.watch().unwrap();
    let console = session.run(&guest, folder.path(), create).unwrap();
    let said = console
        .lines()
        .filter_map(|line| line.trim().strip_prefix("RESULT "));
    let mut said: Vec<&str> = said.collect();
    said.sort_unstable();
    let expected = [
        "GPU and disk are peers",
        "GPU below 0x104c:0x8232 below 0000:00:10.0",
        "disk0 has: nothing",
        "disk0 reads what was written",
        "disk1 has: nothing",
        "disk1 reads what was written",
        "p2pmem: 1",
    ];
    assert_eq!(said, expected, "{console}");
    assert_eq!(watch.end().unwrap(), "Shutdown");
    drop(session);

    let (code, news) = serving.end().unwrap();
    assert_eq!(code, Some(0), "{news}");
    assert!(news.contains("payload so far: peer 16 MiB"), "{news}");
}
