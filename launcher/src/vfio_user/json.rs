//! The lines of a trace as JSON, one object a line.

use peerbar_vfio_user::decode::error_name;
use peerbar_vfio_user::relay::{DescriptorInfo, Notice, Side};
use serde_json::{Value, json};

use super::in_flight::{Reply, Request};
use super::lines::{Lines, described_notice, name, side};
use super::summary::Summary;

/// JSON for programs.
pub(super) struct JsonLines {
    start: u64,
}

impl JsonLines {
    /// Makes lines with times since `start`.
    pub(super) fn new(start: u64) -> Self {
        Self { start }
    }

    fn since(&self, at: u64) -> u64 {
        at.saturating_sub(self.start)
    }
}

impl Lines for JsonLines {
    fn request(&mut self, request: &Request) -> String {
        line(&json!({
            "time_ns": self.since(request.at),
            "from": side(request.from),
            "type": "request",
            "id": request.id,
            "command": name(request.command),
            "arguments": request.fields.json(),
            "descriptors": descriptors(&request.descriptors),
            "wants_reply": request.wants_reply,
        }))
    }

    fn reply(&mut self, reply: &Reply) -> String {
        let (result, error) = match &reply.outcome {
            Ok(fields) => (fields.json(), Value::Null),
            Err(errno) => (
                Value::Null,
                json!({ "errno": errno, "name": error_name(*errno) }),
            ),
        };
        let request = reply.request.as_ref();
        line(&json!({
            "time_ns": self.since(reply.at),
            "from": side(reply.from),
            "type": "reply",
            "id": reply.id,
            "command": name(reply.command),
            "arguments": request.map(|request| request.fields.json()),
            "result": result,
            "error": error,
            "descriptors": descriptors(&reply.descriptors),
            "duration_ns": reply.duration(),
        }))
    }

    fn notice(&mut self, from: Side, at: u64, notice: Notice) -> String {
        line(&json!({
            "time_ns": self.since(at),
            "from": side(from),
            "type": "notice",
            "notice": described_notice(from, notice),
        }))
    }

    fn lost(&self, count: u64) -> String {
        line(&json!({ "type": "lost", "messages": count }))
    }

    fn end(&mut self, summary: &Summary) -> String {
        line(&json!({ "type": "summary", "commands": summary.json() }))
    }
}

fn descriptors(all: &[DescriptorInfo]) -> Value {
    all.iter().map(DescriptorInfo::json).collect()
}

fn line(object: &Value) -> String {
    format!("{object}\n")
}
