//! The device of one QEMU: its queues (virtio 1.2, 5.10.2).

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use peerbar_dma::{LentGuestMemory, LentRegion, MemoryError, MemoryPool};
use peerbar_host::eventfd::{Event, Signaller};
use virtio_queue::{Error as QueueError, Reader, Writer};
use vm_memory::bitmap::BitmapSlice;
use vm_memory::{GuestAddress, GuestMemoryBackend};
use zerocopy::{FromZeros, IntoBytes};

use crate::header::{VsockHeader, WireHeader};
use crate::multiplexer::{Multiplexer, PeerCheck};
use crate::ring::Ring;

/// Queues of the device: for packets to the guest, for packets of the guest, and for events, which
/// this device never sends.
pub(crate) const QUEUES: usize = 3;
/// Longest data of a packet in bytes.
const LONGEST: u32 = 64 << 10;
/// Packets of one direction before the other is served.
const BATCH: usize = 64;
/// Batches before other events are handled.
const ROUNDS: usize = 16;

/// Guest memory in the address space of the front-end, which gives its own addresses for rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrontEndSpan {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) guest: u64,
}

impl FrontEndSpan {
    pub(crate) fn guest_address(&self, address: u64) -> Option<GuestAddress> {
        let offset = address.checked_sub(self.start)?;
        let inside = offset < self.size;
        self.guest
            .checked_add(offset)
            .filter(|_| inside)
            .map(GuestAddress)
    }
}

/// The device of one QEMU.
#[derive(Debug)]
pub(crate) struct VsockDevice {
    pub(crate) cid: u64,
    pub(crate) multiplexer: Multiplexer,
    pub(crate) rings: [Ring; QUEUES],
    pub(crate) memory: Option<LentGuestMemory>,
    /// The same memory, by addresses of the front-end.
    pub(crate) spans: Vec<FrontEndSpan>,
    pub(crate) pool: MemoryPool,
    signaller: Arc<Signaller>,
    /// Data of one packet, between guest memory and a socket.
    scratch: Vec<u8>,
}

impl VsockDevice {
    /// Makes the device of the guest `cid`, for the programs of the host that connect to
    /// `programs`, which must be nonblocking, and that pass `check`.
    pub(crate) fn new(
        cid: u64,
        programs: UnixListener,
        check: Arc<dyn PeerCheck>,
        signaller: Arc<Signaller>,
    ) -> io::Result<Self> {
        let ring = || Ring::new().map_err(io::Error::other);
        Ok(Self {
            cid,
            multiplexer: Multiplexer::new(programs, check)?,
            rings: [ring()?, ring()?, ring()?],
            memory: None,
            spans: Vec::new(),
            pool: MemoryPool::default(),
            signaller,
            scratch: vec![0; usize::try_from(LONGEST).unwrap_or_default()],
        })
    }

