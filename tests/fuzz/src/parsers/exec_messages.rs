//! Messages between a host and a guest about a program. A message that is parsed and encoded again
//! parses to the same, and the reader asks for as many bytes as the message has.

use std::fmt::Debug;

use peerbar_report::exec::{GuestMessage, HostMessage, MessageError};

/// Reads `data` as the messages of either side.
pub fn run(data: &[u8]) {
    let mut rest = data;
    while let Some(message) = GuestMessage::read_from(&mut rest).ok().flatten() {
        let mut written = Vec::new();
        message.write_to(&mut written).expect("it was short enough");
        same(&message, GuestMessage::read_from(&mut written.as_slice()));
    }
    let mut rest = data;
    while let Some(message) = HostMessage::read_from(&mut rest).ok().flatten() {
        if let HostMessage::Start(request) = &message {
            // The guest checks it before it starts anything.
            let _ = request.check();
        }
        let mut written = Vec::new();
        message.write_to(&mut written).expect("it was short enough");
        same(&message, HostMessage::read_from(&mut written.as_slice()));
    }
    ask_for_the_rest(data);
}

fn same<M: Debug>(message: &M, again: Result<Option<M>, MessageError>) {
    let again = again.expect("it is a message").expect("it is there");
    assert_eq!(format!("{message:?}"), format!("{again:?}"));
}

/// Reads without ever taking more than it is asked to, as the client does.
fn ask_for_the_rest(data: &[u8]) {
    let mut have = 0;
    loop {
        match GuestMessage::missing(&data[..have]) {
            Ok(0) => break,
            Ok(missing) if missing <= data.len() - have => have += missing,
            Ok(_) | Err(_) => return,
        }
    }
    let mut message = &data[..have];
    let outcome = GuestMessage::read_from(&mut message);
    assert!(!matches!(outcome, Err(MessageError::CutOff) | Ok(None)));
    assert!(message.is_empty(), "{} bytes too many", message.len());
}
