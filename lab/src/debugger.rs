//! A debugger on the guest's kernel, by QEMU's gdb stub.

use std::fs::{self, DirEntry};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;

use crate::exit::Failure;
use crate::terminal::printable;

/// Port at which the gdb(1) manuals of Linux and QEMU expect the stub.
pub const PORT: &str = "1234";

/// Time limit of a guest whose work may take any time: a person debugs it, or a program runs in it.
pub const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Rejects a port that another program listens on. A program may take it later, until the guest's
/// QEMU has it.
///
/// # Errors
/// [`Failure::Usage`] with the port and, if it can be told, the process that has it.
pub fn check_port(port: u16) -> Result<(), Failure> {
    let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) else {
        return Ok(());
    };
    let reason = match holder(port) {
        Some(process) => format!("process {process} uses it"),
        None => error.to_string(),
    };
    Err(Failure::Usage(anyhow!(
        "port {port} is not free for the debugger ({reason}): name another, as --gdb={}",
        port.checked_add(1).unwrap_or(1024)
    )))
}

/// Returns the process that listens on `port`, with the name of its program, if this user may know.
fn holder(port: u16) -> Option<String> {
    let sockets = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let mut sockets = sockets.iter().flatten();
    let socket = sockets.find_map(|sockets| listener(sockets, port))?;
    let link = format!("socket:[{socket}]");
    let is_it = |descriptor: DirEntry| {
        fs::read_link(descriptor.path()).is_ok_and(|target| target == Path::new(&link))
    };
    let mut processes = fs::read_dir("/proc").ok()?.flatten();
    let process = processes.find(|process| {
        let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        if !process.file_name().to_str().is_some_and(is_number) {
            return false;
        }
        let descriptors = fs::read_dir(process.path().join("fd"));
        descriptors.is_ok_and(|descriptors| descriptors.flatten().any(is_it))
    })?;
    let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
    let number = process.file_name().to_string_lossy().into_owned();
    Some(match program_of(&command) {
        Some(program) => format!("{number}, {program},"),
        None => number,
    })
}

/// Returns the inode of the socket that listens on `port` among those that the kernel lists
/// (proc(5), `/proc/net/tcp`).
fn listener(sockets: &str, port: u16) -> Option<&str> {
    const LISTENS: &str = "0A";
    let port = format!(":{port:04X}");
    sockets.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1)?.ends_with(&port) && *fields.get(3)? == LISTENS;
        fields.get(9).copied().filter(|_| is_it)
    })
}

/// Returns the name of the program of a process (proc(5), `/proc/PID/cmdline`). QEMU of the cache
/// is an argument of its loader.
fn program_of(command: &[u8]) -> Option<String> {
    let words = command.split(|byte| *byte == 0);
    let mut names = words.filter_map(|word| {
        let word = String::from_utf8_lossy(word).into_owned();
        Some(Path::new(&word).file_name()?.to_str()?.to_owned())
    });
    let first = names.next();
    names
        .find(|name| name.starts_with("qemu-system-"))
        .or(first)
        .map(|name| printable(name.as_bytes()))
}

/// Returns instructions for the user: the line to type, and the next steps. `symbols` is the kernel
/// with its symbols, if it is known.
pub fn instructions(port: u16, symbols: Option<&Path>) -> Vec<String> {
    let target = format!("-ex 'target remote :{port}'");
    let mut lines = vec![format!(
        "the guest is halted at its first instruction, without time limits; type in another terminal:"
    )];
    let Some(symbols) = symbols else {
        lines.push(format!("  gdb -ex 'set architecture i386:x86-64' {target}"));
        lines.push(
            "this kernel has no symbols: `peerbar kernel build --debug` makes one with them"
                .to_owned(),
        );
        return lines;
    };
    let folder = symbols.parent().unwrap_or(symbols);
    let scripts = folder.join("vmlinux-gdb.py");
    let load = if scripts.exists() {
        format!("-iex 'add-auto-load-safe-path {}' ", folder.display())
    } else {
        String::new()
    };
    lines.push(format!("  gdb {load}'{}' {target}", symbols.display()));
    lines.push("and there: hbreak start_kernel, continue".to_owned());
    if load.is_empty() {
        lines.push(format!(
            "{} is missing: CONFIG_GDB_SCRIPTS=y and `make scripts_gdb` make it, for lx-dmesg, lx-ps and others",
            scripts.display()
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_to_type_loads_the_kernels_scripts() {
        let dir = tempfile::tempdir().unwrap();
        let symbols = dir.path().join("vmlinux");
        let lines = instructions(1234, Some(&symbols)).join("\n");
        let plain = format!("  gdb '{}' -ex 'target remote :1234'", symbols.display());
        assert!(lines.contains(&plain), "{lines}");
        assert!(lines.contains("CONFIG_GDB_SCRIPTS"), "{lines}");
        std::fs::write(dir.path().join("vmlinux-gdb.py"), "").unwrap();
        let lines = instructions(1234, Some(&symbols)).join("\n");
        let path = format!("-iex 'add-auto-load-safe-path {}'", dir.path().display());
        assert!(lines.contains(&path), "{lines}");
        assert!(!lines.contains("CONFIG_GDB_SCRIPTS"), "{lines}");
    }

    #[test]
    fn kernel_without_symbols_is_said() {
        let lines = instructions(99, None).join("\n");
        assert!(
            lines.contains("target remote :99") && lines.contains("no symbols"),
            "{lines}"
        );
    }

    #[test]
    fn program_that_listens_is_named() {
        let sockets = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:04D2 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 41 1 x\n   \
            1: 0100007F:04D2 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 42 1 x\n";
        assert_eq!(listener(sockets, 1234), Some("42"));
        assert_eq!(listener(sockets, 1235), None);
        let name = |command: &[u8]| program_of(command).unwrap();
        assert_eq!(
            name(b"/r/ld-linux.so\0-x\0/r/qemu-system-x86_64\0-L\0"),
            "qemu-system-x86_64"
        );
        assert_eq!(name(b"/usr/bin/python3\0-m\0http.server\0"), "python3");
    }

    #[test]
    fn port_in_use_is_refused() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = check_port(port).unwrap_err();
        let named = format!(
            "port {port} is not free for the debugger (process {}, ",
            std::process::id()
        );
        let other = format!("--gdb={}", port + 1);
        let error = error.to_string();
        assert!(
            error.starts_with(&named) && error.ends_with(&other),
            "{error}"
        );
        drop(taken);
        check_port(port).unwrap();
    }
}
