//! A controller: bring-up, admin commands, queues.

use std::time::{Duration, Instant};

use peerbar_nvme_spec::command::admin::{
    CompletionQueueFlags, CreateCompletionQueue, CreateSubmissionQueue, DeleteQueue, Identify,
    SetFeatures, SubmissionQueueFlags,
};
use peerbar_nvme_spec::command::{AdminOpcode, SubmissionEntry};
use peerbar_nvme_spec::feature::fid;
use peerbar_nvme_spec::identify::{cns, controller};
use peerbar_nvme_spec::registers::{Aqa, Cap, Cc, Csts, offset};
use zerocopy::{FromBytes, FromZeros, transmute};

use crate::access::{DmaMemory, Registers};
use crate::doorbell::{Doorbell, Shadow};
use crate::error::DriverError;
use crate::prp::PAGE;
use crate::queue::{QueueMemory, QueuePair};

/// Longest wait for any response of a controller.
const TIME_OUT: Duration = Duration::from_secs(20);

/// A controller that is enabled, with its admin queue.
#[derive(Debug)]
pub struct Controller<R, M> {
    registers: R,
    memory: M,
    /// Bytes between two doorbells.
    stride: u64,
    /// Most entries of an I/O queue (NVMe Base 2.0, 3.1.3.1, CAP.MQES).
    most_entries: u32,
    /// Addresses of the shadow doorbell buffer and of the event index buffer.
    shadows: Option<[u64; 2]>,
    admin: QueuePair<R, M>,
}

impl<R: Registers + Clone, M: DmaMemory + Clone> Controller<R, M> {
    /// Gives the controller its admin queues, enables it and waits until it is ready (NVMe Base 2.0,
    /// 3.5.1). Disables it first if it is enabled: SPDK's keeps CC through a function-level reset.
    pub fn enable(registers: R, memory: M, admin: QueueMemory) -> Result<Self, DriverError> {
        let mut cap = [0; 8];
        registers.read_register(offset::CAP, &mut cap)?;
        let cap = Cap::from_bits(u64::from_le_bytes(cap));
        if cap.mpsmin() > 0 {
            let bytes = PAGE << cap.mpsmin();
            return Err(DriverError::LargePages { bytes });
        }
        let stride = 4 << cap.dstrd();
        let doorbells = doorbells(&registers, &memory, stride, None, 0);
        let controller = Self {
            admin: QueuePair::new(memory.clone(), admin, doorbells)?,
            registers,
            memory,
            stride,
            most_entries: u32::from(cap.mqes()) + 1,
            shadows: None,
        };
        let registers = &controller.registers;
        let mut cc = [0; 4];
        registers.read_register(offset::CC, &mut cc)?;
        if Cc::from_bits(u32::from_le_bytes(cc)).en() {
            controller.disable()?;
        }
        let sizes = Aqa::new()
            .with_asqs(admin.submission_entries - 1)
            .with_acqs(admin.completion_entries - 1);
        registers.write_register(offset::AQA, &sizes.into_bits().to_le_bytes())?;
        registers.write_register(offset::ASQ, &admin.submission.to_le_bytes())?;
        registers.write_register(offset::ACQ, &admin.completion.to_le_bytes())?;
        let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
        registers.write_register(offset::CC, &cc.into_bits().to_le_bytes())?;
        wait("CSTS.RDY", || is_ready(controller.status()?))?;
        Ok(controller)
    }

    /// Disables the controller and waits until it is not ready: afterwards it executes no command
    /// and does no DMA (NVMe Base 2.0, 3.1.3.5, CC.EN).
    pub fn disable(&self) -> Result<(), DriverError> {
        let cc = Cc::new().with_iosqes(6).with_iocqes(4);
        self.registers
            .write_register(offset::CC, &cc.into_bits().to_le_bytes())?;
        wait("CSTS.RDY, to be cleared", || {
            Ok((!self.status()?.rdy()).then_some(()))
        })
    }

    /// Returns Controller Status (NVMe Base 2.0, 3.1.3.6).
    pub fn status(&self) -> Result<Csts, DriverError> {
        let mut csts = [0; 4];
        self.registers.read_register(offset::CSTS, &mut csts)?;
        Ok(Csts::from_bits(u32::from_le_bytes(csts)))
    }

    /// Returns the registers.
    pub fn registers(&self) -> &R {
        &self.registers
    }

    /// Returns the memory that the controller shares with the host.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Executes an admin command. Returns dword 0 of its completion.
    pub fn admin(&mut self, entry: SubmissionEntry) -> Result<u32, DriverError> {
        let admin = &mut self.admin;
        admin.push(&transmute!(entry))?;
        admin.ring()?;
        let completion = wait("the completion of an admin command", || Ok(admin.pop()?))?;
        let result = admin.result()?;
        admin.ring()?;
        match completion.status {
            0 => Ok(result),
            status => Err(DriverError::Command {
                opcode: entry.opcode,
                status,
            }),
        }
    }

