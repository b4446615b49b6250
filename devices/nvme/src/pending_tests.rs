//! Tests of `pending.rs`, which the models (`tests/models`) include without them.

use crate::pending::Pending;

#[test]
fn the_level_follows_entries_vectors_and_mask() {
    let pending = Pending::new(3);
    pending.open(1, 4, Some(1));
    pending.open(2, 4, None);
    assert!(!pending.level(0, |_| 0));
    pending.moved(2, 0, 1);
    assert!(!pending.level(0, |_| 0), "queue 2 does not interrupt");
    pending.moved(1, 0, 1);
    assert!(pending.level(0, |_| 0));
    assert!(!pending.level(0b10, |_| 0));
    pending.close(1);
    assert!(!pending.level(0, |_| 0));
}

#[test]
fn a_head_that_was_rung_counts_at_once_unless_it_is_beyond_what_is_known() {
    let pending = Pending::new(1);
    pending.open(0, 4, Some(0));
    pending.moved(0, 3, 1);
    for (rung, level) in [(3, true), (0, true), (1, false), (2, false), (4, false)] {
        assert_eq!(pending.level(0, |_| rung), level, "{rung}");
    }
}
