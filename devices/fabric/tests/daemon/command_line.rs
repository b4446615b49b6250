//! The daemon's command line.

use crate::process::{command, start};

#[test]
fn it_ends_well_when_asked_to_and_leaves_no_socket() {
    let mut daemon = start(&[]);
    assert_eq!(daemon.terminate().code, Some(0));
    assert!(!daemon.socket().exists());
    assert!(!daemon.folder().join("control").exists());
}

#[test]
fn socket_in_use_or_wrong_rule_is_one_clear_line() {
    let daemon = start(&[]);
    let exit = command().socket(daemon.socket()).refused();
    let line = exit.line();
    assert_eq!(exit.code, Some(69));
    assert!(line.starts_with("peerbar-fabric: socket path "), "{line}");
    assert!(line.contains("in use by a live server"), "{line}");
    for (args, code, words) in [
        (
            ["--impair", "a->b lossy"],
            2,
            "the unknown effect \"lossy\"",
        ),
        (
            ["--record", "/nowhere/record"],
            69,
            "cannot make the record /nowhere/record",
        ),
    ] {
        let exit = command().args(args).refused();
        assert_eq!(exit.code, Some(code));
        assert!(exit.stderr.contains(words), "{exit:?}");
    }
}
