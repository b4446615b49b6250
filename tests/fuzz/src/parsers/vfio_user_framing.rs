//! A stream of vfio-user messages: it is cut into the same messages regardless of how its bytes
//! arrive.

use peerbar_vfio_user::{Deframer, Descriptors, FramingError, Payload};

/// The longest payload that is kept.
const LIMIT: usize = 128;

/// Maximum number of receptions of a stream: byte by byte, a long one takes several hundred times
/// as long as a short one.
const RECEPTIONS: usize = 64;

/// Reads `data`. Its first byte is the number of bytes that arrive at once, if that takes at most
/// 64 receptions.
pub fn run(data: &[u8]) {
    let Some((&at_once, stream)) = data.split_first() else {
        return;
    };
    let whole = messages(stream, usize::MAX);
    let least = stream.len().div_ceil(RECEPTIONS).max(1);
    assert_eq!(messages(stream, least.max(at_once.into())), whole);
}

/// Returns the messages by command and payload, and the error at the end of the stream.
fn messages(mut stream: &[u8], at_once: usize) -> (Vec<(u16, Payload)>, Option<String>) {
    let mut deframer = Deframer::new(LIMIT);
    let mut seen = Vec::new();
    let ending = |error: FramingError| Some(error.to_string());
    loop {
        match deframer.next_message() {
            Ok(Some(message)) => seen.push((message.header.command.get(), message.payload)),
            Ok(None) if stream.is_empty() => {
                return (seen, deframer.end().err().and_then(ending));
            }
            Ok(None) => {
                let space = deframer.space();
                let count = space.len().min(at_once).min(stream.len());
                assert!(count > 0, "there is always space");
                space[..count].copy_from_slice(&stream[..count]);
                stream = &stream[count..];
                deframer.filled(count, Descriptors::default());
            }
            Err(error) => return (seen, ending(error)),
        }
    }
}
