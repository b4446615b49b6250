//! The observer of a relay: decodes each message, finds the request of each reply, and passes them
//! to the forms of the trace.

use std::collections::HashSet;

use peerbar_lab::exit::Failure;
use peerbar_lab::signals::Signals;
use peerbar_vfio_user::decode::{Fields, Payload, reply, request};
use peerbar_vfio_user::relay::{Notice, Observer, PassedMessage, Side, now};

use super::in_flight::{InFlight, Reply, Request};
use super::lines::Lines;
use super::output::Output;
use super::summary::Summary;
use super::time_line::TimeLine;

/// A trace in progress.
pub(super) struct Tracer {
    lines: Box<dyn Lines>,
    output: Output,
    time_line: Option<TimeLine>,
    /// The commands that are shown; all if it is empty.
    only: HashSet<u16>,
    /// The most bytes of data that are shown.
    data: usize,
    requests: u64,
    in_flight: InFlight,
    summary: Summary,
}

impl Tracer {
    pub(super) fn new(
        lines: Box<dyn Lines>,
        output: Output,
        time_line: Option<TimeLine>,
        only: HashSet<u16>,
        data: usize,
    ) -> Self {
        Self {
            lines,
            output,
            time_line,
            only,
            data,
            requests: 0,
            in_flight: InFlight::default(),
            summary: Summary::default(),
        }
    }

    /// Prints the summary and waits until everything is written, or a signal comes. Returns the
    /// summary as text.
    pub(super) fn finish(mut self, signals: &Signals) -> Result<String, Failure> {
        for request in std::mem::take(&mut self.in_flight).rest() {
            self.summary.unanswered(request.command);
            if let Some(time_line) = &mut self.time_line {
                time_line.unanswered(&request, now());
            }
        }
        let end = self.lines.end(&self.summary);
        let time_line = self.time_line.map(TimeLine::end).transpose();
        self.output.finish(end, self.lines.as_ref(), signals)?;
        time_line?;
        Ok(self.summary.text())
    }

    fn request(&mut self, from: Side, message: &PassedMessage<'_>) {
        let (header, payload) = (&message.header, payload(message, self.data));
        let command = header.command.get();
        let mut fields = request(command, &payload);
        if !header.is_command() {
            fields.malformed("neither a command nor a reply");
        }
        let request = Request {
            number: self.requests,
            at: message.at,
            from,
            id: header.id.get(),
            command,
            fields,
            descriptors: message.descriptors.to_vec(),
            wants_reply: !header.no_reply(),
        };
        self.requests = self.requests.wrapping_add(1);
        self.summary.request(command);
        if let Some(time_line) = &mut self.time_line {
            time_line.request(&request);
        }
        let lines = self.lines.request(&request);
        self.output.add(lines, self.lines.as_ref());
        if request.wants_reply {
            if let Some(oldest) = self.in_flight.add(request) {
                self.summary.unanswered(oldest.command);
                if let Some(time_line) = &mut self.time_line {
                    time_line.unanswered(&oldest, message.at);
                }
            }
        }
    }

    fn reply(&mut self, from: Side, message: &PassedMessage<'_>) {
        let header = &message.header;
        let (id, command) = (header.id.get(), header.command.get());
        let request = self.in_flight.take(from.other(), id, command);
        let asked = request.as_ref().map_or(command, |request| request.command);
        let outcome = match header.is_error() {
            true => Err(header.error.get()),
            false => Ok(result(command, asked, &payload(message, self.data))),
        };
        let reply = Reply {
            at: message.at,
            from,
            id,
            command,
            outcome,
            descriptors: message.descriptors.to_vec(),
            request,
        };
        self.summary.reply(&reply);
        if let Some(time_line) = &mut self.time_line {
            time_line.reply(&reply);
        }
        let lines = self.lines.reply(&reply);
        self.output.add(lines, self.lines.as_ref());
    }
}

/// Decodes the reply to the command `asked`.
fn result(command: u16, asked: u16, payload: &Payload<'_>) -> Fields {
    let mut fields = reply(command, payload);
    if command != asked {
        let name = super::lines::name(command);
        fields.malformed(&format!("the reply is one to {name}"));
    }
    fields
}

fn payload<'a>(message: &PassedMessage<'a>, most_data: usize) -> Payload<'a> {
    Payload {
        start: message.payload,
        length: message.length,
        most_data,
    }
}

impl Observer for Tracer {
    fn message(&mut self, from: Side, message: &PassedMessage<'_>) {
        let command = message.header.command.get();
        if !self.only.is_empty() && !self.only.contains(&command) {
            return;
        }
        match message.header.is_reply() {
            true => self.reply(from, message),
            false => self.request(from, message),
        }
    }

    fn notice(&mut self, from: Side, at: u64, notice: Notice) {
        if let Some(time_line) = &mut self.time_line {
            time_line.notice(from, at, notice);
        }
        let lines = self.lines.notice(from, at, notice);
        self.output.add(lines, self.lines.as_ref());
    }

    fn idle(&mut self) {
        let lines = self.lines.idle();
        self.output.add(lines, self.lines.as_ref());
    }
}
