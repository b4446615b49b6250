//! The origin of a DMA: the queue and the command for which it is made.

use std::fmt;

/// The queue and command for which a device makes a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The device itself.
    #[default]
    Device,
    /// A queue whose next command is being fetched, and not known yet.
    Queue(u16),
    /// A command.
    Command {
        /// NVMe: the submission queue's identifier. GPU: the channel.
        queue: u16,
        /// NVMe: the command identifier, which the driver reuses. GPU: the number of earlier
        /// commands of the channel.
        command: u32,
    },
}

impl Origin {
    /// Returns the origin of the command with that number in that queue.
    pub fn command(queue: u16, command: impl Into<u32>) -> Self {
        Self::Command {
            queue,
            command: command.into(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => f.write_str("the device itself"),
            Self::Queue(queue) => write!(f, "queue {queue}"),
            Self::Command { queue, command } => write!(f, "queue {queue}, command {command}"),
        }
    }
}
