//! The device of one QEMU: its queues (virtio 1.2, 5.10.2), served by vhost-user.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, PoisonError};

use vhost::vhost_user::VhostUserProtocolFeatures;
use vhost::vhost_user::message::VhostUserVirtioFeatures;
use vhost_user_backend::{VhostUserBackendMut, VringRwLock, VringT};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Error as QueueError, QueueOwnedT, QueueT, Reader, Writer};
use vm_memory::bitmap::BitmapSlice;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};
use zerocopy::{FromZeros, IntoBytes};

use crate::header::{VsockHeader, WireHeader};
use crate::multiplexer::{Multiplexer, PeerCheck};

/// Queues of the device: for packets to the guest, of the guest, and for events, of which there are none.
pub(crate) const QUEUES: usize = 3;
const TO_GUEST: usize = 0;
const OF_GUEST: usize = 1;
/// Largest queue that a driver may make.
const QUEUE_SIZE: usize = 256;
/// The event of the host's sockets; the crate has taken [`QUEUES`] for itself.
pub(crate) const SOCKETS: u64 = 4;
/// Longest data of a packet in bytes.
const LONGEST: u32 = 64 << 10;
/// Packets of one direction before the other is served.
const BATCH: usize = 64;
/// Batches before other events are served.
const ROUNDS: usize = 16;

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// The device of one QEMU.
pub(crate) struct VsockDevice {
    cid: u64,
    multiplexer: Multiplexer,
    memory: Option<Memory>,
    /// Data of one packet, between guest memory and a socket.
    scratch: Vec<u8>,
    exit: Mutex<Option<(EventConsumer, EventNotifier)>>,
}

impl VsockDevice {
    /// The device of the guest `cid`, for the programs of the host that connect to `programs`, which does not block, and
    /// pass `check`.
    pub(crate) fn new(
        cid: u64,
        programs: UnixListener,
        check: Arc<dyn PeerCheck>,
    ) -> io::Result<Self> {
        let exit = new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC)?;
        Ok(Self {
            cid,
            multiplexer: Multiplexer::new(programs, check)?,
            memory: None,
            scratch: vec![0; usize::try_from(LONGEST).unwrap_or_default()],
            exit: Mutex::new(Some(exit)),
        })
    }

    /// What is readable when the host's sockets need the device: to be given as [`SOCKETS`].
    pub(crate) fn sockets(&self) -> i32 {
        self.multiplexer.as_fd().as_raw_fd()
    }

    /// Takes a batch of the guest's packets; whether there was any.
    fn take_of_guest(&mut self, vring: &VringRwLock) -> bool {
        let Some(memory) = &self.memory else {
            return false;
        };
        let memory = memory.memory();
        let mut vring = vring.get_mut();
        let mut taken = false;
        for _ in 0..BATCH {
            let Some(chain) = next_chain(&mut vring, &memory) else {
                break;
            };
            taken = true;
            let head = chain.head_index();
            match read_packet(&mut self.scratch, || chain.reader(&*memory)) {
                Ok((wire, data)) => match VsockHeader::of_guest(&wire, self.cid) {
                    Ok(header) => self.multiplexer.receive(&header, data),
                    Err(ports) => self.multiplexer.refuse(ports),
                },
                Err(error) => log::debug!("the guest sends what is no packet: {error}"),
            }
            give_back(&mut vring, head, 0);
        }
        if taken {
            signal(&mut vring);
        }
        taken
    }

    /// Gives the guest a batch of packets; whether there was any.
    fn give_to_guest(&mut self, vring: &VringRwLock) -> bool {
        let Some(memory) = &self.memory else {
            return false;
        };
        let memory = memory.memory();
        let mut vring = vring.get_mut();
        let mut given = false;
        for _ in 0..BATCH {
            if !self.multiplexer.has_packet() {
                break;
            }
            let Some(chain) = next_chain(&mut vring, &memory) else {
                break;
            };
            let head = chain.head_index();
            let used = match chain.writer(&*memory) {
                Ok(mut room) => match self.fill(&mut room) {
                    Some(length) => length,
                    None => {
                        vring.get_queue_mut().go_to_previous_position();
                        break;
                    }
                },
                Err(error) => {
                    log::debug!("the guest gives what is no room for a packet: {error}");
                    0
                }
            };
            give_back(&mut vring, head, used);
            given = true;
        }
        if given {
            signal(&mut vring);
        }
        given
    }

    /// Writes the next packet; its length in bytes, or none if there is none. Room without a byte for data gets nothing: the
    /// guest is at fault.
    fn fill<B: BitmapSlice>(&mut self, room: &mut Writer<'_, B>) -> Option<u32> {
        let space = room.available_bytes().checked_sub(size_of::<WireHeader>());
        let space = space.unwrap_or_default().min(self.scratch.len());
        let space = self.scratch.get_mut(..space)?;
        if space.is_empty() {
            return Some(0);
        }
        let header = self.multiplexer.next_packet(space)?;
        let length = usize::try_from(header.length).unwrap_or_default();
        let data = space.get(..length).unwrap_or_default();
        let wire = header.for_guest(self.cid);
        let written = room
            .write_all(wire.as_bytes())
            .and_then(|()| room.write_all(data));
        if let Err(error) = written {
            log::debug!("the guest's room is not in its memory: {error}");
            return Some(0);
        }
        u32::try_from(room.bytes_written()).ok()
    }
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

