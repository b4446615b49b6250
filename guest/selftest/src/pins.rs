//! The pinning contract (guest/gpu-driver/include/peerbar_gpu_pin.h). A holder in the kernel forces
//! each order of events.

use std::fs::File;
use std::time::Instant;
use std::{io, thread};

use anyhow::{Context, bail, ensure};
use peerbar_agent::devices::Controller;
use peerbar_agent::gpus;
use peerbar_agent::guest_context::GuestContext;
use peerbar_agent::pci_function::PciFunction;
use peerbar_gds::{Buffer, Gpu};

use crate::Test;
use crate::expect::{refused, same};
use crate::load::{GPU_PAGE, TIME_OUT, memory_is_back};
use crate::pin_holder::{HOLD, Holder, KEEP_TABLE, PERSISTENT, Pin};

/// Size of the buffers, and of each transfer, in bytes.
const SIZE: u64 = 1 << 20;

/// Number of transfers that are started, the number of them after which the memory is freed, and
/// the limit of the attempts until some are in flight at that moment.
const TRANSFERS: u64 = 100;
const UNDER_WAY: u32 = 20;
const ATTEMPTS: u32 = 20;

const INVALID: i32 = -libc::EINVAL;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let fixture = Fixture {
        guest,
        gpu: test.gpu()?,
        opened: test.gpu()?.open()?,
        holder: Holder::open()?,
    };
    fixture.what_cannot_be_pinned_is_refused()?;
    fixture.put_then_free().context("put, then free")?;
    fixture.free_then_put().context("free, then put")?;
    fixture
        .revoke_then_free_table()
        .context("revoke, table kept")?;
    fixture
        .close_while_pinned()
        .context("file closed while pinned")?;
    fixture
        .put_during_callback()
        .context("put during the callback")?;
    fixture.persistent().context("a persistent pin")?;
    fixture
        .mapped_for_a_peer(test.disk()?)
        .context("mapped for a peer")?;
    if !fixture.opened.properties().window {
        let disk = test.disk()?.disk.open_direct()?;
        let freed = fixture.free_while_in_flight(&disk);
        freed.context("freed while transfers are in flight")?;
        let kept = fixture.persistent_while_in_flight(&disk);
        kept.context("freed while transfers into a persistent pin are in flight")?;
    }
    let Fixture { opened, .. } = fixture;
    drop(opened);
    memory_is_back(guest, test.gpu()?)
}

struct Fixture<'a> {
    guest: &'a GuestContext,
    gpu: &'a gpus::Gpu,
    opened: Gpu,
    holder: Holder,
}

