//! Chooses the next packet that a work request sends to another adapter.

use peerbar_efa_spec::work::Operation;

use super::job::{Job, Remote};
use super::packet::{PART_BYTES, Verb};
use super::request::{Data, Part, WorkRequest};
use super::staging::SLOT_BYTES;

/// Limit of the outstanding parts of one transfer.
const PARTS: u16 = 8;
/// The longest transfer whose payload goes in a packet although it could go through a slot: a
/// packet is needed anyway.
const SHORT: u32 = 4096;

/// The next packet of a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextPacket {
    pub(crate) verb: Verb,
    pub(crate) part: Part,
    /// `true` if its payload may go through a slot.
    pub(crate) is_staged: bool,
    /// `true` if the part was sent before, through a slot that could not be used.
    pub(crate) is_repeated: bool,
}

impl NextPacket {
    /// Makes a packet that carries its payload.
    fn new(verb: Verb, part: Part) -> Self {
        Self {
            verb,
            part,
            is_staged: false,
            is_repeated: false,
        }
    }
}

/// Chooses the next packet of a work request, or returns `None` if the request waits for answers or
/// has ended.
pub(crate) fn next_packet(job: &mut Job, stages: bool) -> Option<NextPacket> {
    let (request, remote) = (&job.request, &mut job.remote);
    // The first part has the length of all: only its execution shows that the others are allowed.
    let limit = if job.moved == 0 { 1 } else { PARTS };
    if remote.outstanding >= limit || remote.failure.is_some() {
        return None;
    }
    let verb = match request.operation {
        Operation::Send => Verb::Message,
        Operation::RdmaRead => Verb::Read,
        Operation::RdmaWrite => Verb::Write,
        // They lead to no other adapter.
        Operation::FastRegister | Operation::FastInvalidate => return None,
    };
    if verb == Verb::Message {
        let is_due = !remote.has_begun && !remote.is_received;
        return is_due.then_some(NextPacket::new(verb, Part::whole(request.bytes)));
    }
    next_part(request, remote, verb, stages).or_else(|| next_report(request, remote, verb))
}

/// Returns `true` if payload of the work request may go through slots.
pub(crate) fn may_be_staged(request: &WorkRequest) -> bool {
    let is_rdma = matches!(
        request.operation,
        Operation::RdmaRead | Operation::RdmaWrite
    );
    is_rdma && request.bytes > SHORT && matches!(request.data, Data::Buffers(_))
}

/// Returns the next packet with data of an RDMA write or read, or `None` if all parts have been
/// sent.
fn next_part(
    request: &WorkRequest,
    remote: &mut Remote,
    verb: Verb,
    stages: bool,
) -> Option<NextPacket> {
    if let Some(whole) = remote.again.pop() {
        let part = whole.at_most(PART_BYTES);
        if part.len < whole.len {
            let rest = Part::new(whole.offset + part.len, whole.len - part.len);
            remote.again.push(rest);
        }
        return Some(NextPacket {
            is_repeated: true,
            ..NextPacket::new(verb, part)
        });
    }
    // An empty transfer is one part, so that the other side checks it.
    if remote.sent >= request.bytes && remote.has_begun {
        return None;
    }
    let left = request.bytes.saturating_sub(remote.sent);
    let most = if stages { SLOT_BYTES } else { PART_BYTES };
    Some(NextPacket {
        is_staged: stages,
        ..NextPacket::new(verb, Part::new(remote.sent, left.min(most)))
    })
}

/// Returns the report to the other side about an RDMA write or read whose data has moved.
fn next_report(request: &WorkRequest, remote: &Remote, verb: Verb) -> Option<NextPacket> {
    if remote.outstanding == 0 && remote.is_counted && !remote.is_reported {
        let report = match verb {
            Verb::Read => Verb::CountRead,
            _ => Verb::CountWrite,
        };
        return Some(NextPacket::new(report, Part::whole(0)));
    }
    let is_announced = request.immediate.is_none() || remote.is_announcing || remote.is_announced;
    let is_written = remote.outstanding == 0 && verb == Verb::Write;
    (is_written && !is_announced).then_some(NextPacket::new(Verb::Announce, Part::whole(0)))
}
