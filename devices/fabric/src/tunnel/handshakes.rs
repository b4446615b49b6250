//! The handshakes of other fabrics that are going on, and how many there may be.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// How many others may be in a handshake at once, and how many of one address.
pub(super) const MAX_HANDSHAKES: usize = 64;
const MAX_HANDSHAKES_OF_ONE: usize = 8;

/// The handshakes that are going on, by the addresses of the other sides.
#[derive(Debug, Default)]
pub(super) struct Handshakes(Mutex<BTreeMap<IpAddr, usize>>);

/// One of them, until it is dropped.
pub(super) struct Handshake(Arc<Handshakes>, IpAddr);

impl Handshakes {
    /// Begins one, if there are not too many: one address leaves room for others.
    pub(super) fn begin(self: &Arc<Self>, of: IpAddr) -> Option<Handshake> {
        let mut handshakes = self.0.lock();
        let has_room = handshakes.values().sum::<usize>() < MAX_HANDSHAKES;
        let count = handshakes.get(&of).copied().unwrap_or(0);
        (has_room && count < MAX_HANDSHAKES_OF_ONE).then(|| {
            handshakes.insert(of, count + 1);
            Handshake(self.clone(), of)
        })
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut handshakes = self.0.0.lock();
        if let Some(count) = handshakes.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                handshakes.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_of_one_address_leave_room_for_others() {
        let handshakes = Arc::new(Handshakes::default());
        let begin = |number: u8| handshakes.begin(IpAddr::from([127, 0, 0, number]));
        let held: Vec<_> = (0..MAX_HANDSHAKES_OF_ONE).map(|_| begin(1)).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(begin(1).is_none());
        assert!(begin(2).is_some());
        drop(held);
        assert!(begin(1).is_some());
        let all: Vec<_> = (0..=u8::MAX).map_while(begin).collect();
        assert_eq!(all.len(), MAX_HANDSHAKES);
    }
}
