//! Transfers between two ends in other processes, each of which a command starts: in guests of two machines, perhaps.

use std::io::BufReader;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, ensure};
use peerbar_rdma_end::{Ends, LineEnd};

use super::report::Report;
use super::transfers::transfer_all;

/// An end behind the streams of a process.
type ProcessEnd = LineEnd<BufReader<ChildStdout>, ChildStdin>;

/// Transfers each of `sizes` between the ends that the lines `near` and `far` start by `sh -c`, in each way that there is.
pub(crate) fn run(near: &str, far: &str, sizes: &[u32], report: &mut Report) -> anyhow::Result<()> {
    let (mut near_process, near_end) = start(near)?;
    let (mut far_process, far_end) = start(far)?;
    let connected = Ends::connect(near_end, far_end);
    // Dropped, the ends' input ends, and so do they.
    let transferred = connected.map(|mut ends| transfer_all(&mut ends, sizes, report));
    report.add("the near end ends", ends(&mut near_process, near));
    report.add("the far end ends", ends(&mut far_process, far));
    Ok(transferred?)
}

fn start(line: &str) -> anyhow::Result<(Child, ProcessEnd)> {
    let mut command = Command::new("sh");
    command.args(["-c", line]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command
        .spawn()
        .with_context(|| format!("cannot run `{line}`"))?;
    let commands = process.stdin.take().context("no standard input")?;
    let answers = process.stdout.take().context("no standard output")?;
    Ok((process, LineEnd::new(BufReader::new(answers), commands)))
}

fn ends(process: &mut Child, line: &str) -> anyhow::Result<()> {
    let status = process.wait()?;
    ensure!(status.success(), "`{line}`: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_that_says_nothing_fails_with_its_command() {
        let mut report = Report::default();
        let error = run("exit 3", "cat > /dev/null", &[64], &mut report).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("an end of the transfer"), "{error}");
        let text = report.to_string();
        assert!(
            text.contains("# `exit 3`: exit status: 3\nnot ok 1 the near end ends"),
            "{text}"
        );
        assert!(text.contains("\nok 2 the far end ends"), "{text}");
    }

    /// A line that says an address, takes the other end's, and is gone at the first command after that.
    fn dies_connected() -> String {
        let address = r#"{"address":{"gid":"fe80::1","queue-pair":1,"key":1,"address":4096,"size":65536,"largest-message":4096}}"#;
        format!("read line; echo '{address}'; read line; echo '\"done\"'; read line; exit 3")
    }

    #[test]
    fn transfers_end_with_the_end_that_is_gone() {
        let mut report = Report::default();
        let end = dies_connected();
        run(&end, &end, &[64, 128], &mut report).unwrap();
        let text = report.to_string();
        assert!(text.starts_with("KTAP version 1\n1..3\n"), "{text}");
        assert!(text.contains("has ended before its answer"), "{text}");
        assert!(text.contains("not ok 3 the far end ends"), "{text}");
    }

    #[test]
    fn end_that_is_no_end_fails_with_what_it_says() {
        let mut report = Report::default();
        let error = run("read line; echo hello", "true", &[64], &mut report).unwrap_err();
        assert!(format!("{error:#}").contains("hello"), "{error:#}");
    }
}
