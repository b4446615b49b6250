//! The socket between the agent and a program of a check, through which this project's own programs
//! know the guest as the agent does.
//!
//! A program inherits its end. It asks for the plan, and sends a check's requests to the launcher,
//! which the agent passes on.

#![expect(unsafe_code)]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{BorrowedFd, FromRawFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, bail};
use peerbar_report::{Counters, Line, Plan};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::launcher::Launcher;

/// The environment variable with the number of the descriptor of a program's end.
pub(crate) const VARIABLE: &str = "PEERBAR_AGENT";

/// The line with which a program asks for the plan.
const ASK_FOR_PLAN: &str = "plan";

/// Answers a program until its end is closed.
///
/// # Errors
/// A request that is unknown, or that the launcher does not answer.
pub(crate) fn serve(plan: &Plan, launcher: &Launcher, socket: &UnixStream) -> anyhow::Result<()> {
    for line in BufReader::new(socket).lines() {
        let line = line.context("cannot read a program's request")?;
        let answer = match Line::parse(&line) {
            _ if line == ASK_FOR_PLAN => serde_json::to_string(plan)?,
            Line::Counters(request) => serde_json::to_string(&Counters {
                request,
                ..launcher.answer()?
            })?,
            Line::Kill(name) => {
                launcher.kill_server(&name)?;
                continue;
            }
            _ => bail!("a program asks for {line:?}: are it and the agent from the same build?"),
        };
        let mut socket = socket;
        socket
            .write_all(format!("{answer}\n").as_bytes())
            .context("cannot answer a program")?;
    }
    Ok(())
}

/// Returns the plan, and the socket as the port of a launcher.
///
/// # Errors
/// No agent has started this process, or it does not answer.
pub(crate) fn connect() -> anyhow::Result<(Plan, File)> {
    let number = std::env::var(VARIABLE).ok();
    let number = number.and_then(|number| number.parse::<u16>().ok());
    let number = number.with_context(|| {
        format!(
            "{VARIABLE} names no descriptor: start this program by a check of the kind `program`"
        )
    })?;
    // SAFETY: the call takes any number, and fails if it is not an open descriptor.
    let inherited = unsafe { BorrowedFd::borrow_raw(number.into()) };
    fcntl_setfd(inherited, FdFlags::CLOEXEC).with_context(|| format!("{VARIABLE}={number}"))?;
    // SAFETY: the agent has opened this descriptor for this process, and nothing else here has
    // taken it.
    ask_for_plan(unsafe { File::from_raw_fd(number.into()) })
}

fn ask_for_plan(mut port: File) -> anyhow::Result<(Plan, File)> {
    port.write_all(format!("{ASK_FOR_PLAN}\n").as_bytes())
        .context("cannot ask the agent for the plan")?;
    let mut plan = String::new();
    // Nothing follows the plan without a request.
    BufReader::new(&port)
        .read_line(&mut plan)
        .context("cannot read the plan")?;
    let plan = serde_json::from_str(&plan);
    Ok((
        plan.context("cannot parse the agent's plan: are both from the same build?")?,
        port,
    ))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::thread;

    use super::*;

    #[test]
    fn program_gets_the_plan_and_the_counters_of_the_launcher() {
        let pair = || UnixStream::pair().unwrap();
        let ((agent, host), (socket, program)) = (pair(), pair());
        let file = |stream: UnixStream| File::from(OwnedFd::from(stream));
        let launcher = Launcher::at(file(agent));
        let plan: Plan =
            serde_json::from_str(r#"{"modules":[],"devices":[],"tools":true,"checks":[]}"#)
                .unwrap();
        thread::scope(|scope| {
            let served = scope.spawn(|| serve(&plan, &launcher, &socket));
            let asked = scope.spawn(|| {
                let mut asked = BufReader::new(&host).lines();
                let counters = asked.next().unwrap().unwrap();
                let answer = r#"{"request":1,"host_ns":5,"devices":{"disk0":{"none":"a test"}}}"#;
                (&host).write_all(format!("{answer}\n").as_bytes()).unwrap();
                [counters, asked.next().unwrap().unwrap()]
            });
            let (found, port) = ask_for_plan(file(program.try_clone().unwrap())).unwrap();
            assert_eq!(found, plan);
            let of_program = Launcher::at(port);
            let counters = of_program.counters().unwrap();
            assert_eq!(counters.into_keys().collect::<Vec<_>>(), ["disk0"]);
            of_program.kill_server("gpu0").unwrap();
            assert_eq!(asked.join().unwrap(), ["# counters 1", "# kill gpu0"]);
            (&program).write_all(b"anything\n").unwrap();
            let error = served.join().unwrap().unwrap_err().to_string();
            assert!(
                error.starts_with("a program asks for \"anything\""),
                "{error}"
            );
        });
    }
}
