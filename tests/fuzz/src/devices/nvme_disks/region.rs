//! Steps with the Persistent Memory Region, which may also contain data of commands, and with
//! Sanitize, which erases it.

use peerbar_nvme_spec::command::admin::SanitizeControl;
use peerbar_nvme_spec::log::SanitizeState;
use peerbar_nvme_spec::pmr::Pmrsts;
use peerbar_nvme_spec::registers::offset::{PMRCTL, PMRMSCL, PMRMSCU, PMRSTS};

use super::{Command, Fixture, NAMESPACES, PAGE, PAGES, RANGES, READ, REGISTERS, is_mix, status};
use crate::input::Input;

/// Address of the region for commands, and the part of it that they use.
pub(super) const REGION: u64 = 0x70_0000_0000;
pub(super) const REGION_PAGES: u64 = 4;
pub(super) const REGION_BYTES: u64 = 2 << 20;

/// CMSE: commands reach the region at the base address.
const ENABLED: u64 = 2;
/// The region does not fit there.
const LAST_PAGE: u64 = !0xfff;

const GET_LOG_PAGE: u8 = 2;
const SANITIZE: u8 = 0x84;

/// The region's registers, as the guest wrote them.
#[derive(Clone, Copy, Default)]
pub(super) struct Registers {
    is_enabled: bool,
    space: u64,
}

impl Registers {
    /// Returns `true` if commands reach the region at [`REGION`].
    pub(super) fn is_open(self) -> bool {
        self.is_enabled && self.space == REGION | ENABLED
    }

    fn status(self) -> u32 {
        let is_invalid = self.space & ENABLED != 0 && self.space & !0xfff == LAST_PAGE;
        let status = Pmrsts::new().with_nrdy(!self.is_enabled);
        status.with_cbai(is_invalid).into_bits()
    }
}

impl Fixture {
    /// Writes the region's registers.
    pub(super) fn set_region(&mut self, registers: Registers) {
        let [low, high] = [registers.space as u32, (registers.space >> 32) as u32];
        self.write(REGISTERS, PMRMSCU, &high.to_le_bytes());
        self.write(REGISTERS, PMRMSCL, &low.to_le_bytes());
        let control = u32::from(registers.is_enabled);
        self.write(REGISTERS, PMRCTL, &control.to_le_bytes());
        self.region = registers;
        assert_eq!(self.register(PMRSTS), registers.status());
    }

    /// Changes the region's registers or its content, as the guest.
    pub(super) fn change_region(&mut self, input: &mut Input<'_>) -> Option<()> {
        let [choice, page, seed] = input.array()?;
        let mut registers = self.region;
        match choice & 15 {
            0..=3 => {
                registers = Registers {
                    is_enabled: true,
                    space: REGION | ENABLED,
                }
            }
            4 => registers.is_enabled = false,
            5 => registers.space = LAST_PAGE | ENABLED,
            6 => registers.space = REGION,
            7 => registers = Registers::default(),
            // The guest has mapped it.
            _ if registers.is_enabled => {
                let at = REGION + u64::from(page) % REGION_PAGES * PAGE;
                let bytes = vec![seed; PAGE as usize];
                self.store(at, &bytes);
                let known = self.model_range(at, PAGE).expect("it is of the region");
                self.data[known].copy_from_slice(&bytes);
            }
            _ => {}
        }
        self.set_region(registers);
        Some(())
    }

    /// Executes Sanitize. Afterwards everything is zero; or it has failed, and no read is allowed
    /// before that is repaired.
    pub(super) fn sanitize(&mut self, input: &mut Input<'_>) -> Option<()> {
        let choice = input.u8()?;
        let action = match choice & 7 {
            0..=4 => SanitizeControl::BLOCK_ERASE,
            5 => SanitizeControl::EXIT_FAILURE_MODE,
            6 => SanitizeControl::OVERWRITE,
            _ => 0,
        };
        let control = SanitizeControl::new()
            .with_sanact(action)
            .with_ause(choice & 8 != 0)
            .with_ndas(choice & 16 != 0);
        let expected = match action {
            SanitizeControl::EXIT_FAILURE_MODE => 0,
            SanitizeControl::BLOCK_ERASE if self.region.is_enabled => status::PROHIBITED_BY_PMR,
            SanitizeControl::BLOCK_ERASE => return self.erase(control),
            _ => status::INVALID_FIELD,
        };
        assert_eq!(self.sanitize_command(control), expected);
        Some(())
    }

