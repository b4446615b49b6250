//! A command of the tools root, and what it prints.

use super::{Outcome, Run};
use anyhow::{bail, ensure};
use peerbar_report::{Buffer, Command, Measure};

use crate::counters::TrafficWatch;
use crate::devices::Controller;
use crate::gpus::Gpu;
use crate::guest_context::GuestContext;
use crate::kmsg::Expected;
use crate::tools::Ran;

/// Lines of the output that are shown of a command that failed.
const SHOWN: usize = 60;

impl Run for Command {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<Outcome> {
        let Some(tools) = guest.tools()? else {
            return Ok(Outcome::Skipped("the plan has no tools root".to_owned()));
        };
        let line = fill_in(&self.run, &guest.controllers, &guest.gpus)?;
        let mut watch = TrafficWatch::new(guest);
        let ran = watch.watch(|| tools.run(&line, guest.limit))?;
        watch.write_to(measure);
        measure.status = Some(ran.code());
        let failures = match self.through {
            Some(_) => watch.traffic()?.failures(),
            None => 0,
        };
        let judged = judge(self, &ran).and_then(|()| judge_route(self, measure, failures));
        if let Err(error) = judged {
            bail!("{error:#}; it ran: {line}\n{}", last_lines(&ran.output));
        }
        Ok(if self.show {
            Outcome::Said(ran.output)
        } else {
            Outcome::Passed
        })
    }

    fn expected_log(&self) -> Expected<'_> {
        Expected {
            texts: &self.kernel,
            faults: false,
        }
    }
}

/// Puts device names in the place of `{name}`, `{name:disk}` and `{name:p2pmem}`. Other braces are the shell's.
fn fill_in(line: &str, controllers: &[Controller], gpus: &[Gpu]) -> anyhow::Result<String> {
    let mut filled = line.to_owned();
    for controller in controllers {
        let name = &controller.name;
        filled = filled
            .replace(&format!("{{{name}}}"), &controller.node.to_string_lossy())
            .replace(
                &format!("{{{name}:disk}}"),
                &controller.disk.node.to_string_lossy(),
            )
            .replace(
                &format!("{{{name}:p2pmem}}"),
                &controller.pool().allocate_file().to_string_lossy(),
            );
    }
    for gpu in gpus {
        let allocate = gpu.pool().allocate_file();
        filled = filled.replace(
            &format!("{{{}:p2pmem}}", gpu.name),
            &allocate.to_string_lossy(),
        );
    }
    for left in [":disk}", ":p2pmem}"] {
        ensure!(
            !filled.contains(left),
            "the command names a device that the plan does not have: {filled}"
        );
    }
    Ok(filled)
}

fn judge(command: &Command, ran: &Ran) -> anyhow::Result<()> {
    ensure!(
        !ran.timed_out,
        "the command was killed, because it did not end in time"
    );
    ensure!(
        command.any_status || ran.code() == command.status,
        "the command ended with status {}, not {}",
        ran.code(),
        command.status
    );
    for text in &command.expect {
        ensure!(
            ran.output.contains(text),
            "the command did not print {text:?}"
        );
    }
    Ok(())
}

/// Nothing that the command moved may have taken another route than [`Command::through`] says, or have failed and been
/// tried again.
fn judge_route(command: &Command, measure: &Measure, failures: u64) -> anyhow::Result<()> {
    let (right, wrong) = match &command.through {
        Some(Buffer::P2pmem(_)) => (measure.peer_bytes, measure.ram_bytes),
        Some(Buffer::GuestRam) => (measure.ram_bytes, measure.peer_bytes),
        None => return Ok(()),
    };
    ensure!(
        right > 0 && wrong == 0,
        "the command moved {} bytes peer to peer and {} through guest RAM",
        measure.peer_bytes,
        measure.ram_bytes
    );
    ensure!(
        failures == 0,
        "{failures} DMA requests of the devices failed while the command ran; the servers' logs say which"
    );
    Ok(())
}

/// The end of the output, indented.
fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let start = lines.len().saturating_sub(SHOWN);
    lines
        .iter()
        .skip(start)
        .map(|line| format!("  {line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;
    use crate::disk::Disk;

    fn controller() -> Controller {
        Controller {
            name: "left".into(),
            number: 0,
            cmb_bytes: 0,
            directory: "/sys/class/nvme/nvme1".into(),
            node: "/dev/nvme1".into(),
            pci: "/sys/devices/0000:02:00.0".into(),
            disk: Disk {
                node: "/dev/nvme1n1".into(),
                bytes: 0,
                block: 512,
            },
        }
    }

    #[test]
    fn placeholders_become_paths_and_other_braces_stay() {
        let filled = fill_in(
            "nvme id-ctrl {left}; dd if={left:disk} of={left:p2pmem} | awk '{print}'",
            &[controller()],
            &[],
        );
        assert_eq!(
            filled.unwrap(),
            "nvme id-ctrl /dev/nvme1; dd if=/dev/nvme1n1 of=/sys/devices/0000:02:00.0/p2pmem/allocate | awk '{print}'"
        );
        let error = fill_in("dd if={right:disk}", &[controller()], &[])
            .unwrap_err()
            .to_string();
        assert!(error.contains("{right:disk}"), "{error}");
    }

    #[test]
    fn status_and_texts_are_compared() {
        let command = Command {
            any_status: false,
            run: String::new(),
            status: 1,
            expect: vec!["good".into()],
            kernel: Vec::new(),
            through: None,
            show: false,
        };
        let ran = |code: i32, output: &str, timed_out| Ran {
            status: ExitStatus::from_raw(code << 8),
            timed_out,
            output: output.into(),
        };
        assert!(judge(&command, &ran(1, "all good\n", false)).is_ok());
        let error = |ran| judge(&command, &ran).unwrap_err().to_string();
        assert_eq!(
            error(ran(0, "good", false)),
            "the command ended with status 0, not 1"
        );
        assert_eq!(
            error(ran(1, "bad", false)),
            "the command did not print \"good\""
        );
        assert!(error(ran(1, "good", true)).contains("in time"));
    }

    #[test]
    fn data_on_another_route_fails() {
        let judged = |through, peer_bytes, ram_bytes, failures| {
            let command = Command {
                any_status: false,
                run: String::new(),
                status: 0,
                expect: Vec::new(),
                kernel: Vec::new(),
                through,
                show: false,
            };
            let measure = Measure {
                peer_bytes,
                ram_bytes,
                ..Measure::default()
            };
            judge_route(&command, &measure, failures).is_ok()
        };
        let p2pmem = || Some(Buffer::P2pmem("left".into()));
        assert!(judged(p2pmem(), 4096, 0, 0));
        assert!(!judged(p2pmem(), 4096, 0, 1));
        assert!(!judged(p2pmem(), 4096, 512, 0));
        assert!(!judged(p2pmem(), 0, 0, 0));
        assert!(judged(Some(Buffer::GuestRam), 0, 4096, 0));
        assert!(!judged(Some(Buffer::GuestRam), 4096, 4096, 0));
        assert!(judged(None, 4096, 512, 0));
    }

    #[test]
    fn the_end_of_a_long_output_is_shown() {
        let output: String = (0..100).map(|line| format!("{line}\n")).collect();
        let shown = last_lines(&output);
        assert!(
            shown.starts_with("  40\n") && shown.ends_with("  99\n"),
            "{shown}"
        );
    }
}
