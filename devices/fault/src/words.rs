//! The words of a rule that name values of other crates.

use peerbar_nvme_spec::command::{AdminOpcode, NvmOpcode};
use peerbar_nvme_spec::completion::Status;

/// Opcodes of I/O commands that a disk executes.
pub(crate) const OPCODES: [(&str, NvmOpcode); 7] = [
    ("read", NvmOpcode::Read),
    ("write", NvmOpcode::Write),
    ("flush", NvmOpcode::Flush),
    ("write-zeroes", NvmOpcode::WriteZeroes),
    ("compare", NvmOpcode::Compare),
    ("verify", NvmOpcode::Verify),
    ("dataset-management", NvmOpcode::DatasetManagement),
];

/// Opcodes of admin commands that a disk executes.
pub(crate) const ADMIN_OPCODES: [(&str, AdminOpcode); 11] = [
    ("identify", AdminOpcode::Identify),
    ("get-log-page", AdminOpcode::GetLogPage),
    ("get-features", AdminOpcode::GetFeatures),
    ("set-features", AdminOpcode::SetFeatures),
    (
        "create-completion-queue",
        AdminOpcode::CreateCompletionQueue,
    ),
    (
        "create-submission-queue",
        AdminOpcode::CreateSubmissionQueue,
    ),
    (
        "delete-completion-queue",
        AdminOpcode::DeleteCompletionQueue,
    ),
    (
        "delete-submission-queue",
        AdminOpcode::DeleteSubmissionQueue,
    ),
    ("asynchronous-event-request", AdminOpcode::AsyncEventRequest),
    ("abort", AdminOpcode::Abort),
    ("doorbell-buffer-config", AdminOpcode::DoorbellBufferConfig),
];

/// Opcodes of a GPU's commands (`devices/gpu/INTERFACE.md`, Commands).
pub(crate) const GPU_OPCODES: [(&str, u8); 8] = [
    ("nop", 0),
    ("copy", 1),
    ("fill", 2),
    ("compare", 3),
    ("crc32c", 4),
    ("launch", 5),
    ("write-word", 6),
    ("wait", 7),
];

/// Statuses with which a command may be made to fail. The first one is the default.
pub(crate) const STATUSES: [(&str, Status); 7] = [
    ("internal-error", Status::INTERNAL_ERROR),
    ("abort-requested", Status::ABORT_REQUESTED),
    ("capacity-exceeded", Status::CAPACITY_EXCEEDED),
    ("data-transfer-error", Status::DATA_TRANSFER_ERROR),
    ("lba-out-of-range", Status::LBA_OUT_OF_RANGE),
    ("unrecovered-read-error", Status::UNRECOVERED_READ_ERROR),
    ("write-fault", Status::WRITE_FAULT),
];

/// Returns the value of a word.
pub(crate) fn value<T: Copy>(words: &[(&str, T)], word: &str) -> Option<T> {
    let found = words.iter().find(|(known, _)| *known == word);
    found.map(|(_, value)| *value)
}

/// Returns the word of a value.
pub(crate) fn word<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> Option<&'static str> {
    let found = words.iter().find(|(_, known)| known == value);
    found.map(|(word, _)| *word)
}

/// Returns all words, as a list for a message.
pub(crate) fn list<T>(words: &[(&str, T)]) -> String {
    let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    words.join(", ")
}
