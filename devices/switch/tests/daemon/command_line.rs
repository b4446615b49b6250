//! The daemon's command line.

use crate::raw::{command, start};

#[test]
fn it_ends_well_when_asked_to_and_leaves_no_socket() {
    let mut daemon = start(&[]);
    assert_eq!(daemon.terminate().code, Some(0));
    assert!(!daemon.socket().exists());
}

#[test]
fn socket_in_use_or_wrong_link_is_one_clear_line() {
    let daemon = start(&[]);
    let exit = command().socket(daemon.socket()).refused();
    let line = exit.line();
    assert_eq!(exit.code, Some(69));
    assert!(line.starts_with("peerbar-switch: socket path "), "{line}");
    assert!(line.contains("in use by a live server"), "{line}");
    for (args, words) in [
        (["--link", "disk0=lossy"], "expected route, redirect"),
        (["--pci-hole", "0x2000-0x1000"], "must be FIRST-LAST"),
    ] {
        let exit = command().args(args).refused();
        assert_eq!(exit.code, Some(2));
        assert!(exit.stderr.contains(words), "{exit:?}");
    }
}

#[test]
fn bridge_windows_without_a_socket_are_refused() {
    let exit = command().args(["--bridge-windows"]).refused();
    assert_eq!(exit.code, Some(69));
    let line = exit.line();
    assert!(
        line.contains("needs a stream socket as standard input"),
        "{line}"
    );
}
