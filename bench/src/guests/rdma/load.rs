//! The commands of the guest's programs, and their output.

use std::time::Duration;

use anyhow::{Context, ensure};

/// The adapter of perftest, and the software RoCE for comparison, as `-d` takes them.
pub(super) const EFA: PerftestDevice = PerftestDevice {
    name: "{nic0}",
    // SRD queue pairs address their peers by a GID.
    connection: "-c SRD -x 0",
};
pub(super) const RXE: PerftestDevice = PerftestDevice {
    name: "rxe0",
    connection: "-c RC",
};

/// The shell lines that create it. It sends to itself, over the loopback interface.
pub(super) const MAKE_RXE: &str =
    "ip link set lo up && rdma link add rxe0 type rxe netdev lo && rdma link show rxe0/1";

/// Runs both sides of perftest in one guest.
const TWO_SIDES: &str = include_str!("../../../../tests/rdma/two-sides");
/// Port of perftest's server.
const PORT: u16 = 18515;
/// Messages for each second of a measurement, and the maximum: an EFA has no room for more
/// receives.
const MESSAGES: u32 = 4000;
const MOST_MESSAGES: u32 = 8000;

/// The kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Write,
    Read,
}

impl Kind {
    /// Returns the part of a figure's name, and of the names of perftest's programs.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

/// The memory of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayloadMemory {
    /// From one GPU's memory to another's.
    Vram,
    GuestRam,
}

impl PayloadMemory {
    pub(super) const ALL: [Self; 2] = [Self::Vram, Self::GuestRam];

    /// Returns the part of a figure's name.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Vram => "vram",
            Self::GuestRam => "guest-ram",
        }
    }

    /// Returns the memory of the requester, and that of the other adapter.
    fn ends(self) -> [&'static str; 2] {
        match self {
            Self::Vram => ["{gpu0}", "{gpu1}"],
            Self::GuestRam => ["host"; 2],
        }
    }
}

/// The number of adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Adapters {
    /// Two queue pairs of one adapter.
    One,
    /// Two adapters of one guest.
    Two,
}

impl Adapters {
    pub(super) const ALL: [Self; 2] = [Self::One, Self::Two];

    /// Returns the part of a figure's name.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::One => "one-adapter",
            Self::Two => "two-adapters",
        }
    }

    fn peer(self) -> &'static str {
        match self {
            Self::One => "{nic0}",
            Self::Two => "{nic1}",
        }
    }
}

/// Requests that an adapter executes for `peerbar-verbs`.
pub(super) struct Request {
    pub(super) kind: Kind,
    pub(super) bytes: u32,
    pub(super) memory: PayloadMemory,
    pub(super) adapters: Adapters,
}

impl Request {
    /// Returns a shell line that posts such requests for `time` and prints a `RdmaRate`.
    pub(super) fn line(&self, time: Duration) -> String {
        let [from, to] = self.memory.ends();
        let (kind, bytes, peer) = (self.kind.word(), self.bytes, self.adapters.peer());
        let seconds = time.as_secs();
        format!(
            "/opt/peerbar/peerbar-verbs rate --nic {{nic0}} --peer {peer} --from {from} --to {to} --size {bytes} --by {kind}s \
             --seconds {seconds}"
        )
    }
}

/// An RDMA device as perftest takes it.
pub(super) struct PerftestDevice {
    name: &'static str,
    connection: &'static str,
}

/// Returns the number of perftest's messages in a measurement of `time`.
pub(super) fn messages(time: Duration) -> u32 {
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    seconds.saturating_mul(MESSAGES).min(MOST_MESSAGES)
}

/// A run of `ib_send_bw` or a similar program.
pub(super) struct Perftest {
    pub(super) kind: Kind,
    pub(super) bytes: u32,
    pub(super) messages: u32,
}

impl Perftest {
    /// Returns a shell line that runs both sides. The receives of all messages are posted before
    /// the first message, because the side that posts them may get no processor for longer than a
    /// sender waits.
    pub(super) fn line(&self, device: PerftestDevice) -> String {
        let PerftestDevice { name, connection } = device;
        let (kind, bytes, messages) = (self.kind.word(), self.bytes, self.messages);
        let receives = match self.kind {
            Kind::Send => format!(" -r {messages}"),
            Kind::Write | Kind::Read => String::new(),
        };
        format!(
            "cat > /tmp/two-sides << 'END'\n{TWO_SIDES}END\n\
             sh /tmp/two-sides {PORT} ib_{kind}_bw -d {name} {connection} -n {messages} -s {bytes} -F{receives}"
        )
    }

    /// Parses the rate in its output: `#bytes #iterations BW-peak BW-average MsgRate`, the last one
    /// in millions a second.
    pub(super) fn messages_a_second(&self, text: &str) -> anyhow::Result<f64> {
        let wanted = [self.bytes, self.messages].map(|number| number.to_string());
        let row = text.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [bytes, count, _, _, rate] = words[..] else {
                return None;
            };
            (wanted == [bytes, count]).then_some(rate)
        });
        let row = row.with_context(|| format!("perftest printed no rate: {text}"))?;
        let millions: f64 = row
            .parse()
            .with_context(|| format!("perftest printed {row} as its rate"))?;
        ensure!(millions > 0.0, "perftest's rate is {row}");
        Ok(millions * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_request_says_all_of_it() {
        let request = Request {
            kind: Kind::Read,
            bytes: 64,
            memory: PayloadMemory::Vram,
            adapters: Adapters::Two,
        };
        let line = request.line(Duration::from_secs(2));
        assert_eq!(
            line,
            "/opt/peerbar/peerbar-verbs rate --nic {nic0} --peer {nic1} --from {gpu0} --to {gpu1} --size 64 --by reads --seconds 2"
        );
    }

    #[test]
    fn rate_is_read_from_perftest_s_row() {
        let test = Perftest {
            kind: Kind::Send,
            bytes: 64,
            messages: 4000,
        };
        let line = test.line(EFA);
        let words = "18515 ib_send_bw -d {nic0} -c SRD -x 0 -n 4000 -s 64 -F -r 4000";
        assert!(line.ends_with(words), "{line}");
        let text = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    64         4000             1.85               1.77              0.029012\n---\n";
        let rate = test.messages_a_second(text).unwrap();
        assert!((rate - 29012.0).abs() < 1e-6, "{rate}");
        let other = text.replace("4000", "200");
        assert!(test.messages_a_second(&other).is_err());
        let nothing = text.replace("0.029012", "0.000000");
        let error = test.messages_a_second(&nothing).unwrap_err().to_string();
        assert_eq!(error, "perftest's rate is 0.000000");
    }
}
