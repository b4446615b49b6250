//! Programs, a shell and files in a guest: one that `peerbar run --keep` has kept, and one of
//! `peerbar exec` itself.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test panics if it fails"
)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::PEERBAR;
use crate::launched::Launched;

/// Longer than any successful step here takes.
const LONG: Duration = Duration::from_secs(60);

/// A scenario whose only check fails.
const SCENARIO: &str = r#"
name = "kept"
timeout = "5m"
tools = true

[[nvme]]
name = "disk0"
namespaces = [{ ram = "16M" }]

[[check]]
name = "three"
kind = "command"
run = "exit 3"
"#;

/// A guest that keeps running.
struct Kept(Launched);

impl Kept {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("kept.toml"), SCENARIO).unwrap();
        let mut run = Launched::start(folder, &["run", "--keep", "kept.toml"]).unwrap();
        run.wait_until_it_says("end it:").unwrap();
        Self(run)
    }

    fn folder(&self) -> &Path {
        self.0.folder.path()
    }

    /// Starts a `peerbar` in the folder of the run, with its streams on pipes.
    fn start_peerbar(&self, words: &[&str]) -> Child {
        Command::new(&*PEERBAR)
            .args(words)
            .current_dir(self.folder())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Starts a line of the guest's shell, with its streams on pipes.
    fn start_shell(&self, line: &str) -> Child {
        self.start_peerbar(&["exec", "--attach", "--", "sh", "-c", line])
    }

    /// Runs a program of the guest to its end, with no input.
    fn exec(&self, words: &[&str]) -> Output {
        let words = [&["exec", "--attach", "--"], words].concat();
        self.start_peerbar(&words).wait_with_output().unwrap()
    }

    /// Starts a program of OpenSSH in the folder of the run, with its streams on pipes and no
    /// terminal for questions.
    fn openssh(&self, program: &str, words: &[&str]) -> Child {
        Command::new(program)
            .args(["-F", "ssh.config"])
            .args(words)
            .current_dir(self.folder())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn cp(&self, from: &str, to: &str) -> Output {
        let child = self.start_peerbar(&["cp", from, to]);
        child.wait_with_output().unwrap()
    }
}

/// A failed test leaves no guest: its processes die with the launcher.
impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.launcher.kill();
        let _ = self.0.launcher.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns bytes in which no two kilobytes are the same.
fn pattern(length: u32) -> Vec<u8> {
    let bytes = (0..length).map(|at| at.wrapping_mul(2_654_435_761) >> 24);
    bytes.map(|byte| u8::try_from(byte).unwrap()).collect()
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn kept_guest_takes_programs_a_shell_and_files() {
    let mut kept = Kept::start();
    streams_and_status_pass(&kept);
    programs_run_at_once(&kept);
    orphan_is_collected(&kept);
    signal_ends_the_program(&kept);
    host_folder_is_read_only(&kept);
    mistakes_are_named(&kept);
    files_go_in_and_out(&kept);
    ssh_scp_and_rsync_reach_it(&kept);
    hostile_tree_is_no_burden(&kept);
    interrupted_copies_leave_nothing(&kept);
    shell_has_job_control(&kept);
    let hidden = "dmesg -n 1; echo '<4>WARNING: made up' > /dev/kmsg";
    assert_eq!(kept.exec(&["sh", "-c", hidden]).status.code(), Some(0));
    kill_process(kept.0.pid(), Signal::INT).unwrap();
    let (code, _, progress) = kept.0.end().unwrap();
    assert_eq!(code, Some(1), "{progress}");
    let verdict = kept.0.kept("verdict").unwrap();
    let both = "failed: 1 of 1 checks did not pass: three; the console says: WARNING: made up\n";
    assert_eq!(verdict, both);
    let late = kept.exec(&["true"]);
    assert_eq!(late.status.code(), Some(2));
    let message = text(&late.stderr);
    assert!(message.contains("runs/latest has no guest"), "{message}");
    let late = kept.openssh("ssh", &["peerbar", "true"]);
    let message = text(&late.wait_with_output().unwrap().stderr);
    assert!(message.contains("has ended: have"), "{message}");
    assert_eq!(kept.0.sockets_left().unwrap(), 0);
}

fn streams_and_status_pass(kept: &Kept) {
    let mut child = kept.start_shell("cat; echo err >&2; exit 7");
    let input = pattern(1 << 20);
    let mut stdin = child.stdin.take().unwrap();
    let written = input.clone();
    let writer = thread::spawn(move || stdin.write_all(&written).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(output.stdout == input, "{} bytes", output.stdout.len());
    assert_eq!(text(&output.stderr), "err\n");
    let mut child = kept.start_shell("exec 2>&-; echo ended; exec cat");
    let mut line = [0; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    assert_eq!(
        &line, b"ended\n",
        "what the program prints before its input"
    );
    child.stdin.take().unwrap().write_all(b"abc").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"abc");
    let disk = kept.exec(&["sh", "-c", "ls {disk0:disk}; test -b {disk0:disk}"]);
    assert_eq!(disk.status.code(), Some(0));
    assert_eq!(text(&disk.stdout), "/dev/nvme0n1\n");
}

fn programs_run_at_once(kept: &Kept) {
    let mut first = kept.start_shell("read word; echo got $word");
    // The first waits for its input while the second runs.
    assert_eq!(text(&kept.exec(&["echo", "second"]).stdout), "second\n");
    let mut stdin = first.stdin.take().unwrap();
    stdin.write_all(b"it\n").unwrap();
    drop(stdin);
    assert_eq!(text(&first.wait_with_output().unwrap().stdout), "got it\n");
}

/// A process whose parent has ended is reaped when it ends, not only when the guest has other work.
fn orphan_is_collected(kept: &Kept) {
    let line = "(sleep 0.1 & echo $! > /tmp/orphan); orphan=$(cat /tmp/orphan); \
        while kill -0 $orphan 2> /dev/null; do sleep 0.1; done; echo collected";
    let output = kept.exec(&["timeout", "60", "sh", "-c", line]);
    assert_eq!(text(&output.stdout), "collected\n", "{output:?}");
}

fn signal_ends_the_program(kept: &Kept) {
    // By then the shell has a child that every signal reaches: dash loses a signal that comes
    // during vfork(2).
    let mut child = kept.start_shell("sh -c 'echo up; exec sleep 1000'; :");
    let mut said = [0; 3];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut said)
        .unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // The whole group has ended, not only the shell.
    let left = kept.exec(&["sh", "-c", "pgrep -x sleep"]);
    assert_eq!(left.status.code(), Some(1), "{}", text(&left.stdout));
}

fn host_folder_is_read_only(kept: &Kept) {
    let script = kept.folder().join("hello");
    fs::write(&script, "#!/bin/sh\necho hello $1 from $PWD\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let run = kept.exec(&["./hello", "you"]);
    assert_eq!(text(&run.stdout), "hello you from /host\n");
    let write = kept.exec(&["touch", "new"]);
    assert_eq!(write.status.code(), Some(1));
    let message = text(&write.stderr);
    assert!(message.contains("Read-only file system"), "{message}");
}

fn mistakes_are_named(kept: &Kept) {
    for (words, status, named) in [
        (["./none"], 127, "cannot start ./none in /host of the guest"),
        (["./kept.toml"], 126, "Permission denied"),
        (["{disk7}"], 2, "unknown placeholder `{disk7}`"),
        (["kept.toml"], 127, "write ./kept.toml"),
    ] {
        let output = kept.exec(&words);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{message}");
        assert!(message.contains(named), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

fn files_go_in_and_out(kept: &Kept) {
    let folder = kept.folder().join("data");
    fs::create_dir(&folder).unwrap();
    let content = pattern(3 << 20);
    fs::write(folder.join("large"), &content).unwrap();
    symlink("large", folder.join("link")).unwrap();
    fs::set_permissions(folder.join("large"), fs::Permissions::from_mode(0o750)).unwrap();
    let ok = |output: Output| assert!(output.status.success(), "{}", text(&output.stderr));
    ok(kept.cp("data", "guest:/tmp"));
    ok(kept.cp("data/large", "guest:/tmp/one"));
    let same = kept.exec(&["cmp", "/tmp/one", "/tmp/data/link"]);
    assert!(same.status.success(), "{}", text(&same.stdout));
    ok(kept.cp("guest:/tmp/data", "back"));
    let back = kept.folder().join("back");
    assert!(fs::read(back.join("large")).unwrap() == content);
    let mode = fs::metadata(back.join("large")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o750);
    assert_eq!(
        fs::read_link(back.join("link")).unwrap(),
        Path::new("large")
    );
    for (from, to, status, named) in [
        ("none", "guest:/tmp", 1, "cannot read none"),
        ("guest:/none", ".", 1, "guest:/none is not there"),
        (
            "data",
            "guest:/no/such/folder",
            1,
            "guest:/no/such is not there",
        ),
        (
            "data",
            "guest:/tmp",
            1,
            "guest:/tmp has a folder data that is",
        ),
        ("data", "guest:/host/new", 1, "Read-only file system"),
        (
            "guest:/dev/null",
            ".",
            1,
            "/dev/null: it is not a file, folder or link",
        ),
        (
            "data/large",
            "guest:/dev/null",
            1,
            "guest:/dev/null is a link, device, FIFO",
        ),
        ("guest:/tmp/one", "back/link", 1, "back/link is a link"),
        ("data", "back", 2, "write it as guest:/path"),
    ] {
        let output = kept.cp(from, to);
        let message = text(&output.stderr);
        assert!(
            message.contains(named) && message.lines().count() == 1,
            "{message}"
        );
        assert_eq!(output.status.code(), Some(status), "{message}");
    }
    let device = kept.exec(&["test", "-c", "/dev/null"]);
    assert!(device.status.success(), "{}", text(&device.stderr));
    assert!(back.join("link").is_symlink());
    let words = ["cp", "--limit", "1M", "guest:/tmp/data", "less"];
    let less = kept.start_peerbar(&words).wait_with_output().unwrap();
    let message = text(&less.stderr);
    assert!(message.contains("more than 1M: raise --limit"), "{message}");
    assert_eq!(less.status.code(), Some(1), "{message}");
    assert!(!kept.folder().join("less").exists());
}

/// Needs the files of [`files_go_in_and_out`].
fn ssh_scp_and_rsync_reach_it(kept: &Kept) {
    let config = kept.start_peerbar(&["ssh-config"]);
    let config = config.wait_with_output().unwrap();
    assert!(config.status.success(), "{}", text(&config.stderr));
    fs::write(kept.folder().join("ssh.config"), &config.stdout).unwrap();
    // Input, output and status, and no message of ssh.
    let mut child = kept.openssh("ssh", &["peerbar", "cat; echo err >&2; exit 5"]);
    let input = pattern(1 << 20);
    let mut stdin = child.stdin.take().unwrap();
    let written = input.clone();
    let writer = thread::spawn(move || stdin.write_all(&written).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(text(&output.stderr), "err\n");
    assert_eq!(output.status.code(), Some(5));
    assert!(output.stdout == input, "{} bytes", output.stdout.len());
    let ok = |child: Child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    let content = fs::read(kept.folder().join("data/large")).unwrap();
    ok(kept.openssh("scp", &["data/large", "peerbar:/tmp/by-scp"]));
    ok(kept.openssh("scp", &["peerbar:/tmp/by-scp", "by-scp"]));
    assert!(fs::read(kept.folder().join("by-scp")).unwrap() == content);
    let rsync = |from: &str, to: &str| {
        let mut rsync = Command::new("rsync");
        rsync.args(["--archive", "--rsh=ssh -F ssh.config", from, to]);
        let done = rsync.current_dir(kept.folder()).output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
    };
    rsync("data/", "peerbar:/tmp/by-rsync");
    rsync("peerbar:/tmp/by-rsync/", "by-rsync");
    let back = kept.folder().join("by-rsync");
    assert!(fs::read(back.join("large")).unwrap() == content);
    let link = fs::read_link(back.join("link")).unwrap();
    assert_eq!(link, Path::new("large"));
}

/// A tree that the guest made to be expensive is copied, or refused, in a time that depends only on
/// its bytes.
fn hostile_tree_is_no_burden(kept: &Kept) {
    // A shell looks up the whole path after each step.
    let line = "mkdir /tmp/beside /tmp/deep && cd /tmp/beside && mkdir $(seq 1500) && ln -s / 1/root && \
        mkdir \"$(printf 'a\\033[2J\\377\\n')\" && truncate -s 1T /tmp/huge && cd /tmp/deep && \
        exec python3 -c 'import os\nfor at in range(1500): os.mkdir(\"a\"); os.chdir(\"a\")'";
    let made = kept.exec(&["sh", "-c", line]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let output = kept.cp("guest:/tmp/beside", "beside");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let beside = kept.folder().join("beside");
    assert_eq!(fs::read_dir(&beside).unwrap().count(), 1501);
    assert_eq!(
        fs::read_link(beside.join("1/root")).unwrap(),
        Path::new("/")
    );
    for (from, named) in [
        ("guest:/tmp/deep", "more than 128 folders deep"),
        ("guest:/tmp/huge", "more than 4G: raise --limit"),
    ] {
        let output = kept.cp(from, "refused");
        let message = text(&output.stderr);
        assert!(message.contains(named), "{message}");
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    let removed = kept.exec(&["rm", "-r", "/tmp/beside", "/tmp/deep", "/tmp/huge"]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
}

/// A copy that a signal ends, even SIGKILL, leaves nothing in the guest, and nothing on the host
/// except for files that remain after SIGKILL.
fn interrupted_copies_leave_nothing(kept: &Kept) {
    let large = File::create(kept.folder().join("zeros")).unwrap();
    large.set_len(150 << 20).unwrap();
    let hidden = |folder: &str| {
        let list = kept.exec(&["sh", "-c", &format!("ls -A {folder}")]);
        text(&list.stdout).contains(".peerbar.")
    };
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        // A copy may end before the test sees it.
        let mut copy = loop {
            let mut copy = kept.start_peerbar(&["cp", "zeros", "guest:/tmp"]);
            let has_ended = loop {
                if copy.try_wait().unwrap().is_some() {
                    break true;
                }
                if hidden("/tmp") {
                    break false;
                }
            };
            if !has_ended {
                kill_process(Pid::from_child(&copy), signal).unwrap();
            }
            if !kept.exec(&["rm", "/tmp/zeros"]).status.success() {
                break copy;
            }
            copy.wait().unwrap();
        };
        let expected = (signal != Signal::KILL).then(|| 128 + signal.as_raw());
        assert_eq!(copy.wait().unwrap().code(), expected);
        // The guest learns of it a little later.
        let began = Instant::now();
        while hidden("/tmp") {
            assert!(began.elapsed() < LONG, "the guest keeps a part of a copy");
        }
        let there = kept.exec(&["ls", "/tmp/zeros"]);
        assert!(!there.status.success(), "a part of a copy is there");
    }
    let made = kept.exec(&["truncate", "-s", "1G", "/tmp/zeros"]);
    assert!(made.status.success());
    let mut copy = kept.start_peerbar(&["cp", "guest:/tmp/zeros", "back/zeros"]);
    let back = kept.folder().join("back");
    let before = 2;
    while fs::read_dir(&back).unwrap().count() == before {
        assert!(copy.try_wait().unwrap().is_none(), "it has ended early");
    }
    kill_process(Pid::from_child(&copy), Signal::TERM).unwrap();
    assert_eq!(copy.wait().unwrap().code(), Some(143));
    assert_eq!(fs::read_dir(&back).unwrap().count(), before);
    // More than the guest has.
    File::create(kept.folder().join("huge"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let output = kept.cp("huge", "guest:/tmp");
    let message = text(&output.stderr);
    let named = "cannot write guest:/tmp: it needs 1 TiB, and the guest has ";
    assert!(message.contains(named), "{message}");
    assert_eq!(output.status.code(), Some(1), "{message}");
    let removed = kept.exec(&["rm", "/tmp/zeros"]);
    assert!(removed.status.success());
}

/// A terminal with a shell at its other end.
struct Terminal {
    file: File,
    said: String,
}

impl Terminal {
    fn new(rows: u16, columns: u16) -> (Self, OwnedFd) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
        let terminal = Self {
            file: File::from(ours),
            said: String::new(),
        };
        terminal.resize(rows, columns);
        (terminal, theirs)
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.file, size).unwrap();
    }

    fn types(&mut self, text: &str) {
        self.file.write_all(text.as_bytes()).unwrap();
    }

    /// Reads until the shell prints `words`, and drops everything up to them.
    fn waits_for(&mut self, words: &str) {
        let mut bytes = [0; 4096];
        loop {
            if let Some(at) = self.said.find(words) {
                self.said.drain(..at + words.len());
                return;
            }
            let count = self.file.read(&mut bytes).unwrap_or_default();
            assert!(count > 0, "the shell ends before {words}: {}", self.said);
            self.said.push_str(&text(&bytes[..count]));
        }
    }
}

fn shell_has_job_control(kept: &Kept) {
    let (mut terminal, theirs) = Terminal::new(50, 132);
    let theirs = File::from(theirs);
    let mut shell = Command::new(&*PEERBAR)
        .args(["shell", "--attach"])
        .current_dir(kept.folder())
        .stdin(theirs.try_clone().unwrap())
        .stdout(theirs.try_clone().unwrap())
        .stderr(theirs)
        .spawn()
        .unwrap();
    // Typed text is echoed, so no expected text is typed literally.
    terminal.types("stty size; tty; pwd\n");
    terminal.waits_for("50 132");
    terminal.waits_for("/dev/pts/");
    terminal.waits_for("/host");
    terminal.types("sh -c 'echo sl''eeps; exec sleep 1000'\n");
    terminal.waits_for("sleeps");
    terminal.types("\x03");
    terminal.types("echo status $((100+30)) $?\n");
    terminal.waits_for("status 130 130");
    terminal.types("sleep 1000 &\n");
    terminal.types("jobs; kill %1; wait; echo kil''led\n");
    terminal.waits_for("Running");
    terminal.waits_for("killed");
    terminal.types("until [ \"$(stty size)\" = '33 77' ]; do :; done; echo res''ized\n");
    terminal.resize(33, 77);
    kill_process(Pid::from_child(&shell), Signal::WINCH).unwrap();
    terminal.waits_for("resized");
    terminal.types("exit 5\n");
    assert_eq!(shell.wait().unwrap().code(), Some(5));
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn exec_boots_a_guest_and_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("kept.toml"), SCENARIO).unwrap();
    let unknown = Command::new(&*PEERBAR)
        .args(["exec", "kept.toml", "--", "ls", "{disk9}"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    // Nothing has started.
    assert!(!folder.path().join("runs").exists());
    let mut child = Command::new(&*PEERBAR)
        .args(["exec", "kept.toml", "--share-rw", "--", "sh", "-c"])
        .arg("cat > written; mount | grep /host; exit 9")
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"by the guest")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(9), "{message}");
    // Only the program prints there.
    assert_eq!(text(&output.stdout).lines().count(), 1, "{message}");
    let written = fs::read(folder.path().join("written")).unwrap();
    assert_eq!(written, b"by the guest");
    let run = folder.path().join("runs/latest");
    let verdict = fs::read_to_string(run.join("verdict")).unwrap();
    assert_eq!(verdict, "failed: the program ended with exit status 9\n");
    // Nothing else went wrong, and the caller has the program's exit status.
    assert!(!message.contains("failed"), "{message}");
    assert!(!run.join("vsock.sock").exists());
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn exec_says_how_its_guest_died() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("kept.toml"), SCENARIO).unwrap();
    let no_init = SCENARIO.replace(
        "tools = true",
        "tools = true\nmachine.kernel-parameters = \"rdinit=/none\"",
    );
    fs::write(folder.path().join("no-init.toml"), no_init).unwrap();
    let panic = "echo c > /proc/sysrq-trigger";
    for (scenario, when) in [
        ("kept.toml", "peerbar: guest died: "),
        (
            "no-init.toml",
            "peerbar: the guest ended early: the console says: ",
        ),
    ] {
        let output = Command::new(&*PEERBAR)
            .args(["exec", scenario, "--", "sh", "-c", panic])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{message}");
        for part in ["of the console, the rest is in", "Kernel panic", when] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}
