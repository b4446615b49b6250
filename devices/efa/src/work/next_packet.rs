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
}

/// Chooses the next packet of a work request, or returns `None` if the request waits for answers or
/// has ended.
pub(crate) fn next_packet(job: &mut Job, stages: bool) -> Option<NextPacket> {
    let (request, remote) = (&job.request, &mut job.remote);
    // The first part has the length of all: only its execution shows that the others are allowed.
    let limit = if job.moved == 0 { 1 } else { PARTS };
    if remote.outstanding >= limit {
        return None;
    }
    let (verb, report) = match (request.operation, request.immediate) {
        (Operation::Send, _) => (Verb::Message, None),
        (Operation::RdmaRead, _) => (Verb::Read, remote.is_counted.then_some(Verb::CountRead)),
        (Operation::RdmaWrite, None) => {
            (Verb::Write, remote.is_counted.then_some(Verb::CountWrite))
        }
        (Operation::RdmaWrite, Some(_)) => (Verb::Write, Some(Verb::Announce)),
        // They lead to no other adapter.
        (Operation::FastRegister | Operation::FastInvalidate, _) => return None,
    };
    if let Some((part, is_staged)) = next_part(request, remote, stages) {
        return Some(NextPacket {
            verb,
            part,
            is_staged,
        });
    }
    let is_due = remote.outstanding == 0 && !remote.is_reported;
    report.filter(|_| is_due).map(|verb| NextPacket {
        verb,
        part: Part::whole(0),
        is_staged: false,
    })
}

/// Returns `true` if payload of the work request may go through slots.
pub(crate) fn may_be_staged(request: &WorkRequest) -> bool {
    let is_rdma = matches!(
        request.operation,
        Operation::RdmaRead | Operation::RdmaWrite
    );
    is_rdma && request.bytes > SHORT && matches!(request.data, Data::Buffers(_))
}

/// Returns the next part of the data, with `true` if it may go through a slot, or `None` if all
/// parts have been sent. A message is one part.
fn next_part(request: &WorkRequest, remote: &mut Remote, stages: bool) -> Option<(Part, bool)> {
    if let Some(whole) = remote.again.pop() {
        let part = whole.at_most(PART_BYTES);
        if part.len < whole.len {
            let rest = Part::new(whole.offset + part.len, whole.len - part.len);
            remote.again.push(rest);
        }
        return Some((part, false));
    }
    let offset = remote.sent.unwrap_or(0);
    if remote.sent.is_some() && offset >= request.bytes {
        return None;
    }
    let most = if stages { SLOT_BYTES } else { PART_BYTES };
    let left = request.bytes.saturating_sub(offset);
    Some((Part::new(offset, left.min(most)), stages))
}