    /// Returns a descriptor that is readable while the host's sockets need the device.
    pub(crate) fn sockets(&self) -> BorrowedFd<'_> {
        self.multiplexer.as_fd()
    }

    /// Returns events that are readable once the guest has made a chain available.
    pub(crate) fn kicks(&self) -> impl Iterator<Item = &Event> {
        self.rings.iter().filter_map(Ring::kick)
    }

    /// Serves both directions. Returns `true` if there may be more packets.
    ///
    /// # Errors
    /// The front-end has taken memory away.
    pub(crate) fn serve(&mut self) -> Result<bool, MemoryError> {
        // Taken before the rings are looked at, so that no chain is missed.
        for kick in self.kicks() {
            kick.take();
        }
        for _ in 0..ROUNDS {
            self.multiplexer.take_events();
            let taken = self.take_of_guest()?;
            let given = self.give_to_guest()?;
            if !taken && !given {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes a batch of the guest's packets. Returns `true` if there were any.
    fn take_of_guest(&mut self) -> Result<bool, MemoryError> {
        let [_to_guest, ring, _events] = &mut self.rings;
        let Some(memory) = &self.memory else {
            return Ok(false);
        };
        let mut taken = false;
        for _ in 0..BATCH {
            let Some(chain) = ring.next_chain(memory) else {
                break;
            };
            taken = true;
            let head = chain.head_index();
            let packet = read_packet(&mut self.scratch, || chain.reader(memory));
            intact(memory)?;
            match packet {
                Ok((wire, data)) => match VsockHeader::of_guest(&wire, self.cid) {
                    Ok(header) => self.multiplexer.receive(&header, data),
                    Err(ports) => self.multiplexer.refuse(ports),
                },
                Err(error) => log::debug!("the guest sent an invalid packet: {error}"),
            }
            ring.give_back(memory, head, 0);
        }
        if taken {
            ring.interrupt(memory, &self.signaller);
        }
        intact(memory).map(|()| taken)
    }

    /// Gives the guest a batch of packets. Returns `true` if there were any.
    fn give_to_guest(&mut self) -> Result<bool, MemoryError> {
        let [ring, _of_guest, _events] = &mut self.rings;
        let Some(memory) = &self.memory else {
            return Ok(false);
        };
        let mut given = false;
        for _ in 0..BATCH {
            if !self.multiplexer.has_packet() {
                break;
            }
            let Some(chain) = ring.next_chain(memory) else {
                break;
            };
            let head = chain.head_index();
            let used = match chain.writer(memory) {
                Ok(mut writer) => {
                    match fill(
                        &mut writer,
                        &mut self.multiplexer,
                        &mut self.scratch,
                        self.cid,
                    ) {
                        Some(length) => length,
                        None => {
                            ring.put_back();
                            break;
                        }
                    }
                }
                Err(error) => {
                    log::debug!("a descriptor chain cannot be written: {error}");
                    0
                }
            };
            ring.give_back(memory, head, used);
            given = true;
        }
        if given {
            ring.interrupt(memory, &self.signaller);
        }
        intact(memory).map(|()| given)
    }
}

/// Fails if the front-end has taken any of its memory away.
fn intact(memory: &LentGuestMemory) -> Result<(), MemoryError> {
    memory.iter().try_for_each(LentRegion::intact)
}

/// Writes the next packet. Returns its length in bytes, or `None` if there is no packet. A chain
/// without room for data gets none: the guest is at fault.
fn fill<B: BitmapSlice>(
    writer: &mut Writer<'_, B>,
    multiplexer: &mut Multiplexer,
    scratch: &mut [u8],
    cid: u64,
) -> Option<u32> {
    let space = writer
        .available_bytes()
        .checked_sub(size_of::<WireHeader>());
    let space = space.unwrap_or_default().min(scratch.len());
    let space = scratch.get_mut(..space)?;
    if space.is_empty() {
        return Some(0);
    }
    let header = multiplexer.next_packet(space)?;
    let length = usize::try_from(header.length).unwrap_or_default();
    let data = space.get(..length).unwrap_or_default();
    let wire = header.for_guest(cid);
    let written = writer
        .write_all(wire.as_bytes())
        .and_then(|()| writer.write_all(data));
    if let Err(error) = written {
        log::debug!("a descriptor chain is not in guest memory: {error}");
        return Some(0);
    }
    u32::try_from(writer.bytes_written()).ok()
}

/// Reads a packet into `scratch`. Its data may be in any number of descriptors: Linux uses several for a large one.
fn read_packet<'a, 'm, B: BitmapSlice + 'm>(
    scratch: &'a mut [u8],
    reader: impl FnOnce() -> Result<Reader<'m, B>, QueueError>,
) -> io::Result<(WireHeader, &'a [u8])> {
    let mut reader = reader().map_err(io::Error::other)?;
    let mut wire = WireHeader::new_zeroed();
    reader.read_exact(wire.as_mut_bytes())?;
    let length = usize::try_from(wire.length()).unwrap_or(usize::MAX);
    let data = scratch.get_mut(..length);
    let data = data.ok_or_else(|| io::Error::other(format!("{length} bytes of data")))?;
    reader.read_exact(data)?;
    Ok((wire, data))
}
