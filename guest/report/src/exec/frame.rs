//! Frames: kind, length, content.

use std::io::{self, ErrorKind, Read, Write};

use thiserror::Error;

/// Longest content of a frame in bytes.
pub const LONGEST_FRAME: u32 = 1 << 20;
/// Bytes before the content.
const HEAD: usize = 5;

/// A mistake in a stream of messages.
#[derive(Debug, Error)]
pub enum MessageError {
    /// The stream cannot be read.
    #[error("cannot read a message")]
    Read(#[source] io::Error),
    /// The stream ended inside a message.
    #[error("the connection ended inside a message")]
    CutOff,
    /// A message is too long.
    #[error("a message of {0} bytes: at most {LONGEST_FRAME} are allowed")]
    TooLong(u32),
    /// No message has this kind.
    #[error("unknown message kind {0}: host and guest are from different builds")]
    UnknownKind(u8),
    /// The content of a message is invalid.
    #[error("invalid message: host and guest are from different builds")]
    Content(#[source] serde_json::Error),
    /// No program ends with this status.
    #[error("the guest reports status {0}, with which no program ends")]
    Status(i32),
}

/// Writes a frame in one piece, so that a second writer behind the same lock never splits it.
pub(crate) fn write(stream: &mut impl Write, kind: u8, content: &[u8]) -> io::Result<()> {
    let length = u32::try_from(content.len()).ok();
    let length = length.filter(|length| *length <= LONGEST_FRAME);
    let length = length.ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?;
    let mut frame = Vec::with_capacity(content.len().saturating_add(HEAD));
    frame.push(kind);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(content);
    stream.write_all(&frame)
}

/// Reads a frame, or returns `None` at the end of the stream.
pub(crate) fn read(stream: &mut impl Read) -> Result<Option<(u8, Vec<u8>)>, MessageError> {
    let mut kind = [0];
    match stream.read_exact(&mut kind) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(MessageError::Read(error)),
    }
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(inside)?;
    let mut content = vec![0; content_length(length)?];
    stream.read_exact(&mut content).map_err(inside)?;
    let [kind] = kind;
    Ok(Some((kind, content)))
}

/// Returns the missing bytes of the frame that begins with `received`, or those of its head if the
/// head is incomplete.
pub(crate) fn missing(received: &[u8]) -> Result<usize, MessageError> {
    let Some([_, length @ ..]) = received.first_chunk::<HEAD>() else {
        return Ok(HEAD.saturating_sub(received.len()));
    };
    let whole = content_length(*length)?.saturating_add(HEAD);
    Ok(whole.saturating_sub(received.len()))
}

fn content_length(length: [u8; 4]) -> Result<usize, MessageError> {
    let length = u32::from_le_bytes(length);
    match usize::try_from(length) {
        Ok(content) if length <= LONGEST_FRAME => Ok(content),
        _ => Err(MessageError::TooLong(length)),
    }
}

fn inside(error: io::Error) -> MessageError {
    match error.kind() {
        ErrorKind::UnexpectedEof => MessageError::CutOff,
        _ => MessageError::Read(error),
    }
}
