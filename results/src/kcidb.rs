//! A submission to KCIDB, the common database of kernel test results, of version 5.3 of its schema: one checkout and one build
//! for each kernel, one test for each check.
//!
//! What the schema allows of an identifier, a path and a status is checked when the values here are made.

use std::collections::BTreeSet;
use std::str::FromStr;

use peerbar_lab::results::{CheckResult, CheckStatus, RunResults};
use serde_json::{Map, Value, json};
use thiserror::Error;

/// Longest excerpt of a log in characters.
const LONGEST_EXCERPT: usize = 16_384;

/// What a submission says beside the results.
#[derive(Clone, Debug)]
pub struct KcidbSource {
    /// The submitting system.
    pub origin: KcidbOrigin,
    /// Commit of the kernel's source, if known.
    pub commit: Option<CommitHash>,
    /// Repository of the kernel's source, if known.
    pub repository: Option<String>,
}

/// Name of a submitting system: lower-case letters, digits and underscores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KcidbOrigin(String);

/// A git commit's full hash in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitHash(String);

/// Why a text cannot be submitted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KcidbError {
    /// No name of a system.
    #[error("`{0}` is no origin: use lower-case letters, digits and underscores")]
    Origin(String),
    /// No hash.
    #[error("`{0}` is no commit: give all 40 hexadecimal digits, as git rev-parse prints them")]
    Commit(String),
}

impl FromStr for KcidbOrigin {
    type Err = KcidbError;

    fn from_str(text: &str) -> Result<Self, KcidbError> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        match !text.is_empty() && text.chars().all(fits) {
            true => Ok(Self(text.to_owned())),
            false => Err(KcidbError::Origin(text.to_owned())),
        }
    }
}

impl FromStr for CommitHash {
    type Err = KcidbError;

    fn from_str(text: &str) -> Result<Self, KcidbError> {
        let fits = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        match text.len() == 40 && text.chars().all(fits) {
            true => Ok(Self(text.to_owned())),
            false => Err(KcidbError::Commit(text.to_owned())),
        }
    }
}

/// The submission for `runs`.
pub fn kcidb<'a>(runs: impl IntoIterator<Item = &'a RunResults>, source: &KcidbSource) -> Value {
    let runs: Vec<&RunResults> = runs.into_iter().collect();
    let kernels: BTreeSet<&str> = runs
        .iter()
        .map(|run| run.versions.kernel.as_str())
        .collect();
    let checkouts = kernels.iter().map(|kernel| checkout(kernel, source));
    let builds = kernels.iter().map(|kernel| build(kernel, source));
    let tests = runs.iter().flat_map(|run| tests(run, source));
    json!({
        "version": { "major": 5, "minor": 3 },
        "checkouts": checkouts.collect::<Vec<Value>>(),
        "builds": builds.collect::<Vec<Value>>(),
        "tests": tests.collect::<Vec<Value>>(),
    })
}

fn checkout(kernel: &str, source: &KcidbSource) -> Value {
    let mut checkout = object(json!({
        "id": id(source, &["checkout", kernel]),
        "origin": source.origin.0,
        "comment": format!("Linux {kernel}"),
        "valid": true,
    }));
    if let Some(CommitHash(commit)) = &source.commit {
        checkout.insert("git_commit_hash".to_owned(), json!(commit));
    }
    if let Some(repository) = &source.repository {
        checkout.insert("git_repository_url".to_owned(), json!(repository));
    }
    checkout.into()
}

fn build(kernel: &str, source: &KcidbSource) -> Value {
    json!({
        "id": id(source, &["build", kernel]),
        "checkout_id": id(source, &["checkout", kernel]),
        "origin": source.origin.0,
        "architecture": "x86_64",
        "comment": format!("Linux {kernel}"),
        "status": "PASS",
    })
}

fn tests(run: &RunResults, source: &KcidbSource) -> Vec<Value> {
    let stem = |number: usize| {
        let time = run.started.compact();
        let number = number.to_string();
        json!({
            "id": id(source, &["test", &run.scenario, &time, &number]),
            "build_id": id(source, &["build", &run.versions.kernel]),
            "origin": source.origin.0,
            "start_time": run.started.to_rfc3339(),
            "environment": {
                "comment": format!("peerbar {}, QEMU {}", run.versions.peerbar, run.versions.qemu),
            },
        })
    };
    let done = run
        .checks
        .iter()
        .map(|check| (check.name.as_str(), Some(check)));
    let left = run.not_run.iter().map(|name| (name.as_str(), None));
    let tests = (1..).zip(done.chain(left));
    tests
        .map(|(number, (name, check))| {
            let mut test = object(stem(number));
            let path = format!("peerbar.{}.{}", node(&run.scenario), node(name));
            test.insert("path".to_owned(), json!(path));
            test.insert("comment".to_owned(), json!(clean(name)));
            match check {
                Some(check) => add_result(&mut test, check),
                None => {
                    test.insert("status".to_owned(), json!("MISS"));
                    let reason = excerpt(&run.verdict.to_string());
                    test.insert("log_excerpt".to_owned(), json!(reason));
                }
            }
            test.into()
        })
        .collect()
}

