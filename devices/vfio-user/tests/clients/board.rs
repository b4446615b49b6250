//! The device that the tests serve, and its session.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use peerbar_pci::{Iova, Range};
use peerbar_rig::{RawClient, relayed};
use peerbar_vfio_user::{
    Client, Device, DeviceInfo, DmaMap, Irq, IrqAction, Options, Region, RegionMapping,
    SessionError, Stop, serve,
};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

/// Offset at which a write fails with EIO, in any region.
pub(crate) const BAD_OFFSET: u64 = 0x800;
/// The IOVA that cannot be mapped.
pub(crate) const BAD_IOVA: u64 = 0xbad_0000;

/// A call of the device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Attached,
    Detached,
    Write(u32, u64, Vec<u8>),
    /// Index, start, count, and the action without its descriptors.
    Irqs(u32, u32, u32, String),
    /// IOVA, size, readable, writable, offset in the descriptor if there is one.
    Map(u64, u64, bool, bool, Option<u64>),
    Unmap(Range<Iova>),
    Reset,
    Woken,
}

/// A device that reports its calls and closes every descriptor at once.
pub(crate) struct Board {
    calls: Sender<Call>,
    clients: Sender<Client>,
    memory: OwnedFd,
}

/// The client's end of a session, and the reports of its device.
pub(crate) struct Rig {
    pub(crate) raw: RawClient,
    pub(crate) calls: Receiver<Call>,
    pub(crate) clients: Receiver<Client>,
    pub(crate) stop: Stop,
    session: JoinHandle<Result<(), SessionError>>,
}

/// Returns a board, and the receivers of its reports.
pub(crate) fn board() -> (Board, Receiver<Call>, Receiver<Client>) {
    let (calls, reported) = channel();
    let (clients, attached) = channel();
    let memory = memfd_create("board", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 0x4000).unwrap();
    let board = Board {
        calls,
        clients,
        memory,
    };
    (board, reported, attached)
}

impl Rig {
    /// Returns a session before its first message.
    pub(crate) fn fresh() -> Self {
        Self::with(|_| {})
    }

    /// Returns a session before its first message, with other options than the usual ones.
    pub(crate) fn with(change: impl FnOnce(&mut Options)) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut board, calls, clients) = board();
        let stop = Stop::new().unwrap();
        let mut options = Options::new(stop.clone());
        change(&mut options);
        let session = std::thread::spawn(move || serve(theirs, &mut board, &options));
        let raw = RawClient::new(relayed(ours).0);
        Self {
            raw,
            calls,
            clients,
            stop,
            session,
        }
    }

    /// Returns a session that has agreed on a version.
    pub(crate) fn agreed() -> Self {
        let mut rig = Self::fresh();
        rig.agree();
        rig
    }

    pub(crate) fn agree(&mut self) {
        self.raw.agree();
        assert_eq!(self.calls.recv().unwrap(), Call::Attached);
    }

    /// Hangs up. Returns the outcome of the session and the calls of the device until then.
    pub(crate) fn hang_up(self) -> (Result<(), SessionError>, Vec<Call>) {
        drop(self.raw);
        let outcome = self.session.join().unwrap();
        (outcome, self.calls.into_iter().collect())
    }

    /// Waits until the server ends the session.
    pub(crate) fn wait(self) -> Result<(), SessionError> {
        self.session.join().unwrap()
    }
}

impl Board {
    fn report(&self, call: Call) {
        // Fails if the test has dropped the receiver.
        let _ = self.calls.send(call);
    }
}

impl Device for Board {
    fn attached(&mut self, client: Client) {
        self.report(Call::Attached);
        let _ = self.clients.send(client);
    }

    fn detached(&mut self) {
        self.report(Call::Detached);
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            regions: 9,
            irqs: 5,
            can_reset: true,
        }
    }

    fn region(&self, index: u32) -> Option<Region<'_>> {
        use RegionMapping::{Areas, NoArea, Nothing, Whole};
        let fd = self.memory.as_fd();
        let (size, readable, writable, mapping) = match index {
            0 => (0x1000, true, true, Nothing),
            1 => {
                let areas = vec![(0x1000, 0x1000), (0x3000, 0x1000)];
                (0x4000, true, true, Areas(fd, areas))
            }
            2 => (0x2000, true, true, Whole(fd)),
            3 => (0x100, true, false, Nothing),
            4 => (0x100, false, true, Nothing),
            5 => (u64::MAX, true, true, NoArea),
            6 | 8 => (0, false, false, Nothing),
            7 => (0x1000, true, true, Nothing),
            _ => return None,
        };
        Some(Region {
            size,
            readable,
            writable,
            mapping,
            offset: 0,
        })
    }

    fn irq(&self, index: u32) -> Option<Irq> {
        let count = *[1, 4, 8, 1, 1].get(index as usize)?;
        Some(Irq {
            count,
            automasked: index == 0,
            maskable: index == 0,
            fixed_count: false,
        })
    }

    fn region_read(&mut self, _: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        assert!(!data.is_empty());
        for (byte, address) in data.iter_mut().zip(offset..) {
            *byte = pattern(address);
        }
        Ok(())
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if offset == BAD_OFFSET {
            return Err(Errno::IO);
        }
        self.report(Call::Write(index, offset, data.to_vec()));
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        start: u32,
        count: u32,
        action: IrqAction,
    ) -> Result<(), Errno> {
        let action = match action {
            IrqAction::Events(events) => {
                assert_eq!(events.len(), count as usize);
                // Proves that each descriptor went to its vector.
                for (vector, event) in (u64::from(start)..).zip(events.iter().flatten()) {
                    rustix::io::write(event, &(vector + 1).to_ne_bytes()).unwrap();
                }
                format!("{} events", events.iter().flatten().count())
            }
            other => format!("{other:?}"),
        };
        self.report(Call::Irqs(index, start, count, action));
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        if map.range.first().0 == BAD_IOVA {
            return Err(Errno::EXIST);
        }
        let offset = map.memory.map(|(_, offset)| offset);
        let (readable, writable) = (map.readable, map.writable);
        let (iova, size) = (map.range.first().0, map.range.size());
        self.report(Call::Map(iova, size, readable, writable, offset));
        Ok(())
    }

    fn dma_unmap(&mut self, range: Range<Iova>) -> Result<(), Errno> {
        self.report(Call::Unmap(range));
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.report(Call::Reset);
        Ok(())
    }

    fn woken(&mut self) {
        self.report(Call::Woken);
    }
}

/// Returns the contents of every readable byte, by its address.
pub(crate) fn pattern(address: u64) -> u8 {
    (address % 251) as u8
}
