//! The device neither dies nor hangs, for any behaviour of a driver.

use peerbar_gpu::Mode;
use peerbar_vfio_user::Device;
use proptest::prelude::*;

use peerbar_rig::Link;

use crate::driver::{Command, Driver};

/// Bytes that are often nearly a command: a known opcode, operands that are mostly small.
fn entry() -> impl Strategy<Value = [u8; 128]> {
    let operand = prop_oneof![
        0u64..0x4000,
        0x1000_0000u64..0x1100_0000,
        0x40_0000_0000u64..0x40_0080_0000,
        any::<u64>(),
    ];
    let head = (0u8..8, any::<u8>(), any::<u16>(), 0u32..6);
    (head, any::<u64>(), prop::collection::vec(operand, 13)).prop_map(
        |((opcode, flags, spaces, kernel), fence, mut operands)| {
            operands[12] %= 1025;
            operands[11] %= 64;
            let mut bytes = [0; 128];
            bytes[0] = opcode;
            bytes[1] = flags;
            bytes[2..4].copy_from_slice(&spaces.to_le_bytes());
            bytes[4..8].copy_from_slice(&kernel.to_le_bytes());
            bytes[8..16].copy_from_slice(&(fence & 0xffff_fff0).to_le_bytes());
            for (to, operand) in bytes[24..].chunks_mut(8).zip(operands) {
                to.copy_from_slice(&operand.to_le_bytes());
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn no_commands_stop_the_device(entries in prop::collection::vec(entry(), 1..40)) {
        let mut driver = Driver::new(Mode::Window);
        for bytes in &entries {
            driver.enable(1);
            driver.put_bytes(1, bytes);
            driver.ring_trapped(1, 1);
            driver.disable(1);
        }
        driver.wait_for_status(1, 0);
        driver.enable(0);
        prop_assert_eq!(driver.run(0, &Command::default()), 0);
    }

    #[test]
    fn no_register_accesses_stop_the_device(
        accesses in prop::collection::vec(
            (0u32..3, 0u64..0xe000, prop::collection::vec(any::<u8>(), 1..17)),
            1..200,
        ),
    ) {
        let mut driver = Driver::new(Mode::Window);
        for (bar, offset, data) in accesses {
            let bar = if bar == 0 { 2 } else { 0 };
            driver.endpoint().region_write(bar, offset, &data).unwrap();
            let mut seen = vec![0; data.len()];
            driver.endpoint().region_read(bar, offset, &mut seen).unwrap();
        }
        driver.set_register(0x20, 1);
        driver.wait_until_ready();
        driver.enable(0);
        prop_assert_eq!(driver.run(0, &Command::default()), 0);
    }
}
