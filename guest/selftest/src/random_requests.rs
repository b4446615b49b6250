//! Programs that make random requests to a driver.

#![expect(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::ensure;

const THREADS: u32 = 3;
/// Number of objects of each kind that a thread keeps before it releases the oldest.
const KEPT: usize = 6;
/// The largest structure of a request, in words of 8 bytes: the number of a request can express
/// 16383 bytes.
const WORDS: usize = 2048;
/// A structure of zeros with the largest possible size.
pub(crate) const NOTHING: [u64; WORDS] = [0; WORDS];

/// A program that makes arbitrary requests to a driver.
pub(crate) trait Program {
    /// Makes a request. Returns `true` if the driver has accepted it.
    fn request(&mut self) -> anyhow::Result<bool>;
}

/// Lets several programs make `requests` at once.
///
/// # Errors
/// Those of the programs. Nearly all requests are accepted, or refused: then they test little.
pub(crate) fn run<P: Program>(
    requests: u32,
    seed: u32,
    program: impl Fn(Random) -> anyhow::Result<P> + Sync,
) -> anyhow::Result<()> {
    let accepted = AtomicU32::new(0);
    let each = requests / THREADS;
    thread::scope(|scope| {
        let threads = (0..THREADS).map(|number| {
            let (accepted, program) = (&accepted, &program);
            scope.spawn(move || -> anyhow::Result<()> {
                let mut program = program(Random(u64::from(seed) << 8 | u64::from(number)))?;
                for _ in 0..each {
                    let is_accepted = program.request()?;
                    accepted.fetch_add(is_accepted.into(), Ordering::Relaxed);
                }
                Ok(())
            })
        });
        let threads: Vec<_> = threads.collect();
        let mut ends = threads.into_iter().map(|thread| thread.join());
        ends.try_for_each(|end| end.map_err(|_| anyhow::anyhow!("a thread has panicked"))?)
    })?;
    let accepted = accepted.into_inner();
    let (least, most) = (each / 10, each * THREADS * 9 / 10);
    ensure!(
        (least..=most).contains(&accepted),
        "the driver has accepted {accepted} of {requests} requests: they test little"
    );
    Ok(())
}

/// Makes a request with this structure, of plain numbers. Returns the driver's output if it has
/// accepted the request.
pub(crate) fn make<T: Copy>(file: &File, number: u32, structure: T) -> Option<T> {
    const { assert!(size_of::<T>() <= size_of_val(&NOTHING) && align_of::<T>() <= align_of::<u64>()) };
    let mut space = Box::new(NOTHING);
    let pointer = space.as_mut_ptr().cast::<T>();
    // SAFETY: the structures of requests are shorter than the space, and have its alignment.
    unsafe { pointer.write(structure) };
    // SAFETY: the space is longer than any structure size that the number of a request can express.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), number.into(), pointer) };
    // SAFETY: it was written above, and the driver's output consists of numbers.
    (result >= 0).then(|| unsafe { pointer.read() })
}

/// Pseudo-random numbers, which are the same for each seed (SplitMix64).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns `true` once in this many calls.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        let at = usize::try_from(self.below(all.len().max(1) as u64)).ok()?;
        all.get(at).copied()
    }

    /// Returns one of `all`, or once in this many calls, and if there are none, anything.
    pub(crate) fn known(&mut self, all: &[u32], times: u64) -> u32 {
        let known = self.of(all);
        let is_right = !self.once_in(times);
        let known = known.filter(|_| is_right);
        known.unwrap_or_else(|| self.word())
    }

    /// Returns 32 bits: small values, or any.
    pub(crate) fn word(&mut self) -> u32 {
        let bits = self.of(&[2, 4, 32]).unwrap_or(32);
        u32::try_from(self.next() >> 32 & ((1 << bits) - 1)).unwrap_or(u32::MAX)
    }
}

/// Returns the low half.
pub(crate) fn low(word: u64) -> u32 {
    u32::try_from(word & 0xffff_ffff).unwrap_or(0)
}

/// Keeps the newest ones.
pub(crate) fn keep<T>(all: &mut Vec<T>, new: T) {
    if all.len() >= KEPT {
        all.remove(0);
    }
    all.push(new);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_numbers() {
        let numbers = |seed| {
            let mut random = Random(seed);
            [(); 4].map(|()| random.next())
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }

    #[test]
    fn what_is_kept_is_the_newest() {
        let mut all = Vec::new();
        (0..10).for_each(|number| keep(&mut all, number));
        assert_eq!(all, [4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn programs_that_are_always_accepted_test_little() {
        struct Accepted(bool);
        impl Program for Accepted {
            fn request(&mut self) -> anyhow::Result<bool> {
                self.0 = !self.0;
                Ok(self.0)
            }
        }
        struct Always;
        impl Program for Always {
            fn request(&mut self) -> anyhow::Result<bool> {
                Ok(true)
            }
        }
        run(300, 1, |_| Ok(Accepted(false))).unwrap();
        let error = run(300, 1, |_| Ok(Always)).unwrap_err();
        assert!(error.to_string().contains("accepted 300 of 300"), "{error}");
    }
}
