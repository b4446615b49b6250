//! The lines of a trace as text.

use peerbar_lab::count::counted;
use peerbar_lab::table::hanging;
use peerbar_vfio_user::decode::{Fields, command_name, error_name};
use peerbar_vfio_user::relay::{DescriptorInfo, Notice, Side};

use super::in_flight::{Reply, Request};
use super::summary::Summary;
use crate::iommu::text::ago;

/// A form of the trace. Each function returns whole lines.
pub(super) trait Lines {
    /// A request was passed on.
    fn request(&mut self, request: &Request) -> String;
    /// A reply was passed on.
    fn reply(&mut self, reply: &Reply) -> String;
    /// Something else happened on this side, at a time in nanoseconds.
    fn notice(&mut self, from: Side, at: u64, notice: Notice) -> String;
    /// No message comes for a while.
    fn idle(&mut self) -> String {
        String::new()
    }
    /// Lines were dropped, because their reader is slow.
    fn lost(&self, count: u64) -> String;
    /// The trace is over.
    fn end(&mut self, summary: &Summary) -> String;
}

/// Text for people: a request and its reply on one line, unless another message comes in between.
pub(super) struct TextLines {
    start: u64,
    columns: Option<u16>,
    /// The last request, whose line waits for the reply.
    held: Option<(u64, Line)>,
}

/// A line: its time, direction and id, and the message.
struct Line {
    head: String,
    text: String,
}

impl TextLines {
    /// Makes lines with times since `start`, broken at this width.
    pub(super) fn new(start: u64, columns: Option<u16>) -> Self {
        Self {
            start,
            columns,
            held: None,
        }
    }

    fn line(&self, at: u64, from: Side, id: &str, text: String) -> Line {
        let seconds = at.saturating_sub(self.start) as f64 / 1e9;
        let arrow = match from {
            Side::Client => '>',
            Side::Server => '<',
        };
        Line {
            head: format!("{seconds:11.6} {arrow} {id:>5} "),
            text,
        }
    }

    fn shown(&self, line: &Line) -> String {
        hanging(&line.head, &line.text, self.columns)
    }

    /// Returns the line that waits for a reply, without it.
    fn release(&mut self) -> String {
        match self.held.take() {
            None => String::new(),
            Some((_, mut line)) => {
                line.text += " ...";
                self.shown(&line)
            }
        }
    }
}

impl Lines for TextLines {
    fn request(&mut self, request: &Request) -> String {
        let before = self.release();
        let mut text = described(request);
        if !request.wants_reply {
            text += " (wants no reply)";
        }
        let line = self.line(request.at, request.from, &request.id.to_string(), text);
        if request.wants_reply {
            self.held = Some((request.number, line));
            return before;
        }
        before + &self.shown(&line)
    }

    fn reply(&mut self, reply: &Reply) -> String {
        let result = result(reply);
        let number = reply.request.as_ref().map(|request| request.number);
        let held = self.held.take_if(|(held, _)| Some(*held) == number);
        if let Some((_, mut line)) = held {
            line.text += &result;
            return self.shown(&line);
        }
        let before = self.release();
        let id = reply.id.to_string();
        let line = match &reply.request {
            Some(request) => {
                let text = format!("... {}{result}", described(request));
                self.line(reply.at, request.from, &id, text)
            }
            None => {
                let text = format!("{}{result} (no request has this id)", name(reply.command));
                self.line(reply.at, reply.from, &id, text)
            }
        };
        before + &self.shown(&line)
    }

    fn notice(&mut self, from: Side, at: u64, notice: Notice) -> String {
        let before = self.release();
        let line = self.line(at, from, "", described_notice(from, notice));
        before + &self.shown(&line)
    }

    fn idle(&mut self) -> String {
        self.release()
    }

    fn lost(&self, count: u64) -> String {
        let lost = counted(count, "message");
        format!("{lost} not shown: the reader of the trace is too slow\n")
    }

    fn end(&mut self, summary: &Summary) -> String {
        self.release() + "\n" + &summary.text()
    }
}

/// Returns the name of a command.
pub(super) fn name(command: u16) -> String {
    command_name(command).map_or_else(|| format!("command {command}"), str::to_owned)
}

/// Returns a request without its time and id.
fn described(request: &Request) -> String {
    let name = name(request.command);
    joined([name, request.fields.to_string(), fds(&request.descriptors)])
}

fn joined<const N: usize>(parts: [String; N]) -> String {
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(" ")
}

/// Returns descriptors, as `fd memfd:ram inode 7 512M` or `16 fds eventfd`.
fn fds(descriptors: &[DescriptorInfo]) -> String {
    let mut files: Vec<String> = descriptors.iter().map(ToString::to_string).collect();
    files.dedup();
    let files = files.join(", ");
    match descriptors.len() {
        0 => String::new(),
        1 => format!("fd {files}"),
        count => format!("{count} fds {files}"),
    }
}

/// Returns the outcome of a request, and its duration.
fn result(reply: &Reply) -> String {
    let outcome = match &reply.outcome {
        Ok(fields) => {
            let text = success(fields, &reply.descriptors);
            format!(" = {text}")
        }
        Err(errno) => format!(" = {}", error_name(*errno)),
    };
    match &reply.request {
        // Without a space, so that the line is not broken there.
        Some(request) => format!("{outcome} <{}>", ago(reply.at, request.at).replace(' ', "")),
        None => outcome,
    }
}

fn success(fields: &Fields, descriptors: &[DescriptorInfo]) -> String {
    match joined([fields.to_string(), fds(descriptors)]) {
        none if none.is_empty() => "ok".to_owned(),
        text => text,
    }
}

/// Returns a notice for people.
pub(super) fn described_notice(from: Side, notice: Notice) -> String {
    let side = side(from);
    match notice {
        Notice::Unframed(size) => format!(
            "the {side} announces a message of {size} bytes, less than a header: all that follows passes undecoded"
        ),
        Notice::CutShort(missing) => {
            format!("the {side}'s last message is cut short: {missing} bytes are missing")
        }
        Notice::DescriptorsLost => {
            format!("descriptors of the {side} are lost: raise the limit (ulimit -n)")
        }
        Notice::Closed => format!("the {side} closes the connection"),
        Notice::Undeliverable(error) => {
            format!("a message of the {side} cannot be passed on: {error}")
        }
        Notice::SecondClient => {
            "a second client is disconnected: a trace is of one connection".to_owned()
        }
        Notice::TwinSocket => {
            "the server's commands pass on a second socket, also shown here".to_owned()
        }
        Notice::TwinSocketUnseen => {
            "the server's commands pass on a second socket, which is not shown".to_owned()
        }
    }
}

/// Returns the name of a side.
pub(super) fn side(side: Side) -> &'static str {
    match side {
        Side::Client => "client",
        Side::Server => "server",
    }
}
