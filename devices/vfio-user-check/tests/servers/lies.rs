//! Wrong answers, and the tests that are meant for them.

use peerbar_vfio_user_check::wire::command::{
    DMA_MAP, DMA_UNMAP, FEATURE, INFO, IRQ_INFO, MIG_DATA_READ, REGION_INFO, REGION_IO_FDS,
    REGION_READ, REGION_WRITE, REGION_WRITE_MULTI, RESET, SET_IRQS, VERSION,
};
use peerbar_vfio_user_check::wire::{CONFIG, NO_REPLY, u16_at, u32_at, u64_at, version};

use crate::liar::{Answer, Fate, Lie, TRUTH, set_word};

/// Offsets in the bytes of a message.
const HEADER: usize = 16;
const FLAGS: usize = 8;
/// Offsets in DEVICE_SET_IRQS, after the header.
const IRQ_FLAGS: usize = HEADER + 4;
const IRQ_COUNT: usize = HEADER + 16;
/// DATA_NONE and ACTION_TRIGGER.
const TRIGGER: u32 = 0x21;
/// VFIO_REGION_INFO_FLAG_MMAP and VFIO_REGION_INFO_FLAG_CAPS.
const MMAP: u32 = 1 << 2;
const CAPS: u32 = 1 << 3;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
/// Registers of config space.
const INTERRUPT_LINE: u64 = 0x3c;
const COMMAND: u64 = 4;
const BAR0: u64 = 0x10;

/// Returns the offset of an access to config space, and the length of its data.
fn config_read(answer: &Answer) -> Option<(u64, u32)> {
    let payload = &answer.message.payload;
    let is_config = answer.is(REGION_READ) && u32_at(payload, 8) == Some(CONFIG);
    is_config.then_some((u64_at(payload, 0)?, u32_at(payload, 12)?))
}

/// Fills the data of a read of config space at this offset.
fn fill(answer: &mut Answer, offset: u64, byte: u8) {
    if config_read(answer).is_some_and(|(at, _)| at == offset) {
        let data = answer.message.payload.get_mut(HEADER..);
        data.unwrap().fill(byte);
    }
}

fn set_version(answer: &mut Answer, major: u16, minor: u16, json: &str) {
    if answer.is(VERSION) {
        answer.message.payload = version(major, minor, json);
    }
}

/// Makes a request for an interrupt a trigger of vector 0.
fn into_trigger(bytes: &mut [u8], is_meant: impl Fn(u32, u32) -> bool) {
    let is_set_irqs = u16_at(bytes, 2) == Some(SET_IRQS);
    let (flags, count) = (u32_at(bytes, IRQ_FLAGS), u32_at(bytes, IRQ_COUNT));
    let meant = flags
        .zip(count)
        .is_some_and(|(flags, count)| is_meant(flags, count));
    if is_set_irqs && meant {
        set_word(bytes, IRQ_FLAGS, TRIGGER);
        set_word(bytes, IRQ_COUNT, 1);
    }
}

/// Loses a reply that is meant to be survived.
fn lose(answer: &mut Answer, command: u16) {
    if answer.message.command == command {
        answer.fate = Fate::Lost;
    }
}