type Vring<'a> = vhost_user_backend::VringState<Memory>;

/// The next chain of descriptors, if the queue is in use and has one.
fn next_chain<M>(vring: &mut Vring<'_>, memory: &M) -> Option<virtio_queue::DescriptorChain<M>>
where
    M: Clone + std::ops::Deref,
    M::Target: vm_memory::GuestMemory,
{
    if !vring.is_enabled() || !vring.get_queue().ready() {
        return None;
    }
    if let Some(chain) = vring.get_queue_mut().pop_descriptor_chain(memory.clone()) {
        return Some(chain);
    }
    // One that has come before the guest saw that it must notify again is found here.
    match vring.enable_notification() {
        Ok(true) => vring.get_queue_mut().pop_descriptor_chain(memory.clone()),
        Ok(false) => None,
        Err(error) => {
            log::debug!("the guest's queue is not in its memory: {error}");
            None
        }
    }
}

fn give_back(vring: &mut Vring<'_>, head: u16, length: u32) {
    if let Err(error) = vring.add_used(head, length) {
        log::debug!("the guest's queue is not in its memory: {error}");
    }
}

/// Interrupts the guest, if it wants that.
fn signal(vring: &mut Vring<'_>) {
    if vring.needs_notification().unwrap_or(true)
        && let Err(error) = vring.signal_used_queue()
    {
        log::debug!("cannot interrupt the guest: {error}");
    }
}

impl VhostUserBackendMut for VsockDevice {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_F_VERSION_1
            | 1 << VIRTIO_RING_F_EVENT_IDX
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    /// The driver starts: connections of an earlier one are over.
    fn acked_features(&mut self, _features: u64) {
        self.multiplexer.reset();
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&mut self, _enabled: bool) {}

    /// The device's only register is the guest's CID (virtio 1.2, 5.10.4).
    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let config = self.cid.to_le_bytes();
        let bytes = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
        let part = bytes.and_then(|(from, count)| config.get(from..from.checked_add(count)?));
        part.unwrap_or_default().to_vec()
    }

    fn update_memory(&mut self, memory: Memory) -> io::Result<()> {
        self.memory = Some(memory);
        Ok(())
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        let mut exit = self.exit.lock().unwrap_or_else(PoisonError::into_inner);
        exit.take()
    }

    /// Serves both directions, whatever the event is. An error would end the thread, so there is none.
    fn handle_event(
        &mut self,
        _event: u16,
        _set: EventSet,
        vrings: &[VringRwLock],
        _thread: usize,
    ) -> io::Result<()> {
        let (Some(to_guest), Some(of_guest)) = (vrings.get(TO_GUEST), vrings.get(OF_GUEST)) else {
            return Ok(());
        };
        for _ in 0..ROUNDS {
            self.multiplexer.take_events();
            let taken = self.take_of_guest(of_guest);
            let given = self.give_to_guest(to_guest);
            if !taken && !given {
                return Ok(());
            }
        }
        self.multiplexer.wake();
        Ok(())
    }
}
