//! Invalid command lines: one line that names the thing and the value, and the right exit status.

use std::fs;
use std::path::Path;

use peerbar_rig::Exit;
use tempfile::TempDir;

use crate::process::{command, refused, start};

const USAGE: i32 = 2;
const ENVIRONMENT: i32 = 69;

/// The exit must have this status and, in one line, these words.
#[track_caller]
fn expect(exit: &Exit, code: i32, words: &[&str]) {
    assert_eq!(exit.code, Some(code), "{}", exit.stderr);
    let said = exit.stderr.trim_end();
    assert!(
        said.starts_with("peerbar-nvme: ") && !said.contains('\n'),
        "not one line: {said}"
    );
    for word in words {
        assert!(said.contains(word), "{word} is not in: {said}");
    }
}

#[test]
fn fault_that_cannot_be_is_named_with_what_may_stand_there() {
    let exit = refused(&["--namespace", "ram=1M", "--fault", "fail interrupt"]);
    assert_eq!(exit.code, Some(USAGE));
    let said = exit.stderr;
    assert!(
        said.contains("must name a subject of `fail`: command, admin-command, gpu-command, dma"),
        "{said}"
    );
}

#[test]
fn fault_of_the_device_itself_is_for_the_control_socket() {
    for rule in ["link-down device", "remove device", "link-up device"] {
        let exit = refused(&["--namespace", "ram=1M", "--fault", rule]);
        assert_eq!(exit.code, Some(USAGE), "{rule}");
        let expected = format!("`{rule}` fires at once, and no guest has the device yet");
        assert!(exit.stderr.contains(&expected), "{}", exit.stderr);
    }
}

#[test]
fn sizes_and_numbers_that_cannot_be() {
    let ram = ["--namespace", "ram=1M"];
    let with = |more: &[&str]| refused(&[&ram, more].concat());
    expect(
        &with(&["--cmb", "3M"]),
        USAGE,
        &["CMB", "3145728", "2 MiB", "4M"],
    );
    expect(&with(&["--cmb", "1K"]), USAGE, &["CMB", "1024"]);
    expect(
        &with(&["--block-size", "1024"]),
        USAGE,
        &["block size 1024", "512 or 4096"],
    );
    expect(&with(&["--mdts", "0"]), USAGE, &["MDTS 0"]);
    expect(&with(&["--mdts", "11"]), USAGE, &["MDTS 11"]);
    expect(
        &refused(&["--namespace", "ram=100"]),
        USAGE,
        &["100 bytes", "512"],
    );
}

#[test]
fn what_clap_refuses() {
    for args in [
        &["--namespace", "tape=1"][..],
        &["--namespace", "ram=1X"],
        &["--namespace", "ram=1M", "--seed-fault", "lost:1"],
        &["--namespace", "ram=1M", "--cmb-queues"],
        &["--namespace", "ram=1M", "--cmb-legacy"],
        &[],
    ] {
        let exit = refused(args);
        assert_eq!(exit.code, Some(USAGE), "{args:?}: {}", exit.stderr);
        assert!(exit.stderr.contains("error:"), "{}", exit.stderr);
    }
}

#[test]
fn images_that_cannot_be() {
    let folder = TempDir::new().unwrap();
    let named = |name: &str| format!("file={}", folder.path().join(name).display());
    let missing = refused(&["--namespace", &named("missing.img")]);
    expect(&missing, ENVIRONMENT, &["missing.img"]);
    assert!(!folder.path().join("missing.img").exists());
    fs::write(folder.path().join("small.img"), "x").unwrap();
    expect(
        &refused(&["--namespace", &named("small.img")]),
        USAGE,
        &["small.img", "1 bytes", "512"],
    );
    assert_eq!(fs::read(folder.path().join("small.img")).unwrap(), b"x");
    expect(
        &refused(&["--namespace", &named("")]),
        ENVIRONMENT,
        &["Is a directory"],
    );
}

#[test]
fn socket_paths_that_cannot_be() {
    let at = |socket: &Path| {
        let command = command().args(["--namespace", "ram=1M"]);
        command.socket(socket).refused()
    };
    let folder = TempDir::new().unwrap();
    let long = folder.path().join("x".repeat(108));
    expect(&at(&long), ENVIRONMENT, &["107"]);
    let file = folder.path().join("file");
    fs::write(&file, "precious").unwrap();
    expect(&at(&file), ENVIRONMENT, &["file", "not a socket"]);
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    let daemon = start(&["--namespace", "ram=1M"]);
    expect(&at(daemon.socket()), ENVIRONMENT, &["in use"]);
}