fn add_result(test: &mut Map<String, Value>, check: &CheckResult) {
    let status = match check.verdict {
        CheckStatus::Pass => "PASS",
        CheckStatus::Fail => "FAIL",
        CheckStatus::Skip => "SKIP",
    };
    let measure = &check.measure;
    test.insert("status".to_owned(), json!(status));
    test.insert("duration".to_owned(), json!(measure.seconds));
    test.insert(
        "misc".to_owned(),
        json!({
            "kind": check.kind,
            "routes": measure.routes,
            "peer_bytes": measure.peer_bytes,
            "ram_bytes": measure.ram_bytes,
        }),
    );
    if !check.diagnostics.is_empty() {
        let lines = excerpt(&check.diagnostics.join("\n"));
        test.insert("log_excerpt".to_owned(), json!(lines));
    }
    if measure.bytes > 0 && measure.seconds > 0.0 {
        let rate = measure.bytes as f64 / measure.seconds;
        let number = json!({ "value": rate, "unit": "B/s", "prefix": "binary" });
        test.insert("number".to_owned(), number);
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// `ORIGIN:PART:PART`.
fn id(source: &KcidbSource, parts: &[&str]) -> String {
    clean(&format!("{}:{}", source.origin.0, parts.join(":")))
}

/// A part of a test's path: letters, digits, hyphens and underscores.
fn node(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    match words.as_slice() {
        [] => "check".to_owned(),
        words => words.join("_").to_lowercase(),
    }
}

/// A text without NUL.
fn clean(text: &str) -> String {
    text.replace('\0', " ")
}

fn excerpt(text: &str) -> String {
    clean(text).chars().take(LONGEST_EXCERPT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn source() -> KcidbSource {
        KcidbSource {
            origin: "mylab".parse().unwrap(),
            commit: Some("0123456789abcdef0123456789abcdef01234567".parse().unwrap()),
            repository: Some("https://example.org/linux.git".to_owned()),
        }
    }

    /// The rules of the schema for one object: its required fields, those that it may have, identifiers of the origin.
    fn check_object(value: &Value, required: &[&str], optional: &[&str]) {
        let fields = value.as_object().unwrap();
        for name in required {
            assert!(fields.contains_key(*name), "{name}: {value:#}");
        }
        for (name, field) in fields {
            let name = name.as_str();
            assert!(
                required.contains(&name) || optional.contains(&name),
                "{name}"
            );
            assert!(!field.is_null(), "{name}");
            if name == "id" || name.ends_with("_id") {
                assert!(field.as_str().unwrap().starts_with("mylab:"), "{field}");
            }
        }
    }

    #[test]
    fn submission_has_the_fields_of_the_schema_only() {
        let run = samples::run();
        let value = kcidb([&run, &run], &source());
        assert_eq!(value["version"], json!({ "major": 5, "minor": 3 }));
        let list = |name: &str| value[name].as_array().unwrap().clone();
        assert_eq!(list("checkouts").len(), 1);
        for checkout in list("checkouts") {
            let optional = ["comment", "valid", "git_commit_hash", "git_repository_url"];
            check_object(&checkout, &["id", "origin"], &optional);
        }
        for build in list("builds") {
            let optional = ["architecture", "comment", "status"];
            check_object(&build, &["id", "origin", "checkout_id"], &optional);
            assert_eq!(build["checkout_id"], list("checkouts")[0]["id"]);
        }
        let optional = [
            "path",
            "comment",
            "status",
            "duration",
            "misc",
            "log_excerpt",
            "number",
            "start_time",
            "environment",
        ];
        for test in list("tests") {
            check_object(&test, &["id", "origin", "build_id"], &optional);
            assert_eq!(test["build_id"], list("builds")[0]["id"]);
            let path = test["path"].as_str().unwrap();
            let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            assert!(path.chars().all(fits) && !path.contains(".."), "{path}");
        }
        let statuses: Vec<Value> = list("tests").iter().map(|t| t["status"].clone()).collect();
        assert_eq!(statuses[..4], ["PASS", "FAIL", "SKIP", "MISS"]);
        let first = &list("tests")[0];
        assert_eq!(first["path"], "peerbar.demo.disk0_to_vram_and_back");
        assert_eq!(first["number"]["value"], json!(4.0 * 1024.0 * 1024.0));
    }

    #[test]
    fn tests_of_one_run_have_ids_of_their_own() {
        let value = kcidb([&samples::run()], &source());
        let tests = value["tests"].as_array().unwrap().iter();
        let ids: BTreeSet<String> = tests.map(|test| test["id"].to_string()).collect();
        assert_eq!(ids.len(), 4);
    }

    #[test]
    fn origin_and_commit_are_checked() {
        assert!("my lab".parse::<KcidbOrigin>().is_err());
        assert!("".parse::<KcidbOrigin>().is_err());
        let error = "v7.3".parse::<CommitHash>().unwrap_err().to_string();
        assert!(error.starts_with("`v7.3` is no commit"), "{error}");
    }
}
