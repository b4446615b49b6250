//! Every command, as a request and as its reply, whole and damaged.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn quads(quads: &[u64]) -> Vec<u8> {
    quads.iter().flat_map(|quad| quad.to_le_bytes()).collect()
}

fn whole(bytes: &[u8]) -> Payload<'_> {
    Payload {
        start: bytes,
        length: bytes.len(),
        most_data: 16,
    }
}

fn version(json: &str) -> Vec<u8> {
    [&[0, 0, 1, 0], json.as_bytes(), b"\0"].concat()
}

fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    [quads(&[offset]), words(&[region, count]), data.to_vec()].concat()
}

fn dma(address: u64, count: u64, data: &[u8]) -> Vec<u8> {
    [quads(&[address, count]), data.to_vec()].concat()
}

/// A reply to DEVICE_GET_REGION_INFO with capabilities from offset 32 on.
fn region(argsz: u32, flags: u32, capabilities: &[u8]) -> Vec<u8> {
    let at = if capabilities.is_empty() { 0 } else { 32 };
    [
        words(&[argsz, flags, 0, at]),
        quads(&[0x4000, 0]),
        capabilities.to_vec(),
    ]
    .concat()
}

fn sparse(next: u32, count: u32, areas: &[u64]) -> Vec<u8> {
    [words(&[0x1_0001, next, count, 0]), quads(areas)].concat()
}

