//! Compares the book's reference of checks with the code. `UPDATE_BOOK=1` writes it.

use std::path::Path;
use std::{env, fs};

use peerbar_report::check_reference;

/// Level of the kinds' headings.
const LEVEL: usize = 3;

#[test]
fn book_has_the_reference_of_all_checks() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated/checks.md");
    let expected = check_reference(LEVEL);
    if env::var_os("UPDATE_BOOK").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let message = "docs/src/generated/checks.md is out of date: run this test with UPDATE_BOOK=1";
    assert!(written == expected, "{message}");
}