pub(crate) const LIES: &[Lie] = &[
    // Errors that are successes.
    Lie {
        tests: &[
            "header.unknown-command",
            "header.error-header",
            "header.shorter-payload",
            "header.server-commands",
            "regions.past-the-end",
            "irq-info.past-the-end",
            "set-irqs.past-the-end",
            "set-irqs.unknown-index",
            "set-irqs.one-kind-of-data",
            "set-irqs.one-action",
            "set-irqs.bool-length",
            "set-irqs.smaller-argsz",
            "access.past-the-end",
            "access.overflow",
            "access.unknown-region",
            "access.wrong-way",
            "access.write-length",
            "write-multi.wrong-count",
            "dma.map-twice",
            "dma.map-over-a-part",
            "dma.overflow",
            "dma.smaller-argsz",
            "optional.io-fds-unknown-region",
            "optional.migration-probe",
            "optional.migration",
            "optional.migration-state",
            "optional.migration-data",
            "optional.get-and-set",
            "optional.unknown-feature",
            "negotiation.unknown-major",
            "negotiation.short",
            "hostile.large-payload",
            "hostile.other-type",
        ],
        reply: |answer| answer.succeed(&[]),
        ..TRUTH
    },
    Lie {
        tests: &[
            "info.smaller-argsz",
            "regions.argsz-below-structure",
            "irq-info.smaller-argsz",
            "write-multi.too-wide",
        ],
        reply: |answer| answer.succeed(&[1; 32]),
        ..TRUTH
    },
    Lie {
        tests: &["optional.io-fds"],
        // A sub-region without a descriptor.
        reply: |answer| {
            if answer.message.command == REGION_IO_FDS {
                let index = u32_at(&answer.request, HEADER + 8).unwrap_or_default();
                answer.succeed(&[0; 56]);
                answer.set_word(8, index);
                answer.set_word(12, 1);
            }
        },
        ..TRUTH
    },
    // Successes that are errors.
    Lie {
        tests: &["version.answer"],
        reply: |answer| {
            if answer.is(VERSION) {
                answer.fail(EIO);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &[
            "negotiation.without-data",
            "negotiation.without-capabilities",
        ],
        reply: |answer| {
            if answer.is(VERSION) && answer.request.len() < 60 {
                answer.fail(EIO);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["regions.answers"],
        reply: |answer| {
            if answer.is(REGION_INFO) && answer.word(8) == 8 {
                answer.fail(EIO);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["irq-info.answers"],
        reply: |answer| {
            if answer.is(IRQ_INFO) && answer.word(8) == 4 {
                answer.fail(EIO);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["set-irqs.eventfd", "set-irqs.mask"],
        reply: |answer| {
            if answer.is(SET_IRQS) {
                answer.fail(EIO);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["access.bar-read"],
        reply: |answer| {
            if answer.is(REGION_READ) && answer.word(8) == 0 {
                answer.fail(EIO);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &[
            "dma.map",
            "dma.map-without-memory",
            "dma.map-read-only",
            "dma.many",
        ],
        reply: |answer| {
            if answer.is(DMA_MAP) {
                answer.fail(EIO);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &[
            "dma.map-again",
            "dma.unmap-unmapped",
            "dma.unmap-half",
            "dma.unmap-all",
            "reset.mappings",
        ],
        reply: |answer| {
            if answer.is(DMA_UNMAP) {
                answer.fail(EINVAL);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["reset.answer"],
        reply: |answer| {
            if answer.is(RESET) {
                answer.fail(EIO);
            }
        },
        ..TRUTH
    },
    // The header.
    Lie {
        tests: &["header.id"],
        reply: |answer| answer.message.id |= 1,
        ..TRUTH
    },
    Lie {
        tests: &["header.command"],
        reply: |answer| {
            if answer.is(INFO) {
                answer.message.command = 0;
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["header.reply-type"],
        reply: |answer| {
            if answer.is(INFO) {
                answer.message.flags = 0;
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["header.size"],
        reply: |answer| {
            if answer.is(INFO) {
                answer.fate = Fate::SentTwice;
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["header.in-order"],
        reply: |answer| {
            if answer.is(REGION_READ) {
                answer.fate = Fate::Overtaken;
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &[
            "header.in-pieces",
            "header.longer-payload",
            "header.unknown-payload",
            "hostile.reply-to-nothing",
            "hostile.many-descriptors",
            "negotiation.missing",
        ],
        reply: |answer| {
            lose(answer, INFO);
            lose(answer, 0x7fff);
        },
        keeps_open: true,
        ..TRUTH
    },
    Lie {
        tests: &["header.no-reply", "header.no-reply-error"],
        request: |bytes, _| {
            let flags = u32_at(bytes, FLAGS).unwrap_or_default();
            set_word(bytes, FLAGS, flags & !NO_REPLY);
        },
        ..TRUTH
    },
    // VERSION.
    Lie {
        tests: &["version.major"],
        reply: |answer| set_version(answer, 1, 0, "{}"),
        ..TRUTH
    },
    Lie {
        tests: &["version.minor", "negotiation.higher-minor"],
        reply: |answer| set_version(answer, 0, 10, "{}"),
        ..TRUTH
    },
    Lie {
        tests: &["version.data"],
        reply: |answer| set_version(answer, 0, 0, "[]"),
        ..TRUTH
    },
    Lie {
        tests: &["version.types"],
        reply: |answer| set_version(answer, 0, 0, r#"{"capabilities":{"pgsizes":"4096"}}"#),
        ..TRUTH
    },
    Lie {
        tests: &["version.subset", "negotiation.subset"],
        reply: |answer| set_version(answer, 0, 0, r#"{"capabilities":{"migration":{}}}"#),
        ..TRUTH
    },
    Lie {
        tests: &["negotiation.twin-socket"],
        reply: |answer| {
            let json = r#"{"capabilities":{"twin_socket":{"supported":true,"fd_index":0}}}"#;
            set_version(answer, 0, 0, json);
        },
        ..TRUTH
    },
    Lie {
        tests: &[
            "negotiation.not-json",
            "negotiation.deep-json",
            "negotiation.other-types",
            "negotiation.twice",
        ],
        reply: |answer| {
            if answer.is_error() {
                lose(answer, VERSION);
            }
        },
        keeps_open: true,
        ..TRUTH
    },
    // The description of the device.
    Lie {
        tests: &["info.exact"],
        reply: |answer| {
            if answer.is(INFO) {
                answer.set_word(0, 17);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["info.larger-argsz"],
        reply: |answer| {
            if answer.is(INFO) {
                answer.message.payload.push(0);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["info.flags", "info.regions", "info.irqs"],
        reply: |answer| {
            if answer.is(INFO) {
                for at in [4, 8, 12] {
                    answer.set_word(at, 1);
                }
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["info.limits"],
        reply: |answer| {
            if answer.is(INFO) {
                answer.set_word(12, 51);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["regions.index"],
        reply: |answer| {
            if answer.is(REGION_INFO) {
                answer.set_word(8, answer.word(8) + 1);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["regions.argsz", "regions.config"],
        reply: |answer| {
            if answer.is(REGION_INFO) {
                answer.set_word(0, 40);
                answer.set_word(16, 100);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["regions.smaller-argsz"],
        reply: |answer| {
            if answer.is(REGION_INFO) {
                let needed = answer.word(0);
                answer.message.payload.resize(needed as usize, 0);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["regions.short-reply-offset"],
        reply: |answer| {
            if answer.is(REGION_INFO) && answer.word(0) > 32 {
                let flags = answer.word(4);
                answer.set_word(4, flags | CAPS);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["regions.capabilities"],
        // A loop.
        reply: |answer| {
            if answer.is(REGION_INFO) {
                answer.set_word(36, 32);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["regions.areas"],
        reply: |answer| {
            if answer.is(REGION_INFO) {
                answer.set_word(48, 0x10_0000);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["regions.mapping"],
        reply: |answer| {
            if answer.is(REGION_INFO) {
                answer.set_word(28, 1);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["regions.descriptor"],
        reply: |answer| answer.message.descriptors.clear(),
        ..TRUTH
    },
    Lie {
        tests: &["regions.no-descriptor"],
        reply: |answer| {
            if answer.is(REGION_INFO) {
                let flags = answer.word(4);
                answer.set_word(4, flags & !MMAP);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["irq-info.index"],
        reply: |answer| {
            if answer.is(IRQ_INFO) {
                answer.set_word(8, answer.word(8) + 1);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["irq-info.argsz", "irq-info.intx", "irq-info.msi-x"],
        reply: |answer| {
            if answer.is(IRQ_INFO) {
                answer.set_word(0, 20);
                answer.set_word(12, 0);
            }
        },
        ..TRUTH
    },
    // Interrupts.
    Lie {
        tests: &["set-irqs.trigger"],
        request: |bytes, _| {
            let is_trigger = u16_at(bytes, 2) == Some(SET_IRQS);
            if is_trigger && u32_at(bytes, IRQ_FLAGS) == Some(TRIGGER) {
                set_word(bytes, IRQ_COUNT, 0);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["set-irqs.trigger-bool"],
        request: |bytes, _| {
            let is_bool = u16_at(bytes, 2) == Some(SET_IRQS) && bytes.len() == HEADER + 21;
            if let Some(chosen) = bytes.last_mut().filter(|_| is_bool) {
                *chosen = 1;
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["set-irqs.disable"],
        request: |bytes, _| into_trigger(bytes, |flags, count| (flags, count) == (TRIGGER, 0)),
        ..TRUTH
    },
    Lie {
        tests: &["set-irqs.deassign"],
        request: |bytes, descriptors| {
            into_trigger(bytes, |flags, _| flags == 0x24 && descriptors == 0)
        },
        ..TRUTH
    },
    Lie {
        tests: &["set-irqs.not-an-eventfd"],
        reply: |answer| lose(answer, SET_IRQS),
        ..TRUTH
    },
    // Accesses.
    Lie {
        tests: &["access.read"],
        reply: |answer| {
            if answer.is(REGION_READ) {
                answer.set_word(0, 1);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["access.read-sizes"],
        reply: |answer| {
            if config_read(answer).is_some_and(|(_, count)| count == 64) {
                answer.message.payload.reverse();
                let (offset, count) = (0, 64);
                answer.set_word(0, offset);
                answer.set_word(4, offset);
                answer.set_word(8, CONFIG);
                answer.set_word(12, count);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["access.widths"],
        reply: |answer| fill(answer, 0, 0xff),
        ..TRUTH
    },
    Lie {
        tests: &["access.interrupt-line"],
        reply: |answer| fill(answer, INTERRUPT_LINE, 0),
        ..TRUTH
    },
    Lie {
        tests: &["access.command-register"],
        reply: |answer| fill(answer, COMMAND, 0xff),
        ..TRUTH
    },
    Lie {
        tests: &["access.bar-sizes"],
        reply: |answer| fill(answer, BAR0, 0xf0),
        ..TRUTH
    },
    Lie {
        tests: &["access.write"],
        reply: |answer| {
            if answer.is(REGION_WRITE) {
                answer.message.payload.clear();
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["access.too-much", "access.nothing"],
        reply: |answer| lose(answer, REGION_READ),
        ..TRUTH
    },
    Lie {
        tests: &["write-multi.writes"],
        reply: |answer| {
            if answer.is(REGION_WRITE_MULTI) {
                answer.set_word(0, 0);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["write-multi.none"],
        reply: |answer| lose(answer, REGION_WRITE_MULTI),
        ..TRUTH
    },
    Lie {
        tests: &["dma.unmap"],
        reply: |answer| {
            if answer.is(DMA_UNMAP) {
                answer.message.payload.clear();
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &["dma.nonsense"],
        reply: |answer| lose(answer, DMA_MAP),
        ..TRUTH
    },
    Lie {
        tests: &["reset.device"],
        reply: |answer| {
            // The reset is between two reads, whose ids differ by two.
            let [byte, _] = (answer.message.id >> 1).to_le_bytes();
            fill(answer, 0, byte);
        },
        ..TRUTH
    },
    // Parts of answers are neither answers nor ends of the connection.
    Lie {
        tests: &["hostile.large-payload", "hostile.other-type"],
        reply: |answer| {
            if answer.is_error() {
                answer.fate = Fate::Cut;
            }
        },
        ..TRUTH
    },
    // Clients that leave, and hostile ones.
    Lie {
        tests: &[
            "disconnection.next-client",
            "disconnection.before-version",
            "disconnection.in-header",
            "disconnection.in-payload",
            "disconnection.before-reply",
            "hostile.huge-size",
            "hostile.never-reads",
            "hostile.random-bytes",
        ],
        clients: 3,
        ..TRUTH
    },
    Lie {
        tests: &["disconnection.mappings"],
        reply: |answer| {
            if answer.is(DMA_MAP) && answer.client > 0 {
                answer.fail(17);
            }
        },
        ..TRUTH
    },
    Lie {
        tests: &[
            "disconnection.interrupts",
            "hostile.stray-descriptors",
            "hostile.descriptors-in-pieces",
        ],
        keeps_descriptors: true,
        ..TRUTH
    },
    Lie {
        tests: &["hostile.size-below-header"],
        keeps_open: true,
        ..TRUTH
    },
    Lie {
        tests: &["hostile.second-client"],
        replaces: true,
        ..TRUTH
    },
    Lie {
        tests: &["hostile.random-payloads"],
        reply: |answer| {
            for command in [DMA_MAP, FEATURE, MIG_DATA_READ, 0x7fff] {
                lose(answer, command);
            }
        },
        ..TRUTH
    },
];
