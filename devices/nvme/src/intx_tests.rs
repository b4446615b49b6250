//! Tests of `intx.rs`.

use crate::intx::Intx;

#[test]
fn level_follows_entries_vectors_and_mask() {
    let intx = Intx::new(3);
    intx.open(1, 4, Some(1));
    intx.open(2, 4, None);
    assert!(!intx.level(0, |_| 0));
    intx.publish(2, 0, 1);
    assert!(!intx.level(0, |_| 0), "queue 2 does not interrupt");
    intx.publish(1, 0, 1);
    assert!(intx.level(0, |_| 0));
    assert!(!intx.level(0b10, |_| 0));
    intx.close(1);
    assert!(!intx.level(0, |_| 0));
}

#[test]
fn rung_head_counts_at_once_unless_beyond_the_tail() {
    let intx = Intx::new(1);
    intx.open(0, 4, Some(0));
    intx.publish(0, 3, 1);
    for (rung, level) in [(3, true), (0, true), (1, false), (2, false), (4, false)] {
        assert_eq!(intx.level(0, |_| rung), level, "{rung}");
    }
}
