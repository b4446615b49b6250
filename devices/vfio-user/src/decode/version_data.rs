//! The data of VERSION: the capabilities by name.

use peerbar_host::Size;
use serde_json::{Map, Value};

use super::field::{Fields, printable};

/// Capabilities whose value is a number of bytes, or several of them added up (vfio-user, VERSION).
const SIZES: &str = "max_data_xfer_size";
const PAGE_SIZES: &str = "pgsizes";
/// The capability of a second socket, for the server's commands.
const TWIN_SOCKET: &str = "twin_socket";

/// Adds the capabilities, and the rest of the data if there is any.
pub(super) fn version_data(mut data: Value, fields: &mut Fields) {
    let capabilities = take_capabilities(&mut data);
    let is_all = capabilities.is_some() && data.as_object().is_some_and(Map::is_empty);
    if let Some(capabilities) = capabilities {
        let named = capabilities
            .iter()
            .map(|(name, value)| capability(name, value));
        let text = named.collect::<Vec<_>>().join(", ");
        fields.show("capabilities", capabilities, text);
    }
    if !is_all {
        let text = printable(&data.to_string());
        fields.show("data", data, text);
    }
}

/// Takes the capabilities out of the data, unless they are not an object.
fn take_capabilities(data: &mut Value) -> Option<Map<String, Value>> {
    let data = data.as_object_mut()?;
    match data.remove("capabilities")? {
        Value::Object(capabilities) => Some(capabilities),
        other => {
            data.insert("capabilities".to_owned(), other);
            None
        }
    }
}

/// Returns a capability as text, without control characters.
fn capability(name: &str, value: &Value) -> String {
    let text = match (name, value) {
        (_, Value::Bool(true)) => name.to_owned(),
        (_, Value::Bool(false)) => format!("no {name}"),
        (TWIN_SOCKET, Value::Object(twin)) => twin_socket(twin),
        (SIZES, value) => sized(name, value, |size| Size(size).to_string()),
        (PAGE_SIZES, value) => sized(name, value, page_sizes),
        (_, value) => format!("{name} {value}"),
    };
    printable(&text)
}

fn sized(name: &str, value: &Value, text: impl Fn(u64) -> String) -> String {
    match value.as_u64() {
        Some(size) => format!("{name} {}", text(size)),
        None => format!("{name} {value}"),
    }
}

/// Returns the sizes whose bits are set.
fn page_sizes(sizes: u64) -> String {
    let bits = (0..u64::BITS).map(|bit| 1 << bit);
    let set = bits.filter(|size| sizes & size != 0);
    let texts: Vec<String> = set.map(|size| Size(size).to_string()).collect();
    match texts.is_empty() {
        true => "0".to_owned(),
        false => texts.join("|"),
    }
}

fn twin_socket(twin: &Map<String, Value>) -> String {
    let is_supported = twin.get("supported").and_then(Value::as_bool);
    match (is_supported, twin.get("fd_index")) {
        (Some(true), Some(index)) => format!("{TWIN_SOCKET} fd_index {index}"),
        (Some(true), None) => TWIN_SOCKET.to_owned(),
        _ => format!("no {TWIN_SOCKET}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(data: Value) -> String {
        let mut fields = Fields::default();
        version_data(data, &mut fields);
        fields.to_string()
    }

    #[test]
    fn capabilities_are_named_and_the_rest_is_kept() {
        let data = json!({"capabilities": {
            "max_msg_fds": 16, "max_data_xfer_size": 1 << 20, "pgsizes": 0x20_1000,
            "write_multiple": true, "twin_socket": {"supported": true, "fd_index": 0},
            "migration": {"pgsize": 4096},
        }});
        let expected = "max_data_xfer_size 1M, max_msg_fds 16, migration {\"pgsize\":4096}, \
            pgsizes 4K|2M, twin_socket fd_index 0, write_multiple";
        assert_eq!(text(data), expected);
        let data = json!({"capabilities": {"twin_socket": {}, "write_multiple": false}, "x": 1});
        assert_eq!(text(data), "no twin_socket, no write_multiple {\"x\":1}");
    }

    #[test]
    fn other_types_are_shown_as_they_are() {
        let data =
            json!({"capabilities": {"pgsizes": "4K", "twin_socket": {"supported": 1}, "\u{7}": 1}});
        assert_eq!(text(data), "\\u{7} 1, pgsizes \"4K\", no twin_socket");
        assert_eq!(text(json!({"capabilities": []})), "{\"capabilities\":[]}");
        assert_eq!(text(json!([1])), "[1]");
        assert_eq!(text(json!({})), "{}");
    }
}
