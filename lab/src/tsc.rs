//! The rate of the host's time stamp counter, which is given to a guest under emulation.
//!
//! A guest under emulation calibrates its time stamp counter against QEMU's timers. On a busy host
//! the result may be several times too small; then its clock runs too fast and checks hit their
//! time limits. So the guest is given the rate on its command line.

use std::time::{Duration, Instant};

/// Measuring time. Linux corrects the given frequency by up to 1%.
const WINDOW: Duration = Duration::from_millis(20);

/// Number of times that the counter and the clock are read for a pair of simultaneous values.
const TRIES: u32 = 16;

/// Returns the counter's rate in kHz, if it is constant in all states of the processor.
pub(crate) fn khz(cpuinfo: &str) -> Option<u64> {
    let steady = ["constant_tsc", "nonstop_tsc"]
        .into_iter()
        .all(|flag| cpuinfo.split_whitespace().any(|word| word == flag));
    let (from, counted) = steady.then(moment).flatten()?;
    std::thread::sleep(WINDOW);
    let (to, count) = moment()?;
    let ticks = u128::from(count.checked_sub(counted)?);
    let khz = ticks * 1_000_000 / to.duration_since(from).as_nanos().max(1);
    u64::try_from(khz).ok()
}

/// Returns a moment, and the counter's value then.
fn moment() -> Option<(Instant, u64)> {
    let tries = (0..TRIES).map(|_| {
        let before = Instant::now();
        let count = counter();
        (before.elapsed(), before, count)
    });
    let (_, moment, count) = tries.min_by_key(|(took, ..)| *took)?;
    Some((moment, count?))
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the only way to read it")]
fn counter() -> Option<u64> {
    // SAFETY: it reads a register of the processor's, which programs may read unless they have
    // forbidden it themselves.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_is_not_steady_has_no_rate() {
        for flags in ["", "flags\t: tsc constant_tsc", "flags\t: nonstop_tsc tsc"] {
            assert_eq!(khz(flags), None, "{flags}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_steady_counter_has_one_rate() {
        let rate = || khz("flags\t: tsc constant_tsc nonstop_tsc\n").unwrap();
        let (one, another) = (rate(), rate());
        assert!(one.abs_diff(another) < one / 20, "{one} {another}");
    }
}
