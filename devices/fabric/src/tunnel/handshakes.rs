//! The handshakes of other fabrics that are going on, and how many there may be.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// How many others may be in a handshake at once, and how many of one network.
pub(super) const MAX_HANDSHAKES: usize = 64;
const MAX_HANDSHAKES_OF_ONE: usize = 8;

/// The handshakes that are going on, by the networks of the other sides.
#[derive(Debug, Default)]
pub(super) struct Handshakes(Mutex<BTreeMap<IpAddr, usize>>);

/// What one host may have all addresses of: an IPv4 address, or an IPv6 network of 64 bits (RFC 4291, 2.5.1).
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

/// One of them, until it is dropped.
pub(super) struct Handshake(Arc<Handshakes>, IpAddr);

impl Handshakes {
    /// Begins one, if there are not too many: one network leaves room for others.
    pub(super) fn begin(self: &Arc<Self>, of: IpAddr) -> Option<Handshake> {
        let of = network(of);
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

    #[test]
    fn addresses_of_one_ipv6_network_are_one() {
        let handshakes = Arc::new(Handshakes::default());
        let begin = |network, host| {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host);
            handshakes.begin(address.into())
        };
        let held: Vec<_> = (1..).map_while(|host| begin(1, host)).collect();
        assert_eq!(held.len(), MAX_HANDSHAKES_OF_ONE);
        assert!(begin(2, 1).is_some());
        let mapped = |number| handshakes.begin(format!("::ffff:192.0.2.{number}").parse().unwrap());
        let others: Vec<_> = (1..=9).filter_map(mapped).collect();
        assert_eq!(others.len(), 9, "these are IPv4 addresses");
    }
}
