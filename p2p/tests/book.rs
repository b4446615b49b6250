//! The outputs in the book are those of the program.

use std::path::Path;
use std::process::{Command, Output};

/// Runs the program with `arguments` in the project's folder.
fn run(arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerbar-p2p"));
    let run = command.args(arguments).current_dir(root).output();
    run.expect("the program starts")
}

/// Returns the output of the program with `arguments`.
fn output(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("the output is text")
}

#[test]
fn book_shows_what_the_program_prints() {
    let book = include_str!("../../docs/src/p2p.md");
    let mut shown = 0;
    for block in book.split("```\n$ peerbar p2p ").skip(1) {
        let (command, rest) = block.split_once('\n').unwrap();
        let (expected, _) = rest.split_once("```").unwrap();
        let arguments: Vec<&str> = command.split(' ').collect();
        assert_eq!(output(&arguments), expected, "peerbar p2p {command}");
        shown += 1;
    }
    assert_eq!(shown, 2);
}

/// Returns the exit code and the error of the program with `arguments`.
fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), error)
}

#[test]
fn mistakes_are_refused_with_the_way_out() {
    let source = ["--from", "docs/src/lspci.txt"];
    let with = |more: &[&str]| refused(&[&source[..], more].concat());
    let (code, error) = with(&["gpu0", "nvme0"]);
    assert_eq!(code, Some(2));
    assert!(
        error.contains("`nvme0` has no memory for peers")
            && error.contains("did you mean `nvme0 gpu0`?"),
        "{error}"
    );
    let (code, error) = with(&["nvme0", "gpu9"]);
    assert!(
        code == Some(2) && error.contains("no device `gpu9`"),
        "{error}"
    );
    let (code, error) = with(&["--save", "docs/src/lspci.txt"]);
    assert!(
        code == Some(2) && error.contains("which --from reads"),
        "{error}"
    );
    let (code, error) = refused(&["--from", "/dev/zero"]);
    assert!(
        code == Some(1) && error.contains("it has 64 MiB or more"),
        "{error}"
    );
}

#[test]
fn saved_machine_cannot_steer_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.json");
    let file = file.to_str().unwrap();
    output(&["--from", "docs/src/lspci.txt", "--save", file]);
    let saved = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, saved.replace("GV100GL", r"\u001b[31mGV")).unwrap();
    let shown = output(&["--from", file]);
    assert!(shown.contains("NVIDIA Corporation GV, "), "{shown}");
}

#[test]
fn saved_machine_gives_the_same_verdicts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.json");
    let file = file.to_str().unwrap();
    let source = ["--from", "docs/src/lspci.txt"];
    let of_source = output(&[&source[..], &["--save", file]].concat());
    assert_eq!(output(&["--from", file]), of_source);
    let pair = ["nvme1", "gpu0", "--json"];
    assert_eq!(
        output(&[&["--from", file], &pair[..]].concat()),
        output(&[&source[..], &pair[..]].concat())
    );
}