    /// Keeps the doorbells of I/O queues in the pages at `values` and `events`, if the controller
    /// supports Doorbell Buffer Config (NVMe Base 2.0, 5.8). Identify Controller uses the page
    /// `values` first. The admin queue keeps its registers, as in Linux.
    pub fn use_shadow_doorbells(&mut self, [values, events]: [u64; 2]) -> Result<(), DriverError> {
        let mut entry = command(AdminOpcode::Identify);
        entry.prp1 = values.into();
        let mut identify = Identify::from(&entry);
        identify.cns = cns::CONTROLLER;
        identify.apply_to(&mut entry);
        self.admin(entry)?;
        let mut page = vec![0; 4096];
        self.memory.read(values, &mut page)?;
        let offers = controller::Controller::read_from_bytes(&page)
            .is_ok_and(|controller| controller.oacs.doorbell_buffer());
        if offers {
            for address in [values, events] {
                self.memory.write(address, &[0; 4096])?;
            }
            let mut entry = command(AdminOpcode::DoorbellBufferConfig);
            [entry.prp1, entry.prp2] = [values, events].map(Into::into);
            self.admin(entry)?;
            self.shadows = Some([values, events]);
        }
        Ok(())
    }

    /// Returns `true` if I/O queues that are created from now on keep their doorbells in memory.
    pub fn has_shadow_doorbells(&self) -> bool {
        self.shadows.is_some()
    }

    /// Set Features, Number of Queues: requests as many queues as the controller has (NVMe Base
    /// 2.0, 5.27.1.5).
    pub fn request_all_queues(&mut self) -> Result<(), DriverError> {
        let mut entry = command(AdminOpcode::SetFeatures);
        let mut features = SetFeatures::from(&entry);
        features.fid = fid::NUMBER_OF_QUEUES;
        features.cdw11 = 0xfffe_fffe.into();
        features.apply_to(&mut entry);
        self.admin(entry).map(drop)
    }

    /// Creates the pair of I/O queues `id`, whose completions raise no interrupts.
    pub fn create_queues(
        &mut self,
        id: u16,
        at: QueueMemory,
    ) -> Result<QueuePair<R, M>, DriverError> {
        let doorbells = doorbells(&self.registers, &self.memory, self.stride, self.shadows, id);
        let pair = QueuePair::new(self.memory.clone(), at, doorbells)?;
        self.create_queues_at(id, at)?;
        Ok(pair)
    }

    /// Creates queues for another user, such as a peer. Their memory need not be reachable from
    /// here, and the completion queue must already be zeroed. Returns the offsets of the tail's and
    /// the head's doorbell.
    pub fn create_queues_at(&mut self, id: u16, at: QueueMemory) -> Result<[u64; 2], DriverError> {
        let entries = at.submission_entries.max(at.completion_entries);
        let most = self.most_entries;
        if u32::from(entries) > most {
            return Err(DriverError::LongQueues { entries, most });
        }
        let mut entry = command(AdminOpcode::CreateCompletionQueue);
        entry.prp1 = at.completion.into();
        let mut completion = CreateCompletionQueue::from(&entry);
        completion.qid = id.into();
        completion.qsize = (at.completion_entries - 1).into();
        completion.flags = CompletionQueueFlags::new().with_pc(true);
        completion.apply_to(&mut entry);
        self.admin(entry)?;
        let mut entry = command(AdminOpcode::CreateSubmissionQueue);
        entry.prp1 = at.submission.into();
        let mut submission = CreateSubmissionQueue::from(&entry);
        submission.qid = id.into();
        submission.qsize = (at.submission_entries - 1).into();
        submission.flags = SubmissionQueueFlags::new().with_pc(true);
        submission.cqid = id.into();
        submission.apply_to(&mut entry);
        if let Err(error) = self.admin(entry) {
            // The first error is the one to report.
            let _ = self.delete(AdminOpcode::DeleteCompletionQueue, id);
            return Err(error);
        }
        Ok(doorbell_offsets(self.stride, id))
    }

    /// Deletes the pair of I/O queues `id`: once this returns, the controller does not use their memory (NVMe Base 2.0,
    /// 5.6 and 5.7).
    pub fn delete_queues(&mut self, id: u16) -> Result<(), DriverError> {
        let submission = self.delete(AdminOpcode::DeleteSubmissionQueue, id);
        let completion = self.delete(AdminOpcode::DeleteCompletionQueue, id);
        submission.and(completion)
    }

    fn delete(&mut self, opcode: AdminOpcode, id: u16) -> Result<(), DriverError> {
        let mut entry = command(opcode);
        let mut queue = DeleteQueue::from(&entry);
        queue.qid = id.into();
        queue.apply_to(&mut entry);
        self.admin(entry).map(drop)
    }
}

/// Returns `Some` if a controller that has been enabled is ready, or `None` while it may become
/// ready.
fn is_ready(csts: Csts) -> Result<Option<()>, DriverError> {
    match csts.into_bits() {
        dead if csts.cfs() => Err(DriverError::Dead { csts: dead }),
        _ => Ok(csts.rdy().then_some(())),
    }
}

/// Returns the offsets of the doorbells of the submission queue and the completion queue `id` (NVMe
/// over PCIe 1.0, 3.1.2), at `stride`.
fn doorbell_offsets(stride: u64, id: u16) -> [u64; 2] {
    let first = 2 * u64::from(id);
    [first, first + 1].map(|number| offset::DOORBELLS + number * stride)
}