/// Each command with the payload of a request, and its text.
fn requests() -> Vec<(u16, Vec<u8>, &'static str)> {
    let multi = [
        quads(&[2]),
        access(0, 0x1000, 4, &[7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
        access(7, 0x3c, 1, &[11, 0, 0, 0, 0, 0, 0, 0]),
    ];
    vec![
        (
            1,
            version(r#"{"capabilities": {"max_msg_fds": 8}}"#),
            "0.1 max_msg_fds 8",
        ),
        (1, version("{"), r#"0.1 invalid JSON "{""#),
        (1, vec![0, 0, 0, 0], "0.0"),
        (
            2,
            [words(&[32, 3]), quads(&[0x1000, 0xc_0000, 512 << 20])].concat(),
            "0xc0000+512M READ|WRITE offset 0x1000",
        ),
        (
            2,
            [words(&[32, 0x101]), quads(&[0, 0, 4097])].concat(),
            "0x0+4097 READ|0x100 offset 0x0",
        ),
        (
            3,
            [words(&[24, 0]), quads(&[0xc_0000, 4096])].concat(),
            "0xc0000+4K",
        ),
        (3, [words(&[24, 2]), quads(&[0, 0])].concat(), "0x0+0 ALL"),
        (4, words(&[16, 0, 0, 0]), ""),
        (4, words(&[32, 0, 0, 0]), "argsz 32"),
        (5, words(&[32, 0, 7, 0, 0, 0, 0, 0]), "config"),
        (5, words(&[64, 0, 9, 0, 0, 0, 0, 0]), "region9 argsz 64"),
        (6, words(&[1024, 0, 2, 0]), "BAR2 argsz 1024"),
        (7, words(&[16, 0, 2, 0]), "MSI-X"),
        (
            8,
            words(&[20, 0x24, 2, 0, 16]),
            "MSI-X vectors 0-15 DATA_EVENTFD|TRIGGER",
        ),
        (
            8,
            words(&[20, 0x21, 0, 0, 0]),
            "INTx no vector DATA_NONE|TRIGGER",
        ),
        (
            8,
            [words(&[22, 0x12, 9, 3, 2]), vec![1, 0]].concat(),
            "irq9 vectors 3-4 DATA_BOOL|UNMASK [1,0]",
        ),
        (
            8,
            words(&[20, 0x24, 1, u32::MAX, u32::MAX]),
            "MSI vectors 4294967295-8589934589 DATA_EVENTFD|TRIGGER",
        ),
        (9, access(7, 4, 2, &[]), "config+0x4 COMMAND 2 bytes"),
        (
            9,
            access(7, 0, 4, &[]),
            "config+0x0 VENDOR_ID,DEVICE_ID 4 bytes",
        ),
        (9, access(7, 0, 256, &[]), "config+0x0 256 bytes"),
        (9, access(7, 0x40, 1, &[]), "config+0x40 1 byte"),
        (
            10,
            access(7, 4, 2, &[6, 5]),
            "config+0x4 COMMAND 2 bytes 0x0506 MEMORY|MASTER|SERR|INTX_DISABLE",
        ),
        (
            10,
            access(0, 0x1000, 4, &[1, 0, 0, 0]),
            "BAR0+0x1000 4 bytes 0x00000001",
        ),
        (
            10,
            access(6, 0, 9, &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
            "ROM+0x0 9 bytes 01020304 05060708 09",
        ),
        (11, dma(0xfee0_0000, 64, &[]), "0xfee00000 64 bytes"),
        (
            12,
            dma(0x1000, 4, &[0xef, 0xbe, 0xad, 0xde]),
            "0x1000 4 bytes 0xdeadbeef",
        ),
        (
            12,
            dma(0x1000, 20, &[0xaa; 20]),
            "0x1000 20 bytes aaaaaaaa aaaaaaaa aaaaaaaa aaaaaaaa …",
        ),
        (13, vec![], ""),
        (14, words(&[8, 1]), "8 bytes 0x0000000100000008"),
        (
            15,
            multi.concat(),
            "2 writes BAR0+0x1000 4 bytes 0x00000007, config+0x3c INTERRUPT_LINE 1 byte 0x0b",
        ),
        (16, words(&[8, 0x1_0001]), "GET MIGRATION"),
        (
            16,
            words(&[16, 0x2_0002, 3, 0]),
            "SET MIG_DEVICE_STATE STOP_COPY",
        ),
        (
            16,
            words(&[16, 0x2_0002, 77, 0]),
            "SET MIG_DEVICE_STATE state 77",
        ),
        (
            16,
            [words(&[24, 0x2_0006]), quads(&[4096, 0])].concat(),
            "SET DMA_LOGGING_START pages of 4K",
        ),
        (
            16,
            [words(&[32, 0x1_0008]), quads(&[0x10_0000, 1 << 20, 4096])].concat(),
            "GET DMA_LOGGING_REPORT 0x100000+1M pages of 4K",
        ),
        (16, words(&[8, 0x4_0063]), "PROBE feature 99"),
        (17, words(&[0x1000, 0xff8]), "4088 bytes"),
        (
            18,
            [words(&[12, 4]), vec![1, 2, 3, 4]].concat(),
            "4 bytes 0x04030201",
        ),
        (19, vec![], ""),
        (999, vec![1, 2], "2 bytes 0x0201"),
    ]
}

/// Each command with the payload of a reply, and its text.
fn replies() -> Vec<(u16, Vec<u8>, &'static str)> {
    let two = [
        sparse(64, 1, &[0x1000, 0x2000]),
        words(&[0x1_0002, 80, 2, 3]),
        words(&[0x1_0003, 0]),
    ];
    let io_fds = [
        words(&[56, 0, 0, 1]),
        quads(&[0x1000, 4]),
        words(&[0, 0, 0, 0]),
        quads(&[0]),
    ];
    vec![
        (1, version("{}"), "0.1 {}"),
        (2, vec![], ""),
        (3, vec![], ""),
        (3, [words(&[24, 0]), quads(&[0, 4096])].concat(), ""),
        (4, words(&[16, 3, 9, 5]), "9 regions 5 irqs RESET|PCI"),
        (5, region(32, 3, &[]), "16K READ|WRITE"),
        (5, region(64, 3, &[]), "16K READ|WRITE needs argsz 64"),
        (5, words(&[32, 0, 1, 0, 0, 0, 0, 0]), "absent"),
        (
            5,
            region(64, 15, &sparse(0, 1, &[0x1000, 0x3000])),
            "16K READ|WRITE|MMAP|CAPS mappable 0x1000+12K",
        ),
        (
            5,
            region(48, 15, &sparse(0, 0, &[])),
            "16K READ|WRITE|MMAP|CAPS mappable nowhere",
        ),
        (
            5,
            region(88, 15, &two.concat()),
            "16K READ|WRITE|MMAP|CAPS mappable 0x1000+8K type 2.3 MSIX_MAPPABLE",
        ),
        (6, io_fds.concat(), "1 sub-regions 0x1000+4 ioeventfd fd 0"),
        (7, words(&[16, 9, 2, 16]), "16 vectors EVENTFD|NORESIZE"),
        (7, words(&[16, 1, 3, 1]), "1 vector EVENTFD"),
        (8, vec![], ""),
        (9, access(7, 4, 2, &[2, 0]), "0x0002 MEMORY"),
        (9, access(7, 4, 4, &[0, 0, 0x10, 0]), "0x00100000"),
        (9, access(0, 0, 8, &[0xff; 8]), "0xffffffffffffffff"),
        (10, access(0, 0, 4, &[]), ""),
        (11, dma(0, 4, &[1, 0, 0, 0]), "0x00000001"),
        (12, dma(0, 4, &[]), ""),
        (12, [quads(&[0]), words(&[4])].concat(), ""),
        (13, vec![], ""),
        (15, quads(&[2]), "2 written"),
        (
            16,
            [words(&[16, 0x1_0001]), quads(&[5])].concat(),
            "GET MIGRATION STOP_COPY|PRE_COPY",
        ),
        (17, [words(&[12, 2]), vec![1, 2]].concat(), "2 bytes 0x0201"),
        (18, vec![], ""),
    ]
}

#[test]
fn every_request_is_one_line_in_the_protocols_terms() {
    for (command, payload, expected) in requests() {
        let text = request(command, &whole(&payload)).to_string();
        assert_eq!(text, expected, "command {command}");
    }
}

#[test]
fn every_reply_is_one_line_in_the_protocols_terms() {
    for (command, payload, expected) in replies() {
        let text = reply(command, &whole(&payload)).to_string();
        assert_eq!(text, expected, "command {command}");
    }
}

#[test]
fn tables_of_these_tests_have_every_command() {
    for (command, name) in COMMANDS {
        let is_there =
            |all: Vec<(u16, Vec<u8>, &str)>| all.iter().any(|(known, ..)| *known == command);
        assert!(is_there(requests()), "{name}");
        // QEMU's command without a specification has no reply.
        assert!(is_there(replies()) || name == "DIRTY_PAGES", "{name}");
    }
}

#[test]
fn json_has_what_the_line_leaves_out() {
    let read = request(9, &whole(&access(7, 4, 2, &[]))).json();
    let expected = json!({
        "region": "config", "index": 7, "offset": 4, "registers": ["COMMAND"], "count": 2
    });
    assert_eq!(read, expected);
    let map = [words(&[32, 1]), quads(&[0, 4096, 8192])].concat();
    let expected = json!({ "address": 4096, "size": 8192, "prot": ["READ"], "offset": 0 });
    assert_eq!(request(2, &whole(&map)).json(), expected);
    let info = reply(5, &whole(&region(64, 15, &sparse(0, 1, &[0x1000, 0x3000])))).json();
    assert_eq!(
        info["mappable"],
        json!([{ "offset": 0x1000, "size": 0x3000 }])
    );
    assert_eq!(info["flags"], json!(["READ", "WRITE", "MMAP", "CAPS"]));
}

/// Lengths at which a payload may be cut without a violation: its list or its data is optional.
fn may_end_at(command: u16, is_reply: bool, length: usize) -> bool {
    match (command, is_reply) {
        (1, _) => length >= 4,
        (5, true) => length == 32,
        (3, true) | (14 | 999, _) => true,
        (8, false) => length >= 20,
        (12, true) => [0, 12].contains(&length),
        (16, _) => length >= 8,
        _ => length == 0,
    }
}

#[test]
fn payload_that_is_cut_or_too_long_is_called_malformed() {
    let requests = requests()
        .into_iter()
        .map(|(id, bytes, _)| (id, bytes, false));
    let replies = replies()
        .into_iter()
        .map(|(id, bytes, _)| (id, bytes, true));
    for (command, bytes, is_reply) in requests.chain(replies) {
        let decode = if is_reply { reply } else { request };
        for cut in 0..bytes.len() {
            let text = decode(command, &whole(&bytes[..cut])).to_string();
            let is_ok = text.contains("MALFORMED") || may_end_at(command, is_reply, cut);
            assert!(is_ok, "{command} cut at {cut}: {text}");
        }
        let open = [1, 14, 16, 19, 999].contains(&command);
        let open = open || (command, is_reply) == (5, true) || command == 3;
        let open = open || (command, is_reply) == (8, false);
        let longer = [bytes, vec![0; 3]].concat();
        let text = decode(command, &whole(&longer)).to_string();
        assert!(open || text.contains("MALFORMED"), "{command}: {text}");
    }
}

#[test]
fn capability_lists_that_lead_nowhere_end() {
    let texts = [
        region(64, 15, &sparse(32, 0, &[])),
        region(64, 15, &sparse(16, 0, &[])),
        region(64, 15, &sparse(4096, 0, &[])),
        region(64, 15, &sparse(0, u32::MAX, &[0, 1])),
    ]
    .map(|bytes| reply(5, &whole(&bytes)).to_string());
    let ends = [
        "nowhere MALFORMED: no capability at 0x20",
        "nowhere MALFORMED: no capability at 0x10",
        "nowhere MALFORMED: no capability at 0x1000",
        "mappable 0x0+1 MALFORMED: 1 of 4294967295 areas",
    ];
    for (text, end) in texts.iter().zip(ends) {
        assert!(text.ends_with(end), "{text}");
    }
}

#[test]
fn long_payload_is_decoded_from_its_start() {
    let payload = Payload {
        start: &access(0, 0, 1 << 20, &[1; 8]),
        length: 16 + (1 << 20),
        most_data: 4,
    };
    let text = request(10, &payload).to_string();
    assert_eq!(text, "BAR0+0x0 1048576 bytes 01010101 …");
}

#[test]
fn errors_have_their_names() {
    assert_eq!(error_name(22), "EINVAL (Invalid argument)");
    assert_eq!(error_name(0), "an error without an errno");
    assert_eq!(error_name(4096), "errno 4096");
    assert_eq!(error_name(u32::MAX), "errno 4294967295");
}

#[test]
fn json_of_a_peer_cannot_control_the_terminal() {
    let text = request(1, &whole(&version("{\"a\": \"\\u001b[2J\u{9b}1m\"}"))).to_string();
    assert!(!text.chars().any(char::is_control), "{text:?}");
    let text = request(1, &whole(&version("\u{1b}[2J"))).to_string();
    assert_eq!(text, r#"0.1 invalid JSON "\u{1b}[2J""#);
}

proptest! {
    #[test]
    fn any_payload_is_decoded(
        command in 0_u16..21,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        more in 0_usize..1000,
    ) {
        let payload = Payload { start: &bytes, length: bytes.len() + more, most_data: 32 };
        for fields in [request(command, &payload), reply(command, &payload)] {
            prop_assert!(!fields.to_string().chars().any(char::is_control));
            prop_assert!(fields.json().is_object());
        }
    }
}
