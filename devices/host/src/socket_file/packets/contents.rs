//! The bytes of a message in postcard's format.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// The reason why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ContentsError {
    /// The bytes do not have the format.
    #[error("invalid message: {0}")]
    Format(#[from] postcard::Error),
    /// Bytes follow the message.
    #[error("message followed by {0} extra bytes")]
    Longer(usize),
    /// A field has an invalid value.
    #[error("message with an invalid {0}")]
    Value(&'static str),
}

/// Returns the bytes of a message. The message must contain nothing that postcard refuses.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(message, Vec::new()).unwrap_or_default()
}

/// Returns the message in these bytes, unless `wrong_field` names a field of it.
///
/// # Errors
/// [`ContentsError`].
pub fn decode<M: DeserializeOwned>(
    bytes: &[u8],
    wrong_field: impl FnOnce(&M) -> Option<&'static str>,
) -> Result<M, ContentsError> {
    let (message, rest) = postcard::take_from_bytes(bytes)?;
    if !rest.is_empty() {
        return Err(ContentsError::Longer(rest.len()));
    }
    match wrong_field(&message) {
        Some(field) => Err(ContentsError::Value(field)),
        None => Ok(message),
    }
}
