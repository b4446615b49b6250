//! Images and disks of the host that fail, against a model that knows every byte.

use std::any::Any;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use peerbar_nvme::{Config, Source};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use tempfile::NamedTempFile;

use crate::driver::{DATA, Driver, LIST, enabled_with, usual};
use crate::loop_device::{LoopDevice, SmallMount};
use crate::machine::{config, pattern};
use peerbar_rig::nvme::command::{
    COMPARE, Command, DATASET_MANAGEMENT, FLUSH, READ, VERIFY, WRITE, WRITE_ZEROES, blocks, sc,
};

/// Blocks of the namespace.
const BLOCKS: usize = 256;
/// Address of the range of a Deallocate.
const RANGE: u64 = DATA - 0x1000;

/// A kind of failure of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The image loses its end: reads there fail, writes make it grow again.
    Short,
    /// The image loses its end, and writes there fail.
    Sealed,
    /// Its file system is full: any write may fail.
    Full,
    /// The disk, with sectors of this many bytes, loses data that it has accepted: any Flush may
    /// fail.
    Lossy(u32),
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Write { fua: bool },
    Read,
    Compare { equal: bool },
    Verify,
    Zero { fua: bool, deallocate: bool },
    Deallocate,
    Flush,
    Shorten,
}

/// Does an action with a range of blocks, by queue 1 or 2.
#[derive(Clone, Copy, Debug)]
struct Step {
    action: Action,
    queue: u16,
    start: usize,
    count: usize,
    seed: u8,
}

fn step() -> impl Strategy<Value = Step> {
    let action = prop_oneof![
        4 => any::<bool>().prop_map(|fua| Action::Write { fua }),
        4 => Just(Action::Read),
        1 => any::<bool>().prop_map(|equal| Action::Compare { equal }),
        1 => Just(Action::Verify),
        1 => any::<(bool, bool)>().prop_map(|(fua, deallocate)| Action::Zero { fua, deallocate }),
        1 => Just(Action::Deallocate),
        2 => Just(Action::Flush),
        1 => Just(Action::Shorten),
    ];
    let range = (1_u16..3, 0..BLOCKS, 1_usize..32, any::<u8>());
    (action, range).prop_map(|(action, (queue, start, count, seed))| Step {
        action,
        queue,
        start,
        count: count.min(BLOCKS - start),
        seed,
    })
}

/// An image or disk of the host.
struct Disk {
    failure: Failure,
    path: PathBuf,
    file: File,
    /// The mount or device below the disk.
    _below: Box<dyn Any>,
}

impl Disk {
    fn new(failure: Failure, bytes: u64) -> Self {
        let (path, below): (PathBuf, Box<dyn Any>) = match failure {
            Failure::Short => {
                let image = NamedTempFile::new().unwrap();
                (image.path().into(), Box::new(image))
            }
            Failure::Sealed => {
                let image = memfd_create("image", MemfdFlags::ALLOW_SEALING).unwrap();
                rustix::fs::ftruncate(&image, bytes).unwrap();
                fcntl_add_seals(&image, SealFlags::GROW).unwrap();
                let path = format!("/proc/self/fd/{}", image.as_raw_fd());
                (path.into(), Box::new(image))
            }
            Failure::Full => {
                let mount = SmallMount::new();
                let image = mount.path().join("image");
                File::create_new(&image).unwrap();
                (image, Box::new(mount))
            }
            Failure::Lossy(sector_bytes) => {
                let mount = SmallMount::new();
                let device = LoopDevice::new(mount.path(), sector_bytes, bytes);
                (device.path(), Box::new((device, mount)))
            }
        };
        let file = File::options().read(true).write(true).open(&path).unwrap();
        if matches!(failure, Failure::Short | Failure::Full) {
            file.set_len(bytes).unwrap();
        }
        Self {
            failure,
            path,
            file,
            _below: below,
        }
    }

    /// Returns its size in bytes.
    fn len(&mut self) -> usize {
        self.file.seek(SeekFrom::End(0)).unwrap() as usize
    }
}

