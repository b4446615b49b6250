//! Which packet a work request to another adapter sends next.

use peerbar_efa_spec::work::Operation;

use super::job::{Job, Remote};
use super::packet::{LENT_BYTES, PART_BYTES, Verb};
use super::work_request::{Data, Part, WorkRequest};

/// How many parts of one transfer are under way at most.
const PARTS: u16 = 8;
/// The longest read that goes in a packet where memory could be lent: that takes one request less.
const SHORT_READ: u32 = 4096;

/// What the next packet of a work request is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextPacket {
    pub(super) verb: Verb,
    pub(super) part: Part,
    /// Memory may be lent for it.
    pub(super) may_lend: bool,
    /// The loan that is given back.
    pub(super) returned: Option<u64>,
}

impl NextPacket {
    /// One that lends nothing and gives nothing back.
    fn of(verb: Verb, part: Part) -> Self {
        Self {
            verb,
            part,
            may_lend: false,
            returned: None,
        }
    }
}

/// What the next packet of a work request is about. `None` if it waits for answers, or is over.
pub(super) fn next_packet(job: &mut Job, lends: bool) -> Option<NextPacket> {
    let (request, remote) = (&job.request, &mut job.remote);
    // The first part has the length of all: only once it has been carried out is it certain that the others may be.
    let limit = if job.moved == 0 { 1 } else { PARTS };
    if remote.outstanding >= limit {
        return None;
    }
    if let Some((part, loan)) = remote.returns.pop() {
        return Some(NextPacket {
            returned: Some(loan),
            ..NextPacket::of(Verb::Return, part)
        });
    }
    if remote.failure.is_some() {
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
        return is_due.then_some(NextPacket::of(verb, Part::whole(request.bytes)));
    }
    next_part(request, remote, verb, lends).or_else(|| next_report(request, remote, verb))
}

/// The next packet about data of an RDMA write or read. `None` if there was one about each part.
fn next_part(
    request: &WorkRequest,
    remote: &mut Remote,
    verb: Verb,
    lends: bool,
) -> Option<NextPacket> {
    if let Some(whole) = remote.again.pop() {
        let part = whole.at_most(PART_BYTES);
        if part.len < whole.len {
            let rest = Part::new(whole.offset + part.len, whole.len - part.len);
            remote.again.push(rest);
        }
        return Some(NextPacket::of(verb, part));
    }
    // An empty transfer is one part, so that the other side checks it.
    if remote.sent >= request.bytes && remote.has_begun {
        return None;
    }
    let left = request.bytes.saturating_sub(remote.sent);
    let is_long = left > 0 && (verb == Verb::Write || request.bytes > SHORT_READ);
    let may_lend = lends && is_long && matches!(request.data, Data::Buffers(_));
    let most = if may_lend { LENT_BYTES } else { PART_BYTES };
    Some(NextPacket {
        may_lend,
        ..NextPacket::of(verb, Part::new(remote.sent, left.min(most)))
    })
}

/// What the other side learns of an RDMA write or read whose data has moved.
fn next_report(request: &WorkRequest, remote: &Remote, verb: Verb) -> Option<NextPacket> {
    if remote.outstanding == 0 && remote.is_counted && !remote.is_reported {
        let report = match verb {
            Verb::Read => Verb::CountRead,
            _ => Verb::CountWrite,
        };
        return Some(NextPacket::of(report, Part::whole(0)));
    }
    let is_announced = request.immediate.is_none() || remote.is_announcing || remote.is_announced;
    let is_written = remote.outstanding == 0 && verb == Verb::Write;
    (is_written && !is_announced).then_some(NextPacket::of(Verb::Announce, Part::whole(0)))
}
