//! A test of KVM on this host, with a guest of a few instructions.
//!
//! A `/dev/kvm` that opens is not enough: a kernel that is a guest itself may offer one that runs
//! no unmodified kernel. So QEMU starts a ROM that goes from the reset vector to 64-bit mode with
//! paging, moves a value through an SSE register, and reports it.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use peerbar_images::Qemu;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::child::Child;
use crate::parent_death;

const DEVICE: &str = "/dev/kvm";

/// Time limit of the guest. It has some forty instructions, but QEMU is slow to start in a guest
/// under TCG.
const LIMIT: Duration = Duration::from_secs(30);

/// Starts of QEMU's lines when KVM gives a guest up (QEMU, `accel/kvm/kvm-all.c`,
/// `target/i386/kvm/kvm.c`). QEMU stops the guest then, and does not end.
const GIVEN_UP: [&str; 5] = [
    "KVM internal error",
    "KVM: entry failed",
    "KVM: exception",
    "KVM: unknown exit",
    "error: kvm run failed",
];

/// The longest part of a line of QEMU's output that is examined, in bytes.
const LINE: usize = 200;

/// QEMU's exit status for the value 42 at its debug port: twice the value, plus 1 (QEMU,
/// `hw/misc/debugexit.c`).
const REPORTED: i32 = 85;

/// The size of a ROM in bytes, which ends at 4 GiB.
const ROM_SIZE: usize = 64 << 10;
/// Offset of [`CODE`] in the ROM.
const CODE_AT: usize = 0xf000;
/// Offset in the ROM at which the processor starts.
const RESET_AT: usize = 0xfff0;
/// `jmp` to [`CODE`], relative to the instruction after it.
const RESET: [u8; 3] = [0xe9, 0x0d, 0xf0];

/// The guest's code, for the address 0xfffff000. Page tables are at 0x1000 to 0x3fff, in RAM that
/// is zero.
const CODE: [&[u8]; 24] = [
    // 16 bits: lgdtl %cs:0xf0a8; protected mode; ljmpl $8, to the next line
    &[0x2e, 0x66, 0x0f, 0x01, 0x16, 0xa8, 0xf0],
    &[0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0],
    &[0x66, 0xea, 0x17, 0xf0, 0xff, 0xff, 0x08, 0x00],
    // 32 bits: %ds = 16
    &[0x66, 0xb8, 0x10, 0x00, 0x8e, 0xd8],
    // a page of 2 MiB at 0xffe00000: movl $0x2003, 0x1000; movl $0x3003, 0x2018; movl $0xffe00083,
    // 0x3ff8
    &[0xc7, 0x05, 0x00, 0x10, 0x00, 0x00, 0x03, 0x20, 0x00, 0x00],
    &[0xc7, 0x05, 0x18, 0x20, 0x00, 0x00, 0x03, 0x30, 0x00, 0x00],
    &[0xc7, 0x05, 0xf8, 0x3f, 0x00, 0x00, 0x83, 0x00, 0xe0, 0xff],
    // %cr4 = PAE | OSFXSR; %cr3 = 0x1000
    &[0xb8, 0x20, 0x02, 0x00, 0x00, 0x0f, 0x22, 0xe0],
    &[0xb8, 0x00, 0x10, 0x00, 0x00, 0x0f, 0x22, 0xd8],
    // EFER.LME
    &[0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32],
    &[0x80, 0xcc, 0x01, 0x0f, 0x30],
    // %cr0 = PG | MP | PE; ljmpl $24, to the next line
    &[0xb8, 0x03, 0x00, 0x00, 0x80, 0x0f, 0x22, 0xc0],
    &[0xea, 0x66, 0xf0, 0xff, 0xff, 0x18, 0x00],
    // 64 bits: %rax to %xmm0 to %rbx; jne 1f
    &[0x48, 0xb8, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
    &[0x66, 0x48, 0x0f, 0x6e, 0xc0, 0x66, 0x48, 0x0f, 0x7e, 0xc3],
    &[0x48, 0x39, 0xc3, 0x75, 0x04],
    // outb $42, $0xf4; 1: hlt; jmp 1b
    &[0xb0, 0x2a, 0xe6, 0xf4],
    &[0xf4, 0xeb, 0xfd, 0x66, 0x90],
    // The GDT: a null entry, 32-bit code, data, 64-bit code; then its limit and base, at offset
    // 0xa8
    &[0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0xff, 0xff, 0x00, 0x00, 0x00, 0x9b, 0xcf, 0x00],
    &[0xff, 0xff, 0x00, 0x00, 0x00, 0x93, 0xcf, 0x00],
    &[0xff, 0xff, 0x00, 0x00, 0x00, 0x9b, 0xaf, 0x00],
    &[0x1f, 0x00],
    &[0x88, 0xf0, 0xff, 0xff],
];

/// Looks for a line in QEMU's output that says that KVM has given the guest up.
#[derive(Debug, Default)]
pub(crate) struct GivenUp {
    /// The beginning of the line that is not complete.
    line: Vec<u8>,
}

impl GivenUp {
    /// Takes the next bytes of the output. Returns the first such line that ends in them.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Option<String> {
        bytes.iter().filter_map(|byte| self.take_byte(*byte)).next()
    }

    fn take_byte(&mut self, byte: u8) -> Option<String> {
        if byte != b'\n' {
            if self.line.len() < LINE {
                self.line.push(byte);
            }
            return None;
        }
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        says_given_up(&line).then(|| line.into_owned())
    }
}