/// Makes the doorbells at [`doorbell_offsets`].
fn doorbells<R: Registers + Clone, M: DmaMemory + Clone>(
    registers: &R,
    memory: &M,
    stride: u64,
    shadows: Option<[u64; 2]>,
    id: u16,
) -> [Doorbell<R, M>; 2] {
    doorbell_offsets(stride, id).map(|register| {
        let at = register - offset::DOORBELLS;
        let shadow = shadows.map(|[values, events]| Shadow {
            value: values + at,
            event: events + at,
        });
        let (registers, memory) = (registers.clone(), memory.clone());
        Doorbell::new(registers, memory, register, shadow)
    })
}

fn command(opcode: AdminOpcode) -> SubmissionEntry {
    let mut entry = SubmissionEntry::new_zeroed();
    entry.opcode = opcode as u8;
    entry
}

/// Asks repeatedly until there is an answer.
fn wait<T>(
    what: &'static str,
    mut ask: impl FnMut() -> Result<Option<T>, DriverError>,
) -> Result<T, DriverError> {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if begun.elapsed() > TIME_OUT {
            let seconds = TIME_OUT.as_secs();
            return Err(DriverError::Late { what, seconds });
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doorbell::tests::Bytes;

    const QUEUES: QueueMemory = QueueMemory {
        submission: 0x1000,
        completion: 0x2000,
        submission_entries: 4,
        completion_entries: 4,
    };

    fn enable(cap: Cap, csts: u32) -> Result<Controller<Bytes, Bytes>, DriverError> {
        let (registers, memory) = (Bytes::new(), Bytes::new());
        registers.write(offset::CAP, &cap.into_bits().to_le_bytes())?;
        registers.store32(offset::CSTS, csts)?;
        Controller::enable(registers, memory, QUEUES)
    }

    #[test]
    fn ready_controller_is_enabled() {
        let controller = enable(Cap::new(), 1).unwrap();
        let mut cc = [0; 4];
        let registers = controller.registers();
        registers.read_register(offset::CC, &mut cc).unwrap();
        assert!(Cc::from_bits(u32::from_le_bytes(cc)).en());
    }

    /// The registers of a controller that starts when CC.EN changes to 1.
    #[derive(Clone, Debug)]
    struct Edge(Bytes);

    impl Registers for Edge {
        fn read_register(&self, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
            self.0.read_register(offset, data)
        }

        fn write_register(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
            let is_enabled = || Ok(Cc::from_bits(self.0.load32(offset::CC)?).en());
            let before: std::io::Result<bool> = is_enabled();
            self.0.write_register(offset, data)?;
            match (before?, is_enabled()?) {
                (false, true) => self.0.store32(offset::CSTS, 1),
                (true, false) => self.0.store32(offset::CSTS, 0),
                _ => Ok(()),
            }
        }
    }

    #[test]
    fn controller_left_enabled_is_started_anew() {
        let registers = Edge(Bytes::new());
        let left = Cc::new().with_en(true).with_shn(Cc::SHN_NORMAL);
        registers.0.store32(offset::CC, left.into_bits()).unwrap();
        let shut_down = Csts::new().with_rdy(true).with_shst(Csts::SHST_COMPLETE);
        let csts = shut_down.into_bits();
        registers.0.store32(offset::CSTS, csts).unwrap();
        let controller = Controller::enable(registers, Bytes::new(), QUEUES).unwrap();
        assert_eq!(controller.status().unwrap().into_bits(), 1);
    }

    #[test]
    fn disabled_controller_is_not_enabled_and_not_ready() {
        let controller = enable(Cap::new(), 1).unwrap();
        let registers = controller.registers();
        registers.store32(offset::CSTS, 0).unwrap();
        controller.disable().unwrap();
        let mut cc = [0; 4];
        registers.read_register(offset::CC, &mut cc).unwrap();
        assert!(!Cc::from_bits(u32::from_le_bytes(cc)).en());
    }

    #[test]
    fn controller_with_a_fatal_error_is_not_ready() {
        for csts in [3, 2, u32::MAX] {
            let error = enable(Cap::new(), csts).unwrap_err();
            let is_dead = matches!(error, DriverError::Dead { csts: seen } if seen == csts);
            assert!(is_dead, "{csts:#x}: {error}");
        }
    }

    #[test]
    fn longer_queues_than_the_controller_s_are_refused() {
        let mut controller = enable(Cap::new().with_mqes(255), 1).unwrap();
        let long = QueueMemory {
            completion_entries: 512,
            ..QUEUES
        };
        let error = controller.create_queues_at(1, long).unwrap_err();
        let expected = "the controller's queues have at most 256 entries, and 512 are wanted";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn controller_without_small_pages_is_refused() {
        let error = enable(Cap::new().with_mpsmin(2), 1).unwrap_err();
        let expected =
            "the controller's smallest page is 16384 bytes, and this driver has pages of 4096";
        assert_eq!(error.to_string(), expected);
    }
}
