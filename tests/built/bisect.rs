//! `peerbar bisect`, with a builder that takes the place of a kernel build.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::PEERBAR;

/// A scenario that passes if its disk starts with `good`.
const SCENARIO: &str = r#"
name = "bisect"
timeout = "120s"
tools = true

[[nvme]]
name = "disk"
namespaces = [{ file = "disk.img" }]

[[check]]
kind = "command"
run = "head -c 4 {disk:disk}"
expect = ["good"]
"#;

/// Writes a commit's state to the disk, and names peerbar's own kernel. A commit that says `broken`
/// does not build.
const BUILDER: &str = "#!/bin/sh
cd \"$(dirname \"$0\")\" || exit 1
state=$(git -C tree show \"$1:state\")
[ \"$state\" != broken ] || exit 1
echo \"$1\" >> commits
printf %s \"$state\" | dd of=disk.img conv=notrunc status=none
echo default
";

fn git(tree: &Path, words: &[&str]) -> anyhow::Result<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(tree);
    git.args(["-c", "user.name=a", "-c", "user.email=a@b"]);
    let output = git.args(words).output().context("no git")?;
    ensure!(output.status.success(), "git {words:?}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Makes a folder with a scenario, a builder, and a repository with a commit for each of `states`.
fn folder(states: &[&str]) -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    fs::write(path("bisect.toml"), SCENARIO)?;
    fs::write(path("disk.img"), vec![0; 1 << 20])?;
    fs::write(path("builder"), BUILDER)?;
    fs::set_permissions(path("builder"), fs::Permissions::from_mode(0o755))?;
    let tree = path("tree");
    fs::create_dir(&tree)?;
    git(&tree, &["init", "--quiet"])?;
    for (number, state) in states.iter().enumerate() {
        fs::write(tree.join("state"), state)?;
        fs::write(tree.join("number"), number.to_string())?;
        git(&tree, &["add", "--all"])?;
        git(
            &tree,
            &[
                "commit",
                "--quiet",
                "--message",
                &format!("change {number}"),
            ],
        )?;
    }
    Ok(folder)
}

/// Returns the state of a repository that a user would notice.
fn state(tree: &Path) -> anyhow::Result<Vec<String>> {
    let questions: [&[&str]; 4] = [
        &["status", "--porcelain"],
        &["for-each-ref"],
        &["worktree", "list"],
        &["rev-parse", "HEAD"],
    ];
    questions.iter().map(|words| git(tree, words)).collect()
}

#[test]
#[ignore = "boots guests; scripts/test runs it"]
fn first_bad_commit_is_found_and_the_tree_stays_clean() {
    let folder = folder(&["good", "good", "good", "broken", "good", "fail", "fail"]).unwrap();
    let tree = folder.path().join("tree");
    fs::write(tree.join("number"), "changed and not committed").unwrap();
    let before = state(&tree).unwrap();
    let output = Command::new(&*PEERBAR)
        .args([
            "bisect",
            "HEAD~6",
            "HEAD",
            "--tree",
            "tree",
            "--builder",
            "builder",
        ])
        .args(["--", "bisect.toml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{found}{error}");
    assert!(
        found.starts_with("the first bad commit is\ncommit "),
        "{found}"
    );
    assert!(found.contains("change 5\n"), "{found}");
    assert!(error.contains("this commit is skipped: "), "{error}");
    assert_eq!(state(&tree).unwrap(), before);
    // Each commit once, and neither end.
    let tried = fs::read_to_string(folder.path().join("commits")).unwrap();
    assert!((2..=4).contains(&tried.lines().count()), "{tried}");
}

#[test]
#[ignore = "needs what scripts/build makes; scripts/test runs it"]
fn bisect_refuses_what_is_no_commit_or_no_tree() {
    let folder = folder(&["good"]).unwrap();
    let refused = |words: &[&str]| {
        let mut peerbar = Command::new(&*PEERBAR);
        let output = peerbar
            .arg("bisect")
            .args(words)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = refused(&["nonsense", "HEAD", "--tree", "tree", "--builder", "builder"]);
    assert!(text.contains("nonsense is not a commit of"), "{text}");
    let text = refused(&["HEAD", "HEAD", "--tree", "tree"]);
    assert!(text.contains("is not a kernel tree"), "{text}");
    let text = refused(&["HEAD", "HEAD", "--tree", "tree", "--", "missing.toml"]);
    assert!(text.contains("missing.toml"), "{text}");
    assert_eq!(
        git(&folder.path().join("tree"), &["worktree", "list"])
            .unwrap()
            .lines()
            .count(),
        1
    );
}
