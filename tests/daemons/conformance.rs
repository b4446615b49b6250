//! `peerbar vfio-user check` on peerbar's own servers, also through a trace.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, ensure};
use peerbar_lab::programs::program;

use crate::server::start;

/// The servers, and their arguments.
const SERVERS: [(&str, &[&str]); 4] = [
    (
        "peerbar-nvme",
        &["--serial", "disk0", "--namespace", "ram=16M"],
    ),
    (
        "peerbar-nvme",
        &[
            "--serial",
            "disk0",
            "--namespace",
            "ram=16M",
            "--cmb",
            "2M",
            "--poll",
            "always",
        ],
    ),
    ("peerbar-gpu", &["--vram", "16M"]),
    ("peerbar-efa", &[]),
];

fn check(socket: &Path, command: &[&str]) -> anyhow::Result<Output> {
    let mut check = Command::new(program("peerbar")?);
    check.args(["vfio-user", "check", "--bars", "--reset"]);
    check.args(["--timeout", "20s"]).arg(socket);
    if !command.is_empty() {
        check.arg("--").args(command);
    }
    check.output().context("peerbar does not start")
}

/// Checks that no test failed, and that many were run.
fn ensure_passed(output: &Output, server: &str) -> anyhow::Result<()> {
    let report = String::from_utf8_lossy(&output.stdout);
    let news = String::from_utf8_lossy(&output.stderr);
    let failed = report.contains("not ok") || report.contains("Bail out!");
    let passed = report
        .lines()
        .filter(|line| line.starts_with("ok ") && !line.contains("# SKIP"));
    let count = passed.count();
    ensure!(
        output.status.code() == Some(0) && !failed && count > 120,
        "{server}: {count} passed: {report}{news}"
    );
    Ok(())
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn own_servers_conform() -> anyhow::Result<()> {
    for (server, arguments) in SERVERS {
        let daemon = start(server, arguments)?;
        let output = check(daemon.socket(), &[])?;
        ensure_passed(&output, server)?;
        crate::server::end(daemon)?;
    }
    Ok(())
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn server_conforms_behind_a_proxy() -> anyhow::Result<()> {
    let server = start("peerbar-gpu", &["--vram", "16M"])?;
    let path = server.socket().to_str().context("a path in UTF-8")?;
    let proxy = start("peerbar-proxy", &["--server", path])?;
    let output = check(proxy.socket(), &[])?;
    ensure_passed(&output, "a proxy")?;
    crate::server::end(proxy)?;
    crate::server::end(server)
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn server_conforms_through_a_trace() -> anyhow::Result<()> {
    let daemon = start("peerbar-gpu", &["--vram", "16M"])?;
    let folder = tempfile::tempdir()?;
    let traced = folder.path().join("traced");
    let server = daemon.socket().to_str().context("a path in UTF-8")?;
    let peerbar = program("peerbar")?;
    let peerbar = peerbar.to_str().context("a path in UTF-8")?;
    let listen = traced.to_str().context("a path in UTF-8")?;
    // A trace is of one connection, so the check starts one for each client.
    let trace = [peerbar, "vfio-user", "trace", server, "--listen", listen];
    let trace = [&trace[..], &["--json", "-o", "/dev/null"]].concat();
    let output = check(&traced, &trace)?;
    ensure_passed(&output, "a trace")?;
    crate::server::end(daemon)
}
