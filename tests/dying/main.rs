//! Parts of a machine that die under load: servers, switches and QEMU are killed and stopped at
//! random moments. `scripts/test --only dying-guests` runs it.

#![allow(clippy::unwrap_used, reason = "a test panics if it fails")]

mod boot;
mod content;
#[path = "../environment.rs"]
mod environment;
mod load;
mod machine;
mod plan;
mod processes;

use std::time::Duration;

use peerbar_rig::new_seed;

use crate::environment::number;

/// At least one in this number of the planned kills and stops must happen, in all boots together.
/// The others may be cut by the time limit.
const LEAST_SHARE: usize = 4;

#[test]
#[ignore = "boots guests for minutes; scripts/test --only dying-guests runs it"]
fn parts_die_under_load_flushed_data_and_others_stay() {
    let boots = number("PEERBAR_DYING_BOOTS").unwrap_or(2);
    let limit = Duration::from_secs(number("PEERBAR_DYING_SECONDS").unwrap_or(600));
    let seed = new_seed();
    let (mut failed, mut planned, mut kills, mut stops) = (0, 0, 0, 0);
    for seed in (seed..).take(usize::try_from(boots).unwrap()) {
        match boot::run(seed, limit) {
            Ok(done) => {
                eprintln!("seed {seed}: {done}");
                planned += done.planned;
                kills += done.kills;
                stops += done.stops;
            }
            Err(error) => {
                failed += 1;
                eprintln!(
                    "FAILED: {error:#}; scripts/test --only dying-guests --seed {seed} repeats it"
                );
            }
        }
    }
    eprintln!("{kills} kills and {stops} stops of {planned} planned in boots without a fault");
    assert_eq!(failed, 0, "boots failed");
    let least = planned.div_ceil(LEAST_SHARE);
    assert!(kills > 0 && stops > 0, "{kills} kills and {stops} stops");
    assert!(kills + stops >= least, "fewer than {least} of {planned}");
}
