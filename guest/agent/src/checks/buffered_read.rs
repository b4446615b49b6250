//! The negative control: through the page cache the data is right, and no byte of it goes peer to peer.

use anyhow::{Context, ensure};
use peerbar_report::Measure;
use rustix::fs::{Advice, fadvise};

use crate::counters::{Traffic, Witness};
use crate::disk;
use crate::lab::Lab;

const LENGTH: usize = 1 << 20;

pub(super) fn run(
    lab: &Lab,
    from: &str,
    provider: &str,
    measure: &mut Measure,
) -> anyhow::Result<()> {
    let source = lab.controller(from)?;
    source.disk.check(0, LENGTH as u64)?;
    let pattern = lab.fresh_pattern(source);
    disk::fill(&source.disk.open_direct()?, pattern, 0, LENGTH)?;

    let file = source.disk.open_buffered()?;
    fadvise(&file, 0, None, Advice::DontNeed).context("cannot drop the page cache")?;
    // Without it the kernel reads ahead, and some of that might be counted in the next check.
    fadvise(&file, 0, None, Advice::Random).context("cannot turn reading ahead off")?;
    let mut memory = lab.provider(provider)?.pool.map(LENGTH)?;
    let mut witness = Witness::new(lab);
    witness.watch(|| memory.read_from(&file, 0, LENGTH))?;
    measure.sizes = "1M".to_owned();
    measure.bytes = LENGTH as u64;
    witness.tell(measure);

    pattern
        .verify(0, &memory.to_vec(LENGTH)?)
        .context("the data in p2pmem is wrong")?;
    judge(witness.traffic()?)
}

fn judge(traffic: &Traffic) -> anyhow::Result<()> {
    let (peer, ram) = (traffic.peer_bytes(), traffic.ram_bytes());
    ensure!(
        peer == 0 && ram >= LENGTH as u64,
        "a read of {LENGTH} bytes through the page cache was to go to guest RAM; the counters show {ram} payload bytes \
         there and {peer} with a device's memory, so they do not tell the two apart"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, Purpose, Route};

    use super::*;

    #[test]
    fn a_peer_transfer_or_a_lack_of_any_fails() {
        let traffic = |completer, bytes| {
            let mut traffic = Traffic::default();
            traffic.count(0, (Purpose::Payload, completer, Route::Upstream), bytes, 0);
            traffic
        };
        assert!(judge(&traffic(Completer::GuestRam, LENGTH as u64)).is_ok());
        assert!(judge(&traffic(Completer::GuestRam, 0)).is_err());
        assert!(judge(&traffic(Completer::PeerBar, LENGTH as u64)).is_err());
    }
}
