//! An end that keeps requests in progress between commands.

use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;

use crate::end::End;
use crate::error::{Result, in_one_line};
use crate::line::{read, write};
use crate::load::{Workload, WorkloadCommand};
use crate::message::{Answer, Command};
use crate::workload::Running;
use crate::workload_error::WorkloadError;

/// An end that executes [`Command::Workload`] by the other commands of `E`.
pub struct Server<E> {
    end: E,
    running: Option<Running>,
    /// The reason why it stopped: the answer to each command about requests until they are started
    /// again.
    failure: Option<String>,
}

impl<E: End> Server<E> {
    /// Makes a server with nothing in progress.
    pub fn new(end: E) -> Self {
        Self {
            end,
            running: None,
            failure: None,
        }
    }

    /// Takes a completion of the requests in progress, if there is one. Returns `false` if none can
    /// come.
    fn poll(&mut self) -> bool {
        let Some(running) = &mut self.running else {
            return false;
        };
        match running.poll(&mut self.end) {
            Ok(true) => {}
            Ok(false) => thread::yield_now(),
            Err(error) => {
                self.failure = Some(in_one_line(&error));
                self.running = None;
            }
        }
        self.running.is_some()
    }

    fn start(&mut self, workload: Workload) -> std::result::Result<(), WorkloadError> {
        self.failure = None;
        self.running = Some(Running::start(workload, &mut self.end)?);
        Ok(())
    }

    fn workload(&mut self, command: WorkloadCommand) -> std::result::Result<Answer, WorkloadError> {
        if let WorkloadCommand::Start(workload) = command {
            return self.start(workload).map(|()| Answer::Done);
        }
        let mut running = self.running.take().ok_or(WorkloadError::NotStarted)?;
        match command {
            WorkloadCommand::Finish { flush } => {
                return Ok(Answer::Outcome(running.finish(flush, &mut self.end)?));
            }
            WorkloadCommand::Succeed { count } => running.succeed(count, &mut self.end)?,
            WorkloadCommand::Hold => running.hold(),
            WorkloadCommand::Start(_) => {}
        }
        self.running = Some(running);
        Ok(Answer::Done)
    }
}

impl<E: End> End for Server<E> {
    fn go_on(&mut self) -> bool {
        self.poll() || self.end.go_on()
    }

    fn ask(&mut self, command: &Command) -> Result<Answer> {
        let Command::Workload(command) = command else {
            return self.end.ask(command);
        };
        if let (Some(failure), false) =
            (&self.failure, matches!(command, WorkloadCommand::Start(_)))
        {
            let reason = failure.clone();
            return Ok(Answer::Failed { reason });
        }
        let answer = self.workload(*command);
        Ok(answer.unwrap_or_else(|error| {
            let reason = in_one_line(&error);
            self.failure = Some(reason.clone());
            Answer::Failed { reason }
        }))
    }
}

/// Answers each of `commands` in `answers`, by `end`, until the commands end.
///
/// # Errors
/// [`crate::Error::Stream`], [`crate::Error::NoMessage`], and those of the end.
pub fn serve(
    end: impl End,
    commands: impl BufRead + Send + 'static,
    mut answers: impl Write,
) -> Result<()> {
    let mut server = Server::new(end);
    let commands = received(commands);
    while let Some(command) = next(&commands, &mut server) {
        let answer = server.ask(&command?)?;
        write(&mut answers, &answer)?;
    }
    Ok(())
}

/// Returns the next command. Until it arrives, the requests in progress continue.
fn next<E: End>(
    commands: &Receiver<Result<Command>>,
    server: &mut Server<E>,
) -> Option<Result<Command>> {
    loop {
        match commands.try_recv() {
            Ok(command) => return Some(command),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) if server.go_on() => {}
            Err(TryRecvError::Empty) => return commands.recv().ok(),
        }
    }
}

/// Returns the commands, read by a separate thread, which ends with them.
fn received(mut commands: impl BufRead + Send + 'static) -> Receiver<Result<Command>> {
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || {
        while let Some(command) = read(&mut commands).transpose() {
            let is_last = command.is_err();
            if sender.send(command).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}
