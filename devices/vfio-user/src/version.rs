//! The negotiation at the start of a session, as server and as client (vfio-user, VERSION).

use peerbar_host::socket_file::descriptors::MAX_DESCRIPTORS;
use rustix::io::Errno;
use serde_json::{Map, Value, json};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use crate::wire::Version;

/// The only major version.
const MAJOR: u16 = 0;
/// QEMU accepts no higher one.
const MINOR: u16 = 0;

/// The most data in one message, in bytes, in both directions.
pub(crate) const MAX_TRANSFER: u32 = 1 << 20;

/// The other side's capabilities.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// The names of all proposed capabilities.
    proposed: Vec<String>,
    /// The most data that it accepts in one message, in bytes, not 0.
    pub(crate) max_data_xfer_size: u64,
    /// The most descriptors that it accepts in one message, at least 1.
    pub(crate) max_msg_fds: usize,
    /// The client answers requests for DMA. A client that sends no capabilities at all, not even an
    /// empty set, is SPDK's, which takes such a request for the answer to one of its own requests.
    pub(crate) serves_dma: bool,
}

impl Default for Capabilities {
    /// The protocol's defaults.
    fn default() -> Self {
        Self {
            proposed: Vec::new(),
            max_data_xfer_size: 1 << 20,
            max_msg_fds: 1,
            serves_dma: true,
        }
    }
}

/// Parses a VERSION, or the answer to one. EINVAL for another version and for a malformed one.
pub(crate) fn parse(payload: &[u8]) -> Result<Capabilities, Errno> {
    let (version, json) = Version::read_from_prefix(payload).map_err(|_| Errno::INVAL)?;
    if version.major.get() != MAJOR {
        return Err(Errno::INVAL);
    }
    let json = json.split(|byte| *byte == 0).next().unwrap_or_default();
    if json.is_empty() {
        return Ok(Capabilities {
            serves_dma: false,
            ..Capabilities::default()
        });
    }
    let data: Map<String, Value> = serde_json::from_slice(json).map_err(|_| Errno::INVAL)?;
    match data.get("capabilities") {
        None => Ok(Capabilities::default()),
        Some(Value::Object(capabilities)) => parse_capabilities(capabilities),
        Some(_) => Err(Errno::INVAL),
    }
}

fn parse_capabilities(capabilities: &Map<String, Value>) -> Result<Capabilities, Errno> {
    let default = Capabilities::default();
    let max_data_xfer_size = match capabilities.get("max_data_xfer_size").map(Value::as_u64) {
        None => default.max_data_xfer_size,
        Some(Some(size @ 1..)) => size,
        Some(_) => return Err(Errno::INVAL),
    };
    let max_msg_fds = capabilities.get("max_msg_fds").and_then(Value::as_u64);
    let max_msg_fds = max_msg_fds.and_then(|most| usize::try_from(most).ok());
    Ok(Capabilities {
        proposed: capabilities.keys().cloned().collect(),
        max_data_xfer_size,
        max_msg_fds: max_msg_fds.unwrap_or(default.max_msg_fds).max(1),
        ..default
    })
}

/// Returns our answer to a client's VERSION: those of our capabilities that it proposes. The others
/// have the protocol's defaults.
pub(crate) fn answer(client: &Capabilities) -> Vec<u8> {
    let proposed = |(name, _): &(&str, Value)| client.proposed.iter().any(|known| known == name);
    let ours = ours().into_iter().chain([("write_multiple", json!(true))]);
    let ours = ours.filter(proposed);
    message(ours.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Returns the VERSION with which we begin a session as a client.
pub(crate) fn proposal() -> Vec<u8> {
    let ours = ours().into_iter();
    message(ours.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Returns our capabilities on either side.
fn ours() -> [(&'static str, Value); 4] {
    [
        ("max_msg_fds", json!(MAX_DESCRIPTORS)),
        ("max_data_xfer_size", json!(MAX_TRANSFER)),
        ("max_dma_maps", json!(65535)),
        ("pgsizes", json!(4096)),
    ]
}

fn message(capabilities: Map<String, Value>) -> Vec<u8> {
    let version = Version {
        major: U16::new(MAJOR),
        minor: U16::new(MINOR),
    };
    let data = json!({"capabilities": capabilities});
    [version.as_bytes(), data.to_string().as_bytes(), b"\0"].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(major: u16, minor: u16, json: &[u8]) -> Vec<u8> {
        [&major.to_le_bytes(), &minor.to_le_bytes(), json].concat()
    }

    #[test]
    fn qemu_is_understood() {
        let json =
            br#"{"capabilities": {"migration": {"pgsize": 4096, "max_bitmap_size": 268435456},
            "max_msg_fds": 16, "max_data_xfer_size": 65536, "pgsizes": 4096, "max_dma_maps": 65535,
            "write_multiple": true}}"#;
        let capabilities = parse(&version(0, 0, &[json.as_slice(), b"\0"].concat())).unwrap();
        assert_eq!(capabilities.max_data_xfer_size, 65536);
        assert_eq!(capabilities.max_msg_fds, 16);
        assert_eq!(capabilities.proposed.len(), 6);
    }

    #[test]
    fn what_is_not_said_has_the_value_of_the_protocol() {
        for json in ["", "\0"] {
            let capabilities = parse(&version(0, 1, json.as_bytes())).unwrap();
            let expected = Capabilities {
                serves_dma: false,
                ..Capabilities::default()
            };
            assert_eq!(capabilities, expected, "{json:?}");
        }
        for json in ["{}", "{}\0", r#"{"capabilities":{}}"#, r#"{"other":1}"#] {
            let capabilities = parse(&version(0, 1, json.as_bytes())).unwrap();
            assert_eq!(capabilities, Capabilities::default(), "{json:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let wrong: [&[u8]; 11] = [
            b"",
            &[0; 3],
            &version(1, 0, b"{}\0"),
            &version(0, 0, b"garbage\0"),
            &version(0, 0, b"{\0"),
            &version(0, 0, b"\xff\xfe\0"),
            &version(0, 0, b"[]\0"),
            &version(0, 0, br#"{"capabilities":[]}"#),
            &version(0, 0, br#"{"capabilities":{"max_data_xfer_size":"1"}}"#),
            &version(0, 0, br#"{"capabilities":{"max_data_xfer_size":-1}}"#),
            &version(0, 0, br#"{"capabilities":{"max_data_xfer_size":0}}"#),
        ];
        for payload in wrong {
            assert_eq!(parse(payload), Err(Errno::INVAL), "{payload:?}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(parse(&version(0, 0, deep.as_bytes())), Err(Errno::INVAL));
    }

    #[test]
    fn our_answer_is_one_that_we_understand() {
        let proposed = ["max_data_xfer_size", "pgsizes"].map(str::to_owned);
        let answer = answer(&Capabilities {
            proposed: proposed.to_vec(),
            ..Capabilities::default()
        });
        assert_eq!(answer[..4], [0; 4]);
        assert_eq!(answer.last(), Some(&0));
        let capabilities = parse(&answer).unwrap();
        assert_eq!(capabilities.max_data_xfer_size, 1 << 20);
        assert_eq!(capabilities.proposed, proposed);
    }

    proptest! {
        #[test]
        fn no_payload_panics(payload in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(capabilities) = parse(&payload) {
                prop_assert!(capabilities.max_data_xfer_size > 0);
            }
        }
    }
}
