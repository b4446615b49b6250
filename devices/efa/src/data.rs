//! The data path: from a doorbell to a completion.
