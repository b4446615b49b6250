//! The expected results of a launch, computed thread by thread.

use std::fmt;

/// Counters of a histogram.
pub const BINS: usize = 256;

/// The shape of a launch: the numbers of elements, of blocks, and of threads in a block.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of elements that are computed. Threads beyond them do nothing.
    pub elements: u64,
    /// Number of blocks of threads.
    pub grid: u32,
    /// Number of threads in a block.
    pub block: u32,
}

impl Shape {
    /// Returns the element of each thread that has one.
    fn threads(self) -> impl Iterator<Item = usize> {
        let elements = move |block: u32| {
            (0..self.block).map(move |thread| {
                u64::from(block)
                    .saturating_mul(self.block.into())
                    .saturating_add(thread.into())
            })
        };
        (0..self.grid)
            .flat_map(elements)
            .filter(move |element| *element < self.elements)
            .filter_map(|element| usize::try_from(element).ok())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape {
            elements,
            grid,
            block,
        } = self;
        write!(f, "{grid} blocks of {block} threads on {elements} elements")
    }
}

/// Returns `count` numbers of either sign between 2^-15 and 2, from number `first` on, which differ
/// in each `round`.
pub fn numbers(round: u64, first: usize, count: usize) -> Vec<f32> {
    const SIGN_FRACTION_AND_LOW_EXPONENT: u32 = 0x87ff_ffff;
    const LEAST_EXPONENT: u32 = 0x3800_0000;
    let seed = crc32c::crc32c(&round.to_le_bytes());
    let number = |index: usize| {
        let bits = crc32c::crc32c_append(seed, &index.to_le_bytes());
        f32::from_bits(bits & SIGN_FRACTION_AND_LOW_EXPONENT | LEAST_EXPONENT)
    };
    (first..).take(count).map(number).collect()
}

/// Returns the bytes of `vector` in memory.
pub fn bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Returns `sum` after `sum[i] = x[i] + y[i]`.
pub fn vector_add(shape: Shape, x: &[f32], y: &[f32], mut sum: Vec<f32>) -> Vec<f32> {
    for element in shape.threads() {
        if let (Some(x), Some(y), Some(sum)) =
            (x.get(element), y.get(element), sum.get_mut(element))
        {
            *sum = x + y;
        }
    }
    sum
}

/// Returns `y` after `y[i] = factor * x[i] + y[i]`, rounded twice.
pub fn saxpy(shape: Shape, factor: f32, x: &[f32], mut y: Vec<f32>) -> Vec<f32> {
    for element in shape.threads() {
        if let (Some(x), Some(y)) = (x.get(element), y.get_mut(element)) {
            *y += factor * x;
        }
    }
    y
}

/// Returns the sum of the bits of `x`, interpreted as integers.
pub fn reduction(shape: Shape, x: &[f32]) -> u64 {
    let words = shape.threads().filter_map(|element| x.get(element));
    words.map(|word| u64::from(word.to_bits())).sum()
}

/// Returns `bins` after each thread has counted its byte.
pub fn histogram(shape: Shape, bytes: &[u8], mut bins: Vec<u32>) -> Vec<u32> {
    for element in shape.threads() {
        let byte = bytes.get(element).copied();
        if let Some(bin) = byte.and_then(|byte| bins.get_mut(usize::from(byte))) {
            *bin = bin.wrapping_add(1);
        }
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: [f32; 5] = [1.0, 2.0, 3.0, 4.0, 5.0];

    fn shape(elements: u64, grid: u32, block: u32) -> Shape {
        Shape {
            elements,
            grid,
            block,
        }
    }

    #[test]
    fn threads_and_elements_without_a_partner_change_nothing() {
        let y = vec![10.0; 5];
        let fewer = saxpy(shape(5, 1, 3), 2.0, &X, y.clone());
        assert_eq!(fewer, [12.0, 14.0, 16.0, 10.0, 10.0]);
        let more = vector_add(shape(4, 3, 2), &X, &y, vec![0.0; 5]);
        assert_eq!(more, [11.0, 12.0, 13.0, 14.0, 0.0]);
    }

    #[test]
    fn sums_and_counts_cover_the_elements_of_the_threads() {
        let two = u64::from(1f32.to_bits()) + u64::from(2f32.to_bits());
        assert_eq!(reduction(shape(5, 2, 1), &X), two);
        let bins = histogram(shape(4, 1, 1024), &[7, 7, 9, 7, 7], vec![1; BINS]);
        assert_eq!((bins[7], bins[9], bins[0]), (4, 2, 1));
    }
}
