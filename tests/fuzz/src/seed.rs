//! Handmade seeds: bytes in the format of a target, and a check that the corpus has them.

use std::path::Path;

/// If set, the tests write the seeds.
const UPDATE: &str = "UPDATE_SEEDS";

/// A seed. Each method adds a part to it.
#[derive(Clone, Default)]
pub(crate) struct Seed(Vec<u8>);

impl Seed {
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u16(self, number: u16) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    pub(crate) fn u32(self, number: u32) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    pub(crate) fn u64(self, number: u64) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    /// Adds the variant `number` of an enum of `count`, in the encoding of `arbitrary`: the upper
    /// half of the product with `count`.
    pub(crate) fn variant(self, number: u32, count: u32) -> Self {
        let least = (u64::from(number) << 32).div_ceil(count.into());
        self.u32(u32::try_from(least).expect("a variant"))
    }

    /// Adds one more element of a list, which is an enum, in the encoding of `arbitrary`.
    pub(crate) fn step(self, number: u32, count: u32) -> Self {
        self.bytes(&[1]).variant(number, count)
    }

    /// Adds the end of a list, in the encoding of `arbitrary`.
    pub(crate) fn end(self) -> Self {
        self.bytes(&[0])
    }

    /// Adds a list of bytes, in the encoding of `arbitrary`.
    pub(crate) fn list(self, bytes: &[u8]) -> Self {
        let all = bytes
            .iter()
            .fold(self, |seed, byte| seed.bytes(&[1, *byte]));
        all.end()
    }

    /// Checks that the corpus of `target` has it as `name`, or writes it there. Returns its bytes.
    pub(crate) fn in_corpus(self, target: &str, name: &str) -> Vec<u8> {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        let path = corpus.join(target).join(name);
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(&path, &self.0).expect("the corpus");
        }
        let found = std::fs::read(&path).unwrap_or_default();
        assert_eq!(found, self.0, "{target}/{name}: {UPDATE}=1 writes it");
        found
    }
}

/// Returns the seeds of a target, with their names.
pub(crate) fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let files = std::fs::read_dir(folder.join(target)).expect("the corpus");
    let seed = |file: std::io::Result<std::fs::DirEntry>| {
        let path = file.expect("the corpus").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        (name.into_owned(), std::fs::read(&path).expect("a seed"))
    };
    let seeds: Vec<_> = files.map(seed).collect();
    assert!(!seeds.is_empty(), "{target} has a corpus");
    seeds
}

/// Returns the names of steps, from their `Debug` text.
pub(crate) fn names<T: std::fmt::Debug>(steps: &[T]) -> Vec<String> {
    let name = |step: &T| {
        let text = format!("{step:?}");
        let end = text.find(|c: char| !c.is_alphanumeric());
        text[..end.unwrap_or(text.len())].to_owned()
    };
    steps.iter().map(name).collect()
}
