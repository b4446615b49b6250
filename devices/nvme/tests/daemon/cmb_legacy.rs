//! A Controller Memory Buffer for hosts older than NVMe 1.4: its registers can always be read, and
//! commands find it at its BAR.

use peerbar_nvme_spec::registers::offset::{CAP, CMBLOC, CMBMSC, CMBSZ};
use peerbar_rig::nvme::command::{READ, WRITE};
use peerbar_rig::nvme::{DATA, Driver};
use peerbar_rig::{Link, REGISTERS};
use peerbar_vfio_user::CONFIG_REGION;

use crate::process;
use crate::{SUCCESS, connect};

/// The buffer's BAR, its BAR register in config space, and its bus address.
const BUFFER: u32 = 2;
const BAR: u64 = 0x18;
const ADDRESS: u64 = 0x70_0000_0000;

#[test]
fn host_of_nvme_1_3_finds_the_buffer_at_its_bar() {
    let daemon = process::start(&["--namespace", "ram=1M", "--cmb", "4M", "--cmb-legacy"]);
    let guest = connect(&daemon);
    let capabilities = u64::from_le_bytes(guest.link.bytes(REGISTERS, CAP));
    assert_eq!(capabilities >> 57 & 1, 0, "CAP.CMBS, reserved in 1.3");
    // Without a write to CMBMSC, and after one, although 1.3 does not define it.
    for control in [0_u64, ADDRESS | 3] {
        guest.link.write(REGISTERS, CMBMSC, &control.to_le_bytes());
        assert_eq!(guest.link.bytes(REGISTERS, CMBMSC), [0; 8]);
        let location = u32::from_le_bytes(guest.link.bytes(REGISTERS, CMBLOC));
        assert_eq!(location, BUFFER, "BIR; the rest is reserved or 0");
        let size = u32::from_le_bytes(guest.link.bytes(REGISTERS, CMBSZ));
        assert_eq!(size & 0x1f, 0x1c, "LISTS, RDS, WDS");
        let unit = 1_u64 << (12 + 4 * (size >> 8 & 0xf));
        assert_eq!(unit * u64::from(size >> 12), 4 << 20);
    }
    let mut driver = Driver::enabled(guest);
    driver.fill(0x5a, 4096);
    assert_eq!(driver.io(WRITE, DATA, 8), SUCCESS);
    assert_ne!(driver.io(READ, ADDRESS, 8), SUCCESS, "no BAR there yet");
    let halves = [ADDRESS & 0xffff_ffff, ADDRESS >> 32];
    for (at, half) in (BAR..).step_by(4).zip(halves) {
        let half = u32::try_from(half).unwrap();
        driver.link.write(CONFIG_REGION, at, &half.to_le_bytes());
    }
    // Memory Space Enable, Bus Master Enable.
    driver.link.write(CONFIG_REGION, 4, &6_u16.to_le_bytes());
    assert_eq!(driver.io(READ, ADDRESS + 0x2000, 8), SUCCESS);
    let mut found = [0; 4096];
    driver.link.read(BUFFER, 0x2000, &mut found);
    assert_eq!(found, [0x5a; 4096]);
}
