//! PID 1 of the guest: loads drivers, runs checks, reports KTAP.

fn main() {}
