//! A stream's bytes and descriptors.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use peerbar_host::socket_file::descriptors;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::ReturnFlags;

use crate::framing::Descriptors;

/// The result of one call of [`receive`].
#[derive(Debug)]
pub struct Received {
    /// Number of bytes; 0 is the end of the stream.
    pub bytes: usize,
    /// The descriptors that came with them.
    pub descriptors: Descriptors,
}

/// Receives the available bytes without waiting. Fails with [`Errno::AGAIN`] if there are none.
pub fn receive(stream: &UnixStream, space: &mut [u8]) -> Result<Received, Errno> {
    let received = descriptors::receive(stream, space)?;
    Ok(Received {
        bytes: received.bytes,
        descriptors: Descriptors {
            kept: received.descriptors,
            foreign: received.foreign,
            sockets: received.sockets,
            // The kernel has closed the descriptors for which there was no free entry.
            lost: received.flags.contains(ReturnFlags::CTRUNC),
        },
    })
}

/// Sends all of `parts` as one message, and the descriptors `rights` with its first bytes. [`Errno::TIMEDOUT`] if the socket
/// buffer has no free space for it by `deadline`; the stream is then cut inside the message.
pub fn send(
    stream: &UnixStream,
    mut parts: &mut [IoSlice<'_>],
    mut rights: &[BorrowedFd<'_>],
    deadline: Instant,
) -> Result<(), Errno> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match descriptors::send(stream, parts, rights) {
            Ok(sent) => {
                IoSlice::advance_slices(&mut parts, sent);
                rights = &[];
            }
            Err(Errno::AGAIN) => descriptors::wait_until(stream, PollFlags::OUT, Some(deadline))?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn a_message_that_exceeds_the_socket_buffer_arrives_whole() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let data: Vec<u8> = (0..1_000_003_u32).map(|i| (i % 251) as u8).collect();
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            theirs.read_to_end(&mut got).unwrap();
            got
        });
        let (head, tail) = data.split_at(16);
        let mut parts = [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(tail)];
        send(&ours, &mut parts, &[], soon()).unwrap();
        drop(ours);
        assert_eq!(reader.join().unwrap(), data);
    }

    #[test]
    fn sending_to_a_peer_that_never_reads_times_out() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let data = vec![0; 8 << 20];
        let deadline = Instant::now() + Duration::from_millis(20);
        let result = send(&ours, &mut [IoSlice::new(&data)], &[], deadline);
        assert_eq!(result, Err(Errno::TIMEDOUT));
    }

    #[test]
    fn a_descriptor_arrives_once_and_close_on_exec() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let null = File::open("/dev/null").unwrap();
        let mut parts = [IoSlice::new(b"abcd")];
        send(&ours, &mut parts, &[null.as_fd()], soon()).unwrap();
        let mut space = [0; 2];
        let first = receive(&theirs, &mut space).unwrap();
        assert_eq!((first.bytes, first.descriptors.kept.len()), (2, 1));
        let flags = rustix::io::fcntl_getfd(&first.descriptors.kept[0]).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let second = receive(&theirs, &mut space).unwrap();
        assert_eq!((second.bytes, second.descriptors.kept.len()), (2, 0));
        assert!(matches!(receive(&theirs, &mut space), Err(Errno::AGAIN)));
    }
}
