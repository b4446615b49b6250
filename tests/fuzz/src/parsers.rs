//! Parsers: code that reads bytes or text from an untrusted source and keeps no state from one
//! input to the next.

pub mod config_space;
pub mod dma_log;
pub mod exec_messages;
pub mod fabric_message;
pub mod fabric_rule;
pub mod fault_rule;
pub mod flight_record;
pub mod guest_words;
pub mod ktap_report;
pub mod machine_text;
pub mod program_report;
pub mod scenario;
pub mod switch_message;
pub mod vfio_user_decoder;
pub mod vfio_user_framing;