impl Fixture<'_> {
    fn pinned(&self, flags: u32) -> anyhow::Result<(Buffer, Pin<'_>)> {
        let buffer = self.opened.allocate(SIZE)?;
        let pin = self
            .holder
            .pin(&self.opened, buffer.handle()?, (0, SIZE), flags)
            .context("the driver refuses to pin")?;
        let bus_address = buffer.placement(0)?.bus_address;
        let wanted = (bus_address, SIZE / GPU_PAGE, GPU_PAGE);
        let found = (pin.bus_address, pin.entries.into(), pin.page_size.into());
        ensure!(
            found == wanted,
            "the table has (address, pages, size) {found:x?}, not {wanted:x?}"
        );
        Ok((buffer, pin))
    }

    fn what_cannot_be_pinned_is_refused(&self) -> anyhow::Result<()> {
        let buffer = self.opened.allocate(SIZE)?;
        let handle = buffer.handle()?;
        for (offset, length) in [
            (4096, GPU_PAGE),
            (0, 4096),
            (0, 0),
            (SIZE, GPU_PAGE),
            (0, SIZE + GPU_PAGE),
            (GPU_PAGE, GPU_PAGE.wrapping_neg()),
        ] {
            let outcome = self.holder.pin(&self.opened, handle, (offset, length), 0);
            refused(outcome, libc::EINVAL)
                .with_context(|| format!("pinning {length} bytes at {offset}"))?;
        }
        let no_gpu = File::open("/dev/null")?;
        refused(self.holder.pin(&no_gpu, handle, (0, SIZE), 0), libc::EINVAL)
            .context("pinning by a file that is no GPU")?;
        buffer.free()?;
        let outcome = self.holder.pin(&self.opened, handle, (0, SIZE), 0);
        refused(outcome, libc::ENOENT).context("pinning freed memory")
    }

    fn put_then_free(&self) -> anyhow::Result<()> {
        let (buffer, pin) = self.pinned(0)?;
        answers("put", pin.put()?, 0)?;
        buffer.free()?;
        callbacks(&pin, 0)
    }

    fn free_then_put(&self) -> anyhow::Result<()> {
        let (buffer, pin) = self.pinned(0)?;
        buffer.free()?;
        callbacks(&pin, 1)?;
        answers("put in the callback", pin.state()?.put_in_callback, INVALID)?;
        answers("put after the callback", pin.put()?, INVALID)?;
        answers(
            "free_page_table after it was freed",
            pin.free_table()?,
            INVALID,
        )
    }

    fn revoke_then_free_table(&self) -> anyhow::Result<()> {
        let (buffer, pin) = self.pinned(KEEP_TABLE)?;
        answers("free_page_table while pinned", pin.free_table()?, INVALID)?;
        buffer.revoke()?;
        callbacks(&pin, 1)?;
        answers("put after the callback", pin.put()?, INVALID)?;
        answers("free_page_table", pin.free_table()?, 0)?;
        answers("free_page_table again", pin.free_table()?, INVALID)?;
        let again = self
            .holder
            .pin(&self.opened, buffer.handle()?, (0, SIZE), 0);
        refused(again, libc::ENODEV).context("pinning revoked memory")
    }

    /// Closes the GPU as the end of its program does.
    fn close_while_pinned(&self) -> anyhow::Result<()> {
        let other = self.gpu.open()?;
        let buffer = other.allocate(SIZE)?;
        let pin = self.holder.pin(&other, buffer.handle()?, (0, SIZE), 0)?;
        drop((buffer, other));
        callbacks(&pin, 1)
    }

    /// Checks that the memory is not free before the holder releases it.
    fn put_during_callback(&self) -> anyhow::Result<()> {
        let (buffer, pin) = self.pinned(HOLD)?;
        thread::scope(|scope| {
            let free = scope.spawn(|| buffer.free());
            let notified = self.guest.uevents.wait_for(TIME_OUT, || {
                let state = pin.state()?;
                ensure!(
                    state.in_callback == 1,
                    "the callback is not called: {state:?}"
                );
                Ok(())
            });
            let put = pin.put();
            let waiting = !free.is_finished();
            pin.release()?;
            notified?;
            answers("put during the callback", put?, INVALID)?;
            ensure!(waiting, "the memory was freed before the callback returned");
            match free.join() {
                Ok(freed) => Ok(freed?),
                Err(_) => bail!("the thread that frees panicked"),
            }
        })?;
        callbacks(&pin, 1)
    }

    fn persistent(&self) -> anyhow::Result<()> {
        let (buffer, pin) = self.pinned(PERSISTENT)?;
        buffer.free()?;
        callbacks(&pin, 0)?;
        let other = self.opened.allocate(SIZE)?;
        ensure!(
            other.placement(0)?.bus_address != pin.bus_address,
            "memory with a persistent pin was given to another owner"
        );
        answers("put_pages_persistent", pin.put()?, 0)?;
        answers("put_pages_persistent again", pin.put()?, INVALID)
    }

    fn mapped_for_a_peer(&self, disk: &Controller) -> anyhow::Result<()> {
        let peer = PciFunction::of(&disk.pci)?;
        let (buffer, pin) = self.pinned(0)?;
        let (answer, address) = pin.map(peer)?;
        answers("dma_map_pages", answer, 0)?;
        ensure!(address != 0, "the peer gets the address 0");
        answers("dma_unmap_pages", pin.unmap()?, 0)?;
        let (answer, _) = pin.map(peer)?;
        answers("dma_map_pages again", answer, 0)?;
        buffer.free()?;
        answers("dma_unmap_pages after the callback", pin.unmap()?, INVALID)?;
        let (answer, _) = pin.map(peer)?;
        answers("dma_map_pages after the callback", answer, INVALID)
    }

    /// Starts transfers without waiting for any, until the holder accepts no more or `TRANSFERS`
    /// are started.
    fn start_transfers(&self, pin: &Pin<'_>, disk: &File) -> io::Result<()> {
        (0..TRANSFERS).try_for_each(|_| pin.read(disk, 0, (0, SIZE)))
    }

    /// Frees the buffer in the middle of the transfers.
    fn free_amid(&self, buffer: &Buffer, pin: &Pin<'_>, disk: &File) -> anyhow::Result<()> {
        thread::scope(|scope| {
            let transfers = scope.spawn(|| self.start_transfers(pin, disk));
            while pin.state()?.started < UNDER_WAY && !transfers.is_finished() {
                thread::yield_now();
            }
            buffer.free()?;
            match transfers.join() {
                Ok(Err(error)) if error.raw_os_error() != Some(libc::ENODEV) => {
                    Err(error).context("the holder cannot start a transfer")
                }
                Ok(_) => Ok(()),
                Err(_) => bail!("the thread that starts transfers panicked"),
            }
        })
    }

    /// Checks that writes of the disk that are in flight when the memory is freed do not reach the
    /// memory's next owner.
    fn free_while_in_flight(&self, disk: &File) -> anyhow::Result<()> {
        for _ in 0..ATTEMPTS {
            memory_is_back(self.guest, self.gpu)?;
            let (buffer, pin) = self.pinned(0)?;
            self.free_amid(&buffer, &pin, disk)?;
            let state = pin.state()?;
            drop(buffer);
            let owner = self.next_owner(&pin)?;
            self.is_untouched(&owner, || Ok(pin.drain()?))?;
            ensure!(state.error == 0, "a transfer has failed: {state:?}");
            if state.in_flight > 0 {
                return callbacks(&pin, 1);
            }
        }
        bail!("in {ATTEMPTS} attempts no transfer was in flight when the memory was freed")
    }

    /// Allocates a buffer at the place of the pinned one. It must be fast, since transfers end
    /// soon, so this polls without a pause.
    fn next_owner(&self, pin: &Pin<'_>) -> anyhow::Result<Buffer> {
        let deadline = Instant::now() + TIME_OUT;
        while Instant::now() < deadline {
            let owner = self.opened.allocate(SIZE)?;
            if owner.placement(0)?.bus_address == pin.bus_address {
                return Ok(owner);
            }
        }
        bail!(
            "the memory at {:x} is not allocated again within {} s",
            pin.bus_address,
            TIME_OUT.as_secs()
        )
    }

    fn persistent_while_in_flight(&self, disk: &File) -> anyhow::Result<()> {
        let (buffer, pin) = self.pinned(PERSISTENT)?;
        self.free_amid(&buffer, &pin, disk)?;
        drop(buffer);
        let owner = self.opened.allocate(SIZE)?;
        self.is_untouched(&owner, || {
            pin.drain()?;
            ensure!(pin.state()?.error == 0, "a transfer has failed");
            Ok(())
        })?;
        callbacks(&pin, 0)?;
        answers("put_pages_persistent", pin.put()?, 0)
    }

    /// Checks that `owner` is not written to until `ended`.
    fn is_untouched(
        &self,
        owner: &Buffer,
        ended: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        const EMPTY: u64 = 0x1122_3344_5566_7788;
        self.opened.fill(owner.span(..)?, EMPTY)?;
        ended()?;
        let expected = self.opened.allocate(SIZE)?;
        self.opened.fill(expected.span(..)?, EMPTY)?;
        same(&self.opened, owner.span(..)?, expected.span(..)?)
            .context("a new buffer, where a transfer went on into freed memory")
    }
}

fn callbacks(pin: &Pin<'_>, wanted: u32) -> anyhow::Result<()> {
    let state = pin.state()?;
    ensure!(
        (state.callbacks, state.in_callback) == (wanted, 0),
        "the callback was called {} times, not {wanted}: {state:?}",
        state.callbacks
    );
    Ok(())
}

fn answers(call: &str, answer: i32, wanted: i32) -> anyhow::Result<()> {
    let named = |number: i32| match number {
        0 => "0".to_owned(),
        errno => io::Error::from_raw_os_error(errno.wrapping_neg()).to_string(),
    };
    ensure!(
        answer == wanted,
        "{call} answers {}, where {} is right",
        named(answer),
        named(wanted)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_answer_is_described() {
        assert!(answers("put", INVALID, INVALID).is_ok());
        let error = answers("put", 0, INVALID).unwrap_err().to_string();
        assert!(
            error.contains("put answers 0") && error.contains("Invalid argument"),
            "{error}"
        );
    }
}