    fn erase(&mut self, control: SanitizeControl) -> Option<()> {
        let before = self.fired();
        let was_lost = self.is_lost.contains(&true);
        assert_eq!(self.sanitize_command(control), 0);
        let has_failed = before != self.fired() || was_lost;
        let state = match has_failed {
            true => SanitizeState::FAILED,
            false => SanitizeState::COMPLETED,
        };
        assert_eq!(self.last_sanitize(), (state, control));
        self.data[(PAGES * PAGE) as usize..].fill(0);
        for n in 0..NAMESPACES {
            self.is_lost[n] |= self.disks[n].has_failed_to_flush();
            let found = self.disks[n].bytes(0..self.blocks[n].len());
            let known = &mut self.blocks[n];
            let zeros = vec![0; found.len()];
            let is_right = found == zeros || has_failed && is_mix(&found, known, &zeros);
            assert!(is_right, "disk {n} is not erased");
            known.copy_from_slice(&found);
            assert!(has_failed || self.disks[n].is_durable());
        }
        if has_failed {
            self.leave_failure_mode(control.ause());
        }
        assert_eq!(self.read_first_block(), 0);
        Some(())
    }

    /// Leaves the state after a failure, in which no command reads. The way out depends on the
    /// operation's request.
    fn leave_failure_mode(&mut self, unrestricted: bool) {
        assert_eq!(self.read_first_block(), status::SANITIZE_FAILED);
        let control = SanitizeControl::new();
        let exit = control.with_sanact(SanitizeControl::EXIT_FAILURE_MODE);
        let left = self.sanitize_command(exit);
        if unrestricted {
            return assert_eq!(left, 0);
        }
        assert_eq!(left, status::SANITIZE_FAILED);
        // Only a successful operation ends it, on disks that work.
        for (disk, blocks) in self.disks.iter().zip(&mut self.blocks) {
            disk.clear();
            blocks.fill(0);
        }
        self.controller.renew_disks();
        self.is_lost = [false; NAMESPACES];
        let erase = control.with_sanact(SanitizeControl::BLOCK_ERASE);
        assert_eq!(self.sanitize_command(erase), 0);
        assert_eq!(self.last_sanitize(), (SanitizeState::COMPLETED, erase));
    }

    fn sanitize_command(&mut self, control: SanitizeControl) -> u16 {
        let mut command = Command::new(SANITIZE, 0);
        command.dwords[0] = control.into_bits();
        self.execute(0, &command).0
    }

    /// Returns the status and the request of the last operation.
    fn last_sanitize(&mut self) -> (u8, SanitizeControl) {
        let mut command = Command::new(GET_LOG_PAGE, 0);
        command.prps = [RANGES, 0];
        // 8 bytes of the page 81h.
        command.dwords[0] = 1 << 16 | 0x81;
        assert_eq!(self.execute(0, &command).0, 0);
        let mut page = [0; 8];
        self.ram.read(RANGES, &mut page).expect("memory");
        let [_, _, state, _, control @ ..] = page;
        let control = SanitizeControl::from_bits(u32::from_le_bytes(control));
        (state & 7, control)
    }

    /// Returns the status code of a read of the first block, without a fault of the disk.
    fn read_first_block(&mut self) -> u16 {
        self.disks[0].fail_never();
        let mut command = Command::new(READ, 1);
        command.prps = [RANGES, 0];
        self.execute(1, &command).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;

    /// The first page of the region as the page of a command's data.
    const IN_REGION: u8 = PAGES as u8;

    /// Adds a command of 8 blocks from block 0 on.
    fn command(seed: Seed, kind: u8, page: u8) -> Seed {
        seed.bytes(&[kind, 0, 0, 7, page, 0xff]).u16(0)
    }

    fn carry_out(seed: &[u8]) -> Fixture {
        let mut input = Input::new(&seed[1..]);
        let mut fixture = Fixture::new(512);
        fixture.start();
        while fixture.step(&mut input).is_some() {}
        assert_eq!(input.u8(), None, "the seed is used up");
        fixture.check_all();
        fixture
    }

    #[test]
    fn seed_of_the_region_moves_data_and_erases_them() {
        let seed = Seed::default().bytes(&[0, 244, 0, 0, 0]);
        let seed = command(seed, 72, IN_REGION).bytes(&[5]);
        let seed = command(seed, 120, IN_REGION + 1);
        let moved = carry_out(&seed.clone().in_corpus("nvme_disks", "region"));
        let second = ((PAGES + 1) * PAGE) as usize;
        assert_eq!(moved.data[second..second + 3], [5, 6, 7]);
        // Refused while the region is enabled, then not.
        let seed = seed.bytes(&[252, 0, 244, 7, 0, 0, 252, 0]);
        let seed = command(seed, 120, IN_REGION);
        let erased = carry_out(&seed.in_corpus("nvme_disks", "sanitize"));
        let mut bytes = erased.data.iter().chain(&erased.blocks[0]);
        assert!(bytes.all(|byte| *byte == 0));
    }

    #[test]
    fn seed_of_failed_sanitize_leaves_the_failure_mode() {
        let seed = command(Seed::default().bytes(&[0]), 72, 0).bytes(&[5]);
        // A disk fails at once; once a restricted operation, once an unrestricted one.
        let seed = seed.bytes(&[0, 0, 0, 0, 252, 0]);
        let seed = seed.bytes(&[0, 1, 1, 0, 252, 8]);
        let fixture = carry_out(&seed.in_corpus("nvme_disks", "failed-sanitize"));
        assert_eq!(fixture.is_lost, [false, true]);
    }
}