/// A namespace, and its expected contents.
struct Model {
    driver: Driver,
    disk: Disk,
    block: usize,
    /// The expected byte, or `None` after a failed command that writes it.
    bytes: Vec<Option<u8>>,
    is_lost: bool,
}

impl Model {
    fn new(failure: Failure, block: usize, (io_uring, workers): (bool, u8)) -> Self {
        let disk = Disk::new(failure, (BLOCKS * block) as u64);
        let mut driver = enabled_with(&Config {
            block_bytes: block as u32,
            namespaces: vec![Source::File(disk.path.clone())],
            io_uring,
            workers,
            ..config()
        });
        driver.create_pair(2, usual(2));
        Self {
            driver,
            disk,
            block,
            bytes: vec![Some(0); BLOCKS * block],
            is_lost: false,
        }
    }

    fn take(&mut self, step: Step) {
        let Step { queue, seed, .. } = step;
        let (start, count) = (step.start as u64, step.count as u32);
        let range = step.start * self.block..(step.start + step.count) * self.block;
        let len = range.len();
        let fua = |command: Command, fua: bool| {
            let mut command = command;
            command.dwords[2] |= u32::from(fua) << 30;
            command
        };
        match step.action {
            Action::Write { fua: is_durable } => {
                let data = pattern(len, seed);
                self.driver.write(DATA, &data);
                let command = fua(blocks(WRITE, start, count), is_durable);
                let command = self.driver.prps(command, DATA, len, LIST);
                let is_beyond = range.end > self.disk.len();
                let code = self.driver.code(queue, command);
                self.written(range, code, is_durable, |at| data[at]);
                let must_fail = is_beyond && self.disk.failure == Failure::Sealed;
                assert!(!must_fail || code == sc::WRITE_FAULT, "{code:#x}");
            }
            Action::Read => self.read(queue, start, range),
            Action::Compare { equal } => self.compare(queue, start, range, equal),
            Action::Verify => {
                let is_there = range.end <= self.disk.len();
                let code = self.driver.code(queue, blocks(VERIFY, start, count));
                assert_eq!(code, if is_there { 0 } else { sc::UNRECOVERED_READ });
            }
            Action::Zero {
                fua: is_durable,
                deallocate,
            } => {
                let mut command = fua(blocks(WRITE_ZEROES, start, count), is_durable);
                command.dwords[2] |= u32::from(deallocate) << 25;
                let code = self.driver.code(queue, command);
                self.written(range.clone(), code, false, |_| 0);
                if matches!(self.disk.failure, Failure::Lossy(_)) && !deallocate {
                    // Linux 6.18 writes zeroes in place of fallocate(2)'s ZERO_RANGE there, and
                    // loses some without an error.
                    self.bytes[range].fill(None);
                }
            }
            Action::Deallocate => {
                let mut bytes = [0; 16];
                bytes[4..8].copy_from_slice(&count.to_le_bytes());
                bytes[8..].copy_from_slice(&start.to_le_bytes());
                self.driver.write(RANGE, &bytes);
                let command = Command::new(DATASET_MANAGEMENT, 1, &[0, 0b100]).at(RANGE, 0);
                let code = self.driver.code(queue, command);
                self.written(range, code, false, |_| 0);
            }
            Action::Flush => {
                let code = self.driver.code(queue, Command::new(FLUSH, 1, &[]));
                self.written(0..0, code, true, |_| 0);
            }
            Action::Shorten => {
                if matches!(self.disk.failure, Failure::Short | Failure::Sealed)
                    && range.start < self.disk.len()
                {
                    self.disk.file.set_len(range.start as u64).unwrap();
                    // The contents after the image has grown again.
                    self.bytes[range.start..].fill(Some(0));
                }
            }
        }
    }

