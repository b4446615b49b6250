//! The kind of a recorded device, which determines the names of its commands and queues.

use std::path::Path;

use peerbar_efa_spec::admin::Opcode as EfaOpcode;
use peerbar_flight::{Operation, Origin};
use peerbar_nvme_spec::command::{AdminOpcode, CommandFlags, NvmOpcode};

/// A kind of device with a flight record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// An NVMe controller.
    Nvme,
    /// A GPU.
    Gpu,
    /// An RDMA network adapter.
    Nic,
    /// A device with a server of another project, whose commands nobody but that server knows.
    Foreign,
}

impl DeviceKind {
    /// Returns the kind of the device `name` of a run, whose server has left its log in the run's
    /// folder.
    pub(crate) fn of(run: &Path, name: &str) -> Self {
        let has_log = |kind: &str| run.join(format!("{kind}-{name}.log")).exists();
        match () {
            () if has_log("nvme") => Self::Nvme,
            () if has_log("nic") => Self::Nic,
            () if has_log("device") => Self::Foreign,
            () => Self::Gpu,
        }
    }

    /// Returns the name of a command's operation. That of an NVMe command says if an SGL describes
    /// its data, rather than PRPs.
    pub(crate) fn operation(self, origin: Origin, operation: Operation) -> String {
        let is_admin = matches!(origin, Origin::Command { queue: 0, .. });
        let opcode = operation.opcode;
        let name = match self {
            Self::Nvme if is_admin => AdminOpcode::try_from(opcode).ok().map(debug),
            Self::Nvme => NvmOpcode::try_from(opcode).ok().map(debug),
            // devices/gpu/INTERFACE.md
            Self::Gpu => named(
                &[
                    "Nop",
                    "Copy",
                    "Fill",
                    "Compare",
                    "Crc32c",
                    "Launch",
                    "WriteWord",
                    "Wait",
                ],
                opcode,
            ),
            Self::Nic if is_admin => EfaOpcode::of(opcode).map(debug),
            // Linux drivers/infiniband/hw/efa/efa_io_defs.h, `efa_io_send_op_type`
            Self::Nic => named(&["Send", "RdmaRead", "RdmaWrite"], opcode),
            Self::Foreign => None,
        };
        let name = name.unwrap_or_else(|| format!("opcode {opcode:#04x}"));
        match self {
            Self::Nvme if !is_admin && has_sgl(operation) => format!("{name} by SGL"),
            _ => name,
        }
    }

    /// Returns the name of the queue with this number.
    pub(crate) fn queue(self, number: u16) -> String {
        match (self, number) {
            (Self::Nvme | Self::Nic, 0) => "admin queue".to_owned(),
            (Self::Nvme | Self::Foreign, number) => format!("queue {number}"),
            (Self::Gpu, number) => format!("channel {number}"),
            (Self::Nic, number) => format!("queue pair {number}"),
        }
    }
}

/// Returns `true` if an SGL describes the data of an I/O command. Bits 1:0 of the opcode are 0 if it
/// has no data (NVMe Base 2.0, 3.3.3.1).
fn has_sgl(operation: Operation) -> bool {
    let psdt = CommandFlags::from_bits(operation.flags).psdt();
    matches!(psdt, 1 | 2) && operation.opcode & 0b11 != 0
}

fn debug(opcode: impl std::fmt::Debug) -> String {
    format!("{opcode:?}")
}

fn named(names: &[&str], opcode: u8) -> Option<String> {
    names.get(usize::from(opcode)).map(|&name| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_names_of_their_device() {
        let operation = |kind: DeviceKind, queue: u16, opcode, flags| {
            kind.operation(Origin::command(queue, 5_u16), Operation { opcode, flags })
        };
        for (kind, queue, opcode, flags, name) in [
            (DeviceKind::Nvme, 0, 0x06, 0, "Identify"),
            (DeviceKind::Nvme, 1, 0x02, 0, "Read"),
            (DeviceKind::Nvme, 1, 0x01, 0x40, "Write by SGL"),
            (DeviceKind::Nvme, 1, 0x02, 0x80, "Read by SGL"),
            (DeviceKind::Nvme, 1, 0x02, 0xc0, "Read"),
            (DeviceKind::Nvme, 1, 0x09, 0x40, "DatasetManagement by SGL"),
            (DeviceKind::Nvme, 1, 0x00, 0x40, "Flush"),
            (DeviceKind::Nvme, 0, 0x06, 0x40, "Identify"),
            (DeviceKind::Gpu, 0, 1, 0, "Copy"),
            (DeviceKind::Nic, 0, 7, 0, "RegMr"),
            (DeviceKind::Nic, 3, 2, 0, "RdmaWrite"),
            (DeviceKind::Nic, 3, 9, 0, "opcode 0x09"),
        ] {
            assert_eq!(operation(kind, queue, opcode, flags), name);
        }
        assert_eq!(DeviceKind::Nic.queue(3), "queue pair 3");
    }

    #[test]
    fn device_is_of_the_kind_of_its_server_s_log() {
        let run = tempfile::tempdir().unwrap();
        for log in ["nvme-a.log", "gpu-b.log", "nic-c.log", "device-d.log"] {
            std::fs::write(run.path().join(log), "").unwrap();
        }
        let kinds = ["a", "b", "c", "d"].map(|name| DeviceKind::of(run.path(), name));
        assert_eq!(
            kinds,
            [
                DeviceKind::Nvme,
                DeviceKind::Gpu,
                DeviceKind::Nic,
                DeviceKind::Foreign
            ]
        );
    }
}
