//! The chapter about the reader's own program, starting with an empty folder.

use crate::chapter::follow;

#[test]
#[ignore = "boots guests; scripts/test runs it"]
fn your_program_does_what_its_chapter_says() {
    let folder = tempfile::tempdir().unwrap();
    assert!(follow("your-program.md", folder.path()).unwrap() >= 5);
}
