//! Runs tests, one after the other, on as few connections as they allow.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::outcome::{Failing, Outcome, Verdict, Violation};
use crate::server::{Server, StartError, ended};
use crate::session::Session;
use crate::test::Test;

/// The time that a server of ours has to end after its client has left, if it ends at all.
const LINGER: Duration = Duration::from_secs(1);
/// The pause between two attempts of a client that is refused because the last one has just left.
const PAUSE: Duration = Duration::from_millis(5);

/// The server to check, and the extent of the check.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server's socket.
    pub socket: PathBuf,
    /// The program that makes the socket, and its arguments. Empty if the server runs already.
    pub command: Vec<OsString>,
    /// The longest wait for an answer, and for a server to listen.
    pub time_out: Duration,
    /// Also read from BARs, which may have side effects.
    pub bars: bool,
    /// Also reset the device.
    pub reset: bool,
}

/// A check in progress.
#[derive(Debug)]
pub struct Checker {
    pub(crate) options: Options,
    server: Server,
    session: Option<Session>,
    /// The device, as its server describes it.
    device: Option<Rc<Device>>,
    /// The server ends when its client leaves. `None` if no client has left so far.
    ends_with_client: Option<bool>,
    /// No more tests can run, for this reason.
    end: Option<End>,
}

/// The reason why no more tests can run.
#[derive(Clone, Debug)]
enum End {
    /// The server has ended with its client's connection, as it may.
    WithClient,
    /// The server serves nobody any more.
    Gone(String),
}

/// The state of a server that hangs after its first client.
const UNANSWERED: &str = "the server listens, but does not answer its next client";

impl Checker {
    /// Connects to the server, or starts it.
    ///
    /// # Errors
    /// There is no server.
    pub fn new(options: Options) -> Result<Self, StartError> {
        let (path, command) = (options.socket.clone(), options.command.clone());
        let mut server = Server::new(path, command, options.time_out);
        let stream = server.begin()?;
        let session = Session::new(stream, options.time_out);
        Ok(Self {
            options,
            server,
            session: session.ok(),
            device: None,
            ends_with_client: None,
            end: None,
        })
    }

    /// Returns the reason why the server serves no more clients, once it is so.
    pub fn bail_out(&self) -> Option<&str> {
        match &self.end {
            Some(End::Gone(reason)) => Some(reason),
            _ => None,
        }
    }

    /// Runs a test.
    pub fn run(&mut self, test: &Test) -> Verdict {
        let outcome = match self.end {
            Some(_) => Err(ended_with_client()),
            None => (test.run)(self),
        };
        let mut verdict = match outcome {
            Ok(()) => Verdict::Pass,
            Err(Failing::Violation(violation)) => Verdict::Fail(violation.lines()),
            Err(Failing::NotApplicable(reason)) => Verdict::Skip(reason),
        };
        if let Err(reason) = self.settle() {
            match &mut verdict {
                Verdict::Fail(lines) => lines.push(reason),
                verdict => *verdict = Verdict::Fail(vec![reason]),
            }
        }
        verdict
    }

    /// Returns the connection that tests share. They leave it in the state in which they found it.
    pub(crate) fn session(&mut self) -> Outcome<&mut Session> {
        match self.session.take() {
            Some(session) if session.in_sync => Ok(self.session.insert(session)),
            // The first client of all.
            Some(mut session) => {
                let agreed = session.agree();
                let session = self.session.insert(session);
                agreed.map(|()| session)
            }
            None => Err(ended_with_client()),
        }
    }

    /// Returns the device behind the shared connection.
    pub(crate) fn device(&mut self) -> Outcome<(&mut Session, Rc<Device>)> {
        let known = self.device.clone();
        let session = self.session()?;
        let device = match known {
            Some(device) => device,
            None => Rc::new(Device::read(session).map_err(not_described)?),
        };
        self.device = Some(device.clone());
        Ok((self.session()?, device))
    }

    /// Returns the connection in its present state.
    pub(crate) fn current(&self) -> Outcome<&Session> {
        self.session.as_ref().ok_or_else(ended_with_client)
    }

    /// Begins a new connection, before VERSION. The shared one ends.
    pub(crate) fn fresh(&mut self) -> Outcome<&mut Session> {
        self.leave()?;
        let session = self.connect()?;
        Ok(self.session.insert(session))
    }

    /// Begins a new connection, and agrees on a version. The next test gets another one.
    pub(crate) fn fresh_agreed(&mut self) -> Outcome<&mut Session> {
        let session = self.fresh()?;
        session.agree()?;
        session.in_sync = false;
        Ok(session)
    }

    /// Connects, while another connection may be open.
    pub(crate) fn connect(&mut self) -> Outcome<Session> {
        let stream = match self.server.connect() {
            Err(_) if self.server.is_ours() => self.server.start().map_err(|error| {
                let reason = error.to_string();
                self.end = Some(End::Gone(reason.clone()));
                not_served(&reason)
            })?,
            connected => connected.map_err(|error| not_served(&error.to_string()))?,
        };
        let session = Session::new(stream, self.options.time_out);
        session.map_err(|error| not_served(&error.to_string()))
    }

