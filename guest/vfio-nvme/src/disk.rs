//! A disk: a controller that is up, one pair of I/O queues, namespace 1.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerbar_nvme_driver::{Completion, Controller, DmaMemory, PAGE, QueueMemory, QueuePair, prps};
use peerbar_nvme_spec::command::nvm::BlockRange;
use peerbar_nvme_spec::command::{AdminOpcode, NvmOpcode, SubmissionEntry, admin};
use peerbar_nvme_spec::identify::{DATA_SIZE, cns, controller, namespace};
use zerocopy::{FromBytes, FromZeros, transmute};

use crate::commands::{DEPTH, Outstanding, slot_of};
use crate::device::{BarRange, VfioDevice};
use crate::dma_space::DmaSpace;
use crate::error::{Error, Result};
use crate::registers::{BAR, RegisterAccess, RegisterBar};

/// Number of entries of each queue: a page of submission queue entries.
const ENTRIES: u16 = 64;
/// The driver's own pair of I/O queues.
const OWN_QUEUE: u16 = 1;
/// Bytes of the queue memory: admin submission and completion queue, I/O submission and completion queue, and a page for
/// Identify, a page each.
const QUEUE_BYTES: u64 = 5 * PAGE;
/// Bytes of PRP lists: a page for each command that can be outstanding.
pub const LIST_BYTES: u64 = ENTRIES as u64 * PAGE;
/// The namespace.
const NSID: u32 = 1;
/// Longest data of one command in bytes, for which a PRP list of one page suffices.
const LONGEST: u64 = 512 * PAGE;
/// Time limit of a command.
const TIME_OUT: Duration = Duration::from_secs(20);

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the disk to memory.
    Read,
    /// From memory to the disk.
    Write,
}

impl Direction {
    fn opcode(self) -> u8 {
        match self {
            Self::Read => NvmOpcode::Read as u8,
            Self::Write => NvmOpcode::Write as u8,
        }
    }
}

/// The identity of controller and namespace, according to Identify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// SN, without trailing blanks.
    pub serial: String,
    /// Size of a block in bytes.
    pub block_bytes: u64,
    /// Number of blocks of namespace 1.
    pub blocks: u64,
    /// Longest data of one command in bytes.
    pub longest: u64,
}

/// The location of a queue pair's doorbells: byte offsets in BAR 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDoorbells {
    /// The submission queue's tail.
    pub tail: u64,
    /// The completion queue's head.
    pub head: u64,
}

/// A disk that this process drives.
#[derive(Debug)]
pub struct Disk {
    controller: Controller<RegisterBar, DmaSpace>,
    queue: QueuePair<RegisterBar, DmaSpace>,
    space: DmaSpace,
    identity: Identity,
    /// The queues and the page for Identify.
    pages: u64,
    /// A page for each PRP list, by the command's slot.
    lists: u64,
    /// The driver's own memory for PRP lists, if they are there.
    own_lists: Option<u64>,
    outstanding: Outstanding,
}

