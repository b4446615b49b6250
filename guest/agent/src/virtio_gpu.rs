//! Graphics cards of the guest, as virtio-gpu: their buffers, and dma-bufs of them (Linux, drivers/gpu/drm).

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, read_dir};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, bail};
use drm::Device as _;
use drm::buffer::{Buffer, DrmFourcc};
use drm::control::Device as _;

/// Where Linux has one file for each graphics card.
const NODES: &str = "/dev/dri";

/// A picture of this width has rows of 4 KiB.
const WIDTH: u32 = 1024;
const ROW: u64 = 4096;

/// The card, opened. Closing it takes its handles of buffers away, and no memory that a dma-buf still stands for.
#[derive(Debug)]
pub(crate) struct Card(File);

impl AsFd for Card {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl drm::Device for Card {}
impl drm::control::Device for Card {}

impl Card {
    /// Opens the card that has this driver.
    pub(crate) fn open(driver: &str) -> anyhow::Result<Self> {
        let cards = read_dir(NODES).with_context(|| format!("cannot list {NODES}"))?;
        for card in cards {
            let path = card?.path();
            if is_card(&path) {
                let file = OpenOptions::new().read(true).write(true).open(&path);
                let card = Card(file.with_context(|| format!("cannot open {}", path.display()))?);
                if card.get_driver()?.name() == driver {
                    return Ok(card);
                }
            }
        }
        bail!("no card in {NODES} has the driver {driver}: is its module in the kernel?")
    }

    /// A new buffer of `bytes` bytes, whole pages: its handle, and a dma-buf of it. It is freed with the card or the dma-buf,
    /// whichever is closed last.
    pub(crate) fn make(&self, bytes: u64) -> anyhow::Result<(u32, OwnedFd)> {
        let rows = u32::try_from(bytes / ROW)?;
        let buffer = self.create_dumb_buffer((WIDTH, rows), DrmFourcc::Xrgb8888, 32);
        let handle = buffer.context("the card makes no buffer")?.handle();
        let dma_buf = self
            .buffer_to_prime_fd(handle, drm::CLOEXEC | drm::RDWR)
            .context("the card exports no dma-buf")?;
        Ok((handle.into(), dma_buf))
    }

    /// Makes a dma-buf of another exporter a buffer of this card, until the card is closed.
    pub(crate) fn import(&self, dma_buf: impl AsFd) -> io::Result<()> {
        self.prime_fd_to_buffer(dma_buf.as_fd()).map(drop)
    }
}

/// Whether a file there is a card's own, not one for rendering only, nor a directory of links.
fn is_card(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with("card"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_distinguished_from_other_nodes() {
        assert!(is_card(Path::new("/dev/dri/card0")));
        for other in ["/dev/dri/renderD128", "/dev/dri/by-path", "/"] {
            assert!(!is_card(Path::new(other)), "{other}");
        }
    }
}
