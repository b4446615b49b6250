//! Messages of vfio-user as bytes, and the outcomes of replies.

use rustix::io::Errno;

pub use peerbar_vfio_user_check::wire::*;

/// The outcome of a reply, which a test knows.
pub trait Outcome {
    /// Returns the payload of a success.
    ///
    /// # Panics
    /// If it is anything else.
    #[track_caller]
    fn ok(self) -> Vec<u8>;

    /// Returns the errno of a failure, which carries nothing else.
    ///
    /// # Panics
    /// If it is anything else.
    #[track_caller]
    fn errno(self) -> Errno;
}

impl Outcome for Message {
    #[track_caller]
    fn ok(self) -> Vec<u8> {
        assert_eq!((self.flags, self.error), (REPLY, 0));
        self.payload
    }

    #[track_caller]
    fn errno(self) -> Errno {
        assert_eq!(self.flags, REPLY | ERROR);
        assert!(self.payload.is_empty() && self.descriptors.is_empty());
        Errno::from_raw_os_error(i32::try_from(self.error).unwrap())
    }
}