impl Disk {
    /// Brings up the controller of a device that is open in the address space of `space`: admin
    /// queue, Identify, one pair of I/O queues.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn start(device: Arc<VfioDevice>, space: DmaSpace, access: RegisterAccess) -> Result<Self> {
        device.decode(true)?;
        device.master(true)?;
        let registers = RegisterBar::new(device, access)?;
        let at = space.allocate(QUEUE_BYTES)?;
        let lists = space.allocate(LIST_BYTES)?;
        let page = |number: u64| at.saturating_add(number.saturating_mul(PAGE));
        let queues = |first| QueueMemory {
            submission: page(first),
            completion: page(first.saturating_add(1)),
            submission_entries: ENTRIES,
            completion_entries: ENTRIES,
        };
        let mut controller = Controller::enable(registers, space.clone(), queues(0))?;
        let identity = identify(&mut controller, page(4))?;
        controller.request_all_queues()?;
        let queue = controller.create_queues(OWN_QUEUE, queues(2))?;
        Ok(Self {
            controller,
            queue,
            space,
            identity,
            pages: at,
            lists,
            own_lists: Some(lists),
            outstanding: Outstanding::new(),
        })
    }

    /// Returns the result of Identify.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &Arc<VfioDevice> {
        self.controller.registers().device()
    }

    /// Returns the address space.
    #[must_use]
    pub fn space(&self) -> &DmaSpace {
        &self.space
    }

    /// Moves `length` bytes, whole blocks, between the block `block` on and the page-aligned
    /// address `iova` on, and waits for it.
    ///
    /// # Errors
    /// [`Error::Busy`] with commands outstanding, including one that was late before;
    /// [`Error::Transfer`], [`Error::Status`], [`Error::Late`], [`Error::UnknownCommand`],
    /// [`Error::Controller`].
    pub fn transfer(
        &mut self,
        direction: Direction,
        block: u64,
        iova: u64,
        length: u64,
    ) -> Result<()> {
        if self.outstanding() > 0 {
            return Err(self.busy());
        }
        let step = self.identity.longest;
        let mut done = 0;
        while done < length {
            let part = step.min(length.saturating_sub(done));
            let at = block.saturating_add(done / self.identity.block_bytes);
            self.submit(direction, at, iova.saturating_add(done), part)?;
            let (opcode, completion) = self.wait()?;
            match completion.status {
                0 => {}
                status => return Err(Error::Status { opcode, status }),
            }
            done = done.saturating_add(part);
        }
        Ok(())
    }

    /// Submits one command. Returns its identifier, which another command gets after 1024 more at
    /// the earliest.
    ///
    /// # Errors
    /// [`Error::Transfer`], also for more than [`Identity::longest`] bytes; [`Error::Busy`] with
    /// [`Disk::depth`] commands outstanding; [`Error::Controller`].
    pub fn submit(
        &mut self,
        direction: Direction,
        block: u64,
        iova: u64,
        length: u64,
    ) -> Result<u16> {
        let blocks = self.check(block, iova, length)?;
        let opcode = direction.opcode();
        let cid = self.outstanding.begin(opcode);
        let cid = cid.ok_or_else(|| self.busy())?;
        let mut entry = SubmissionEntry::new_zeroed();
        entry.opcode = opcode;
        entry.cid = cid.into();
        entry.nsid = NSID.into();
        let mut range = BlockRange::from(&entry);
        range.slba = block.into();
        range.nlb = blocks.into();
        range.apply_to(&mut entry);
        if let Err(error) = self.push(entry, cid, iova, length) {
            // The controller has not seen it.
            self.outstanding.end(cid);
            return Err(error);
        }
        self.queue.ring().map_err(driver)?;
        Ok(cid)
    }

    /// Puts a command into the queue, with the PRP entries of its data.
    fn push(&mut self, mut entry: SubmissionEntry, cid: u16, iova: u64, length: u64) -> Result<()> {
        let list = self
            .lists
            .saturating_add(u64::from(slot_of(cid)).saturating_mul(PAGE));
        let pages = 0..length.div_ceil(PAGE);
        let pages: Vec<u64> = pages
            .map(|page| iova.saturating_add(page.saturating_mul(PAGE)))
            .collect();
        let prps = prps(&pages, &self.space, || Ok::<_, std::io::Error>(list));
        [entry.prp1, entry.prp2] = prps.map_err(driver)?.map(Into::into);
        self.queue.push(&transmute!(entry)).map_err(driver)
    }

    /// Returns the next completion, if there is one, with the opcode of its command.
    ///
    /// # Errors
    /// [`Error::UnknownCommand`], and [`Error::Controller`].
    pub fn reap(&mut self) -> Result<Option<(u8, Completion)>> {
        let taken = self.take()?;
        if taken.is_some() {
            self.give_back()?;
        }
        Ok(taken)
    }

    /// Like [`Disk::reap`], but the completion's entry stays taken until [`Disk::give_back`] or the
    /// next [`Disk::submit`].
    ///
    /// # Errors
    /// [`Error::UnknownCommand`], and [`Error::Controller`].
    pub fn take(&mut self) -> Result<Option<(u8, Completion)>> {
        let Some(completion) = self.queue.pop().map_err(driver)? else {
            return Ok(None);
        };
        let opcode = self.outstanding.end(completion.cid);
        let opcode = opcode.ok_or(Error::UnknownCommand {
            cid: completion.cid,
        })?;
        Ok(Some((opcode, completion)))
    }

    /// Returns the entries of all completions taken to the controller, by the head doorbell.
    ///
    /// # Errors
    /// [`Error::Controller`].
    pub fn give_back(&mut self) -> Result<()> {
        self.queue.ring().map_err(driver)
    }

    /// Waits for the next completion.
    ///
    /// # Errors
    /// [`Error::Late`], [`Error::UnknownCommand`], [`Error::Controller`].
    pub fn wait(&mut self) -> Result<(u8, Completion)> {
        let begun = Instant::now();
        loop {
            if let Some(completion) = self.reap()? {
                return Ok(completion);
            }
            if begun.elapsed() > TIME_OUT {
                return Err(Error::Late {
                    opcode: self.outstanding.any_opcode().unwrap_or_default(),
                    seconds: TIME_OUT.as_secs(),
                });
            }
            std::thread::yield_now();
        }
    }

    /// Returns the maximum number of outstanding commands.
    #[must_use]
    pub fn depth(&self) -> usize {
        DEPTH
    }

    /// Returns the number of outstanding commands.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.count()
    }

    /// Returns `true` if the controller is enabled and ready (CSTS.RDY). After a reset it is not,
    /// and no earlier command completes.
    ///
    /// # Errors
    /// [`Error::Controller`].
    pub fn is_ready(&self) -> Result<bool> {
        let status = self.controller.status()?;
        // A device that does not answer reads as all ones.
        Ok(status.rdy() && status.into_bits() != u32::MAX)
    }

    /// Disables the controller (CC.EN): once it returns, no earlier command completes or touches
    /// memory. A new [`Disk::start`] enables it.
    ///
    /// # Errors
    /// [`Error::Controller`].
    pub fn disable(&self) -> Result<()> {
        Ok(self.controller.disable()?)
    }

    /// Uses the new queue pair `id` at `at` in place of the previous one: in any memory of the
    /// address space that this process can access, such as a GPU's.
    ///
    /// # Errors
    /// [`Error::OwnQueue`]; [`Error::Busy`] with commands outstanding; [`Error::Controller`].
    pub fn use_queue(&mut self, id: u16, at: QueueMemory) -> Result<()> {
        check_foreign(id)?;
        if self.outstanding() > 0 {
            return Err(self.busy());
        }
        self.queue = self.controller.create_queues(id, at)?;
        Ok(())
    }

    /// Keeps PRP lists at `address` from now on, in place of this driver's own memory:
    /// [`LIST_BYTES`] in any memory of the address space that this process can access, such as a
    /// GPU's.
    ///
    /// # Errors
    /// [`Error::Busy`] with commands outstanding; [`Error::Request`].
    pub fn use_lists(&mut self, address: u64) -> Result<()> {
        if self.outstanding() > 0 {
            return Err(self.busy());
        }
        self.lists = address;
        if let Some(own) = self.own_lists.take() {
            self.space.unmap(own)?;
        }
        Ok(())
    }

    /// Creates the queue pair `id` for another user, such as a GPU, at any addresses that the
    /// controller can access, even if this process has no memory there. The completion queue must
    /// already be zeroed. Completions raise no interrupts.
    ///
    /// # Errors
    /// [`Error::OwnQueue`], and [`Error::Controller`].
    pub fn create_queue(&mut self, id: u16, at: QueueMemory) -> Result<QueueDoorbells> {
        check_foreign(id)?;
        let [tail, head] = self.controller.create_queues_at(id, at)?;
        Ok(QueueDoorbells { tail, head })
    }

    /// Deletes the queue pair `id`. Once it returns, the controller no longer uses the queues'
    /// memory.
    ///
    /// # Errors
    /// [`Error::OwnQueue`], and [`Error::Controller`].
    pub fn delete_queue(&mut self, id: u16) -> Result<()> {
        check_foreign(id)?;
        Ok(self.controller.delete_queues(id)?)
    }

    /// Exports BAR 0 with registers and doorbells as a dma-buf, for a peer to write doorbells.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub fn export_registers(&self) -> Result<OwnedFd> {
        let device = self.device();
        device.export(BarRange {
            bar: BAR,
            offset: 0,
            length: device.bar_size(BAR)?,
        })
    }

    /// Returns the blocks of a transfer, 0's based, if the controller may be asked for it.
    fn check(&self, block: u64, iova: u64, length: u64) -> Result<u16> {
        let Identity {
            block_bytes,
            blocks,
            longest,
            ..
        } = self.identity;
        let count = length / block_bytes;
        let end = block.checked_add(count);
        let fits = end.is_some_and(|end| end <= blocks) && length <= longest;
        let whole = length % block_bytes == 0 && iova % PAGE == 0;
        let last = count
            .checked_sub(1)
            .and_then(|last| u16::try_from(last).ok());
        last.filter(|_| fits && whole)
            .ok_or_else(|| self.refused(block, length))
    }

    fn busy(&self) -> Error {
        Error::Busy {
            outstanding: self.outstanding(),
        }
    }

    fn refused(&self, block: u64, length: u64) -> Error {
        Error::Transfer {
            block,
            length,
            block_bytes: self.identity.block_bytes,
            blocks: self.identity.blocks,
        }
    }
}

