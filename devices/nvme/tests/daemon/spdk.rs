//! SPDK's host: its vfio-user client (lib/vfio_user/host) and the NVMe driver on top of it: each
//! message has id 0, VERSION has no JSON, registers are accessed by messages and doorbells in
//! mapped memory, memory is shared unsealed, there are no interrupts, and a request of the device
//! is taken for the reply to the client's own request.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use peerbar_rig::nvme::{DATA, Driver, RAM, RAM_BYTES};
use peerbar_rig::wire::command::{DMA_MAP, DMA_UNMAP, INFO, REGION_INFO, VERSION};
use peerbar_rig::wire::command::{REGION_READ, REGION_WRITE};
use peerbar_rig::wire::{self, CONFIG, Message, Outcome, number, region_access, words};
use peerbar_rig::{Daemon, Guest, GuestRam, Link, REGISTERS, TIME_OUT, memory_file};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::SUCCESS;
use crate::process::start;

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
        stream.set_read_timeout(Some(TIME_OUT)).unwrap();
        let areas = Vec::new();
        let mut spdk = Self { stream, areas };
        spdk.ask(VERSION, &[0; 4], None);
        let info = spdk.ask(INFO, &words(&[16, 0, 0, 0]), None).payload;
        for index in 0..word(&info, 8) {
            let areas = spdk.map_region(index);
            if index == REGISTERS {
                spdk.areas = areas;
            }
        }
        spdk.share(DMA_MAP, memory);
        let doorbells = |area: &Area| (area.offset, area.size) == DOORBELLS;
        let mapped = spdk.areas.iter().any(doorbells);
        if !mapped {
            spdk.share(DMA_UNMAP, memory);
        }
        mapped.then_some(spdk)
    }

    fn map_region(&mut self, index: u32) -> Vec<Area> {
        let mut ask = words(&[REGION_SPACE, 0, index, 0]);
        ask.resize(REGION_SPACE as usize, 0);
        let Message {
            payload: info,
            mut descriptors,
            ..
        } = self.ask(REGION_INFO, &ask, None);
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
    fn share(&self, command: u16, memory: &File) {
        let ask = match command {
            DMA_MAP => wire::dma_map(3, 0, RAM, RAM_BYTES),
            _ => wire::dma_unmap(0, RAM, RAM_BYTES),
        };
        self.ask(command, &ask, Some(memory.as_fd()));
    }

    /// DMA_MAP of all memory with a descriptor of `page`, the file of its first page, as from a
    /// client whose memory has a file for each huge page (without -g). Returns the error of the
    /// reply.
    fn share_by_first_page(&self, page: &File) -> Errno {
        let ask = wire::dma_map(3, 0, RAM, RAM_BYTES);
        self.send(DMA_MAP, &ask, Some(page.as_fd()));
        let (reply, size) = self.receive_header();
        assert_eq!(size, 0);
        reply.errno()
    }

    /// Sends a command and takes the next message for its reply.
    fn ask(&self, command: u16, payload: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Message {
        self.send(command, payload, descriptor);
        let (mut reply, size) = self.receive_header();
        assert_eq!((reply.id, reply.command, reply.flags), (0, command, 1));
        reply.payload.resize(size, 0);
        if size > 0 {
            // SPDK reads once, however many bytes arrive.
            assert_eq!((&self.stream).read(&mut reply.payload).unwrap(), size);
        }
        reply
    }

    fn send(&self, command: u16, payload: &[u8], descriptor: Option<BorrowedFd<'_>>) {
        let message = wire::message(0, command, 0, payload);
        wire::send(&self.stream, &message, descriptor.as_slice()).unwrap();
    }

    fn receive_header(&self) -> (Message, usize) {
        let received = wire::receive_header(&self.stream, RecvFlags::empty());
        received.unwrap().expect("the server has hung up")
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
    fn try_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        if let Some((area, at)) = self.area(region, offset, data.len()) {
            area.memory.read_exact_at(data, at).unwrap();
            return Ok(());
        }
        let access = region_access(region, offset, data.len() as u32);
        let reply = self.ask(REGION_READ, &access, None);
        data.copy_from_slice(&reply.payload[16..]);
        Ok(())
    }

    fn try_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if let Some((area, at)) = self.area(region, offset, data.len()) {
            area.memory.write_all_at(data, at).unwrap();
            return Ok(());
        }
        // SPDK sets only these bits in the command register.
        let mut command = [0; 2];
        let data = if (region, offset) == (CONFIG, 4) {
            self.read(CONFIG, 4, &mut command);
            command = (u16::from_le_bytes(command) | COMMAND).to_le_bytes();
            &command
        } else {
            data
        };
        let access = region_access(region, offset, data.len() as u32);
        self.ask(REGION_WRITE, &[&access, data].concat(), None);
        Ok(())
    }

    fn lend(&self, ram: &GuestRam) -> Result<(), Errno> {
        self.share(DMA_MAP, &ram.file);
        Ok(())
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    number(&bytes[at..at + 4]) as u32
}

fn quad(bytes: &[u8], at: usize) -> u64 {
    number(&bytes[at..at + 8])
}

/// Returns guest RAM, which SPDK does not seal.
fn unsealed_ram() -> GuestRam {
    let file = memory_file(RAM_BYTES, SealFlags::empty());
    GuestRam::from_file(file, 0, RAM, RAM_BYTES)
}

/// Returns a driver of a daemon whose doorbells SPDK can map.
fn driver(daemon: &Daemon) -> Driver<Guest<Rc<Spdk>>> {
    let ram = unsealed_ram();
    let link = Spdk::attach(daemon, &ram.file).expect("doorbells that can be mapped");
    let link = Rc::new(link);
    Driver::enabled(Guest { link, ram })
}

#[test]
fn it_attaches_writes_and_reads_back_where_workers_always_poll() {
    let arguments = ["--poll", "always", "--cmb", "2M", "--namespace", "ram=1M"];
    let mut daemon = start(&arguments);
    for _ in 0..2 {
        let mut driver = driver(&daemon);
        assert_eq!(driver.serial(), "test");
        driver.fill(0x5a, 64 << 10);
        assert_eq!(driver.io(0x01, DATA, 128), SUCCESS);
        driver.fill(0, 64 << 10);
        assert_eq!(driver.io(0x02, DATA, 128), SUCCESS);
        assert!(driver.data(64 << 10) == [0x5a; 64 << 10]);
        driver.link.share(DMA_UNMAP, &driver.ram.file);
    }
    let ending = daemon.terminate();
    assert_eq!((ending.code, ending.stderr.as_str()), (Some(0), ""));
}

#[test]
fn data_in_no_mapping_fails_without_asking_the_client() {
    const DATA_TRANSFER_ERROR: u16 = 0x04;
    let daemon = start(&["--poll", "always", "--namespace", "ram=1M"]);
    let mut driver = driver(&daemon);
    for opcode in [0x01, 0x02] {
        let status = driver.io(opcode, 0x7000_0000_0000, 8);
        assert_eq!(status, DATA_TRANSFER_ERROR);
    }
    // A request of the server would be taken for the answer to one of these.
    assert_eq!(driver.serial(), "test");
    driver.wait_for_status(1, 1);
}

#[test]
fn log_names_the_poll_policy_that_it_needs() {
    let mut daemon = start(&["--namespace", "ram=1M"]);
    assert!(Spdk::attach(&daemon, &unsealed_ram().file).is_none());
    let stderr = daemon.terminate().stderr;
    assert!(stderr.contains("--poll always"), "{stderr}");
}

#[test]
fn memory_with_a_file_for_each_page_is_refused_by_name() {
    let mut daemon = start(&["--poll", "always", "--namespace", "ram=1M"]);
    let ram = unsealed_ram();
    let spdk = Spdk::attach(&daemon, &ram.file).expect("doorbells that can be mapped");
    spdk.share(DMA_UNMAP, &ram.file);
    let page = memory_file(RAM_BYTES - 4096, SealFlags::empty());
    assert_eq!(spdk.share_by_first_page(&page), Errno::INVAL);
    // The refused memory is not mapped, so the whole memory can be.
    spdk.share(DMA_MAP, &ram.file);
    let link = Rc::new(spdk);
    let mut driver = Driver::enabled(Guest { link, ram });
    assert_eq!(driver.serial(), "test");
    drop(driver);
    let stderr = daemon.terminate().stderr;
    assert!(
        stderr.contains("is refused") && stderr.contains("-g"),
        "{stderr}"
    );
}
