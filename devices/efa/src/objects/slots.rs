//! A bounded table of objects of one kind, by their numbers.

use super::error::{ObjectError, ObjectKind};

/// Up to 65536 objects of one kind. A released number is reused as late as possible.
pub(crate) struct Slots<T> {
    kind: ObjectKind,
    objects: Vec<Option<T>>,
    /// Start of the search for a free number.
    next: u16,
}

impl<T> Slots<T> {
    pub(super) fn new(kind: ObjectKind, limit: u16) -> Self {
        Self {
            kind,
            objects: (0..limit).map(|_| None).collect(),
            next: 0,
        }
    }

    /// Returns a number that is free, and for which `may_be_used` holds.
    pub(super) fn free_number(
        &self,
        may_be_used: impl Fn(u16) -> bool,
    ) -> Result<u16, ObjectError> {
        let (before, after) = self.objects.split_at(usize::from(self.next));
        let is_free =
            |(number, object): &(u16, &Option<T>)| object.is_none() && may_be_used(*number);
        let found = (self.next..).zip(after).find(&is_free);
        let found = found.or_else(|| (0..).zip(before).find(&is_free));
        let exhausted = ObjectError::Exhausted {
            kind: self.kind,
            limit: self.objects.len(),
        };
        found.map(|(number, _)| number).ok_or(exhausted)
    }

    /// Adds an object. Returns its number.
    pub(super) fn insert(&mut self, object: T) -> Result<u16, ObjectError> {
        let number = self.free_number(|_| true)?;
        self.put(number, object);
        Ok(number)
    }

    /// Adds an object by a number that is free.
    pub(super) fn put(&mut self, number: u16, object: T) {
        if let Some(slot) = self.objects.get_mut(usize::from(number)) {
            *slot = Some(object);
        }
        let next = usize::from(number).saturating_add(1);
        self.next = u16::try_from(next % self.objects.len().max(1)).unwrap_or(0);
    }

    pub(super) fn remove(&mut self, number: u16) -> Result<T, ObjectError> {
        let unknown = self.unknown(number);
        let slot = self.objects.get_mut(usize::from(number));
        slot.and_then(Option::take).ok_or(unknown)
    }

    pub(crate) fn get(&self, number: u16) -> Result<&T, ObjectError> {
        let object = self.objects.get(usize::from(number));
        object
            .and_then(Option::as_ref)
            .ok_or_else(|| self.unknown(number))
    }

    pub(crate) fn get_mut(&mut self, number: u16) -> Result<&mut T, ObjectError> {
        let unknown = self.unknown(number);
        let object = self.objects.get_mut(usize::from(number));
        object.and_then(Option::as_mut).ok_or(unknown)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        let numbered = (0..).zip(&self.objects);
        numbered.filter_map(|(number, object)| Some((number, object.as_ref()?)))
    }

    fn unknown(&self, number: u16) -> ObjectError {
        ObjectError::unknown(self.kind, number)
    }
}

/// The number of users of an object that has nothing else: a UAR or a protection domain.
#[derive(Default)]
pub(super) struct UserCount(usize);

impl Slots<UserCount> {
    /// Adds a user to an object.
    pub(super) fn add_user(&mut self, number: u16) -> Result<(), ObjectError> {
        self.get_mut(number)?.0 += 1;
        Ok(())
    }

    /// Removes a user of an object.
    pub(super) fn remove_user(&mut self, number: u16) {
        if let Ok(users) = self.get_mut(number) {
            users.0 = users.0.saturating_sub(1);
        }
    }

    /// Removes an object. Fails while it has users.
    pub(super) fn remove_unused(&mut self, number: u16) -> Result<(), ObjectError> {
        if self.get(number)?.0 > 0 {
            return Err(ObjectError::in_use(self.kind, number));
        }
        self.remove(number).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_used_again_as_late_as_possible() {
        let mut slots = Slots::new(ObjectKind::Uar, 3);
        assert_eq!([0, 1].map(|it| slots.insert(it)), [Ok(0), Ok(1)]);
        assert_eq!(slots.remove(0), Ok(0));
        assert_eq!([2, 3].map(|it| slots.insert(it)), [Ok(2), Ok(0)]);
        let full = ObjectError::Exhausted {
            kind: ObjectKind::Uar,
            limit: 3,
        };
        assert_eq!(slots.insert(4), Err(full));
        assert_eq!(slots.get(3), Err(slots.unknown(3)));
        assert_eq!(slots.remove(u16::MAX), Err(slots.unknown(u16::MAX)));
    }
}
