//! NVMe admin commands that bypass the driver's own commands (Linux,
//! include/uapi/linux/nvme_ioctl.h).

#![expect(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, bail};

/// `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const ADMIN_COMMAND: libc::c_ulong = 0xc048_4e41;

/// NVMe Base 2.0, 5.16.
const GET_LOG_PAGE: u8 = 0x02;

/// Time limit of the controller, in ms. It is shorter than the kernel's own 60 s, so that a check
/// that asks a dead controller ends before its watchdog.
const TIMEOUT_MS: u32 = 20_000;

/// `struct nvme_passthru_cmd`.
#[repr(C)]
#[derive(Debug, Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_length: u32,
    data_length: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

/// Reads `length` bytes, a multiple of 4, of the log page `page` of the controller behind `node`.
pub(crate) fn get_log_page(node: &File, page: u8, length: u32) -> anyhow::Result<Vec<u8>> {
    let dwords = (length / 4)
        .checked_sub(1)
        .context("a log page of no bytes")?;
    let mut data = vec![0; usize::try_from(length)?];
    let mut command = AdminCommand {
        opcode: GET_LOG_PAGE,
        namespace: u32::MAX,
        address: data.as_mut_ptr().expose_provenance() as u64,
        data_length: length,
        cdw10: u32::from(page) | (dwords & 0xffff) << 16,
        cdw11: dwords >> 16,
        timeout_ms: TIMEOUT_MS,
        ..AdminCommand::default()
    };
    // SAFETY: `command` has the layout that this request expects, and `data`, to which it points,
    // has the length that it states and lives until the call returns. No reference to it is used
    // during the call.
    let status = unsafe { libc::ioctl(node.as_raw_fd(), ADMIN_COMMAND, &raw mut command) };
    match status {
        0 => Ok(data),
        ..0 => Err(io::Error::last_os_error()).context("the kernel refuses the admin command"),
        1.. => bail!("it ended with {}", describe(status)),
    }
}

/// Describes a status field (NVMe Base 2.0, 3.3.3.2.1).
fn describe(status: i32) -> String {
    let (kind, code) = (status >> 8 & 7, status & 0xff);
    let meaning = match (kind, code) {
        (0, 0x01) => ": Invalid Command Opcode",
        (0, 0x02) => ": Invalid Field in Command",
        (1, 0x09) => ": Invalid Log Page",
        _ => "",
    };
    format!("status SCT {kind:x}h, SC {code:02x}h{meaning}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_as_long_as_its_request_number_says() {
        assert_eq!(
            size_of::<AdminCommand>() as u64,
            ADMIN_COMMAND >> 16 & 0x3fff
        );
    }

    #[test]
    fn status_is_described() {
        assert_eq!(describe(0x4109), "status SCT 1h, SC 09h: Invalid Log Page");
        assert_eq!(describe(0x0281), "status SCT 2h, SC 81h");
    }

    #[test]
    fn a_file_that_is_no_controller_is_refused() {
        let file = tempfile::tempfile().unwrap();
        let error = get_log_page(&file, 0xc0, 64).unwrap_err();
        assert_eq!(error.to_string(), "the kernel refuses the admin command");
    }
}
