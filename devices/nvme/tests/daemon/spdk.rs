//! SPDK's host: its vfio-user client (lib/vfio_user/host) and the NVMe driver on top of it: each
//! message has id 0, VERSION has no JSON, registers are accessed by messages and doorbells in
//! mapped memory, memory is shared unsealed, there are no interrupts, and a request of the device
//! is taken for the reply to the client's own request.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use peerbar_rig::Daemon;
use peerbar_vfio_user::CONFIG_REGION;
use rustix::cmsg_space;
use rustix::fs::SealFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::TIMEOUT;
use crate::driver::{DATA, Driver, Link, RAM, RAM_BYTES, REGISTERS, SUCCESS, ram};
use crate::process::start;

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const GET_INFO: u16 = 4;
const GET_REGION_INFO: u16 = 5;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;

/// The space that SPDK announces for a region's information: a page, less one
/// `struct vfio_region_info`.
const REGION_SPACE: u32 = 4096 - 32;
/// VFIO_REGION_INFO_FLAG_MMAP and VFIO_REGION_INFO_FLAG_CAPS.
const MMAP: u32 = 1 << 2;
const CAPS: u32 = 1 << 3;
/// The doorbells, which SPDK needs in mapped memory.
const DOORBELLS: (u64, u64) = (0x1000, 0x1000);
/// In the command register: bus mastering on, INTx off.
const COMMAND: u16 = 0x404;

/// An area of a region that the client has mapped.
struct Area {
    offset: u64,
    size: u64,
    memory: File,
}

struct Spdk {
    stream: UnixStream,
    /// Those of BAR0.
    areas: Vec<Area>,
}

impl Spdk {
    /// Attaches as SPDK does. Returns `None` if no doorbells can be mapped ("Error to get device
    /// BAR0").
    fn attach(daemon: &Daemon, memory: &File) -> Option<Self> {
        let stream = UnixStream::connect(daemon.socket()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let areas = Vec::new();
        let mut spdk = Self { stream, areas };
        spdk.ask(VERSION, &[0; 4], None);
        let (info, _) = spdk.ask(GET_INFO, &words(&[16, 0, 0, 0]), None);
        for index in 0..word(&info, 8) {
            let areas = spdk.map_region(index);
            if index == REGISTERS {
                spdk.areas = areas;
            }
        }
        spdk.lend(DMA_MAP, memory);
        let doorbells = |area: &Area| (area.offset, area.size) == DOORBELLS;
        let mapped = spdk.areas.iter().any(doorbells);
        if !mapped {
            spdk.lend(DMA_UNMAP, memory);
        }
        mapped.then_some(spdk)
    }

    fn map_region(&mut self, index: u32) -> Vec<Area> {
        let mut ask = words(&[REGION_SPACE, 0, index, 0]);
        ask.resize(REGION_SPACE as usize, 0);
        let (info, mut descriptors) = self.ask(GET_REGION_INFO, &ask, None);
        let (flags, capability, size) = (word(&info, 4), word(&info, 12), quad(&info, 16));
        if size == 0 || flags & MMAP == 0 {
            return Vec::new();
        }
        let spans = if flags & CAPS == 0 {
            vec![(0, size)]
        } else {
            let list = &info[capability as usize..];
            let areas = list[16..].chunks(16).take(word(list, 8) as usize);
            areas.map(|area| (quad(area, 0), quad(area, 8))).collect()
        };
        let mut area = |(offset, size)| Area {
            offset,
            size,
            memory: descriptors.remove(0).into(),
        };
        spans.into_iter().map(&mut area).collect()
    }

    /// DMA_MAP and DMA_UNMAP, both with the descriptor.
    fn lend(&mut self, command: u16, memory: &File) {
        let ask = match command {
            DMA_MAP => [words(&[32, 3]), quads(&[0, RAM, RAM_BYTES])].concat(),
            _ => [words(&[24, 0]), quads(&[RAM, RAM_BYTES])].concat(),
        };
        self.ask(command, &ask, Some(memory.as_fd()));
    }

    /// DMA_MAP of all memory with a descriptor of `page`, the file of its first page, as from a
    /// client whose memory has a file for each huge page (without -g). Returns the error number of
    /// the reply.
    fn lend_by_first_page(&mut self, page: &File) -> u32 {
        let ask = [words(&[32, 3]), quads(&[0, RAM, RAM_BYTES])].concat();
        self.send(DMA_MAP, &ask, Some(page.as_fd()));
        let (header, _) = self.receive_header();
        assert_eq!(header.len(), word(&header, 4) as usize);
        word(&header, 12)
    }

    /// Sends a command and takes the next message for its reply. Returns the payload and the
    /// descriptors.
    fn ask(
        &mut self,
        command: u16,
        payload: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> (Vec<u8>, Vec<OwnedFd>) {
        self.send(command, payload, descriptor);
        let (header, descriptors) = self.receive_header();
        let (id_and_command, flags) = (word(&header, 0), word(&header, 8));
        assert_eq!((id_and_command, flags), (u32::from(command) << 16, 1));
        let mut reply = vec![0; word(&header, 4) as usize - header.len()];
        if !reply.is_empty() {
            // SPDK reads once, however many bytes arrive.
            assert_eq!(self.stream.read(&mut reply).unwrap(), reply.len());
        }
        (reply, descriptors)
    }

    fn send(&self, command: u16, payload: &[u8], descriptor: Option<BorrowedFd<'_>>) {
        let header = [
            words(&[u32::from(command) << 16, 16 + payload.len() as u32]),
            words(&[0, 0]),
        ];
        let message = [&header.concat(), payload].concat();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptor.as_slice().is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptor.as_slice())));
        }
        let parts = [IoSlice::new(&message)];
        let sent = sendmsg(&self.stream, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, message.len());
    }

    fn receive_header(&self) -> ([u8; 16], Vec<OwnedFd>) {
        let mut header = [0; 16];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut header)];
        let received = recvmsg(&self.stream, parts, &mut control, RecvFlags::empty()).unwrap();
        assert_eq!(received.bytes, 16);
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        (header, descriptors.flatten().collect())
    }

    /// Returns the mapped area for an access, and the offset in it, or `None` if the access is made
    /// by a message.
    fn area(&self, region: u32, offset: u64, len: usize) -> Option<(&Area, u64)> {
        let first = self.areas.first().filter(|_| region == REGISTERS)?;
        if offset < first.offset {
            return None;
        }
        let inside = |area: &&Area| {
            let end = area.offset + area.size;
            (area.offset..end).contains(&offset) && offset + len as u64 <= end
        };
        let area = self.areas.iter().find(inside);
        Some((area.expect("SPDK fails with EFAULT"), offset))
    }
}