impl Drop for Disk {
    /// Stops the device's DMA at once, and unmaps its queues. Closing it resets it.
    fn drop(&mut self) {
        // A device that does not accept this may be gone, or may use its queues.
        if self.device().master(false).is_ok() {
            for at in [Some(self.pages), self.own_lists].into_iter().flatten() {
                // Memory that the kernel keeps mapped stays in the space.
                let _ = self.space.unmap(at);
            }
        }
    }
}

/// Refuses the driver's own pair of queues.
fn check_foreign(id: u16) -> Result<()> {
    match id {
        OWN_QUEUE => Err(Error::OwnQueue { id }),
        _ => Ok(()),
    }
}

fn driver(error: std::io::Error) -> Error {
    Error::Controller(error.into())
}

/// Identifies the controller and namespace 1, through a page at `page`.
fn identify(controller: &mut Controller<RegisterBar, DmaSpace>, page: u64) -> Result<Identity> {
    let data = identified(controller, cns::CONTROLLER, 0, page)?;
    let of_controller = controller::Controller::read_from_bytes(&data);
    let data = identified(controller, cns::NAMESPACE, NSID, page)?;
    let of_namespace = namespace::Namespace::read_from_bytes(&data);
    match (of_controller, of_namespace) {
        (Ok(of_controller), Ok(of_namespace)) => identity(&of_controller, &of_namespace),
        _ => Err(unusable("Identify returned something else".to_owned())),
    }
}

