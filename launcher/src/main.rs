//! One command: scenario -> devices + QEMU -> checks -> results.

fn main() {}
