//! A vfio-user message in words, as `peerbar vfio-user trace` shows it: any payload of any command
//! is one line without control characters, and one line of JSON.

use peerbar_vfio_user::decode::{Payload, reply, request};

/// Numbers of commands: those of the protocol, and unknown ones.
const COMMANDS: u8 = 24;

/// Decodes a message: a byte each for its command, for the length of its payload beyond the bytes
/// that the relay has kept, and for the bytes of data that are shown, then the bytes that were kept.
pub fn run(data: &[u8]) {
    let Some(([command, beyond, shown], start)) = data.split_first_chunk() else {
        return;
    };
    let payload = Payload {
        start,
        length: start.len() + usize::from(*beyond),
        most_data: usize::from(*shown),
    };
    for decode in [request, reply] {
        let fields = decode(u16::from(command % COMMANDS), &payload);
        let text = fields.to_string();
        assert!(!text.chars().any(char::is_control), "{text:?}");
        let json = fields.json().to_string();
        assert!(json.starts_with('{') && !json.contains('\n'), "{json}");
    }
}

#[cfg(test)]
mod tests {
    use peerbar_rig::wire;

    use super::*;
    use crate::seed::Seed;

    #[test]
    fn seeds_have_the_commands_with_lists() {
        let json = r#"{"capabilities":{"pgsizes":4096,"twin_socket":{"supported":true}},"x":[1]}"#;
        let areas = [
            wire::words(&[64, 15, 1, 32]),
            wire::quads(&[0x4000, 0]),
            wire::words(&[1 | 1 << 16, 0, 1, 0]),
            wire::quads(&[0x1000, 0x1000]),
        ];
        let write = [wire::region_access(7, 4, 2), vec![6, 0, 0, 0, 0, 0, 0, 0]].concat();
        let chosen = [wire::set_irqs(0x22, 2, 1, 3), vec![0, 1, 1]].concat();
        for (command, name, payload) in [
            (1, "version", wire::version(0, 0, json)),
            (2, "dma_map", wire::dma_map(3, 0, 0xc_0000, 0x1000)),
            (5, "region_info", areas.concat()),
            (8, "set_irqs", chosen),
            (
                10,
                "region_write",
                [wire::region_access(0, 8, 4), vec![1; 4]].concat(),
            ),
            (15, "write_multi", [wire::quads(&[1]), write].concat()),
            (16, "feature", wire::words(&[24, 1 << 16 | 8, 0, 0, 0, 0])),
        ] {
            let seed = Seed::default().bytes(&[command, 0, 8]).bytes(&payload);
            run(&seed.in_corpus("vfio_user_decoder", name));
        }
    }
}
