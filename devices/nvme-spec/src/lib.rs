//! NVMe registers, commands and logs as typed structs.
