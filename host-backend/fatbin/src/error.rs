//! Why an image is refused.

use thiserror::Error;

/// Why an image could not be turned into PTX.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum ImageError {
    /// A header or payload reaches past the end.
    #[error("the image is truncated")]
    Truncated,
    /// Neither PTX nor a fat binary.
    #[error("the image is neither PTX nor a fat binary")]
    NotAnImage,
    /// The PTX is not UTF-8 text.
    #[error("the PTX of the image is not text")]
    NotText,
    /// The PTX is larger than [`crate::MAX_PTX`].
    #[error("the PTX of the image is too large")]
    TooLarge,
    /// The compressed payload is corrupt.
    #[error("the image's compressed payload is corrupt: {0}")]
    Compression(String),
    /// Only machine code, or PTX for newer devices.
    #[error("the image has no PTX that this device can run")]
    NoBinary,
}
