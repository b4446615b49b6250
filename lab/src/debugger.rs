//! A debugger on the guest's kernel, by QEMU's gdb stub.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;

use crate::exit::Failure;

/// Where gdb(1)'s manuals of Linux and QEMU expect the stub.
pub const PORT: &str = "1234";

/// How long a guest under a debugger may run: a person is in no hurry.
pub const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Refuses a port that another program listens on.
///
/// # Errors
/// [`Failure::Usage`] with the port.
pub fn check_port(port: u16) -> Result<(), Failure> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Usage(anyhow!(
            "port {port} is not free for the debugger ({error}): name another, as --gdb={}",
            port.saturating_add(1)
        ))),
    }
}

/// What a user must know: the line to type, and what to do then. `symbols` is the kernel with its symbols, if it is known.
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
    fn port_in_use_is_refused() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = check_port(port).unwrap_err();
        assert!(
            error.to_string().contains(&format!("--gdb={}", port + 1)),
            "{error}"
        );
        drop(taken);
        check_port(port).unwrap();
    }
}
