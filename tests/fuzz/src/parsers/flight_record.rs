//! A flight record, as another user's run or a killed device leaves it: it is read, followed and
//! checked without a panic, and with no more records than fit in it.
//!
//! An input is the header's first 192 bytes, then records. The harness adds the rest of the header,
//! and the checksum to every record that has a sequence number, because a fuzzer does not find one
//! by itself. A record with bit 7 of its last byte set keeps its checksum.

use peerbar_flight::{Flight, History, Sanitizer, shared};

/// Of the file: header, and one record.
const HEADER: usize = 4096;
const RECORD: usize = 64;
/// Bytes of the header in an input, and the place of the checksum in a record.
const START: usize = 192;
const CHECK: std::ops::Range<usize> = 20..24;

/// Reads `data`.
pub fn run(data: &[u8]) {
    let Some((start, records)) = data.split_at_checked(START) else {
        // Too short for a record, and read as it is.
        assert!(Flight::parse(data).is_err());
        return;
    };
    let Ok(flight) = Flight::parse(&file(start, records)) else {
        return;
    };
    let (now, all) = (flight.now.len(), flight.records.len());
    assert!((now + all) * RECORD <= records.len());
    let sequences = flight.records.iter().map(|record| record.sequence);
    assert!(sequences.is_sorted());
    let (findings, judged) = Sanitizer::of(&flight);
    let history = History::of(&flight);
    assert_eq!(judged.mappings.len(), history.mappings.len());
    // A mapping whose middle is unmapped is still a mapping.
    let current = history
        .mappings
        .iter()
        .filter(|life| life.unmapped.is_none());
    assert_eq!(current.count(), history.current_count());
    assert_eq!(judged.current_count(), history.current_count());
    assert!(history.current().count() >= history.current_count());
    for (mapping, life) in history.current() {
        assert!(life.mapping.range.encloses(&mapping.range));
        assert!(history.around(mapping.range.first()).at.is_some());
    }
    for number in 0..history.mappings.len().min(8) {
        let range = history.contiguous_range(number);
        assert!(range.is_some(), "a mapping's number");
    }
    // Each of them names its subject.
    assert!(findings.iter().all(|found| found.kind.to_string() != ""));
    drop(shared(&[&history, &judged], 1 << 16));
}

fn file(start: &[u8], records: &[u8]) -> Vec<u8> {
    let mut file = start.to_vec();
    file.resize(HEADER, 0);
    file.extend_from_slice(records);
    for record in file[HEADER..].chunks_exact_mut(RECORD) {
        let has_sequence = record[..8] != [0; 8];
        if has_sequence && record[RECORD - 1] & 0x80 == 0 {
            record[CHECK].fill(0);
            let sum = crc32c::crc32c(record);
            record[CHECK].copy_from_slice(&sum.to_le_bytes());
        }
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::corpus;

    #[test]
    fn every_seed_is_a_flight_record_with_records() {
        for (name, seed) in corpus("flight_record") {
            let (start, records) = seed.split_at(START);
            let flight = Flight::parse(&file(start, records)).expect(&name);
            assert!(!flight.records.is_empty(), "{name}");
        }
    }
}
