//! The negative control: through the page cache the data is correct, and no byte of it is
//! transferred peer to peer.

use super::{CheckOutcome, Run};
use anyhow::{Context, ensure};
use peerbar_report::{BufferedRead, Measure};
use rustix::fs::{Advice, fadvise};

use crate::counters::{Traffic, TrafficWatch};
use crate::disk;
use crate::guest_context::GuestContext;

const LENGTH: usize = 1 << 20;

impl Run for BufferedRead {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let source = guest.controller(&self.from)?;
        source.disk.check(0, LENGTH as u64)?;
        let pattern = guest.fresh_pattern(source);
        disk::fill(&source.disk.open_direct()?, pattern, 0, LENGTH)?;

        let file = source.disk.open_buffered()?;
        fadvise(&file, 0, None, Advice::DontNeed).context("cannot drop the page cache")?;
        // Otherwise the kernel reads ahead, and some of that might be counted in the next check.
        fadvise(&file, 0, None, Advice::Random).context("cannot turn reading ahead off")?;
        let mut memory = guest.provider(&self.provider)?.pool.map(LENGTH)?;
        let mut watch = TrafficWatch::new(guest);
        watch.watch(|| memory.read_from(&file, 0, LENGTH))?;
        measure.sizes = "1M".to_owned();
        measure.bytes = LENGTH as u64;
        watch.write_to(measure);

        pattern
            .verify(0, &memory.to_vec(LENGTH)?)
            .context("the data in p2pmem is wrong")?;
        judge(watch.traffic()?)?;
        Ok(CheckOutcome::Passed)
    }
}

fn judge(traffic: &Traffic) -> anyhow::Result<()> {
    let (peer, ram) = (traffic.peer_bytes(), traffic.ram_bytes());
    ensure!(
        peer == 0 && ram >= LENGTH as u64,
        "a read of {LENGTH} bytes through the page cache was to go to guest RAM; the counters show {ram} payload bytes \
         there and {peer} with a device's memory, so they do not distinguish the two"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, Direction, DmaKind, Purpose, Route};

    use super::*;

    #[test]
    fn a_peer_transfer_or_a_lack_of_any_fails() {
        let traffic = |completer, bytes| {
            let mut traffic = Traffic::default();
            let kind = DmaKind {
                purpose: Purpose::Payload,
                completer,
                route: Route::Upstream,
                direction: Direction::Write,
            };
            traffic.count(0, kind, bytes, 0);
            traffic
        };
        assert!(judge(&traffic(Completer::GuestRam, LENGTH as u64)).is_ok());
        assert!(judge(&traffic(Completer::GuestRam, 0)).is_err());
        assert!(judge(&traffic(Completer::PeerBar, LENGTH as u64)).is_err());
    }
}
