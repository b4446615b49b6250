//! Every link in the documents has a target, and every source path in them exists.

// Clippy recognises tests only by their attribute, not functions that they call.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Documents outside the book.
const BESIDE_THE_BOOK: [&str; 8] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "devices/gpu/INTERFACE.md",
    "docs/reports/dma-buf-ranges.md",
    "guest/gpu-driver/README.md",
    "guest/nvme-queues/README.md",
];

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn book() -> PathBuf {
    project().join("docs/src")
}

fn chapters() -> Vec<PathBuf> {
    let files = fs::read_dir(book())
        .unwrap()
        .map(|file| file.unwrap().path());
    let is_chapter = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    files.filter(is_chapter).collect()
}

fn documents() -> Vec<PathBuf> {
    let beside = BESIDE_THE_BOOK.map(|path| project().join(path));
    chapters().into_iter().chain(beside).collect()
}

/// Returns the text without code blocks, in which brackets and paths have another meaning.
fn prose(document: &Path) -> String {
    let text = fs::read_to_string(document).unwrap();
    text.split("\n```").step_by(2).collect()
}

/// Returns the targets of `[text](target)`, without those on the web.
fn links(prose: &str) -> impl Iterator<Item = &str> {
    let targets = prose.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split_once(')'));
    targets
        .map(|(target, _)| target)
        .filter(|target| !target.contains("://"))
}

/// Output folders of builds and runs.
const GENERATED: [&str; 2] = ["target", "runs"];

/// Returns the paths in backticks that start with a folder of the project.
fn paths(prose: &str) -> impl Iterator<Item = &str> {
    let quoted = prose.split('`').skip(1).step_by(2);
    quoted.filter(|quoted| {
        let folder = quoted.split_once('/').map_or("", |(folder, _)| folder);
        let is_path = !quoted.contains([' ', '{', '*', '<']);
        let is_source = !folder.is_empty() && !GENERATED.contains(&folder);
        is_path && is_source && project().join(folder).is_dir()
    })
}

/// Returns the lines of `//!` comments of the project's Rust files below `folder`, by file.
fn crate_comments(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut comments = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && !GENERATED.contains(&&*name) {
            comments.extend(crate_comments(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().filter_map(|line| line.strip_prefix("//!"));
            comments.push((path, lines.collect::<Vec<_>>().join("\n")));
        }
    }
    comments
}

/// Returns the paths of Rust files in backticks.
fn rust_paths(comment: &str) -> impl Iterator<Item = &str> {
    let quoted = comment.split('`').skip(1).step_by(2);
    quoted.filter(|quoted| {
        quoted.ends_with(".rs") && quoted.contains('/') && !quoted.contains([' ', '{', '*', '<'])
    })
}

/// Returns `true` if `path`, as named in a comment of `file`, is below the file's folder or module,
/// or a folder around it up to the project.
fn is_found_from(file: &Path, path: &str) -> bool {
    let module = file.with_extension("");
    let around = file.ancestors().skip(1);
    let around = around.take_while(|folder| folder.starts_with(project()));
    std::iter::once(module.as_path())
        .chain(around)
        .any(|folder| folder.join(path).exists() || folder.join("src").join(path).exists())
}

/// Returns the anchors of a document's headings, as GitHub and mdBook make them.
fn anchors(document: &Path) -> Vec<String> {
    let text = prose(document);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().chars();
        let kept = kept.filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

fn broken_link(document: &Path, link: &str) -> Option<String> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => document.to_owned(),
        path => document.parent().unwrap().join(path),
    };
    let is_in_the_book = document.starts_with(book());
    let at = format!("{}: {link}", document.display());
    if !target.exists() {
        return Some(format!("{at}: no such file"));
    }
    if is_in_the_book && !target.canonicalize().unwrap().starts_with(book()) {
        return Some(format!("{at}: outside the book"));
    }
    let has_anchor = anchor.is_empty() || anchors(&target).iter().any(|known| known == anchor);
    (!has_anchor).then(|| format!("{at}: no such heading"))
}

#[test]
fn every_link_has_a_target() {
    let documents = documents();
    let broken: Vec<String> = documents
        .iter()
        .flat_map(|document| {
            let text = prose(document);
            let broken = links(&text).filter_map(|link| broken_link(document, link));
            broken.collect::<Vec<_>>()
        })
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_named_path_exists() {
    let mut named: usize = 0;
    let mut missing = Vec::new();
    for document in documents() {
        let text = prose(&document);
        for path in paths(&text) {
            named += 1;
            if !project().join(path).exists() {
                missing.push(format!("{}: {path}", document.display()));
            }
        }
    }
    assert!(named > 20, "only {named} paths were recognised");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_path_in_a_crate_comment_exists() {
    let mut named: usize = 0;
    let mut missing = Vec::new();
    for (file, comment) in crate_comments(project()) {
        let of_project = paths(&comment).filter(|path| !path.ends_with(".rs"));
        let unknown = of_project.filter(|path| !project().join(path).exists());
        missing.extend(unknown.map(|path| format!("{}: {path}", file.display())));
        for path in rust_paths(&comment) {
            named += 1;
            if !is_found_from(&file, path) {
                missing.push(format!("{}: {path}", file.display()));
            }
        }
    }
    assert!(named > 3, "only {named} paths were recognised");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_chapter_is_in_the_summary() {
    let summary = fs::read_to_string(book().join("SUMMARY.md")).unwrap();
    for chapter in chapters() {
        let name = chapter.file_name().unwrap().to_string_lossy().into_owned();
        let is_listed = name == "SUMMARY.md" || summary.contains(&format!("({name})"));
        assert!(is_listed, "{name} is not in SUMMARY.md");
    }
}

#[test]
fn readme_fits_its_budget() {
    let readme = fs::read(project().join("README.md")).unwrap();
    assert!(readme.len() <= 5 * 1024, "{} bytes", readme.len());
}
