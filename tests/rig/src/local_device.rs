//! A device in the test's process.

use std::cell::{RefCell, RefMut};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use peerbar_endpoint::{Endpoint, Running};
use peerbar_pci::{Function, Iova, Range};
use peerbar_vfio_user::{Device, DmaMap, IrqAction, RegionMapping};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::TIME_OUT;
use crate::guest_ram::GuestRam;
use crate::link::Link;
use crate::wire::MSI_X;

/// A device that runs in the test's process, with its interrupts.
pub struct LocalDevice<F>(Rc<State<F>>);

struct State<F> {
    running: RefCell<Running<F>>,
    events: Vec<OwnedFd>,
}

impl<F> Clone for LocalDevice<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F: Function> LocalDevice<F> {
    /// Takes a device, and sets up this number of MSI-X vectors.
    pub fn new(running: Running<F>, vectors: u32) -> Self {
        let events: Vec<OwnedFd> = (0..vectors).map(|_| event()).collect();
        let device = Self(Rc::new(State {
            running: RefCell::new(running),
            events,
        }));
        let action = IrqAction::Events(device.0.events.iter().map(signal).collect());
        let set = device.endpoint().set_irqs(MSI_X, 0, vectors, action);
        set.unwrap();
        device
    }

    /// Returns the device on its bus.
    pub fn endpoint(&self) -> RefMut<'_, Endpoint<F>> {
        let running = self.0.running.borrow_mut();
        RefMut::map(running, |running| &mut running.endpoint)
    }

    /// Lends the device the part of `file` from `offset` on at `iova`.
    pub fn map(&self, (iova, size): (u64, u64), writable: bool, (file, offset): (&File, u64)) {
        let fd = file.try_clone().unwrap().into();
        let map = DmaMap {
            range: Range::new(Iova(iova), size).unwrap(),
            readable: true,
            writable,
            memory: Some((fd, offset)),
        };
        self.endpoint().dma_map(map).unwrap();
    }

    /// Takes memory back.
    pub fn unmap(&self, iova: u64, size: u64) {
        let range = Range::new(Iova(iova), size).unwrap();
        self.endpoint().dma_unmap(range).unwrap();
    }

    /// Returns the memory of a region that can be mapped.
    #[track_caller]
    pub fn memory(&self, region: u32) -> File {
        match self.endpoint().region(region).unwrap().mapping {
            RegionMapping::Whole(fd) | RegionMapping::Areas(fd, _) => {
                fd.try_clone_to_owned().unwrap().into()
            }
            nothing => panic!("{nothing:?}"),
        }
    }

    /// Waits until a vector has been raised. Returns the number of times since it was last taken.
    #[track_caller]
    pub fn wait_for_vector(&self, vector: usize) -> u64 {
        wait_for_event(&self.0.events[vector], &format!("vector {vector}"))
    }

    /// Returns `true` if a vector has been raised since it was last taken.
    pub fn take_vector(&self, vector: usize) -> bool {
        take_event(&self.0.events[vector])
    }
}

impl<F: Function> Link for LocalDevice<F> {
    fn try_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        self.endpoint().region_read(region, offset, data)
    }

    fn try_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.endpoint().region_write(region, offset, data)
    }

    fn lend(&self, ram: &GuestRam) -> Result<(), Errno> {
        self.map((ram.address, ram.bytes), true, (&ram.file, 0));
        Ok(())
    }
}

/// Returns a new event.
pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Returns an interrupt that signals `event`.
pub fn signal(event: &OwnedFd) -> Option<peerbar_vfio_user::Event> {
    Some(event.try_clone().unwrap().try_into().unwrap())
}

/// Waits until an event has been signalled, and takes it. Returns the number of signals.
#[track_caller]
pub fn wait_for_event(event: &OwnedFd, name: &str) -> u64 {
    let mut polled = [PollFd::new(event, PollFlags::IN)];
    let limit = TIME_OUT.try_into().unwrap();
    let ready = poll(&mut polled, Some(&limit)).unwrap();
    assert_eq!(ready, 1, "{name} is not raised");
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).unwrap();
    u64::from_ne_bytes(count)
}

/// Returns `true` if an event has been signalled since it was last taken.
pub fn take_event(event: &OwnedFd) -> bool {
    rustix::io::read(event, &mut [0; 8]).is_ok()
}