impl Link for Spdk {
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) {
        if let Some((area, at)) = self.area(region, offset, data.len()) {
            area.memory.read_exact_at(data, at).unwrap();
            return;
        }
        let access = [quads(&[offset]), words(&[region, data.len() as u32])].concat();
        let (reply, _) = self.ask(REGION_READ, &access, None);
        data.copy_from_slice(&reply[16..]);
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        if let Some((area, at)) = self.area(region, offset, data.len()) {
            area.memory.write_all_at(data, at).unwrap();
            return;
        }
        // SPDK sets only these bits in the command register.
        let mut command = [0; 2];
        let data = if (region, offset) == (CONFIG_REGION, 4) {
            self.read(CONFIG_REGION, 4, &mut command);
            command = (u16::from_le_bytes(command) | COMMAND).to_le_bytes();
            &command
        } else {
            data
        };
        let access = [quads(&[offset]), words(&[region, data.len() as u32])].concat();
        self.ask(REGION_WRITE, &[&access, data].concat(), None);
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn quads(quads: &[u64]) -> Vec<u8> {
    quads.iter().flat_map(|quad| quad.to_le_bytes()).collect()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn quad(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn it_attaches_writes_and_reads_back_where_workers_always_poll() {
    let arguments = ["--poll", "always", "--cmb", "2M", "--namespace", "ram=1M"];
    let mut daemon = start(&arguments);
    for _ in 0..2 {
        let memory = ram(SealFlags::empty());
        let spdk = Spdk::attach(&daemon, &memory).expect("doorbells that can be mapped");
        let mut driver = Driver::bring_up(spdk, memory);
        assert_eq!(driver.serial(), "test");
        driver.fill(0x5a, 64 << 10);
        assert_eq!(driver.io(0x01, DATA, 128), SUCCESS);
        driver.fill(0, 64 << 10);
        assert_eq!(driver.io(0x02, DATA, 128), SUCCESS);
        assert!(driver.data(64 << 10) == [0x5a; 64 << 10]);
        let (mut spdk, memory) = driver.into_parts();
        spdk.lend(DMA_UNMAP, &memory);
    }
    let ending = daemon.terminate();
    assert_eq!((ending.code, ending.stderr.as_str()), (Some(0), ""));
}

#[test]
fn data_in_no_mapping_fails_without_asking_the_client() {
    const DATA_TRANSFER_ERROR: u16 = 0x04;
    let daemon = start(&["--poll", "always", "--namespace", "ram=1M"]);
    let memory = ram(SealFlags::empty());
    let spdk = Spdk::attach(&daemon, &memory).expect("doorbells that can be mapped");
    let mut driver = Driver::bring_up(spdk, memory);
    for opcode in [0x01, 0x02] {
        let status = driver.io(opcode, 0x7000_0000_0000, 8);
        assert_eq!(status, DATA_TRANSFER_ERROR);
    }
    // A request of the server would be taken for the answer to one of these.
    assert_eq!(driver.serial(), "test");
    driver.wait_for_csts(1, 1);
}

#[test]
fn log_names_the_poll_policy_that_it_needs() {
    let mut daemon = start(&["--namespace", "ram=1M"]);
    assert!(Spdk::attach(&daemon, &ram(SealFlags::empty())).is_none());
    let stderr = daemon.terminate().stderr;
    assert!(stderr.contains("--poll always"), "{stderr}");
}

#[test]
fn memory_with_a_file_for_each_page_is_refused_by_name() {
    const EINVAL: u32 = 22;
    let mut daemon = start(&["--poll", "always", "--namespace", "ram=1M"]);
    let memory = ram(SealFlags::empty());
    let mut spdk = Spdk::attach(&daemon, &memory).expect("doorbells that can be mapped");
    spdk.lend(DMA_UNMAP, &memory);
    let page = ram(SealFlags::empty());
    page.set_len(RAM_BYTES - 4096).unwrap();
    assert_eq!(spdk.lend_by_first_page(&page), EINVAL);
    // The refused memory is not mapped, so the whole memory can be.
    spdk.lend(DMA_MAP, &memory);
    let mut driver = Driver::bring_up(spdk, memory);
    assert_eq!(driver.serial(), "test");
    drop(driver);
    let stderr = daemon.terminate().stderr;
    assert!(
        stderr.contains("is refused") && stderr.contains("-g"),
        "{stderr}"
    );
}
