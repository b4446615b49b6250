//! Addresses and ranges of them.
//!
//! A driver gives its device an [`Iova`], and the device puts it into a DMA request. On its way up,
//! each switch compares that number, untranslated, with the [`BusAddress`]es of the windows below
//! it: a request that hits one goes to that device and never meets the IOMMU. Only at the root does
//! the IOMMU translate the IOVA into a guest-physical address, or refuse it. So the two kinds of
//! address have the same form and meet in one place, [`Iova::on_bus`], and a device that confuses
//! them writes to the wrong memory.
//!
//! An offset in a BAR or in a file is a plain `u64`. Guest-physical addresses occur only where a
//! client lends guest memory by them (vhost-user), as `vm_memory::GuestAddress`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// An address in one of the address spaces.
pub trait Address: Copy + Ord + fmt::Display {
    /// Makes the address with this number.
    fn new(number: u64) -> Self;

    /// Returns its number.
    fn get(self) -> u64;
}

macro_rules! address {
    ($(#[$attribute:meta])* $name:ident) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Returns the address that many bytes later, or `None` beyond the address space.
            #[inline]
            pub fn checked_add(self, bytes: u64) -> Option<Self> {
                self.0.checked_add(bytes).map(Self)
            }

            /// Returns the address that many bytes later, or the last one of the address space.
            #[inline]
            pub fn saturating_add(self, bytes: u64) -> Self {
                Self(self.0.saturating_add(bytes))
            }

            /// Returns the address that many bytes later, for a transfer whose last byte is known
            /// to lie in the address space: behind the last address comes 0.
            #[inline]
            pub fn wrapping_add(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }

            /// Returns the address that many bytes earlier, or `None` below 0.
            #[inline]
            pub fn checked_sub(self, bytes: u64) -> Option<Self> {
                self.0.checked_sub(bytes).map(Self)
            }

            /// Returns the number of bytes from `base` to here, or `None` if this comes first.
            #[inline]
            pub fn offset_from(self, base: Self) -> Option<u64> {
                self.0.checked_sub(base.0)
            }

            /// Returns `true` if it is a multiple of `bytes`, which is not 0.
            #[inline]
            pub fn is_aligned(self, bytes: u64) -> bool {
                self.0 % bytes == 0
            }
        }

        impl Address for $name {
            #[inline]
            fn new(number: u64) -> Self {
                Self(number)
            }

            #[inline]
            fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

address! {
    /// The address of a DMA request before the IOMMU translates it (I/O virtual address). Drivers
    /// give it to devices: in PRPs, rings and doorbell buffers.
    Iova
}

address! {
    /// An address on the PCI bus, by which switches route. Windows of BARs are at bus addresses.
    BusAddress
}

impl Iova {
    /// Returns the bus address by which switches route an untranslated request with this IOVA.
    #[inline]
    pub fn on_bus(self) -> BusAddress {
        BusAddress(self.0)
    }
}

/// A range of addresses. It is not empty, and may end with the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range<A> {
    first: A,
    /// Inclusive: no address follows the last one of the address space.
    last: A,
}

/// The text is not a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("must be FIRST-LAST, two hexadecimal addresses in ascending order")]
pub struct InvalidRange;

impl<A: Address> Range<A> {
    /// Returns the range of `size` bytes at `first`, or `None` if it is empty or leaves the address
    /// space.
    #[inline]
    pub fn new(first: A, size: u64) -> Option<Self> {
        let last = A::new(first.get().checked_add(size.checked_sub(1)?)?);
        Some(Self { first, last })
    }

    /// Returns the range from `first` to `last`, both included, or `None` if `last` is less than
    /// `first`.
    pub fn from_bounds(first: A, last: A) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// Returns the range of all addresses.
    pub fn all() -> Self {
        let (first, last) = (A::new(0), A::new(u64::MAX));
        Self { first, last }
    }

    /// Returns its first address.
    #[inline]
    pub fn first(&self) -> A {
        self.first
    }

    /// Returns its last address.
    #[inline]
    pub fn last(&self) -> A {
        self.last
    }

    /// Returns its size in bytes. The size of all addresses, 2^64, counts as one less.
    #[inline]
    pub fn size(&self) -> u64 {
        self.distance().saturating_add(1)
    }

    #[inline]
    fn distance(&self) -> u64 {
        self.last.get() - self.first.get()
    }

    /// Returns the numbers of its addresses.
    pub fn numbers(&self) -> RangeInclusive<u64> {
        self.first.get()..=self.last.get()
    }

    /// Returns `true` if the address lies in the range.
    #[inline]
    pub fn contains(&self, address: A) -> bool {
        self.first <= address && address <= self.last
    }

    /// Returns `true` if all of `other` lies in the range.
    pub fn encloses(&self, other: &Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    /// Returns `true` if the two have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Returns the offset of an address in the range, or `None` if it lies outside.
    #[inline]
    pub fn offset_of(&self, address: A) -> Option<u64> {
        let offset = address.get().checked_sub(self.first.get())?;
        (address <= self.last).then_some(offset)
    }

    /// Returns how many of the `len` bytes at `address`, which lies in the range, are in it.
    #[inline]
    pub fn clip(&self, address: A, len: usize) -> usize {
        let rest = usize::try_from(self.last.get().saturating_sub(address.get()));
        rest.map_or(len, |rest| len.min(rest.saturating_add(1)))
    }

    /// Returns the part of the range before an address, if there is one.
    pub fn before(&self, address: A) -> Option<Self> {
        let last = A::new(address.get().checked_sub(1)?).min(self.last);
        Self::from_bounds(self.first, last)
    }

    /// Returns the part of the range after an address, if there is one.
    pub fn after(&self, address: A) -> Option<Self> {
        let first = A::new(address.get().checked_add(1)?).max(self.first);
        Self::from_bounds(first, self.last)
    }
}

impl Range<Iova> {
    /// Returns the bus addresses by which switches route untranslated requests to these.
    #[inline]
    pub fn on_bus(self) -> Range<BusAddress> {
        Range {
            first: self.first.on_bus(),
            last: self.last.on_bus(),
        }
    }
}

impl<A: Address> fmt::Display for Range<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl<A: Address> FromStr for Range<A> {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let (first, last) = text.split_once('-').ok_or(InvalidRange)?;
        let bounds = number(first).zip(number(last));
        let range = bounds.and_then(|(first, last)| Self::from_bounds(A::new(first), A::new(last)));
        range.ok_or(InvalidRange)
    }
}

/// As first address and size.
impl<A: Address> Serialize for Range<A> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let size = self.distance().checked_add(1);
        let size = size.ok_or_else(|| S::Error::custom("a size of 2^64 is not a u64"))?;
        (self.first.get(), size).serialize(serializer)
    }
}