fn says_given_up(line: &str) -> bool {
    GIVEN_UP.iter().any(|start| line.starts_with(start))
}

/// Runs the guest with KVM.
///
/// # Errors
/// The reason why it does not reach its end, for a message.
pub fn works(qemu: &Qemu) -> Result<(), String> {
    open(Path::new(DEVICE))?;
    runs(qemu, "kvm")
}

fn open(device: &Path) -> Result<(), String> {
    let opened = OpenOptions::new().read(true).write(true).open(device);
    let device = device.display();
    opened.map(drop).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!(
            "{device} is missing, so the CPU has no virtualization, or kvm_amd or kvm_intel is not loaded"
        ),
        ErrorKind::PermissionDenied => {
            format!("{device} may not be opened: add yourself to the group kvm")
        }
        _ => format!("{device} cannot be opened ({error})"),
    })
}

/// Runs the guest with this accelerator.
fn runs(qemu: &Qemu, accel: &str) -> Result<(), String> {
    let mut rom = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    rom.write_all(&image()).map_err(|error| error.to_string())?;
    let mut command = qemu.command();
    command
        .args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
        ])
        .args(["-M", "q35,hpet=off,vmport=off,smm=off,sata=off"])
        .args(["-accel", accel, "-cpu", "max", "-m", "16M"])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-bios"])
        .arg(rom.path());
    let mut wrapped = parent_death::confined(&command).map_err(|failure| failure.to_string())?;
    let (errors, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| error.to_string())?;
    wrapped
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(writer);
    // The command that holds the pipe's other end is gone once the child has started, so the pipe
    // ends with the child.
    let mut child = Child::spawn(wrapped).map_err(|error| format!("{error:#}"))?;
    let (sender, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        let errors = BufReader::new(File::from(errors));
        let lines = errors.lines().map_while(Result::ok);
        lines
            .take_while(|line| sender.send(line.clone()).is_ok())
            .count()
    });
    let outcome = outcome(&mut child, &lines);
    drop(child);
    drop(lines);
    let _ = reader.join();
    outcome
}

fn outcome(child: &mut Child, lines: &mpsc::Receiver<String>) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    let mut last = "it says nothing".to_owned();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if says_given_up(&line) => {
                return Err(format!("a guest of a few instructions ends with: {line}"));
            }
            Ok(line) => last = line,
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!(
                    "a guest of a few instructions takes more than {} s",
                    LIMIT.as_secs()
                ));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child.end(LIMIT).map_err(|error| format!("{error:#}"))?;
    match status.code() {
        Some(REPORTED) => Ok(()),
        _ => Err(format!("QEMU ends ({status}): {last}")),
    }
}

/// Returns the ROM.
fn image() -> Vec<u8> {
    let mut image = vec![0; CODE_AT];
    image.extend(CODE.concat());
    image.resize(RESET_AT, 0);
    image.extend(RESET);
    image.resize(ROM_SIZE, 0);
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rom_has_its_descriptors_where_its_code_expects_them() {
        let image = image();
        assert_eq!(image.len(), ROM_SIZE);
        let descriptors = image.get(CODE_AT + 0x88..CODE_AT + 0x90).unwrap();
        assert_eq!(descriptors, [0; 8]);
        assert_eq!(
            image.get(CODE_AT + 0xa8..CODE_AT + 0xaa).unwrap(),
            [0x1f, 0]
        );
        // The jump at the reset vector ends at the code, modulo 64 KiB.
        let offset = u16::from_le_bytes([RESET[1], RESET[2]]);
        let after = u16::try_from(RESET_AT + RESET.len()).unwrap();
        assert_eq!(usize::from(after.wrapping_add(offset)), CODE_AT);
    }

    #[test]
    fn line_of_a_guest_given_up_is_found_in_any_parts() {
        let output = b"qemu: a warning\nKVM internal error. Suberror: 3\nextra data[0]: 1\n";
        for size in 1..output.len() {
            let mut search = GivenUp::default();
            let mut found = output.chunks(size).filter_map(|part| search.take(part));
            let line = found.next().unwrap();
            assert_eq!(line, "KVM internal error. Suberror: 3", "{size}");
        }
    }

    #[test]
    fn every_line_by_which_qemu_stops_a_guest_is_known() {
        for line in [
            "KVM internal error. Suberror: 1",
            "KVM: entry failed, hardware error 0x80000021",
            "KVM: exception 14 exit (error code 0x2)",
            "KVM: unknown exit, hardware reason 31",
            "KVM: unknown exit reason 99",
            "error: kvm run failed Bad address",
        ] {
            let mut search = GivenUp::default();
            assert_eq!(search.take(format!("{line}\n").as_bytes()).unwrap(), line);
        }
    }

    #[test]
    fn long_lines_and_words_inside_a_line_are_no_sign() {
        let mut search = GivenUp::default();
        assert_eq!(search.take(&[b'x'; 3 * LINE]), None);
        assert_eq!(search.line.len(), LINE);
        assert_eq!(search.take(b"\nno KVM internal error\n"), None);
    }

    #[test]
    fn missing_device_is_a_reason() {
        let reason = open(Path::new("/nonexistent/kvm")).unwrap_err();
        assert!(reason.contains("no virtualization"), "{reason}");
        open(Path::new("/dev/null")).unwrap();
    }
}
