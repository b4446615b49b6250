//! `peerbar vfio-user check` of servers that are wrong from the start. Those that conform are in
//! `tests/daemons`.

#![allow(clippy::unwrap_used, reason = "a test panics if it fails")]

use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

use tempfile::TempDir;

fn check(folder: &TempDir, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerbar"));
    command.args(["vfio-user", "check"]).args(words);
    command.current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns exit code and stderr of a check that cannot begin.
fn refused(words: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let output = check(&folder, words);
    assert!(output.stdout.is_empty(), "{output:?}");
    (output.status.code(), text(&output.stderr))
}

#[test]
fn list_has_each_test_with_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let list = |words: &[&str]| text(&check(&folder, words).stdout);
    let all = list(&["--list"]);
    let specified = list(&["--list", "--specification-only"]);
    let of_qemu = |list: &str| {
        list.lines()
            .filter(|line| line.contains(" QEMU's client: "))
            .count()
    };
    assert!(of_qemu(&all) > 5, "{all}");
    assert_eq!(of_qemu(&specified), 0);
    let specified = specified.lines().count();
    assert_eq!(specified, all.lines().count() - of_qemu(&all));
    assert!(all.contains("dma.unmap "), "{all}");
}

#[test]
fn impossible_checks_are_wrong_usage() {
    let begins = "peerbar: no vfio-user server at no.sock: start it first, or name its command";
    let (code, stderr) = refused(&["no.sock"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.starts_with(begins), "{stderr}");
    let (code, stderr) = refused(&["no.sock", "dma.nothing"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("no test or group dma.nothing"), "{stderr}");
    let (code, stderr) = refused(&["no.sock", "--", "no-such-program"]);
    assert_eq!(code, Some(1), "{stderr}");
    let (code, stderr) = refused(&["no.sock", "--", "sh", "-c", "exit 3"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("has ended with exit status 3"), "{stderr}");
}

#[test]
fn server_that_hangs_up_fails_and_ends_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("dev.sock")).unwrap();
    // Each client is hung up on at once. The thread ends with the test's process.
    std::thread::spawn(move || while listener.accept().is_ok() {});
    let output = check(&folder, &["dev.sock", "--timeout", "1s"]);
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(report.starts_with("KTAP version 1\n1.."), "{report}");
    for line in [
        "# sent: VERSION 0.0 max_data_xfer_size 1M, ",
        "# received: the server has hung up\n",
        "# source: vfio-user, Connection Initiation: ",
        "not ok 1 - version.answer\nBail out! the next client is not served: ",
    ] {
        assert!(report.contains(line), "{line}: {report}");
    }
}
