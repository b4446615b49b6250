//! Runs a program from the host, and judges its report.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;

use anyhow::Context;
use peerbar_report::{Measure, Program};

use super::expectation::{self, Work};
use super::{CheckOutcome, Run};
use crate::guest_context::GuestContext;
use crate::kmsg::Expected;
use crate::program_socket;
use crate::tools::ToolCommand;

/// Messages of the dynamic loader, and the remedies.
const LOADER: [(&str, &str); 2] = [
    (
        "error while loading shared libraries",
        "the guest's root lacks a library: name its Debian package in `packages` at the top of the scenario, or link the program \
         statically",
    ),
    (
        "' not found (required by",
        "the host's C library is newer than that of the guest's root: link the program statically, or build it on an older one",
    ),
];

impl Run for Program {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let Some(tools) = guest.tools()? else {
            return Ok(CheckOutcome::without_tools());
        };
        let mut tool = tool_command(self, guest)?;
        let (socket, of_program) = UnixStream::pair().context("cannot make a socket")?;
        tool.socket = Some(of_program.into());
        let mut shown = vec![tool.program.as_str()];
        shown.extend(tool.arguments.iter().map(String::as_str));
        let work = Work {
            what: "the program",
            shown: &shown.join(" "),
            expected: &self.expected,
            seconds: self.seconds,
        };
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                if let Err(error) = program_socket::serve(&guest.plan, &guest.launcher, &socket) {
                    eprintln!("peerbar-agent: {error:#}");
                }
            });
            let outcome = expectation::run(guest, &work, measure, |limit| {
                let ran = tools.run_program(&tool, limit, |line| guest.show(line));
                ran.map_err(explain_start)
            });
            // A daemon may still hold the other end, and `serve` must return.
            let _ = socket.shutdown(Shutdown::Both);
            outcome
        });
        outcome.map_err(explain_loader)
    }

    fn expected_log(&self) -> Expected<'_> {
        expectation::log(&self.expected)
    }
}

/// Returns the program's command, with the devices' names filled in.
fn tool_command(program: &Program, guest: &GuestContext) -> anyhow::Result<ToolCommand> {
    let placeholders = guest.placeholders();
    let arguments = program.arguments.iter();
    let arguments = arguments.map(|argument| placeholders.fill_in(argument));
    let environment = program.environment.iter();
    let environment =
        environment.map(|(name, value)| Ok((name.clone(), placeholders.fill_in(value)?)));
    Ok(ToolCommand {
        program: format!("{}/{}", program.folder, program.file()),
        folder: program.folder.clone(),
        arguments: arguments.collect::<anyhow::Result<_>>()?,
        environment: environment.collect::<anyhow::Result<_>>()?,
        socket: None,
    })
}

/// Adds an explanation to an error of execve(2).
fn explain_start(error: anyhow::Error) -> anyhow::Error {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    let meaning = match cause.and_then(io::Error::raw_os_error) {
        Some(libc::ENOENT) => {
            "it is there, but the guest's root lacks its interpreter or dynamic loader: link it statically, or name the package \
             of the interpreter in `packages`"
        }
        Some(libc::ENOEXEC) => {
            "it is not a program for this machine: a script must start with a line such as `#!/bin/sh`"
        }
        _ => return error,
    };
    error.context(meaning)
}

/// Adds a remedy if the dynamic loader has ended the program.
fn explain_loader(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    let found = LOADER.iter().find(|(printed, _)| text.contains(printed));
    match found {
        Some((_, meaning)) => error.context(*meaning),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn failed_start_says_what_is_missing_and_what_to_do() {
        let started = |number| {
            let error = anyhow::Error::from(io::Error::from_raw_os_error(number));
            format!("{:#}", explain_start(error.context("cannot start /x")))
        };
        assert!(started(libc::ENOENT).starts_with("it is there, but the guest's root lacks"));
        assert!(started(libc::ENOEXEC).contains("#!/bin/sh"));
        assert_eq!(
            started(libc::EACCES),
            "cannot start /x: Permission denied (os error 13)"
        );
    }

    #[test]
    fn words_of_the_dynamic_loader_are_explained() {
        let explained = |text: &'static str| format!("{:#}", explain_loader(anyhow!(text)));
        let library = "x: error while loading shared libraries: libfoo.so.1: cannot open";
        assert!(explained(library).contains("`packages`"));
        let symbol = "x: /lib/libc.so.6: version `GLIBC_2.99' not found (required by x)";
        assert!(explained(symbol).starts_with("the host's C library is newer"));
        assert_eq!(explained("ended with status 1"), "ended with status 1");
    }
}
