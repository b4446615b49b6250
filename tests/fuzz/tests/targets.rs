//! Each fuzz target with its corpus and with changed inputs, by the stable compiler.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "this is a test"
)]

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use peerbar_fuzz::{TARGETS, Target};
use peerbar_rig::seed;

/// Maximum length of a changed input.
const LONGEST: usize = 4096;
/// Maximum number of changes of one input.
const CHANGES: usize = 8;
/// Targets that count the descriptors of this process. They run while no other target does.
const COUNTING: [&str; 2] = ["fabric_adapters", "switch_endpoints"];

#[test]
fn every_target_has_a_corpus_and_a_program() {
    for target in TARGETS {
        assert!(!corpus(target).is_empty(), "{}", target.name);
        let program = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("libfuzzer/targets")
            .join(format!("{}.rs", target.name));
        let text = std::fs::read_to_string(&program).expect(target.name);
        assert!(text.contains(&format!("::{}::run(", target.name)), "{text}");
    }
}

/// One test for each, so that they run at the same time and a failure names the target.
macro_rules! targets_hold {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            hold(stringify!($name));
        })*

        #[test]
        fn every_target_is_tested() {
            let tested = [$(stringify!($name)),*];
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, tested);
        }
    };
}

targets_hold! {
    efa_adapter
    fabric_adapters
    gpu_commands
    gpu_nvme_io
    nvme_controller
    nvme_disks
    switch_endpoints
    vfio_user_stream
    config_space
    dma_log
    exec_messages
    fabric_message
    fabric_rule
    fault_rule
    flight_record
    guest_words
    ktap_report
    machine_text
    program_report
    scenario
    switch_message
    vfio_user_decoder
    vfio_user_framing
}

/// Runs a target, alone if it counts descriptors.
fn hold(name: &str) {
    static RUNNING: RwLock<()> = RwLock::new(());
    if COUNTING.contains(&name) {
        let _alone = RUNNING.write().unwrap_or_else(PoisonError::into_inner);
        run(name);
    } else {
        let _shared = RUNNING.read().unwrap_or_else(PoisonError::into_inner);
        run(name);
    }
}

/// Runs a target with its corpus, then with changed inputs.
fn run(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let corpus = corpus(target);
    corpus.iter().for_each(|input| (target.run)(input));
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..target.short {
        let mut input = random.choice(&corpus).cloned().unwrap_or_default();
        for _ in 0..random.usize(1..=CHANGES) {
            change(&mut random, &mut input, &corpus);
        }
        input.truncate(LONGEST);
        (target.run)(&input);
    }
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name);
    let files = std::fs::read_dir(&folder).expect(target.name);
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    let read = |path: &PathBuf| std::fs::read(path).unwrap();
    paths.iter().map(read).collect()
}

/// Changes an input at one offset.
fn change(random: &mut fastrand::Rng, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    let at = random.usize(0..=input.len());
    match random.u8(0..6) {
        0 => input.insert(at, random.u8(..)),
        1 => {
            input.truncate(at);
        }
        2 => {
            let other = random.choice(corpus).map_or(&[][..], Vec::as_slice);
            let from = random.usize(0..=other.len());
            let to = random.usize(from..=other.len());
            input.splice(at..at, other[from..to].iter().copied());
        }
        3 if at < input.len() => {
            let end = random.usize(at..=input.len());
            input.drain(at..end);
        }
        4 if at < input.len() => input[at] = *random.choice(&[0, 1, 0x7f, 0x80, 0xff]).unwrap(),
        _ if at < input.len() => input[at] ^= 1 << random.u8(0..8),
        _ => {}
    }
}