    /// Records that a command that writes, or syncs earlier writes, has ended with this code.
    fn written(&mut self, range: Range<usize>, code: u16, syncs: bool, data: impl Fn(usize) -> u8) {
        let failure = self.disk.failure;
        let may_fail = match failure {
            Failure::Short => false,
            Failure::Sealed => range.end > self.disk.len(),
            Failure::Full | Failure::Lossy(_) => true,
        };
        let has_failed = [sc::WRITE_FAULT, sc::CAPACITY_EXCEEDED].contains(&code);
        assert!(
            code == 0 || may_fail && has_failed,
            "{failure:?}: {code:#x}"
        );
        assert!(!self.is_lost || has_failed, "after a loss");
        for (at, byte) in self.bytes[range].iter_mut().enumerate() {
            *byte = (code == 0).then(|| data(at));
        }
        if has_failed && syncs && matches!(failure, Failure::Lossy(_)) {
            self.is_lost = true;
            self.bytes.fill(None);
        }
    }

    fn read(&mut self, queue: u16, start: u64, range: Range<usize>) {
        let len = range.len();
        self.driver.write(DATA, &vec![0xa5; len]);
        let command = blocks(READ, start, (len / self.block) as u32);
        let command = self.driver.prps(command, DATA, len, LIST);
        let code = self.driver.code(queue, command);
        if range.end > self.disk.len() {
            assert_eq!(code, sc::UNRECOVERED_READ);
            return;
        }
        assert_eq!(code, 0);
        let found = self.driver.read(DATA, len);
        let known = self.bytes[range].iter().zip(found);
        for (at, (known, found)) in known.enumerate() {
            assert!(known.is_none_or(|byte| byte == found), "byte {at} of {len}");
        }
    }

    fn compare(&mut self, queue: u16, start: u64, range: Range<usize>, equal: bool) {
        let len = range.len();
        let known = &self.bytes[range.clone()];
        let mut data: Vec<u8> = known.iter().map(|byte| byte.unwrap_or(0)).collect();
        data[len - 1] ^= u8::from(!equal);
        let all_known = known.iter().all(Option::is_some);
        self.driver.write(DATA, &data);
        let command = blocks(COMPARE, start, (len / self.block) as u32);
        let command = self.driver.prps(command, DATA, len, LIST);
        let code = self.driver.code(queue, command);
        let is_there = range.end <= self.disk.len();
        let expected: &[u16] = match (is_there, all_known, equal) {
            (true, true, true) => &[0],
            (true, true, false) => &[sc::COMPARE_FAILED],
            (true, false, _) => &[0, sc::COMPARE_FAILED],
            (false, ..) => &[sc::UNRECOVERED_READ, sc::COMPARE_FAILED],
        };
        assert!(expected.contains(&code), "{code:#x}");
    }

    /// Checks that all known bytes are in the image.
    fn check_image(&mut self) {
        let len = self.disk.len().min(self.bytes.len());
        let mut image = vec![0; len];
        self.disk.file.read_exact_at(&mut image, 0).unwrap();
        let mut pairs = self.bytes.iter().zip(image);
        assert!(pairs.all(|(known, found)| known.is_none_or(|byte| byte == found)));
    }
}

/// Runs `cases` random sequences of steps, or as many as the environment specifies.
fn hold(cases: u32, failures: &'static [Failure]) {
    let wanted = std::env::var("PEERBAR_TEST_CASES").ok();
    let cases = wanted.map_or(cases, |text| text.parse().unwrap());
    let setup = (
        prop::sample::select(failures),
        prop::sample::select(&[512, 4096][..]),
        (any::<bool>(), 1_u8..3),
    );
    let steps = prop::collection::vec(step(), 1..80);
    let mut runner = TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    });
    let outcome = runner.run(&(setup, steps), |((failure, block, how), steps)| {
        let mut model = Model::new(failure, block, how);
        for step in steps {
            model.take(step);
        }
        model.check_image();
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn shortened_images_hold_what_the_model_holds() {
    hold(4, &[Failure::Short, Failure::Sealed]);
}

#[test]
#[ignore = "needs root for a loop device; scripts/test runs it"]
fn full_and_lossy_loop_devices_hold_what_the_model_holds() {
    hold(
        40,
        &[Failure::Full, Failure::Lossy(512), Failure::Lossy(4096)],
    );
}