impl<'de, A: Address> Deserialize<'de> for Range<A> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (first, size) = <(u64, u64)>::deserialize(deserializer)?;
        let range = Self::new(A::new(first), size);
        range.ok_or_else(|| D::Error::custom("a range is empty or leaves the address space"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(first: u64, size: u64) -> Range<Iova> {
        Range::new(Iova(first), size).unwrap()
    }

    #[test]
    fn range_is_parsed_as_it_is_displayed() {
        let range = Range::from_bounds(BusAddress(0x8000_0000), BusAddress(0xfebf_ffff)).unwrap();
        assert_eq!(range.to_string(), "0x80000000-0xfebfffff");
        assert_eq!(range.to_string().parse(), Ok(range));
        for wrong in [
            "",
            "0x1000",
            "0x2-0x1",
            "1-2",
            "0x1-",
            "0x1-0x1ffffffffffffffff",
        ] {
            assert_eq!(
                wrong.parse::<Range<BusAddress>>(),
                Err(InvalidRange),
                "{wrong}"
            );
        }
    }

    #[test]
    fn range_may_end_with_the_address_space_but_not_beyond() {
        assert_eq!(Range::new(Iova(0x1000), 0), None);
        assert_eq!(Range::new(Iova(u64::MAX), 2), None);
        assert_eq!(
            Range::new(Iova(1), u64::MAX).unwrap().last(),
            Iova(u64::MAX)
        );
        assert_eq!(Range::<Iova>::all().size(), u64::MAX);
        assert_eq!(range(u64::MAX, 1).clip(Iova(u64::MAX), 8), 1);
        assert_eq!(Range::all().clip(Iova(0), usize::MAX), usize::MAX);
        assert_eq!(Range::<Iova>::all().after(Iova(u64::MAX)), None);
        assert_eq!(Range::<Iova>::all().before(Iova(0)), None);
    }

    #[test]
    fn only_a_range_that_lies_in_another_as_a_whole_is_enclosed() {
        let outer = range(0x2000, 0x3000);
        for inner in [(0x2000, 0x3000), (0x4fff, 1)] {
            assert!(outer.encloses(&range(inner.0, inner.1)));
        }
        for inner in [
            (0x1fff, 0x10),
            (0x4000, 0x1001),
            (0x2000, u64::MAX - 0x2000),
        ] {
            assert!(!outer.encloses(&range(inner.0, inner.1)));
        }
    }

    #[test]
    fn addresses_are_shown_in_hexadecimal() {
        let address = BusAddress(0xfe00);
        assert_eq!(
            format!("{address} {address:?}"),
            "0xfe00 BusAddress(0xfe00)"
        );
    }

    proptest! {
        /// A slow model: every address of a small range.
        #[test]
        fn range_is_the_set_of_its_addresses(
            one in (0u64..24, 1u64..12),
            other in (0u64..24, 1u64..12),
            at in 0u64..40,
        ) {
            let set = |(first, size): (u64, u64)| (first..first + size).collect::<Vec<_>>();
            let (ones, others) = (set(one), set(other));
            let (one, other) = (range(one.0, one.1), range(other.0, other.1));
            prop_assert_eq!(one.size(), ones.len() as u64);
            prop_assert_eq!(one.contains(Iova(at)), ones.contains(&at));
            prop_assert_eq!(one.overlaps(&other), ones.iter().any(|it| others.contains(it)));
            prop_assert_eq!(one.encloses(&other), others.iter().all(|it| ones.contains(it)));
            let position = ones.iter().position(|it| *it == at);
            prop_assert_eq!(one.offset_of(Iova(at)), position.map(|offset| offset as u64));
            if let Some(position) = position {
                prop_assert_eq!(one.clip(Iova(at), 5), 5.min(ones.len() - position));
            }
            let part = |part: Option<Range<Iova>>| {
                part.map_or(Vec::new(), |part| set((part.first().0, part.size())))
            };
            let (before, after): (Vec<_>, Vec<_>) =
                ones.iter().filter(|it| **it != at).partition(|it| **it < at);
            prop_assert_eq!(part(one.before(Iova(at))), before);
            prop_assert_eq!(part(one.after(Iova(at))), after);
        }
    }
}