    /// Ends the shared connection, and learns whether the server ends with it.
    fn leave(&mut self) -> Outcome {
        let Some(session) = self.session.take() else {
            return Err(ended_with_client());
        };
        // The first connection of all, which has sent nothing, is new enough.
        session.hang_up();
        if self.server.is_ours() {
            self.note_end();
            return Ok(());
        }
        if self.ends_with_client.is_none() {
            let next = self.agreed();
            self.ends_with_client = Some(next.is_err());
            match next {
                Ok(session) => session.hang_up(),
                Err(failing) if self.listens() => {
                    self.end = Some(End::Gone(UNANSWERED.to_owned()));
                    return Err(failing);
                }
                Err(_) => self.end = Some(End::WithClient),
            }
        }
        match self.end {
            Some(_) => Err(ended_with_client()),
            None => Ok(()),
        }
    }

    /// Waits for the end of a server of ours that ends with its client.
    fn note_end(&mut self) {
        let limit = match self.ends_with_client {
            None => LINGER,
            Some(true) => self.options.time_out,
            Some(false) => return,
        };
        let has_ended = self.server.ended_within(limit).is_some();
        self.ends_with_client = Some(has_ended);
        if has_ended {
            self.server.kill();
        }
    }

    /// Connects and agrees on a version, as soon as the server has noticed that the last client has
    /// left.
    fn agreed(&mut self) -> Outcome<Session> {
        let deadline = Instant::now() + self.options.time_out;
        loop {
            let mut session = self.connect()?;
            match session.agree() {
                Ok(()) => return Ok(session),
                Err(failing) if Instant::now() >= deadline => return Err(failing),
                // It answers, if only by a refusal.
                Err(_) if self.server.ended_within(PAUSE).is_none() => pause(),
                Err(failing) => return Err(failing),
            }
        }
    }

    /// Returns `true` if something still listens at the socket.
    fn listens(&self) -> bool {
        let error = self.server.connect().err();
        !error.is_some_and(|error| {
            matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::ConnectionRefused
            )
        })
    }

    /// Checks that the server serves the next client, unless the connection can go on.
    ///
    /// # Errors
    /// It does not.
    fn settle(&mut self) -> Result<(), String> {
        let is_usable = |session: &Session| session.in_sync;
        if self.end.is_some() || self.session.as_ref().is_some_and(is_usable) {
            return Ok(());
        }
        let was_hung_up_on = match self.session.take() {
            Some(session) => {
                let was_hung_up_on = session.is_hung_up_on;
                session.hang_up();
                was_hung_up_on
            }
            None => false,
        };
        match self.server.is_ours() {
            true => self.settle_ours(),
            false => self.settle_others(was_hung_up_on),
        }
    }

    fn settle_ours(&mut self) -> Result<(), String> {
        let limit = match self.ends_with_client {
            Some(false) => Duration::ZERO,
            _ => LINGER,
        };
        let status = self.server.ended_within(limit);
        self.ends_with_client.get_or_insert(status.is_some());
        let next = match status {
            Some(status) if !status.success() => Err(ended(status)),
            _ => self.next_client(),
        };
        if next.is_err() {
            self.server.kill();
            // The next test has a new server, if that can be started.
            if let Err(reason) = self.next_client() {
                self.end = Some(End::Gone(reason));
            }
        }
        next
    }

    fn settle_others(&mut self, was_hung_up_on: bool) -> Result<(), String> {
        let next = self.next_client();
        match (next, self.ends_with_client) {
            (Ok(()), _) => {
                self.ends_with_client = Some(false);
                Ok(())
            }
            (Err(_), None) if !was_hung_up_on && !self.listens() => {
                self.end = Some(End::WithClient);
                Ok(())
            }
            (Err(reason), _) => {
                self.end = Some(End::Gone(reason.clone()));
                Err(reason)
            }
        }
    }

    /// Makes a connection that tests can share.
    fn next_client(&mut self) -> Result<(), String> {
        let session = self.agreed().map_err(|failing| {
            let reason = match failing {
                Failing::Violation(violation) => violation.received,
                Failing::NotApplicable(reason) => reason,
            };
            let status = self.server.ended_within(PAUSE);
            match status {
                Some(status) => ended(status),
                None => format!("the next client is not served: {reason}"),
            }
        })?;
        self.session = Some(session);
        Ok(())
    }
}

/// Tests of the description itself report what is wrong with it.
fn not_described(_: Failing) -> Failing {
    Failing::not_applicable("it needs the description of the device, which fails: see info.exact")
}

fn pause() {
    std::thread::sleep(PAUSE);
}

fn ended_with_client() -> Failing {
    Failing::not_applicable(
        "the server has ended with its client's connection; name its command after --",
    )
}

fn not_served(reason: &str) -> Failing {
    Failing::Violation(Violation {
        sent: "a connection".to_owned(),
        received: reason.to_owned(),
        expected: "a server that accepts it".to_owned(),
    })
}
