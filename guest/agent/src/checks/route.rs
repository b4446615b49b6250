//! The route of the bytes, compared with the expected one.

use std::io;

use anyhow::ensure;
use peerbar_report::{Buffer, Measure, Route};

use crate::counters::Traffic;
use crate::devices::Share;

/// Adds an explanation to the kernel's errors for a peer-to-peer mapping that it refuses: of an NVMe
/// disk EREMOTEIO up to Linux 6.16, EINVAL since.
pub(super) fn explain(through: &Buffer, error: anyhow::Error) -> anyhow::Error {
    let code = error
        .root_cause()
        .downcast_ref::<io::Error>()
        .and_then(io::Error::raw_os_error);
    match (through, code) {
        (Buffer::P2pmem(provider), Some(libc::EINVAL | libc::EREMOTEIO)) => error.context(format!(
            "the kernel seems to refuse peer-to-peer DMA with {provider}: the devices need a common switch without ACS \
             redirect, or a host bridge that it trusts; `peerbar explain` says which of them is missing"
        )),
        _ => error,
    }
}

/// Checks that all bytes took the route of the buffer, and none took the other, as far as they are
/// counted.
pub fn judge(through: &Buffer, expected: &[Share], traffic: &Traffic) -> anyhow::Result<()> {
    let failures = traffic.failures();
    ensure!(
        failures == 0,
        "{failures} DMA requests of the devices failed; the servers' logs say which"
    );
    let measured = expected.iter();
    let measured = measured.filter(|share| traffic.measures(share.number));
    for Share {
        number,
        name,
        bytes,
    } in measured
    {
        let (peer, ram) = (
            traffic.payload_to_devices(*number),
            traffic.payload_to_guest_ram(*number),
        );
        let has_queues = !traffic.tells_purposes(*number);
        match through {
            Buffer::P2pmem(_) | Buffer::GuestRam if has_queues => {
                let (right, wrong) = match through {
                    Buffer::P2pmem(_) => (peer, 0),
                    Buffer::GuestRam => (ram, peer),
                };
                ensure!(
                    right >= *bytes && wrong == 0,
                    "{name} should have moved {bytes} payload bytes or more to or from {through:?}; its counters show \
                     {peer} with a device's memory and {ram} with guest RAM, its queues included"
                );
            }
            Buffer::P2pmem(provider) => ensure!(
                peer == *bytes && ram == 0,
                "{name} should have moved {bytes} payload bytes to or from the p2pmem of {provider}, none of them through \
                 guest RAM; its counters show {peer} with a device's memory and {ram} with guest RAM"
            ),
            Buffer::GuestRam => ensure!(
                ram == *bytes && peer == 0,
                "{name} should have moved {bytes} payload bytes to or from guest RAM; its counters show {ram}, and {peer} \
                 with a device's memory"
            ),
        }
    }
    let has_purposes =
        |share: &&Share| traffic.counts(share.number) && traffic.tells_purposes(share.number);
    let counted = expected.iter().filter(has_purposes);
    let strays = traffic
        .payload_by_purpose()
        .saturating_sub(counted.map(|share| share.bytes).sum());
    ensure!(
        strays == 0,
        "devices that had no part in the copy moved {strays} payload bytes during it"
    );
    Ok(())
}

/// Checks that no payload went up to the root: devices below one switch reach each other through
/// it.
pub(super) fn stayed_below(measure: &Measure) -> anyhow::Result<()> {
    let up = measure.routes.get(&Route::Upstream).copied().unwrap_or(0);
    ensure!(
        up == 0,
        "{up} payload bytes went up to the root and were requested from QEMU, though all devices are below one switch; the \
         servers' logs say whether they are attached to it"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, Direction, DmaKind, Purpose, Route as Taken};

    use super::*;

    fn share(number: u32, name: &str) -> Share {
        Share {
            number,
            name: name.to_owned(),
            bytes: 4096,
        }
    }

    fn moved(counts: &[(u32, Completer, u64)]) -> Traffic {
        let mut traffic = Traffic::default();
        for (device, completer, bytes) in counts {
            let kind = DmaKind {
                purpose: Purpose::Payload,
                completer: *completer,
                route: Taken::Upstream,
                direction: Direction::Read,
            };
            traffic.count(*device, kind, *bytes, 0);
        }
        traffic
    }

    #[test]
    fn a_bounce_fails_a_peer_to_peer_copy_and_only_that() {
        let p2p = Buffer::P2pmem("a".into());
        let want = [share(0, "a"), share(1, "b")];
        let straight = moved(&[
            (0, Completer::OwnMemory, 4096),
            (1, Completer::PeerBar, 4096),
        ]);
        let bounced = moved(&[
            (0, Completer::GuestRam, 4096),
            (1, Completer::GuestRam, 4096),
        ]);
        assert!(judge(&p2p, &want, &straight).is_ok());
        assert!(judge(&Buffer::GuestRam, &want, &bounced).is_ok());
        let error = judge(&p2p, &want, &bounced).unwrap_err().to_string();
        assert!(
            error.ends_with("its counters show 0 with a device's memory and 4096 with guest RAM"),
            "{error}"
        );
        assert!(judge(&Buffer::GuestRam, &want, &straight).is_err());
    }

    #[test]
    fn a_byte_too_few_or_too_many_fails() {
        let p2p = Buffer::P2pmem("a".into());
        let want = [share(0, "a")];
        assert!(judge(&p2p, &want, &moved(&[(0, Completer::OwnMemory, 4095)])).is_err());
        let both = moved(&[(0, Completer::OwnMemory, 4096), (0, Completer::GuestRam, 1)]);
        assert!(judge(&p2p, &want, &both).is_err());
        let stray = moved(&[(0, Completer::OwnMemory, 4096), (2, Completer::GuestRam, 1)]);
        assert!(
            judge(&p2p, &want, &stray)
                .unwrap_err()
                .to_string()
                .contains("moved 1 payload bytes during it")
        );
    }

    #[test]
    fn queues_of_a_foreign_device_count_as_payload() {
        let p2p = Buffer::P2pmem("g".into());
        let counts = [(0, Completer::PeerBar, 4096), (0, Completer::GuestRam, 80)];
        let want = [share(0, "a")];
        assert!(judge(&p2p, &want, &moved(&counts)).is_err());
        let foreign = moved(&counts).without_purposes([0]);
        assert!(judge(&p2p, &want, &foreign).is_ok());
        let bounced = moved(&[(0, Completer::GuestRam, 4176)]).without_purposes([0]);
        assert!(judge(&p2p, &want, &bounced).is_err());
        assert!(judge(&Buffer::GuestRam, &want, &bounced).is_ok());
        assert!(judge(&Buffer::GuestRam, &want, &foreign).is_err());
    }

    #[test]
    fn upstream_traffic_below_one_switch_fails() {
        let measure = |route, bytes| Measure {
            routes: [(Route::Peer, 4096), (route, bytes)].into(),
            ..Measure::default()
        };
        assert!(stayed_below(&measure(Route::GuestRam, 4096)).is_ok());
        assert!(stayed_below(&measure(Route::Upstream, 0)).is_ok());
        assert!(stayed_below(&measure(Route::Upstream, 1)).is_err());
    }
}