fn identified(
    controller: &mut Controller<RegisterBar, DmaSpace>,
    structure: u8,
    nsid: u32,
    page: u64,
) -> Result<[u8; DATA_SIZE]> {
    let mut entry = SubmissionEntry::new_zeroed();
    entry.opcode = AdminOpcode::Identify as u8;
    entry.nsid = nsid.into();
    entry.prp1 = page.into();
    let mut identify = admin::Identify::from(&entry);
    identify.cns = structure;
    identify.apply_to(&mut entry);
    controller.admin(entry)?;
    let mut data = [0; DATA_SIZE];
    controller.memory().read(page, &mut data).map_err(driver)?;
    Ok(data)
}

fn identity(
    controller: &controller::Controller,
    namespace: &namespace::Namespace,
) -> Result<Identity> {
    let index = namespace.flbas.format_low() | namespace.flbas.format_high() << 4;
    let format = namespace.lbaf.get(usize::from(index));
    let lbads = format.map_or(0, |format| format.lbads);
    let block_bytes = 1_u64.checked_shl(lbads.into()).unwrap_or(0);
    if !(9..=12).contains(&lbads) || namespace.nsze.get() == 0 {
        return Err(unusable(format!(
            "it has {} blocks of {block_bytes} bytes",
            namespace.nsze
        )));
    }
    let serial = String::from_utf8_lossy(&controller.sn);
    Ok(Identity {
        serial: serial.trim_end().to_owned(),
        block_bytes,
        blocks: namespace.nsze.get(),
        longest: longest(controller.mdts),
    })
}

/// Returns the longest data of one command in bytes by MDTS (NVMe Base 2.0, 5.17.2.1), where 0
/// means no limit, and by one PRP list.
fn longest(mdts: u8) -> u64 {
    match mdts {
        0 => LONGEST,
        mdts => PAGE.saturating_mul(1 << mdts.min(20)).min(LONGEST),
    }
}

fn unusable(reason: String) -> Error {
    Error::Namespace { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_transfer_is_that_of_mdts_and_one_list() {
        for (mdts, pages) in [(0, 512), (1, 2), (5, 32), (9, 512), (52, 512), (255, 512)] {
            assert_eq!(longest(mdts), pages * PAGE, "MDTS {mdts}");
        }
    }

    #[test]
    fn own_queue_pair_has_no_other_user() {
        assert!(matches!(check_foreign(1), Err(Error::OwnQueue { id: 1 })));
        assert!(check_foreign(2).is_ok());
    }
}
