//! The thread that receives the server's messages.

use std::os::fd::AsFd;

use peerbar_host::socket_file::descriptors::discard;
use rustix::io::Errno;

use crate::framing::Message;
use crate::inbox::{Inbox, Reception};
use crate::pending::Reply;
use crate::readiness;
use crate::server::PAYLOAD_LIMIT;

use super::RemoteEnd;
use super::connection::Connection;
use super::dma::Requests;

/// Receives until the session ends. Passes replies to the calls that wait for them, and commands to
/// `requests`. Returns the reason of the end.
pub(super) fn run(connection: &Connection, requests: &Requests) -> RemoteEnd {
    let outcome = receive(connection, requests);
    connection.end(outcome.err().unwrap_or(RemoteEnd::HungUp));
    discard(connection.stream());
    connection.ended().unwrap_or(RemoteEnd::HungUp)
}

fn receive(connection: &Connection, requests: &Requests) -> Result<(), RemoteEnd> {
    let mut inbox = Inbox::new(PAYLOAD_LIMIT, None);
    loop {
        while let Some(message) = inbox.next_message()? {
            pass_on(connection, message, requests)?;
        }
        readiness::wait([connection.stream().as_fd()]).map_err(RemoteEnd::Socket)?;
        match inbox.receive(connection.stream()) {
            Ok(Reception::Bytes { .. }) | Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(Reception::End) => return Ok(inbox.end()?),
            // The server has closed its socket with data unread.
            Err(Errno::CONNRESET) => return Ok(()),
            Err(error) => return Err(RemoteEnd::Socket(error)),
        }
    }
}

fn pass_on(
    connection: &Connection,
    message: Message,
    requests: &Requests,
) -> Result<(), RemoteEnd> {
    let header = message.header;
    if header.is_command() {
        return requests.pass_on(message);
    }
    if header.is_reply() {
        connection.complete(Reply {
            header,
            payload: message.payload,
            descriptors: message.descriptors,
        });
    } else {
        connection.answer(&header, Err(Errno::INVAL));
    }
    Ok(())
}
