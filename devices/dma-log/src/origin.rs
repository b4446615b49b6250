//! The origin of a DMA: the queue and the command that it is done for.

use std::fmt;

/// The queue and command that a device makes a request for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The device's own.
    #[default]
    Device,
    /// A queue's: its next command is fetched, and not known yet.
    Queue(u16),
    /// A command's.
    Command {
        /// NVMe: the submission queue's identifier. GPU: the channel.
        queue: u16,
        /// NVMe: the command identifier, which the driver uses again. GPU: how many commands the channel has had before.
        command: u32,
    },
}

impl Origin {
    /// The command of that number in that queue.
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
